/*
 * The optional C extension for columns: what `jetstream_sync.spark` runs for every message and row.
 *
 * `run_column`, `run_numbers`, `split_headers` and `split_direct` make columns of received messages.
 * `are_subjects`, `join_commands`, `row_digests` and `add_digests` check, encode and identify rows that are
 * given as columns.
 *
 * `jetstream_sync/speedups.py` selects this module, or the code in Python.
 */

#include "_speedups.h"

static int
is_packed(PyObject *module, PyObject *object)
{
    return Py_TYPE(object) == ((State *)PyModule_GetState(module))->packed_type;
}

/* --- columns for Arrow ----------------------------------------------------------------------------------- */

/* Bytes that grow at the end, and are never more than `room`. */
typedef struct {
    char *data;
    Py_ssize_t size, room;
} Column;

static void
add_bytes(Column *column, const void *data, Py_ssize_t size)
{
    memcpy(column->data + column->size, data, (size_t)size);
    column->size += size;
}

static void
add_offset(Column *column, Py_ssize_t value)
{
    int32_t offset = (int32_t)value;
    add_bytes(column, &offset, sizeof(offset));
}

/* Allocate columns with their room. Return 0 after an error; in any case `free_columns` must follow. */
static int
allocate(Column *columns, int count)
{
    int done = 1;
    for (int i = 0; i < count; i++) {
        columns[i].data = PyMem_Malloc((size_t)columns[i].room);
        done = done && columns[i].data != NULL;
    }
    if (!done) {
        PyErr_NoMemory();
    }
    return done;
}

static void
free_columns(Column *columns, int count)
{
    for (int i = 0; i < count; i++) {
        PyMem_Free(columns[i].data);
    }
}

/* Return the columns as a tuple of bytes. */
static PyObject *
columns_tuple(const Column *columns, int count)
{
    PyObject *result = PyTuple_New(count);
    for (int i = 0; result != NULL && i < count; i++) {
        PyObject *bytes = PyBytes_FromStringAndSize(columns[i].data, columns[i].size);
        if (bytes == NULL) {
            Py_CLEAR(result);
        }
        else {
            PyTuple_SET_ITEM(result, i, bytes);
        }
    }
    return result;
}

#define OFFSET_SIZE ((Py_ssize_t)sizeof(int32_t))

/* Return the number of messages in a list of packed runs; -1: there is another object in it. */
static Py_ssize_t
count_packed(PyObject *module, PyObject *runs)
{
    Py_ssize_t count = 0;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(runs); i++) {
        PyObject *run = PyTuple_GET_ITEM(runs, i);
        if (!is_packed(module, run)) {
            return -1;
        }
        count += ((PackedRun *)run)->count;
    }
    return count;
}

PyDoc_STRVAR(run_column_doc,
"run_column(runs, field, /)\n"
"--\n"
"\n"
"Return a field of the messages in packed runs: the offsets as 32-bit integers, one more than there are\n"
"messages, and the bytes. ``None``: there is another object among the runs.");

static PyObject *
run_column(PyObject *module, PyObject *args)
{
    PyObject *runs;
    int field;
    if (!PyArg_ParseTuple(args, "O!i:run_column", &PyTuple_Type, &runs, &field)) {
        return NULL;
    }
    if (field < 0 || field >= FIELDS) {
        return PyErr_Format(PyExc_ValueError, "a message has no field %d", field);
    }
    Py_ssize_t count = count_packed(module, runs), total = 0;
    if (count < 0) {
        Py_RETURN_NONE;
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(runs); i++) {
        PackedRun *run = (PackedRun *)PyTuple_GET_ITEM(runs, i);
        for (Py_ssize_t j = 0; j < run->count; j++) {
            total += run->messages[j].length[field];
        }
    }
    if (total > INT32_MAX) {
        PyErr_SetString(PyExc_OverflowError, "more than 2 GiB");
        return NULL;
    }
    PyObject *offsets = PyBytes_FromStringAndSize(NULL, (count + 1) * OFFSET_SIZE);
    PyObject *joined = PyBytes_FromStringAndSize(NULL, total);
    if (offsets != NULL && joined != NULL) {
        Column ends = {PyBytes_AS_STRING(offsets), 0, 0}, values = {PyBytes_AS_STRING(joined), 0, 0};
        add_offset(&ends, 0);
        for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(runs); i++) {
            PackedRun *run = (PackedRun *)PyTuple_GET_ITEM(runs, i);
            for (Py_ssize_t j = 0; j < run->count; j++) {
                Word value = packed_field(run, j, field);
                add_bytes(&values, value.start, value.length);
                add_offset(&ends, values.size);
            }
        }
        return Py_BuildValue("NN", offsets, joined);
    }
    Py_XDECREF(offsets);
    Py_XDECREF(joined);
    return NULL;
}

