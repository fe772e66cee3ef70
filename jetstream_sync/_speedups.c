/*
 * The optional C extension: the code that runs for every sent or received message.
 *
 * `read_messages` parses messages; it is the fast path of `jetstream_sync.protocol.parser.Parser`. It takes
 * complete, ordinary messages from the start of a buffer, and stops at anything else: another operation, an
 * incomplete message, an unusual or invalid control line. The parser continues there in Python, so that one
 * implementation decides what is an error.
 *
 * `Encoder` encodes ordinary messages, for `jetstream_sync.client.encoder.MessageEncoder`. It calls the method in
 * Python for an invalid or unusual message, so that one implementation decides what is an error.
 *
 * `MessageFields` holds the fields of `jetstream_sync.Msg`, with the constructor.
 *
 * `OutputBuffer` appends messages to the buffer of `jetstream_sync.client.writer.Writer`, and sends it with one that
 * is sent now. `receive_reply` receives its reply, for `jetstream_sync.client.direct_reads.DirectReads`.
 *
 * `FutureFields` holds the fields of `jetstream_sync.jetstream.publish.PubAckFuture`.
 * `settle_futures` settles runs of them. `parse_pub_ack` parses ordinary acknowledgements.
 *
 * `PackedRun` holds received messages for receivers that take whole columns, which `_columns.c` makes.
 *
 * `jetstream_sync/speedups.py` selects this module or its twin in Python.
 */

#include "_speedups.h"

/* `OutputBuffer.append` and `receive_reply` use the socket themselves; elsewhere Python does. */
#if defined(__linux__) || defined(__APPLE__)
#define USES_SOCKETS 1
#include <errno.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <time.h>
#ifndef MSG_NOSIGNAL /* macOS; Python ignores SIGPIPE */
#define MSG_NOSIGNAL 0
#endif
#else
#define USES_SOCKETS 0
#endif

#ifndef Py_BEGIN_CRITICAL_SECTION /* before Python 3.13 */
#define Py_BEGIN_CRITICAL_SECTION(object) {
#define Py_END_CRITICAL_SECTION() }
#endif

#ifdef Py_GIL_DISABLED
#define WITH_GIL 0
#else
#define WITH_GIL 1
#endif

/* --- parsing ------------------------------------------------------------------------------------------- */

/* The most words of a control line, without its kind: subject, sid, reply, header size, size. */
#define MAX_WORDS 5
/* A message in the buffer. */
typedef struct {
    Word subject, reply, header, payload;
    long long sid;
    const char *end;
} Message;

/* Split a line at its spaces. Return the number of words; 0: a word is empty, or there are too many. */
static int
split(const char *line, const char *line_end, Word *words)
{
    for (int count = 0; count < MAX_WORDS; count++) {
        const char *space = memchr(line, ' ', (size_t)(line_end - line));
        const char *end = space != NULL ? space : line_end;
        if (end == line) {
            return 0;
        }
        words[count].start = line;
        words[count].length = end - line;
        if (space == NULL) {
            return count + 1;
        }
        line = space + 1;
    }
    return 0;
}

/* Find the message at the start of the bytes. Return 0 if these are anything else, or not complete. */
static int
find_message(const char *at, const char *end, long long limit, Message *message)
{
    if (end - at < 5) {
        return 0;
    }
    int has_header = at[0] == 'H';
    const char *line = at + has_header;
    if (memcmp(line, "MSG ", 4) != 0) {
        return 0;
    }
    line += 4;
    const char *line_end = memchr(line, '\r', (size_t)(end - line));
    if (line_end == NULL || end - line_end < 2 || line_end[1] != '\n') {
        return 0;
    }
    Word words[MAX_WORDS];
    int count = split(line, line_end, words);
    int has_reply = count == 4 + has_header;
    if (!has_reply && count != 3 + has_header) {
        return 0;
    }
    long long size = number(words[count - 1]);
    long long header_size = has_header ? number(words[count - 2]) : 0;
    const char *body = line_end + 2;
    message->sid = number(words[1]);
    if (message->sid < 0 || header_size < 0 || header_size > size || size > limit
        || size > end - body - 2 || body[size] != '\r' || body[size + 1] != '\n') {
        return 0;
    }
    message->subject = words[0];
    message->reply = has_reply ? words[2] : (Word){body, 0};
    message->header = (Word){body, (Py_ssize_t)header_size};
    message->payload = (Word){body + header_size, (Py_ssize_t)(size - header_size)};
    message->end = body + size + 2;
    return 1;
}

/*
 * Return a message as a tuple of bytes, a `RawMessage`.
 *
 * Most messages in a row have the same subject, so the bytes of the last one are used again.
 */
static PyObject *
make_delivery(const Message *message, PyObject **last_subject)
{
    Word subject = message->subject;
    if (*last_subject == NULL || PyBytes_GET_SIZE(*last_subject) != subject.length
        || memcmp(PyBytes_AS_STRING(*last_subject), subject.start, (size_t)subject.length) != 0) {
        PyObject *bytes = PyBytes_FromStringAndSize(subject.start, subject.length);
        if (bytes == NULL) {
            return NULL;
        }
        Py_XSETREF(*last_subject, bytes);
    }
    PyObject *delivery = PyTuple_New(4);
    if (delivery == NULL) {
        return NULL;
    }
    PyTuple_SET_ITEM(delivery, 0, Py_NewRef(*last_subject));
    const Word others[] = {message->reply, message->header, message->payload};
    for (int i = 0; i < 3; i++) {
        PyObject *bytes = PyBytes_FromStringAndSize(others[i].start, others[i].length);
        if (bytes == NULL) {
            Py_DECREF(delivery);
            return NULL;
        }
        PyTuple_SET_ITEM(delivery, i + 1, bytes);
    }
    return delivery;
}

/* --- packed runs ----------------------------------------------------------------------------------------- */

static void
packed_dealloc(PackedRun *self)
{
    PyTypeObject *type = Py_TYPE(self);
    Py_XDECREF(self->data);
    PyMem_Free(self->messages);
    type->tp_free(self);
    Py_DECREF(type);
}

static Py_ssize_t
packed_length(PackedRun *self)
{
    return self->count;
}

static PyObject *
item_at(PackedRun *self, Py_ssize_t index)
{
    if (index < 0 || index >= self->count) {
        PyErr_SetString(PyExc_IndexError, "the run has no such message");
        return NULL;
    }
    Word fields[FIELDS];
    for (int i = 0; i < FIELDS; i++) {
        fields[i] = packed_field(self, index, i);
    }
    return Py_BuildValue("(y#y#y#y#)", fields[0].start, fields[0].length, fields[1].start, fields[1].length,
                         fields[2].start, fields[2].length, fields[3].start, fields[3].length);
}

