/*
 * What the two C extensions share: words, numbers, texts and packed runs.
 *
 * `_speedups.c` makes packed runs, and `_columns.c` reads them. Both are compiled with this declaration.
 */

#ifndef JETSTREAM_SYNC_SPEEDUPS_H
#define JETSTREAM_SYNC_SPEEDUPS_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include "structmember.h"

/* A number with so many digits fits into a long long. */
#define MAX_DIGITS 18

typedef struct {
    const char *start;
    Py_ssize_t length;
} Word;

/* Return the number that a word is; -1: it has another character than a digit, or too many digits. */
static inline long long
number(Word word)
{
    long long value = 0;
    if (word.length > MAX_DIGITS) {
        return -1;
    }
    for (Py_ssize_t i = 0; i < word.length; i++) {
        char digit = word.start[i];
        if (digit < '0' || digit > '9') {
            return -1;
        }
        value = value * 10 + (digit - '0');
    }
    return value;
}

/* The longest subject in bytes. With two of them a command line is never longer than servers accept. */
#define MAX_SUBJECT 1024

/* Return whether a subject is valid and usual: ASCII, short, and without '*' and '>'. */
static inline int
is_subject(Word subject)
{
    char last = '.';
    if (subject.length > MAX_SUBJECT) {
        return 0;
    }
    for (Py_ssize_t i = 0; i < subject.length; i++) {
        char next = subject.start[i];
        if (next <= ' ' || next == 0x7f || next == '*' || next == '>' || (next == '.' && last == '.')) {
            return 0;
        }
        last = next;
    }
    return last != '.';
}

/* A piece of a command that grows up to the size of its array. */
typedef struct {
    char *start;
    Py_ssize_t length, limit;
} Text;

/* Append bytes. Return 0 if there is no room for them. */
static inline int
append(Text *text, const char *bytes, Py_ssize_t length)
{
    if (length > text->limit - text->length) {
        return 0;
    }
    memcpy(text->start + text->length, bytes, (size_t)length);
    text->length += length;
    return 1;
}

static inline int
append_number(Text *text, Py_ssize_t value)
{
    char digits[MAX_DIGITS + 2];
    char *at = digits + sizeof(digits);
    do {
        *--at = (char)('0' + value % 10);
        value /= 10;
    } while (value > 0);
    return append(text, at, digits + sizeof(digits) - at);
}

/* The fields of a message, in the order of a `Delivery`. */
enum { SUBJECT, REPLY, HEADER, PAYLOAD, FIELDS };

/* Where the fields of a message are in the data. */
typedef struct {
    uint32_t start[FIELDS], length[FIELDS];
} Packed;

/* Messages in the data that they were received in: a sequence of `Delivery`. Only its list may change it. */
typedef struct {
    PyObject_HEAD
    PyObject *data;
    Packed *messages;
    Py_ssize_t count, room;
} PackedRun;

static inline Word
packed_field(const PackedRun *self, Py_ssize_t index, int field)
{
    const Packed *message = &self->messages[index];
    return (Word){PyBytes_AS_STRING(self->data) + message->start[field], message->length[field]};
}

/* Skip a text at the start of a word. Return 0 if the word begins with anything else. */
static inline int
skip(Word *word, const char *text)
{
    Py_ssize_t length = (Py_ssize_t)strlen(text);
    if (word->length < length || memcmp(word->start, text, (size_t)length) != 0) {
        return 0;
    }
    word->start += length;
    word->length -= length;
    return 1;
}

/* --- the modules ----------------------------------------------------------------------------------------- */

/* The state of both modules. They have no other: what threads may share is guarded, see each module. */
typedef struct {
    PyTypeObject *packed_type; /* defined in `_speedups` */
    PyTypeObject *encoder_type; /* only in `_speedups` */
} State;

static int
traverse_module(PyObject *module, visitproc visit, void *arg)
{
    State *state = PyModule_GetState(module);
    if (state != NULL) {
        Py_VISIT(state->packed_type);
        Py_VISIT(state->encoder_type);
    }
    return 0;
}

static int
clear_module(PyObject *module)
{
    State *state = PyModule_GetState(module);
    if (state != NULL) {
        Py_CLEAR(state->packed_type);
        Py_CLEAR(state->encoder_type);
    }
    return 0;
}

static void
free_module(void *module)
{
    (void)clear_module((PyObject *)module);
}

#ifdef Py_mod_multiple_interpreters
#define PER_INTERPRETER {Py_mod_multiple_interpreters, Py_MOD_PER_INTERPRETER_GIL_SUPPORTED},
#else
#define PER_INTERPRETER
#endif
#ifdef Py_mod_gil
#define WITHOUT_GIL {Py_mod_gil, Py_MOD_GIL_NOT_USED},
#else
#define WITHOUT_GIL
#endif

/* Define a module by its name and the function that sets its state; `module_functions` are its functions. */
#define DEFINE_MODULE(name, set_state) \
    static PyModuleDef_Slot module_slots[] = {{Py_mod_exec, set_state}, PER_INTERPRETER WITHOUT_GIL{0, NULL}}; \
    static struct PyModuleDef module_definition = { \
        PyModuleDef_HEAD_INIT, \
        .m_name = name, \
        .m_size = sizeof(State), \
        .m_traverse = traverse_module, \
        .m_clear = clear_module, \
        .m_free = free_module, \
        .m_methods = module_functions, \
        .m_slots = module_slots, \
    }

#endif