/* Read a number of up to 19 digits. Return -1 if the word is anything else. */
static int64_t
long_number(Word word)
{
    if (word.length <= MAX_DIGITS) {
        return word.length ? number(word) : -1;
    }
    Word start = {word.start, MAX_DIGITS}, rest = {word.start + MAX_DIGITS, word.length - MAX_DIGITS};
    int64_t high = number(start), low = rest.length == 1 ? number(rest) : -1;
    return high < 0 || low < 0 || high > (INT64_MAX - low) / 10 ? -1 : high * 10 + low;
}

PyDoc_STRVAR(run_numbers_doc,
"run_numbers(runs, place, /)\n"
"--\n"
"\n"
"Return the numbers at a place of the reply subjects, counted from the end, as 64-bit integers. ``None``: a\n"
"subject has no number there, or there is another object among the runs.");

static PyObject *
run_numbers(PyObject *module, PyObject *args)
{
    PyObject *runs;
    int place;
    if (!PyArg_ParseTuple(args, "O!i:run_numbers", &PyTuple_Type, &runs, &place)) {
        return NULL;
    }
    Py_ssize_t count = count_packed(module, runs);
    if (count < 0) {
        Py_RETURN_NONE;
    }
    PyObject *numbers = PyBytes_FromStringAndSize(NULL, count * (Py_ssize_t)sizeof(int64_t));
    if (numbers == NULL) {
        return NULL;
    }
    Column values = {PyBytes_AS_STRING(numbers), 0, 0};
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(runs); i++) {
        PackedRun *run = (PackedRun *)PyTuple_GET_ITEM(runs, i);
        for (Py_ssize_t j = 0; j < run->count; j++) {
            Word reply = packed_field(run, j, REPLY);
            const char *end = reply.start + reply.length, *at = end;
            for (int dots = 0; at > reply.start && (at[-1] != '.' || ++dots < place); at--) {
                if (at[-1] == '.') {
                    end = at - 1;
                }
            }
            int64_t value = long_number((Word){at, end - at});
            if (value < 0 || at == reply.start) {
                Py_DECREF(numbers);
                Py_RETURN_NONE;
            }
            add_bytes(&values, &value, sizeof(value));
        }
    }
    return numbers;
}

static Word
trim(const char *start, const char *end)
{
    while (start < end && (*start == ' ' || *start == '\t')) {
        start++;
    }
    while (start < end && (end[-1] == ' ' || end[-1] == '\t')) {
        end--;
    }
    return (Word){start, end - start};
}

static int
same_name(Word one, Word other)
{
    for (Py_ssize_t i = 0; one.length == other.length && i < one.length; i++) {
        if (Py_TOLOWER(Py_CHARMASK(one.start[i])) != Py_TOLOWER(Py_CHARMASK(other.start[i]))) {
            return 0;
        }
    }
    return one.length == other.length;
}

/* The most headers of a message; the names of more are not compared in pairs. */
#define MAX_HEADERS 32

enum { ENDS, NAME_OFFSETS, NAMES, VALUE_OFFSETS, VALUES, COLUMNS };

/* Append the headers of a block to the columns. Return 0 if Python must parse it. */
static int
split_block(const char *at, Py_ssize_t size, Column *columns)
{
    static const char version[] = "NATS/1.0\r\n";
    const char *end = at + size;
    Py_ssize_t start = (Py_ssize_t)sizeof(version) - 1;
    Word names[MAX_HEADERS];
    if (size < start + 2 || memcmp(at, version, (size_t)start) != 0 || memcmp(end - 2, "\r\n", 2)) {
        return 0;
    }
    at += start;
    for (int count = 0; end - at > 2; count++) {
        const char *line_end = at;
        do {
            line_end = memchr(line_end, '\r', (size_t)(end - line_end));
            /* The last two bytes are a line break. */
        } while (line_end != NULL && line_end[1] != '\n' && line_end++);
        const char *colon = line_end != NULL ? memchr(at, ':', (size_t)(line_end - at)) : NULL;
        if (colon == NULL || colon == at || count == MAX_HEADERS) {
            return 0;
        }
        Word name = trim(at, colon), value = trim(colon + 1, line_end);
        if (!name.length) {
            return 0;
        }
        for (int other = 0; other < count; other++) {
            if (same_name(names[other], name)) {
                return 0;
            }
        }
        names[count] = name;
        add_bytes(&columns[NAMES], name.start, name.length);
        add_offset(&columns[NAME_OFFSETS], columns[NAMES].size);
        add_bytes(&columns[VALUES], value.start, value.length);
        add_offset(&columns[VALUE_OFFSETS], columns[VALUES].size);
        at = line_end + 2;
    }
    return end - at == 2;
}

/* A column of bytes in two buffers. */
typedef struct {
    Py_buffer offset_buffer, data_buffer;
    const int32_t *offsets;
    const char *data;
    Py_ssize_t count, total;
} Texts;