/* Threads may share the iterator that takes the messages of a run. */
static PyObject *
packed_item(PackedRun *self, Py_ssize_t index)
{
    PyObject *item;
    Py_BEGIN_CRITICAL_SECTION(self);
    item = item_at(self, index);
    Py_END_CRITICAL_SECTION();
    return item;
}

/* Append a message of the data. Return -1 after an error. */
static int
packed_append(PackedRun *self, const Message *message)
{
    if (self->count == self->room) {
        Py_ssize_t room = 2 * self->room + 16;
        Packed *messages = PyMem_Realloc(self->messages, (size_t)room * sizeof(Packed));
        if (messages == NULL) {
            PyErr_NoMemory();
            return -1;
        }
        self->messages = messages;
        self->room = room;
    }
    const Word fields[] = {message->subject, message->reply, message->header, message->payload};
    Packed *packed = &self->messages[self->count++];
    for (int i = 0; i < FIELDS; i++) {
        packed->start[i] = (uint32_t)(fields[i].start - PyBytes_AS_STRING(self->data));
        packed->length[i] = (uint32_t)fields[i].length;
    }
    return 0;
}

static PyObject *
packed_pop(PackedRun *self, PyObject *Py_UNUSED(arguments))
{
    PyObject *last;
    Py_BEGIN_CRITICAL_SECTION(self);
    last = item_at(self, self->count - 1);
    self->count -= last != NULL;
    Py_END_CRITICAL_SECTION();
    return last;
}