/* Check the offsets of a column. Return 0 after an error; `close_texts` must follow otherwise. */
static int
open_texts(Texts *texts)
{
    Py_ssize_t size = texts->offset_buffer.len / OFFSET_SIZE;
    texts->offsets = texts->offset_buffer.buf;
    texts->data = texts->data_buffer.buf;
    texts->count = size - 1;
    int valid = size > 0 && texts->offsets[0] >= 0 && texts->offsets[size - 1] <= texts->data_buffer.len;
    for (Py_ssize_t i = 0; valid && i < texts->count; i++) {
        valid = texts->offsets[i] <= texts->offsets[i + 1];
    }
    if (!valid) {
        PyErr_SetString(PyExc_ValueError, "the offsets do not fit the data");
        return 0;
    }
    texts->total = texts->offsets[texts->count] - texts->offsets[0];
    return 1;
}

static void
close_texts(Texts *texts)
{
    PyBuffer_Release(&texts->offset_buffer);
    PyBuffer_Release(&texts->data_buffer);
}

static Word
text_at(const Texts *texts, Py_ssize_t index)
{
    const int32_t *offset = texts->offsets + index;
    return (Word){texts->data + offset[0], offset[1] - offset[0]};
}

PyDoc_STRVAR(split_headers_doc,
"split_headers(offsets, blocks, /)\n"
"--\n"
"\n"
"Return the headers of messages as columns of bytes, or ``None`` if one of them is unusual: for each message\n"
"the number of headers up to it, after a 0; the offsets of the names, and the names; the same for the values.");

static PyObject *
split_headers(PyObject *Py_UNUSED(module), PyObject *args)
{
    Texts blocks;
    PyObject *result = NULL;
    if (!PyArg_ParseTuple(args, "y*y*:split_headers", &blocks.offset_buffer, &blocks.data_buffer)) {
        return NULL;
    }
    if (open_texts(&blocks)) {
        /* A header has at least a name, a colon and a line break. */
        Py_ssize_t lines = blocks.total / 4;
        Column columns[COLUMNS] = {
            [ENDS] = {NULL, 0, (blocks.count + 1) * OFFSET_SIZE},
            [NAME_OFFSETS] = {NULL, 0, (lines + 1) * OFFSET_SIZE},
            [NAMES] = {NULL, 0, blocks.total},
            [VALUE_OFFSETS] = {NULL, 0, (lines + 1) * OFFSET_SIZE},
            [VALUES] = {NULL, 0, blocks.total},
        };
        if (allocate(columns, COLUMNS)) {
            int usual = 1;
            add_offset(&columns[ENDS], 0);
            add_offset(&columns[NAME_OFFSETS], 0);
            add_offset(&columns[VALUE_OFFSETS], 0);
            for (Py_ssize_t i = 0; usual && i < blocks.count; i++) {
                Word block = text_at(&blocks, i);
                usual = !block.length || split_block(block.start, block.length, columns);
                add_offset(&columns[ENDS], columns[VALUE_OFFSETS].size / OFFSET_SIZE - 1);
            }
            result = usual ? columns_tuple(columns, COLUMNS) : Py_NewRef(Py_None);
        }
        free_columns(columns, COLUMNS);
    }
    close_texts(&blocks);
    return result;
}

/* Return the number that a part of a text is; -1: it is anything else. */
static int64_t
digits_at(const char *at, Py_ssize_t length)
{
    return number((Word){at, length});
}

/* Return a time such as 2026-01-31T12:00:00.123Z in nanoseconds since 1970; -1: it is anything else. */
static int64_t
time_ns(Word text)
{
    const char *at = text.start;
    if (text.length < 20 || at[4] != '-' || at[7] != '-' || at[10] != 'T' || at[13] != ':' || at[16] != ':'
        || at[text.length - 1] != 'Z') {
        return -1;
    }
    int64_t year = digits_at(at, 4), month = digits_at(at + 5, 2), day = digits_at(at + 8, 2);
    int64_t hour = digits_at(at + 11, 2), minute = digits_at(at + 14, 2), second = digits_at(at + 17, 2);
    int is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    int days_of_month = month == 2 ? 28 + is_leap : month == 4 || month == 6 || month == 9 || month == 11 ? 30 : 31;
    if (year < 1970 || year > 2200 || month < 1 || month > 12 || day < 1 || day > days_of_month || hour < 0 || hour > 23
        || minute < 0 || minute > 59 || second < 0 || second > 59) {
        return -1;
    }
    int64_t fraction = 0;
    Py_ssize_t digits = text.length - 21;
    if (digits >= 0) {
        fraction = at[19] == '.' && digits > 0 && digits <= 9 ? digits_at(at + 20, digits) : -1;
        if (fraction < 0) {
            return -1;
        }
        for (; digits < 9; digits++) {
            fraction *= 10;
        }
    }
    /* Years begin in March here, so that the day of a leap year is the last one. */
    int64_t shifted = month > 2 ? year : year - 1;
    int64_t days_of_year = (153 * (month > 2 ? month - 3 : month + 9) + 2) / 5 + day - 1;
    int64_t days = 365 * shifted + shifted / 4 - shifted / 100 + shifted / 400 + days_of_year - 719468;
    return (((days * 24 + hour) * 60 + minute) * 60 + second) * 1000000000 + fraction;
}

/* The lines that the server adds to the headers of a direct get; the first and the last two are not read. */
enum { STREAM_LINE, SUBJECT_LINE, SEQUENCE_LINE, TIME_LINE, PENDING_LINE, LAST_LINE, LINES };

/* Find the values of those lines, and the end of the headers before them. Return 0 if they are not there. */
static int
find_direct(Word block, Word *values, const char **own_end)
{
    static const char *const names[LINES] = {
        "Nats-Stream: ", "Nats-Subject: ", "Nats-Sequence: ", "Nats-Time-Stamp: ", "Nats-Num-Pending: ",
        "Nats-Last-Sequence: ",
    };
    const char *end = block.start + block.length - 2;
    if (block.length < 4 || memcmp(end - 2, "\r\n\r\n", 4) != 0) {
        return 0;
    }
    for (int line = LINES - 1; line >= 0; line--) {
        end -= 2;
        const char *start = end;
        while (start - block.start >= 2 && (start[-2] != '\r' || start[-1] != '\n')) {
            start--;
        }
        values[line] = (Word){start, end - start};
        if (start - block.start < 2 || !skip(&values[line], names[line])) {
            return 0;
        }
        end = start;
    }
    *own_end = end - 2;
    return 1;
}

enum { OWN_OFFSETS, OWN, SUBJECT_OFFSETS, SUBJECTS, SEQUENCES, TIMES, DIRECT_COLUMNS };

PyDoc_STRVAR(split_direct_doc,
"split_direct(offsets, blocks, /)\n"
"--\n"
"\n"
"Split the header blocks of direct gets. Return columns, or ``None`` if a block is unusual: the offsets of the\n"
"header blocks of the messages, and the blocks; the same for the subjects; the sequences and the times in\n"
"nanoseconds since 1970, as 64-bit integers.");

static PyObject *
split_direct(PyObject *Py_UNUSED(module), PyObject *args)
{
    static const char version[] = "NATS/1.0";
    Texts blocks;
    PyObject *result = NULL;
    if (!PyArg_ParseTuple(args, "y*y*:split_direct", &blocks.offset_buffer, &blocks.data_buffer)) {
        return NULL;
    }
    if (open_texts(&blocks)) {
        Column columns[DIRECT_COLUMNS] = {
            [OWN_OFFSETS] = {NULL, 0, (blocks.count + 1) * OFFSET_SIZE},
            [OWN] = {NULL, 0, blocks.total},
            [SUBJECT_OFFSETS] = {NULL, 0, (blocks.count + 1) * OFFSET_SIZE},
            [SUBJECTS] = {NULL, 0, blocks.total},
            [SEQUENCES] = {NULL, 0, blocks.count * (Py_ssize_t)sizeof(int64_t)},
            [TIMES] = {NULL, 0, blocks.count * (Py_ssize_t)sizeof(int64_t)},
        };
        if (allocate(columns, DIRECT_COLUMNS)) {
            int usual = 1;
            add_offset(&columns[OWN_OFFSETS], 0);
            add_offset(&columns[SUBJECT_OFFSETS], 0);
            for (Py_ssize_t i = 0; usual && i < blocks.count; i++) {
                Word block = text_at(&blocks, i), values[LINES];
                const char *own_end;
                usual = find_direct(block, values, &own_end);
                if (!usual) {
                    break;
                }
                Py_ssize_t own = own_end - block.start;
                if (own != sizeof(version) - 1 || memcmp(block.start, version, sizeof(version) - 1) != 0) {
                    add_bytes(&columns[OWN], block.start, own);
                    add_bytes(&columns[OWN], "\r\n\r\n", 4);
                }
                add_offset(&columns[OWN_OFFSETS], columns[OWN].size);
                add_bytes(&columns[SUBJECTS], values[SUBJECT_LINE].start, values[SUBJECT_LINE].length);
                add_offset(&columns[SUBJECT_OFFSETS], columns[SUBJECTS].size);
                int64_t sequence = long_number(values[SEQUENCE_LINE]), time = time_ns(values[TIME_LINE]);
                add_bytes(&columns[SEQUENCES], &sequence, sizeof(sequence));
                add_bytes(&columns[TIMES], &time, sizeof(time));
                usual = sequence >= 0 && time >= 0;
            }
            result = usual ? columns_tuple(columns, DIRECT_COLUMNS) : Py_NewRef(Py_None);
        }
        free_columns(columns, DIRECT_COLUMNS);
    }
    close_texts(&blocks);
    return result;
}