static PyMethodDef packed_methods[] = {
    {"pop", (PyCFunction)packed_pop, METH_NOARGS, "Remove and return the last message."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot packed_slots[] = {
    {Py_tp_dealloc, packed_dealloc},
    {Py_tp_methods, packed_methods},
    {Py_sq_length, packed_length},
    {Py_sq_item, packed_item},
    {0, NULL},
};

static PyType_Spec packed_spec = {
    .name = "jetstream_sync._speedups.PackedRun",
    .basicsize = sizeof(PackedRun),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = packed_slots,
};

/* Append a run without messages to the operations. Return its list, or its packed run if it has data. */
static PyObject *
add_run(PyObject *module, PyObject *operations, PyObject *run_type, long long sid, PyObject *data)
{
    PyObject *deliveries;
    if (data == NULL) {
        deliveries = PyList_New(0);
    }
    else {
        PyTypeObject *type = ((State *)PyModule_GetState(module))->packed_type;
        deliveries = type->tp_alloc(type, 0);
        if (deliveries != NULL) {
            ((PackedRun *)deliveries)->data = Py_NewRef(data);
        }
    }
    if (deliveries == NULL) {
        return NULL;
    }
    PyObject *run = PyObject_CallFunction(run_type, "LO", sid, deliveries);
    int added = run != NULL && PyList_Append(operations, run) == 0;
    Py_XDECREF(run);
    if (!added) {
        Py_CLEAR(deliveries);
    }
    return deliveries;
}

/* Return whether the messages of a subscription are packed; -1 after an error. */
static int
wants_packed(PyObject *packed_sids, long long sid, PyObject *data)
{
    if (PySet_Size(packed_sids) < 1 || PyBytes_GET_SIZE(data) > INT32_MAX) {
        return PyErr_Occurred() ? -1 : 0;
    }
    PyObject *number = PyLong_FromLongLong(sid);
    int wanted = number == NULL ? -1 : PySet_Contains(packed_sids, number);
    Py_XDECREF(number);
    return wanted;
}

PyDoc_STRVAR(read_messages_doc,
"read_messages(data, limit, run_type, packed_sids, /)\n"
"--\n"
"\n"
"Parse the complete messages at the start of the data.\n"
"\n"
"Return the runs, ``run_type(sid, deliveries)``; how many bytes of the data they take; and how many of\n"
"these are headers and payloads. A message of more than ``limit`` bytes is not parsed. The deliveries are a\n"
"list, or a packed run for the ids of subscriptions in a set.");

static PyObject *
read_messages(PyObject *module, PyObject *args)
{
    PyObject *data, *run_type, *packed_sids;
    long long limit;
    if (!PyArg_ParseTuple(args, "SLOO:read_messages", &data, &limit, &run_type, &packed_sids)) {
        return NULL;
    }
    const char *start = PyBytes_AS_STRING(data);
    const char *end = start + PyBytes_GET_SIZE(data);
    PyObject *operations = PyList_New(0);
    if (operations == NULL) {
        return NULL;
    }
    const char *at = start;
    long long message_bytes = 0, run_sid = -1;
    PyObject *deliveries = NULL; /* of the current run */
    PyObject *last_subject = NULL;
    int packed = 0;
    Message message;
    while (find_message(at, end, limit, &message)) {
        if (message.sid != run_sid) {
            packed = wants_packed(packed_sids, message.sid, data);
            if (packed < 0) {
                goto failed;
            }
            Py_XSETREF(deliveries, add_run(module, operations, run_type, message.sid, packed ? data : NULL));
            if (deliveries == NULL) {
                goto failed;
            }
            run_sid = message.sid;
        }
        int status;
        if (packed) {
            status = packed_append((PackedRun *)deliveries, &message);
        }
        else {
            PyObject *delivery = make_delivery(&message, &last_subject);
            if (delivery == NULL) {
                goto failed;
            }
            status = PyList_Append(deliveries, delivery);
            Py_DECREF(delivery);
        }
        if (status < 0) {
            goto failed;
        }
        message_bytes += message.header.length + message.payload.length;
        at = message.end;
    }
    Py_XDECREF(deliveries);
    Py_XDECREF(last_subject);
    return Py_BuildValue("NnL", operations, (Py_ssize_t)(at - start), message_bytes);

failed:
    Py_XDECREF(deliveries);
    Py_XDECREF(last_subject);
    Py_DECREF(operations);
    return NULL;
}

/* --- encoding ------------------------------------------------------------------------------------------ */

/* The longest header block in bytes. */
#define MAX_HEADER 1024
/* The most bytes of a command line: HPUB, two subjects, two sizes, spaces and the line end. */
#define MAX_LINE (2 * MAX_SUBJECT + 64)

/* Get the characters of a str. Return 0 if the object is anything else than a str of ASCII characters. */
static int
ascii(PyObject *text, Word *word)
{
    if (!PyUnicode_CheckExact(text) || !PyUnicode_IS_COMPACT_ASCII(text)) {
        return 0;
    }
    word->start = PyUnicode_DATA(text);
    word->length = PyUnicode_GET_LENGTH(text);
    return 1;
}

/* Return whether the name of a header is valid: printable ASCII without a colon. */
static int
is_header_name(Word name)
{
    for (Py_ssize_t i = 0; i < name.length; i++) {
        if (name.start[i] <= ' ' || name.start[i] == 0x7f || name.start[i] == ':') {
            return 0;
        }
    }
    return name.length > 0;
}

/* Return whether the value of a header is valid: without a line break and a NUL. */
static int
is_header_value(Word value)
{
    size_t length = (size_t)value.length;
    return !memchr(value.start, '\n', length) && !memchr(value.start, '\r', length)
        && !memchr(value.start, '\0', length);
}

/* Encode headers. Return 0 if they are not `None` or a short, valid dict of str to str, in ASCII. */
static int
append_headers(Text *block, PyObject *headers)
{
    if (headers == Py_None) {
        return 1;
    }
    if (!PyDict_CheckExact(headers)) {
        return 0;
    }
    int usual = 1;
    Py_ssize_t position = 0;
    PyObject *key, *item;
    Word name, value;
    Py_BEGIN_CRITICAL_SECTION(headers);
    while (usual && PyDict_Next(headers, &position, &key, &item)) {
        usual = (block->length > 0 || append(block, "NATS/1.0\r\n", 10))
            && ascii(key, &name) && is_header_name(name) && ascii(item, &value) && is_header_value(value)
            && append(block, name.start, name.length) && append(block, ": ", 2)
            && append(block, value.start, value.length) && append(block, "\r\n", 2);
    }
    Py_END_CRITICAL_SECTION();
    return usual && (block->length == 0 || append(block, "\r\n", 2));
}

/* The parts of a command, and the sizes of headers and payload, and of all. */
typedef struct {
    char line_bytes[MAX_LINE], block_bytes[MAX_HEADER];
    Text line, block;
    PyObject *payload;
    Py_ssize_t size, length;
} Command;

/* Compose the command for a message. Return 0 if the message is invalid or unusual. */
static int
compose(Command *command, Word subject, PyObject *payload, Word reply, PyObject *headers, Py_ssize_t max_payload)
{
    Text *line = &command->line, *block = &command->block;
    *line = (Text){command->line_bytes, 0, MAX_LINE};
    *block = (Text){command->block_bytes, 0, MAX_HEADER};
    if (!PyBytes_CheckExact(payload) || !append_headers(block, headers)) {
        return 0;
    }
    command->payload = payload;
    command->size = block->length + PyBytes_GET_SIZE(payload);
    int usual = command->size <= max_payload && append(line, block->length ? "HPUB " : "PUB ", block->length ? 5 : 4)
        && append(line, subject.start, subject.length) && append(line, " ", 1)
        && (reply.length == 0 || (append(line, reply.start, reply.length) && append(line, " ", 1)))
        && (block->length == 0 || (append_number(line, block->length) && append(line, " ", 1)))
        && append_number(line, command->size) && append(line, "\r\n", 2);
    command->length = line->length + command->size + 2;
    return usual;
}

/* Write a command to a place with room for it. */
static void
write_command(const Command *command, char *place)
{
    Text whole = {place, 0, command->length};
    append(&whole, command->line.start, command->line.length);
    append(&whole, command->block.start, command->block.length);
    append(&whole, PyBytes_AS_STRING(command->payload), PyBytes_GET_SIZE(command->payload));
    append(&whole, "\r\n", 2);
}

/* The fields of a `MessageEncoder` that the functions below use, with its names. */
typedef struct {
    PyObject_HEAD
    Py_ssize_t max_payload;
    char accepts_headers;
} Encoder;

static PyMemberDef encoder_members[] = {
    {"max_payload", T_PYSSIZET, offsetof(Encoder, max_payload), 0, NULL},
    {"accepts_headers", T_BOOL, offsetof(Encoder, accepts_headers), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

/* Find the bytes of a subject: of a `str`, which must be valid, or of `bytes`. Return 0 if it is unusual. */
static int
find_subject(PyObject *subject, int is_text, int is_optional, Word *word)
{
    if (!is_text) {
        *word = (Word){NULL, 0};
        if (!PyBytes_CheckExact(subject)) {
            return 0;
        }
        *word = (Word){PyBytes_AS_STRING(subject), PyBytes_GET_SIZE(subject)};
        return 1;
    }
    return ascii(subject, word) && ((is_optional && word->length == 0) || is_subject(*word));
}

/* Compose the command of a message: a subject, a payload, a reply subject and headers. Return as `compose`. */
static int
compose_message(Encoder *self, Command *command, PyObject *const *args, Py_ssize_t count, int is_text)
{
    Word subject, reply = {NULL, 0};
    PyObject *headers = count > 3 ? args[3] : Py_None;
    return count >= 2 && count <= 4 && (headers == Py_None || self->accepts_headers)
        && find_subject(args[0], is_text, 0, &subject)
        && (count < 3 || find_subject(args[2], is_text, 1, &reply))
        && compose(command, subject, args[1], reply, headers, self->max_payload);
}

/* Call a method in Python with the same arguments. */
static PyObject *
call_method(PyObject *self, const char *method, PyObject *const *args, Py_ssize_t count)
{
    PyObject *name = PyUnicode_InternFromString(method);
    PyObject *call = name != NULL ? PyObject_GetAttr(self, name) : NULL;
    PyObject *result = call != NULL ? PyObject_Vectorcall(call, args, (size_t)count, NULL) : NULL;
    Py_XDECREF(name);
    Py_XDECREF(call);
    return result;
}

/* Encode a message; call the method in Python for an invalid or unusual one. */
static PyObject *
encode_or_call(Encoder *self, PyObject *const *args, Py_ssize_t count, int is_text, const char *method)
{
    Command command;
    if (!compose_message(self, &command, args, count, is_text)) {
        return call_method((PyObject *)self, method, args, count);
    }
    PyObject *bytes = PyBytes_FromStringAndSize(NULL, command.length);
    PyObject *number = PyLong_FromSsize_t(command.size);
    PyObject *encoded = bytes != NULL && number != NULL ? PyTuple_Pack(2, bytes, number) : NULL;
    if (encoded != NULL) {
        write_command(&command, PyBytes_AS_STRING(bytes));
    }
    Py_XDECREF(number);
    Py_XDECREF(bytes);
    return encoded;
}

static PyObject *
encoder_message(Encoder *self, PyObject *const *args, Py_ssize_t count)
{
    return encode_or_call(self, args, count, 1, "_encode_message");
}

static PyObject *
encoder_command(Encoder *self, PyObject *const *args, Py_ssize_t count)
{
    return encode_or_call(self, args, count, 0, "_encode_command");
}

static PyMethodDef encoder_methods[] = {
    {"encode_message", (PyCFunction)(void (*)(void))encoder_message, METH_FASTCALL, NULL},
    {"encode_command", (PyCFunction)(void (*)(void))encoder_command, METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot encoder_slots[] = {
    {Py_tp_members, encoder_members},
    {Py_tp_methods, encoder_methods},
    {0, NULL},
};

static PyType_Spec encoder_spec = {
    .name = "jetstream_sync._speedups.Encoder",
    .basicsize = sizeof(Encoder),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
    .slots = encoder_slots,
};

/*
 * Between these two, no other code runs: before Python 3.12, creating an object may start a garbage collection,
 * whose finalizers are code of any kind, and other threads run meanwhile.
 */
#if PY_VERSION_HEX < 0x030C0000
#define PAUSE_GC() PyGC_Disable()
#define RESUME_GC(was_enabled) ((was_enabled) ? (void)PyGC_Enable() : (void)0)
#else
#define PAUSE_GC() 0
#define RESUME_GC(was_enabled) ((void)(was_enabled))
#endif

/* --- replies --------------------------------------------------------------------------------------------- */

PyDoc_STRVAR(receive_reply_doc,
"receive_reply(acquire, release, fd, subject, sid, messages, received, /)\n"
"--\n"
"\n"
"Receive a reply, or else the bytes that came instead of it; see `jetstream_sync.speedups`.");

/* The largest number of bytes that are received at once. */
#define REPLY_SIZE (16 * 1024)

#if USES_SOCKETS
/* Call a method of a lock. Return whether the result is true, -1 after an error. */
static int
call_lock(PyObject *method, PyObject *argument)
{
    PyObject *result = argument != NULL ? PyObject_CallOneArg(method, argument) : PyObject_CallNoArgs(method);
    int is_true = result == NULL ? -1 : PyObject_IsTrue(result);
    Py_XDECREF(result);
    return is_true;
}

/* Append an item to a list or a deque; -1 after an error. */
static int
append_to(PyObject *items, PyObject *item)
{
    if (PyList_CheckExact(items)) {
        return PyList_Append(items, item);
    }
    PyObject *done = PyObject_CallMethod(items, "append", "(O)", item);
    Py_XDECREF(done);
    return done == NULL ? -1 : 0;
}

/* Return whether bytes are one message, with the subject if there is one, and the id. */
static int
is_reply(const char *data, Py_ssize_t length, PyObject *subject, long long sid, Message *message)
{
    if (!find_message(data, data + length, REPLY_SIZE, message) || message->end != data + length
        || message->sid != sid) {
        return 0;
    }
    return subject == Py_None
        || (message->subject.length == PyBytes_GET_SIZE(subject)
            && memcmp(message->subject.start, PyBytes_AS_STRING(subject), (size_t)message->subject.length) == 0);
}

static PyObject *
receive_reply(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count)
{
    if (count != 7 || (args[3] != Py_None && !PyBytes_CheckExact(args[3])) || !PyList_CheckExact(args[6])) {
        PyErr_SetString(PyExc_TypeError,
                        "expected two methods of a lock, a file descriptor, a subject, an id and two lists");
        return NULL;
    }
    long fd = PyLong_AsLong(args[2]);
    long long sid = PyLong_AsLongLong(args[4]);
    if (PyErr_Occurred()) {
        return NULL;
    }
    int is_free = call_lock(args[0], Py_False);
    if (is_free <= 0) {
        return is_free < 0 ? NULL : Py_NewRef(Py_False);
    }
    char data[REPLY_SIZE];
    ssize_t length;
    int error;
    Py_BEGIN_ALLOW_THREADS
    length = recv((int)fd, data, sizeof(data), 0);
    error = errno;
    Py_END_ALLOW_THREADS
    /* A signal handler may wait for the reader, which needs the lock. So it runs when this has returned. */
    PyObject *result = Py_False;
    int was_enabled = PAUSE_GC();
    if (length >= 0) {
        Message message;
        PyObject *item, *subject = args[3] == Py_None ? NULL : Py_NewRef(args[3]);
        if (is_reply(data, length, args[3], sid, &message)) {
            result = Py_True;
            item = make_delivery(&message, &subject);
        }
        else {
            item = PyBytes_FromStringAndSize(data, length);
        }
        if (item == NULL || append_to(args[result == Py_True ? 5 : 6], item) < 0) {
            result = NULL;
        }
        Py_XDECREF(item);
        Py_XDECREF(subject);
    }
    else if (error != EAGAIN && error != EWOULDBLOCK && error != EINTR) {
        errno = error;
        PyErr_SetFromErrno(PyExc_OSError);
        result = NULL;
    }
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    int released = call_lock(args[1], NULL);
    RESUME_GC(was_enabled);
    if (type != NULL || released >= 0) {
        PyErr_Restore(type, value, trace);
    }
    return released < 0 ? NULL : Py_XNewRef(result);
}
#endif

/* --- what the types have in common ----------------------------------------------------------------------- */

/*
 * Each type begins with this number of objects, so that these functions serve all of them. The constructors set
 * the objects in the order of the fields.
 */
#define OBJECTS 6

typedef struct {
    PyObject_HEAD
    PyObject *objects[OBJECTS];
} Instance;

static int
traverse(Instance *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    for (int i = 0; i < OBJECTS; i++) {
        Py_VISIT(self->objects[i]);
    }
    return 0;
}

static int
clear(Instance *self)
{
    for (int i = 0; i < OBJECTS; i++) {
        Py_CLEAR(self->objects[i]);
    }
    return 0;
}

static void
dealloc(Instance *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    /* A long chain of objects must not use up the C stack. */
    Py_TRASHCAN_BEGIN(self, dealloc)
    (void)clear(self);
    type->tp_free(self);
    Py_DECREF(type);
    Py_TRASHCAN_END
}

/* --- the fields of a message ----------------------------------------------------------------------------- */

typedef struct {
    PyObject_HEAD
    PyObject *subject, *reply, *header, *data, *core, *settled;
} MessageFields;

static PyMemberDef fields_members[] = {
    {"_subject", T_OBJECT_EX, offsetof(MessageFields, subject), 0, NULL},
    {"_reply", T_OBJECT_EX, offsetof(MessageFields, reply), 0, NULL},
    {"_header", T_OBJECT_EX, offsetof(MessageFields, header), 0, NULL},
    {"data", T_OBJECT_EX, offsetof(MessageFields, data), 0, NULL},
    {"_core", T_OBJECT_EX, offsetof(MessageFields, core), 0, NULL},
    {"_settled", T_OBJECT_EX, offsetof(MessageFields, settled), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

static int
fields_init(Instance *self, PyObject *args, PyObject *kwargs)
{
    PyObject *delivery, *core, *settled = Py_False;
    if (kwargs != NULL && PyDict_GET_SIZE(kwargs) > 0) {
        PyErr_SetString(PyExc_TypeError, "a message takes no keyword arguments");
        return -1;
    }
    if (!PyArg_UnpackTuple(args, "message", 2, 3, &delivery, &core, &settled)) {
        return -1;
    }
    if (!PyTuple_Check(delivery) || PyTuple_GET_SIZE(delivery) != 4) {
        PyErr_SetString(PyExc_TypeError, "a delivery is a tuple of subject, reply, header and payload");
        return -1;
    }
    for (int i = 0; i < OBJECTS; i++) {
        PyObject *value = i < 4 ? PyTuple_GET_ITEM(delivery, i) : i == 4 ? core : settled;
        Py_XSETREF(self->objects[i], Py_NewRef(value));
    }
    return 0;
}

static PyType_Slot fields_slots[] = {
    {Py_tp_new, PyType_GenericNew},
    {Py_tp_init, fields_init},
    {Py_tp_traverse, traverse},
    {Py_tp_clear, clear},
    {Py_tp_dealloc, dealloc},
    {Py_tp_members, fields_members},
    {0, NULL},
};

static PyType_Spec fields_spec = {
    .name = "jetstream_sync._speedups.MessageFields",
    .basicsize = sizeof(MessageFields),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .slots = fields_slots,
};

/* --- the output buffer ----------------------------------------------------------------------------------- */

/* The fields of a `Writer` that the functions below use, with its names and its rules. */
typedef struct {
    PyObject_HEAD
    /* With a GIL the methods `locked` of both locks, otherwise those that take and release the lock of the buffer. */
#if WITH_GIL
    PyObject *is_locked, *is_sending;
#else
    PyObject *acquire, *release;
#endif
    PyObject *buffer, *stream, *closed, *batch;
    long long out_msgs, out_bytes, unanswered, taken, taken_before;
    int flusher, fd;
    double sent_at;
} OutputBuffer;

/* The size of the buffer above which a thread that appends a message sends it: `_SEND_ABOVE_BYTES` in Python. */
#define SEND_ABOVE (64 * 1024)

/* When a command is sent: members of `Flush` in Python. */
enum { SOON = 1, NOW = 4 };

static PyMemberDef output_members[] = {
#if WITH_GIL
    {"_is_locked", T_OBJECT_EX, offsetof(OutputBuffer, is_locked), 0, NULL},
    {"_is_sending", T_OBJECT_EX, offsetof(OutputBuffer, is_sending), 0, NULL},
#else
    {"_acquire", T_OBJECT_EX, offsetof(OutputBuffer, acquire), 0, NULL},
    {"_release", T_OBJECT_EX, offsetof(OutputBuffer, release), 0, NULL},
#endif
    {"_buffer", T_OBJECT_EX, offsetof(OutputBuffer, buffer), 0, NULL},
    {"_stream", T_OBJECT_EX, offsetof(OutputBuffer, stream), 0, NULL},
    {"closed", T_OBJECT_EX, offsetof(OutputBuffer, closed), 0, NULL},
    {"_batch", T_OBJECT_EX, offsetof(OutputBuffer, batch), 0, NULL},
    {"out_msgs", T_LONGLONG, offsetof(OutputBuffer, out_msgs), 0, NULL},
    {"out_bytes", T_LONGLONG, offsetof(OutputBuffer, out_bytes), 0, NULL},
    {"unanswered", T_LONGLONG, offsetof(OutputBuffer, unanswered), 0, NULL},
    {"_taken", T_LONGLONG, offsetof(OutputBuffer, taken), 0, NULL},
    {"_taken_before", T_LONGLONG, offsetof(OutputBuffer, taken_before), 0, NULL},
    {"_flusher", T_INT, offsetof(OutputBuffer, flusher), 0, NULL},
    {"_sent_at", T_DOUBLE, offsetof(OutputBuffer, sent_at), 0, NULL},
    {"_fd", T_INT, offsetof(OutputBuffer, fd), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

/* Return whether the result of a method of a lock is the expected one; -1 after an error. */
static int
method_returns(PyObject *method, PyObject *argument, PyObject *expected)
{
    if (method == NULL) {
        return 0;
    }
    PyObject *result = argument != NULL ? PyObject_CallOneArg(method, argument) : PyObject_CallNoArgs(method);
    int is_expected = result == NULL ? -1 : result == expected;
    Py_XDECREF(result);
    return is_expected;
}

/*
 * Begin to change the buffer. Return 0 if that is left to Python, -1 after an error.
 *
 * With the GIL, no thread can run Python code until the change is done. So if no thread holds the lock, it need
 * not be taken here. Without the GIL the lock is taken, if it is free. No Python code runs while it is held, so an
 * interrupt cannot leave it locked.
 */
static int
begin_change(OutputBuffer *self)
{
#if WITH_GIL
    return method_returns(self->is_locked, NULL, Py_False);
#else
    return self->release == NULL ? 0 : method_returns(self->acquire, Py_False, Py_True);
#endif
}

/* End the change, and return its status; -1 after an error. */
static int
end_change(OutputBuffer *self, int status)
{
#if WITH_GIL
    (void)self;
    return status;
#else
    return method_returns(self->release, NULL, Py_None) < 0 ? -1 : status;
#endif
}

/* Make room at the end of the buffer. Return where it is, NULL after an error. */
static char *
extend(PyObject *buffer, Py_ssize_t more)
{
    Py_ssize_t length = PyByteArray_GET_SIZE(buffer) + more;
    /* By itself it grows by an eighth only. Above the limit it is sent next. */
    int is_full = length >= ((PyByteArrayObject *)buffer)->ob_alloc && length <= SEND_ABOVE;
    if ((is_full && PyByteArray_Resize(buffer, length + length / 2) < 0) || PyByteArray_Resize(buffer, length) < 0) {
        return NULL;
    }
    return PyByteArray_AS_STRING(buffer) + length - more;
}

/* Messages to append: their commands, in bytes or composed, and the other arguments of `append`. */
typedef struct {
    PyObject *bytes;
    const Command *composed;
    Py_ssize_t size;
    long long messages;
    int is_awaited;
} Outgoing;

/* Count messages that are appended or sent. */
static void
count_messages(OutputBuffer *self, const Outgoing *message)
{
    self->out_msgs += message->messages;
    self->out_bytes += message->size;
    if (!message->is_awaited) {
        self->unanswered += message->messages;
    }
}

/* Append a command, unless that is left to Python. Set the size of the buffer after it. Return as `try_append`. */
static int
append_command(OutputBuffer *self, const Outgoing *message, long flush, Py_ssize_t *buffered)
{
    /* Checked after a call, which may run other code: any field may be deleted or have any type. */
    if (self->buffer == NULL || !PyByteArray_CheckExact(self->buffer) || self->closed != Py_None
        || self->stream == NULL || self->stream == Py_None || self->flusher >= flush) {
        return 0;
    }
    const Command *composed = message->composed;
    Py_ssize_t length = composed != NULL ? composed->length : PyBytes_GET_SIZE(message->bytes);
    char *place = extend(self->buffer, length);
    if (place == NULL) {
        return -1;
    }
    if (composed != NULL) {
        write_command(composed, place);
    }
    else {
        memcpy(place, PyBytes_AS_STRING(message->bytes), (size_t)length);
    }
    count_messages(self, message);
    *buffered = PyByteArray_GET_SIZE(self->buffer);
    return 1;
}

/* Append the command of a message. Return 1 if that was done, 0 if it is left to Python, -1 after an error. */
static int
try_append(OutputBuffer *self, const Outgoing *message, long flush, Py_ssize_t *buffered)
{
    int begun = begin_change(self);
    return begun == 1 ? end_change(self, append_command(self, message, flush, buffered)) : begun;
}

/* Return `None`, after waiting if the buffer is above its limit. */
static PyObject *
wait_if_above(OutputBuffer *self, Py_ssize_t buffered, PyObject *deadline)
{
    if (buffered > SEND_ABOVE) {
        return PyObject_CallMethod((PyObject *)self, "_apply_backpressure", "(O)", deadline);
    }
    Py_RETURN_NONE;
}

/* Encode a message, and append it. */
static PyObject *
output_publish_message(OutputBuffer *self, PyTypeObject *defining_class, PyObject *const *args, Py_ssize_t count,
                       PyObject *names)
{
    State *state = PyType_GetModuleState(defining_class);
    Command command;
    Py_ssize_t buffered = 0;
    int appended = 0;
    if (count == 5 && names == NULL && state != NULL && PyObject_TypeCheck(args[0], state->encoder_type)
        && compose_message((Encoder *)args[0], &command, args + 1, 4, 1)) {
        Outgoing message = {NULL, &command, command.size, 1, 0};
        appended = try_append(self, &message, SOON, &buffered);
    }
    if (appended == 0) {
        return PyErr_Occurred() ? NULL : call_method((PyObject *)self, "_publish_message", args, count);
    }
    return appended < 0 ? NULL : wait_if_above(self, buffered, Py_None);
}

#if USES_SOCKETS && WITH_GIL
/* Return the time of Python's `time.monotonic()`. */
static double
monotonic(void)
{
    struct timespec now;
#ifdef __APPLE__
    (void)clock_gettime(CLOCK_UPTIME_RAW, &now);
#else
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
#endif
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Return whether this thread may send without taking the locks, see `begin_change`; -1 after an error. */
static int
may_send(OutputBuffer *self)
{
    int is_free = method_returns(self->is_locked, NULL, Py_False);
    if (is_free > 0) {
        is_free = method_returns(self->is_sending, NULL, Py_False);
    }
    if (is_free <= 0) {
        return is_free;
    }
    return self->batch != NULL && PyMemoryView_Check(self->batch) && PyMemoryView_GET_BUFFER(self->batch)->len == 0
        && self->buffer != NULL && PyByteArray_CheckExact(self->buffer)
        && PyByteArray_GET_SIZE(self->buffer) <= SEND_ABOVE
        && self->closed == Py_None && self->stream != NULL && self->stream != Py_None && self->fd >= 0;
}

/* Return the buffered commands with one behind them, NULL if that is left to Python. Runs no other code. */
static PyObject *
join_buffered(OutputBuffer *self, PyObject *command)
{
    Py_ssize_t buffered = PyByteArray_GET_SIZE(self->buffer);
    PyObject *joined = PyBytes_FromStringAndSize(NULL, buffered + PyBytes_GET_SIZE(command));
    if (joined == NULL) {
        PyErr_Clear();
        return NULL;
    }
    memcpy(PyBytes_AS_STRING(joined), PyByteArray_AS_STRING(self->buffer), (size_t)buffered);
    memcpy(PyBytes_AS_STRING(joined) + buffered, PyBytes_AS_STRING(command), (size_t)PyBytes_GET_SIZE(command));
    return joined;
}
#endif

/*
 * Send the buffer and the commands of messages. Return how many bytes were sent, and set `batch` to all of them;
 * 0 if it is left to Python, -1 after an error.
 *
 * Both locks must be free, and are not taken, see `begin_change`; without the GIL, Python sends. Nothing may be in
 * the middle of being sent.
 */
static Py_ssize_t
try_send(OutputBuffer *self, const Outgoing *message, PyObject **batch)
{
#if USES_SOCKETS && WITH_GIL
    /* Created first: an allocation may run other code. */
    int had_data = self->buffer == NULL || PyObject_Size(self->buffer) != 0;
    PyObject *emptied = had_data ? PyByteArray_FromStringAndSize(NULL, 0) : Py_NewRef(Py_None);
    int may = emptied == NULL || PyErr_Occurred() ? -1 : may_send(self);
    if (may <= 0 || had_data != (PyByteArray_GET_SIZE(self->buffer) != 0)) {
        Py_XDECREF(emptied);
        return may < 0 ? -1 : 0;
    }
    PyObject *data = had_data ? join_buffered(self, message->bytes) : Py_NewRef(message->bytes);
    int flags = MSG_DONTWAIT | MSG_NOSIGNAL;
    ssize_t sent = data == NULL ? 0 : send(self->fd, PyBytes_AS_STRING(data), (size_t)PyBytes_GET_SIZE(data), flags);
    if (sent <= 0) {
        Py_XDECREF(data);
        Py_DECREF(emptied);
        return 0; /* Python gets the same error, and handles it */
    }
    if (had_data) {
        PyObject *buffer = self->buffer;
        self->buffer = emptied;
        emptied = buffer;
    }
    count_messages(self, message);
    /* As `Writer._take`: everything that was counted has been taken from the buffer. */
    self->taken_before = self->taken;
    self->taken = self->unanswered;
    self->sent_at = monotonic();
    Py_DECREF(emptied);
    *batch = data;
    return sent;
#else
    (void)self, (void)message, (void)batch;
    return 0;
#endif
}

/* Keep commands of which the first bytes were sent. Nothing else can be sent in between. */
static int
keep_rest(OutputBuffer *self, PyObject *sending, Py_ssize_t sent)
{
    int was_enabled = PAUSE_GC();
    PyObject *batch = PyMemoryView_FromObject(sending);
    PyObject *counts = Py_BuildValue("[n]", sent);
    int done = batch == NULL || counts == NULL ? -1 : PyObject_SetAttrString((PyObject *)self, "_sent", counts);
    if (done == 0) {
        Py_XSETREF(self->batch, Py_NewRef(batch));
    }
    Py_XDECREF(batch);
    Py_XDECREF(counts);
    RESUME_GC(was_enabled);
    return done;
}

static PyObject *
output_append(OutputBuffer *self, PyObject *const *args, Py_ssize_t count)
{
    if (count < 3 || count > 6) {
        return PyErr_Format(PyExc_TypeError, "expected a command, its size and when it is sent, got %zd arguments",
                            count);
    }
    Outgoing message = {args[0], NULL, PyLong_AsSsize_t(args[1]), count > 3 ? PyLong_AsLongLong(args[3]) : 1,
                        count > 4 ? PyObject_IsTrue(args[4]) : 0};
    long flush = PyLong_AsLong(args[2]);
    if (PyErr_Occurred()) {
        return NULL;
    }
    Py_ssize_t buffered = 0, sent = 0;
    PyObject *batch = NULL;
    if (PyBytes_CheckExact(args[0])) {
        sent = flush == NOW ? try_send(self, &message, &batch) : try_append(self, &message, flush, &buffered);
    }
    if (sent <= 0) {
        return sent < 0 ? NULL : call_method((PyObject *)self, "_append", args, count);
    }
    if (batch == NULL) {
        return wait_if_above(self, buffered, count > 5 ? args[5] : Py_None);
    }
    int is_kept = sent == PyBytes_GET_SIZE(batch) ? 0 : keep_rest(self, batch, sent) < 0 ? -1 : 1;
    Py_DECREF(batch);
    if (is_kept) {
        return is_kept < 0 ? NULL : PyObject_CallMethod((PyObject *)self, "_wake_flusher", NULL);
    }
    Py_RETURN_NONE;
}

static PyMethodDef output_methods[] = {
    {"append", (PyCFunction)(void (*)(void))output_append, METH_FASTCALL, NULL},
    {"publish_message", (PyCFunction)(void (*)(void))output_publish_message,
     METH_METHOD | METH_FASTCALL | METH_KEYWORDS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyObject *
output_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    OutputBuffer *self = (OutputBuffer *)PyType_GenericNew(type, args, kwargs);
    if (self != NULL) {
        self->fd = -1;
    }
    return (PyObject *)self;
}

static PyType_Slot output_slots[] = {
    {Py_tp_new, output_new},
    {Py_tp_dealloc, dealloc},
    {Py_tp_traverse, traverse},
    {Py_tp_clear, clear},
    {Py_tp_members, output_members},
    {Py_tp_methods, output_methods},
    {0, NULL},
};

static PyType_Spec output_spec = {
    .name = "jetstream_sync._speedups.OutputBuffer",
    .basicsize = sizeof(OutputBuffer),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .slots = output_slots,
};

/* --- acknowledgements of published messages -------------------------------------------------------------- */

/* The fields of a `PubAckFuture`, with its names. */
typedef struct {
    PyObject_HEAD
    PyObject *subject, *message, *due, *core, *outcome, *watched;
} FutureFields;

/* The places of members. */
enum { MESSAGE = 1, OUTCOME = 4 };

static PyMemberDef future_members[] = {
    {"subject", T_OBJECT_EX, offsetof(FutureFields, subject), 0, NULL},
    {"message", T_OBJECT_EX, offsetof(FutureFields, message), 0, NULL},
    {"due", T_OBJECT_EX, offsetof(FutureFields, due), 0, NULL},
    {"_core", T_OBJECT_EX, offsetof(FutureFields, core), 0, NULL},
    {"_outcome", T_OBJECT_EX, offsetof(FutureFields, outcome), 0, NULL},
    {"_watched", T_OBJECT_EX, offsetof(FutureFields, watched), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

static int
future_init(Instance *self, PyObject *args, PyObject *Py_UNUSED(kwargs))
{
    if (PyTuple_GET_SIZE(args) != 4) {
        PyErr_SetString(PyExc_TypeError, "a future takes a subject, a message, the due time and a core");
        return -1;
    }
    for (int i = 0; i < OBJECTS; i++) {
        PyObject *value = i < 4 ? PyTuple_GET_ITEM(args, i) : i == 4 ? Py_None : Py_False;
        Py_XSETREF(self->objects[i], Py_NewRef(value));
    }
    return 0;
}

#if PY_VERSION_HEX < 0x030D0000
static int
PyDict_GetItemRef(PyObject *dict, PyObject *key, PyObject **value)
{
    *value = Py_XNewRef(PyDict_GetItemWithError(dict, key));
    return *value != NULL ? 1 : PyErr_Occurred() ? -1 : 0;
}

static int
PyDict_Pop(PyObject *dict, PyObject *key, PyObject **Py_UNUSED(value))
{
    return PyDict_DelItem(dict, key) < 0 ? -1 : 1;
}
#endif

/* Remove a future from the pending ones, and settle it. Return as `settle`. */
static int
take(PyObject *type, PyObject *pending, PyObject *token, PyObject *payload)
{
    PyObject *future;
    int found = PyDict_GetItemRef(pending, token, &future);
    if (found < 1) {
        return found == 0 ? 1 : -1; /* a late one */
    }
    int settled = 0;
    if (Py_TYPE(future) == (PyTypeObject *)type && ((FutureFields *)future)->watched == Py_False) {
        /* The thread that removes the future settles it. Others may read these fields meanwhile. */
        settled = PyDict_Pop(pending, token, NULL);
        if (settled == 1
            && (PyMember_SetOne((char *)future, &future_members[OUTCOME], payload) < 0
                || PyMember_SetOne((char *)future, &future_members[MESSAGE], Py_None) < 0)) {
            settled = -1;
        }
        settled = settled < 0 ? -1 : 1;
    }
    Py_DECREF(future);
    return settled;
}

/* Settle the future of an acknowledgement. Return 0 if that is left to Python, -1 after an error. */
static int
settle(PyObject *type, PyObject *pending, PyObject *delivery, Py_ssize_t token_at)
{
    if (!PyTuple_Check(delivery) || PyTuple_GET_SIZE(delivery) != 4) {
        PyErr_SetString(PyExc_TypeError, "a delivery is a tuple of four bytes objects");
        return -1;
    }
    PyObject *subject = PyTuple_GET_ITEM(delivery, 0), *header = PyTuple_GET_ITEM(delivery, 2),
             *payload = PyTuple_GET_ITEM(delivery, 3);
    if (!PyBytes_Check(subject) || !PyBytes_Check(header) || !PyBytes_Check(payload)) {
        PyErr_SetString(PyExc_TypeError, "a delivery is a tuple of four bytes objects");
        return -1;
    }
    Py_ssize_t length = PyBytes_GET_SIZE(subject) - token_at;
    /* A status has a header block and no payload. */
    if (token_at < 0 || length < 1 || (PyBytes_GET_SIZE(header) && !PyBytes_GET_SIZE(payload))) {
        return 0;
    }
    PyObject *token = PyBytes_FromStringAndSize(PyBytes_AS_STRING(subject) + token_at, length);
    if (token == NULL) {
        return -1;
    }
    int settled = take(type, pending, token, payload);
    Py_DECREF(token);
    return settled;
}

PyDoc_STRVAR(settle_futures_doc,
"settle_futures(future_type, pending, deliveries, token_at, /)\n"
"--\n"
"\n"
"Do the same as `PubAckFuture.settle_run`.");

/* The caller holds the lock of the futures. */
static PyObject *
settle_futures(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *type, *pending, *deliveries;
    Py_ssize_t token_at;
    if (!PyArg_ParseTuple(args, "OO!O!n:settle_futures", &type, &PyDict_Type, &pending, &PyList_Type,
                          &deliveries, &token_at)) {
        return NULL;
    }
    PyObject *others = PyList_New(0);
    /* Only the calling thread has the list of deliveries. */
    for (Py_ssize_t i = 0; others != NULL && i < PyList_GET_SIZE(deliveries); i++) {
        PyObject *delivery = Py_NewRef(PyList_GET_ITEM(deliveries, i));
        int settled = settle(type, pending, delivery, token_at);
        if (settled < 0 || (settled == 0 && PyList_Append(others, delivery) < 0)) {
            Py_CLEAR(others);
        }
        Py_DECREF(delivery);
    }
    return others;
}

static PyType_Slot future_slots[] = {
    {Py_tp_new, PyType_GenericNew},
    {Py_tp_init, future_init},
    {Py_tp_traverse, traverse},
    {Py_tp_clear, clear},
    {Py_tp_dealloc, dealloc},
    {Py_tp_members, future_members},
    {0, NULL},
};

static PyType_Spec future_spec = {
    .name = "jetstream_sync._speedups.FutureFields",
    .basicsize = sizeof(FutureFields),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .slots = future_slots,
};

PyDoc_STRVAR(parse_pub_ack_doc,
"parse_pub_ack(response, ack_type, defaults, /)\n"
"--\n"
"\n"
"Return an ``ack_type``, a subclass of tuple, of the stream, the sequence, and the defaults; ``None``: the\n"
"response has more than these, or a name that is not ASCII, or it is no acknowledgement.");

static PyObject *
parse_pub_ack(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count)
{
    if (count != 3 || !PyBytes_Check(args[0]) || !PyType_Check(args[1]) || !PyTuple_Check(args[2])) {
        PyErr_SetString(PyExc_TypeError, "parse_pub_ack() takes bytes, a type and a tuple");
        return NULL;
    }
    PyObject *response = args[0], *defaults = args[2];
    PyTypeObject *type = (PyTypeObject *)args[1];
    Word rest = {PyBytes_AS_STRING(response), PyBytes_GET_SIZE(response)};
    if (!skip(&rest, "{\"stream\":\"")) {
        Py_RETURN_NONE;
    }
    const char *stream = rest.start;
    while (rest.length && *rest.start > ' ' && *rest.start < 0x7f && !strchr("\"\\", *rest.start)) {
        rest.start++;
        rest.length--;
    }
    Py_ssize_t stream_length = rest.start - stream;
    /* nats-server 2.10 has the space. */
    if (!stream_length || !(skip(&rest, "\",\"seq\":") || skip(&rest, "\", \"seq\":"))
        || rest.length < 2 || rest.start[rest.length - 1] != '}') {
        Py_RETURN_NONE;
    }
    rest.length--;
    long long seq = *rest.start == '0' && rest.length > 1 ? -1 : number(rest);
    /* A struct sequence such as `time.struct_time`, which has hidden items, cannot be a base class. */
    if (seq < 1 || !PyType_IsSubtype(type, &PyTuple_Type)
        || !PyType_HasFeature(type, Py_TPFLAGS_BASETYPE)) {
        Py_RETURN_NONE;
    }
    PyObject *ack = type->tp_alloc(type, 2 + PyTuple_GET_SIZE(defaults));
    if (ack == NULL) {
        return NULL;
    }
#if PY_VERSION_HEX >= 0x030E0000
    ((PyTupleObject *)ack)->ob_hash = -1; /* not known yet; 0 would be taken for the hash */
#endif
    PyTuple_SET_ITEM(ack, 0, PyUnicode_FromStringAndSize(stream, stream_length));
    PyTuple_SET_ITEM(ack, 1, PyLong_FromLongLong(seq));
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(defaults); i++) {
        PyTuple_SET_ITEM(ack, 2 + i, Py_NewRef(PyTuple_GET_ITEM(defaults, i)));
    }
    if (PyTuple_GET_ITEM(ack, 0) == NULL || PyTuple_GET_ITEM(ack, 1) == NULL) {
        Py_CLEAR(ack);
    }
    else {
        PyObject_GC_UnTrack(ack); /* its items, and a named tuple has nothing else, refer to no object */
    }
    return ack;
}

/* --- the module ------------------------------------------------------------------------------------------ */

static int
add_type(PyObject *module, PyType_Spec *spec, const char *name)
{
    PyObject *type = PyType_FromModuleAndSpec(module, spec, NULL);
    if (type == NULL) {
        return -1;
    }
    int status = PyModule_AddObjectRef(module, name, type);
    Py_DECREF(type);
    return status;
}

static int
add_types(PyObject *module)
{
    State *state = PyModule_GetState(module);
    state->packed_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &packed_spec, NULL);
    state->encoder_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &encoder_spec, NULL);
    return state->packed_type == NULL
        || PyModule_AddObjectRef(module, "PackedRun", (PyObject *)state->packed_type) < 0
        || state->encoder_type == NULL
        || PyModule_AddObjectRef(module, "Encoder", (PyObject *)state->encoder_type) < 0
        || add_type(module, &fields_spec, "MessageFields") < 0
        || add_type(module, &output_spec, "OutputBuffer") < 0
        || add_type(module, &future_spec, "FutureFields") < 0 ? -1 : 0;
}

static PyMethodDef module_functions[] = {
#if USES_SOCKETS
    {"receive_reply", (PyCFunction)(void (*)(void))receive_reply, METH_FASTCALL, receive_reply_doc},
#endif
    {"parse_pub_ack", (PyCFunction)(void (*)(void))parse_pub_ack, METH_FASTCALL, parse_pub_ack_doc},
    {"read_messages", read_messages, METH_VARARGS, read_messages_doc},
    {"settle_futures", settle_futures, METH_VARARGS, settle_futures_doc},
    {NULL, NULL, 0, NULL},
};

/*
 * Without the GIL: fields are read and set through member descriptors; the output buffer takes its lock, and what
 * threads may share besides has critical sections.
 */
DEFINE_MODULE("_speedups", add_types);

PyMODINIT_FUNC
PyInit__speedups(void)
{
    return PyModuleDef_Init(&module_definition);
}