/* --- rows to publish ------------------------------------------------------------------------------------- */

/* The columns of rows. There are no ids or no header lines if their column is empty. */
enum { ROW_SUBJECTS, ROW_IDS, ROW_LINES, ROW_DATA, ROW_COLUMNS };

/* Check the columns of rows. Return 0 after an error; `close_rows` must follow in any case. */
static int
open_rows(Texts *columns)
{
    for (int i = 0; i < ROW_COLUMNS; i++) {
        if (!open_texts(&columns[i])) {
            return 0;
        }
        int optional = i == ROW_IDS || i == ROW_LINES;
        if (columns[i].count != columns[ROW_SUBJECTS].count && !(optional && columns[i].count == 0)) {
            PyErr_SetString(PyExc_ValueError, "the columns have different lengths");
            return 0;
        }
    }
    return 1;
}

static void
close_rows(Texts *columns)
{
    for (int i = 0; i < ROW_COLUMNS; i++) {
        close_texts(&columns[i]);
    }
}

/* Return a value of an optional column, empty if there is none. */
static Word
optional_text(const Texts *texts, Py_ssize_t index)
{
    return texts->count ? text_at(texts, index) : (Word){"", 0};
}

PyDoc_STRVAR(are_subjects_doc,
"are_subjects(offsets, data, patterns=(), /)\n"
"--\n"
"\n"
"Return whether all texts of a column are valid, usual subjects to publish to, of which each matches one of\n"
"the patterns, unless there are none, and calls no server API.");

/* Return the next token of a subject, and remove it with the dot after it. */
static Word
next_token(Word *subject)
{
    const char *dot = memchr(subject->start, '.', (size_t)subject->length);
    Word token = {subject->start, dot != NULL ? dot - subject->start : subject->length};
    Py_ssize_t taken = token.length + (dot != NULL);
    subject->start += taken;
    subject->length -= taken;
    return token;
}

/* Return whether a valid subject matches a pattern. */
static int
matches(Word pattern, Word subject)
{
    while (pattern.length && subject.length) {
        Word wanted = next_token(&pattern);
        if (wanted.length == 1 && wanted.start[0] == '>') {
            return 1;
        }
        Word token = next_token(&subject);
        if (!(wanted.length == 1 && wanted.start[0] == '*')
            && (wanted.length != token.length || memcmp(wanted.start, token.start, (size_t)token.length) != 0)) {
            return 0;
        }
    }
    return pattern.length == subject.length;
}

/* Return whether a subject begins with that of a server API, or of an inbox. */
static int
is_reserved(Word subject)
{
    static const Word reserved[] = {{"$JS", 3}, {"$SYS", 4}, {"_INBOX", 6}};
    Word first = next_token(&subject);
    for (size_t i = 0; i < sizeof(reserved) / sizeof(reserved[0]); i++) {
        if (first.length == reserved[i].length
            && memcmp(first.start, reserved[i].start, (size_t)first.length) == 0) {
            return 1;
        }
    }
    return 0;
}

/* Return whether a subject matches one of the patterns, which are `bytes`, or there are none. */
static int
matches_any(PyObject *patterns, Word subject)
{
    Py_ssize_t count = patterns != NULL ? PyTuple_GET_SIZE(patterns) : 0;
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *each = PyTuple_GET_ITEM(patterns, i);
        if (PyBytes_CheckExact(each)
            && matches((Word){PyBytes_AS_STRING(each), PyBytes_GET_SIZE(each)}, subject)) {
            return 1;
        }
    }
    return count == 0;
}

static PyObject *
are_subjects(PyObject *Py_UNUSED(module), PyObject *args)
{
    Texts subjects;
    PyObject *result = NULL, *patterns = NULL;
    if (!PyArg_ParseTuple(args, "y*y*|O!:are_subjects", &subjects.offset_buffer, &subjects.data_buffer,
                          &PyTuple_Type, &patterns)) {
        return NULL;
    }
    if (open_texts(&subjects)) {
        int valid = 1;
        for (Py_ssize_t i = 0; valid && i < subjects.count; i++) {
            Word subject = text_at(&subjects, i);
            valid = is_subject(subject) && !is_reserved(subject) && matches_any(patterns, subject);
        }
        result = PyBool_FromLong(valid);
    }
    close_texts(&subjects);
    return result;
}

/* Append the command of a row. Return 0 if its header block and payload exceed the limit. */
static int
append_row(Text *text, const Texts *columns, Py_ssize_t index, Word head, Word reply, Py_ssize_t number,
           Py_ssize_t limit)
{
    static const char id_name[] = "Nats-Msg-Id: ";
    char digits[MAX_DIGITS + 2];
    Text number_text = {digits, 0, sizeof(digits)};
    Word subject = text_at(&columns[ROW_SUBJECTS], index), data = text_at(&columns[ROW_DATA], index);
    Word id = optional_text(&columns[ROW_IDS], index), lines = optional_text(&columns[ROW_LINES], index);
    if (number && !(append_number(&number_text, number + index) && append(&number_text, "\r\n", 2))) {
        return 0;
    }
    Py_ssize_t id_size = id.length ? (Py_ssize_t)sizeof(id_name) - 1 + id.length + 2 : 0;
    Py_ssize_t size = head.length + number_text.length + id_size + lines.length + 2;
    return size + data.length <= limit
        && append(text, "HPUB ", 5) && append(text, subject.start, subject.length) && append(text, " ", 1)
        && (!reply.length || (append(text, reply.start, reply.length) && append(text, " ", 1)))
        && append_number(text, size) && append(text, " ", 1) && append_number(text, size + data.length)
        && append(text, "\r\n", 2) && append(text, head.start, head.length)
        && append(text, digits, number_text.length)
        && (!id.length || (append(text, id_name, sizeof(id_name) - 1) && append(text, id.start, id.length)
                           && append(text, "\r\n", 2)))
        && append(text, lines.start, lines.length) && append(text, "\r\n", 2)
        && append(text, data.start, data.length) && append(text, "\r\n", 2);
}

PyDoc_STRVAR(join_commands_doc,
"join_commands(subjects, ids, lines, data, head, reply, number, limit, /)\n"
"--\n"
"\n"
"Return the commands that publish rows, given as pairs of offsets and bytes; there may be no ids and no header\n"
"lines. The header block of a row begins with the head; then follow the number of the row, counted from the\n"
"given one, unless that is 0, the id and the header lines. ``None``: a header block with its payload exceeds\n"
"the limit.");

static PyObject *
join_commands(PyObject *Py_UNUSED(module), PyObject *args)
{
    /* HPUB, two sizes, the number, the header of the id, spaces and line ends. */
    const Py_ssize_t most = 3 * MAX_DIGITS + 64;
    Texts columns[ROW_COLUMNS];
    Word head, reply;
    Py_ssize_t number, limit, total = 0;
    PyObject *result = NULL;
    if (!PyArg_ParseTuple(args, "(y*y*)(y*y*)(y*y*)(y*y*)y#y#nn:join_commands",
                          &columns[0].offset_buffer, &columns[0].data_buffer,
                          &columns[1].offset_buffer, &columns[1].data_buffer,
                          &columns[2].offset_buffer, &columns[2].data_buffer,
                          &columns[3].offset_buffer, &columns[3].data_buffer,
                          &head.start, &head.length, &reply.start, &reply.length, &number, &limit)) {
        return NULL;
    }
    if (open_rows(columns)) {
        Py_ssize_t count = columns[ROW_SUBJECTS].count;
        for (int i = 0; i < ROW_COLUMNS; i++) {
            total += columns[i].total;
        }
        result = PyBytes_FromStringAndSize(NULL, total + count * (head.length + reply.length + most));
        if (result != NULL) {
            Text text = {PyBytes_AS_STRING(result), 0, PyBytes_GET_SIZE(result)};
            Py_ssize_t done = 0;
            while (done < count && append_row(&text, columns, done, head, reply, number, limit)) {
                done++;
            }
            if (done < count) {
                Py_SETREF(result, Py_NewRef(Py_None));
            }
            else {
                _PyBytes_Resize(&result, text.length);
            }
        }
    }
    close_rows(columns);
    return result;
}

/* The bytes of a digest. */
#define DIGEST 12
#define BLOCK 128

/* The state of BLAKE2b (RFC 7693), without a key. */
typedef struct {
    uint64_t state[8], length;
    size_t used;
    unsigned char block[BLOCK];
} Hash;

static const uint64_t hash_start[8] = {
    0x6a09e667f3bcc908, 0xbb67ae8584caa73b, 0x3c6ef372fe94f82b, 0xa54ff53a5f1d36f1,
    0x510e527fade682d1, 0x9b05688c2b3e6c1f, 0x1f83d9abfb41bd6b, 0x5be0cd19137e2179,
};

static uint64_t
rotate(uint64_t value, int bits)
{
    return value >> bits | value << (64 - bits);
}

#define MIX(a, b, c, d, one, other)                                                                             \
    v[a] += v[b] + words[one];                                                                                  \
    v[d] = rotate(v[d] ^ v[a], 32);                                                                             \
    v[c] += v[d];                                                                                               \
    v[b] = rotate(v[b] ^ v[c], 24);                                                                             \
    v[a] += v[b] + words[other];                                                                                \
    v[d] = rotate(v[d] ^ v[a], 16);                                                                             \
    v[c] += v[d];                                                                                               \
    v[b] = rotate(v[b] ^ v[c], 63);

#define ROUND(at)                                                                                               \
    MIX(0, 4, 8, 12, at[0], at[1])                                                                              \
    MIX(1, 5, 9, 13, at[2], at[3])                                                                              \
    MIX(2, 6, 10, 14, at[4], at[5])                                                                             \
    MIX(3, 7, 11, 15, at[6], at[7])                                                                             \
    MIX(0, 5, 10, 15, at[8], at[9])                                                                             \
    MIX(1, 6, 11, 12, at[10], at[11])                                                                           \
    MIX(2, 7, 8, 13, at[12], at[13])                                                                            \
    MIX(3, 4, 9, 14, at[14], at[15])

/* Add the block to the state. */
static void
compress(Hash *hash, int is_last)
{
    static const unsigned char order[10][16] = {
        {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15},
        {14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3},
        {11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4},
        {7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8},
        {9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13},
        {2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9},
        {12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11},
        {13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10},
        {6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5},
        {10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0},
    };
    uint64_t v[16], words[16];
    memcpy(words, hash->block, sizeof(words));
    memcpy(v, hash->state, sizeof(hash->state));
    memcpy(v + 8, hash_start, sizeof(hash_start));
    v[12] ^= hash->length;
    v[14] = is_last ? ~v[14] : v[14];
    /* Without a loop the compiler knows the indices of the words. */
    ROUND(order[0]) ROUND(order[1]) ROUND(order[2]) ROUND(order[3]) ROUND(order[4]) ROUND(order[5])
    ROUND(order[6]) ROUND(order[7]) ROUND(order[8]) ROUND(order[9]) ROUND(order[0]) ROUND(order[1])
    for (int i = 0; i < 8; i++) {
        hash->state[i] ^= v[i] ^ v[i + 8];
    }
}

static void
add_to_hash(Hash *hash, Word text)
{
    while (text.length > 0) {
        if (hash->used == BLOCK) {
            hash->length += BLOCK;
            compress(hash, 0);
            hash->used = 0;
        }
        size_t size = BLOCK - hash->used < (size_t)text.length ? BLOCK - hash->used : (size_t)text.length;
        memcpy(hash->block + hash->used, text.start, size);
        hash->used += size;
        text.start += size;
        text.length -= (Py_ssize_t)size;
    }
}

/* Append the digest of a row: of the length of its subject, its subject, header lines and payload. */
static void
add_row_digest(Column *digests, const Texts *columns, Py_ssize_t index)
{
    char number_bytes[MAX_DIGITS + 8];
    Text number_text = {number_bytes, 0, sizeof(number_bytes)};
    Word subject = text_at(&columns[ROW_SUBJECTS], index), lines = optional_text(&columns[ROW_LINES], index);
    Hash hash = {.used = 0};
    memcpy(hash.state, hash_start, sizeof(hash_start));
    hash.state[0] ^= 0x01010000 ^ DIGEST;
    append_number(&number_text, subject.length);
    append(&number_text, " ", 1);
    add_to_hash(&hash, (Word){number_bytes, number_text.length});
    add_to_hash(&hash, subject);
    if (lines.length) {
        number_text.length = 0;
        append(&number_text, "\r\n", 2);
        append_number(&number_text, lines.length);
        append(&number_text, "\r\n", 2);
        add_to_hash(&hash, (Word){number_bytes, number_text.length});
        add_to_hash(&hash, lines);
    }
    add_to_hash(&hash, text_at(&columns[ROW_DATA], index));
    hash.length += hash.used;
    memset(hash.block + hash.used, 0, BLOCK - hash.used);
    compress(&hash, 1);
    add_bytes(digests, hash.state, DIGEST);
}

PyDoc_STRVAR(row_digests_doc,
"row_digests(prefix, subjects, lines, data, /)\n"
"--\n"
"\n"
"Return the prefix and the digest of each row, given as for `join_commands`; ``None`` on a big-endian machine.");

static PyObject *
row_digests(PyObject *Py_UNUSED(module), PyObject *args)
{
    static const int32_t none = 0;
    Texts columns[ROW_COLUMNS];
    Word prefix;
    PyObject *result = NULL;
    if (PY_BIG_ENDIAN) {
        Py_RETURN_NONE;
    }
    memset(columns, 0, sizeof(columns));
    if (!PyArg_ParseTuple(args, "y#(y*y*)(y*y*)(y*y*):row_digests", &prefix.start, &prefix.length,
                          &columns[0].offset_buffer, &columns[0].data_buffer,
                          &columns[ROW_LINES].offset_buffer, &columns[ROW_LINES].data_buffer,
                          &columns[ROW_DATA].offset_buffer, &columns[ROW_DATA].data_buffer)) {
        return NULL;
    }
    if (PyBuffer_FillInfo(&columns[ROW_IDS].offset_buffer, NULL, (void *)&none, sizeof(none), 1, 0) == 0
        && open_rows(columns)) {
        Py_ssize_t count = columns[ROW_SUBJECTS].count;
        result = PyBytes_FromStringAndSize(NULL, count * (prefix.length + DIGEST));
        if (result != NULL) {
            Column digests = {PyBytes_AS_STRING(result), 0, 0};
            for (Py_ssize_t i = 0; i < count; i++) {
                add_bytes(&digests, prefix.start, prefix.length);
                add_row_digest(&digests, columns, i);
            }
        }
    }
    close_rows(columns);
    return result;
}

/* Add a digest to a table whose size is a power of two. Return whether it is there; -1: the table is full. */
static int
add_digest(char *table, size_t slots, const char *digest)
{
    static const char empty[DIGEST];
    uint64_t place;
    memcpy(&place, digest, sizeof(place));
    for (size_t probe = 0; probe < slots; probe++) {
        char *slot = table + ((place + probe) & (slots - 1)) * DIGEST;
        if (memcmp(slot, digest, DIGEST) == 0) {
            return 1;
        }
        if (memcmp(slot, empty, DIGEST) == 0) {
            memcpy(slot, digest, DIGEST);
            return 0;
        }
    }
    return -1;
}

PyDoc_STRVAR(add_digests_doc,
"add_digests(table, digests, stride, /)\n"
"--\n"
"\n"
"Add digests, each at the end of a stride, to a table, and return a byte for each: 1 if it was in the table.\n"
"A table is a buffer of zeros for a power of two of digests, which must not become full; another table can be\n"
"added, too.");

static PyObject *
add_digests(PyObject *Py_UNUSED(module), PyObject *args)
{
    Py_buffer table, digests;
    Py_ssize_t stride;
    PyObject *result = NULL;
    if (!PyArg_ParseTuple(args, "w*y*n:add_digests", &table, &digests, &stride)) {
        return NULL;
    }
    size_t slots = (size_t)table.len / DIGEST;
    if (stride < DIGEST || digests.len % stride || slots == 0 || (slots & (slots - 1))
        || slots * DIGEST != (size_t)table.len) {
        PyErr_SetString(PyExc_ValueError, "the sizes of the table or the digests are wrong");
    }
    else {
        result = PyBytes_FromStringAndSize(NULL, digests.len / stride);
        const char *digest = (const char *)digests.buf + stride - DIGEST;
        for (Py_ssize_t i = 0; result != NULL && i < digests.len / stride; i++, digest += stride) {
            int found = add_digest(table.buf, slots, digest);
            if (found < 0) {
                PyErr_SetString(PyExc_ValueError, "the table is full");
                Py_CLEAR(result);
            }
            else {
                PyBytes_AS_STRING(result)[i] = (char)found;
            }
        }
    }
    PyBuffer_Release(&table);
    PyBuffer_Release(&digests);
    return result;
}

/* --- the module ------------------------------------------------------------------------------------------ */

/* Find the type of packed runs. Return -1 with an ImportError if its module was built from other sources. */
static int
find_type(PyObject *module)
{
    State *state = PyModule_GetState(module);
    PyObject *owner = PyImport_ImportModule("jetstream_sync._speedups");
    PyObject *type = owner == NULL ? NULL : PyObject_GetAttrString(owner, "PackedRun");
    Py_XDECREF(owner);
    if (type == NULL) {
        return -1;
    }
    if (!PyType_Check(type) || ((PyTypeObject *)type)->tp_basicsize != sizeof(PackedRun)) {
        Py_DECREF(type);
        PyErr_SetString(PyExc_ImportError, "_speedups was built from other sources");
        return -1;
    }
    state->packed_type = (PyTypeObject *)type;
    return 0;
}

static PyMethodDef module_functions[] = {
    {"add_digests", add_digests, METH_VARARGS, add_digests_doc},
    {"are_subjects", are_subjects, METH_VARARGS, are_subjects_doc},
    {"join_commands", join_commands, METH_VARARGS, join_commands_doc},
    {"row_digests", row_digests, METH_VARARGS, row_digests_doc},
    {"run_column", run_column, METH_VARARGS, run_column_doc},
    {"run_numbers", run_numbers, METH_VARARGS, run_numbers_doc},
    {"split_direct", split_direct, METH_VARARGS, split_direct_doc},
    {"split_headers", split_headers, METH_VARARGS, split_headers_doc},
    {NULL, NULL, 0, NULL},
};

DEFINE_MODULE("_columns", find_type);

PyMODINIT_FUNC
PyInit__columns(void)
{
    return PyModuleDef_Init(&module_definition);
}
