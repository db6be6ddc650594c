/* Small files into the blocks of a tar, many at once, without the interpreter's lock.

   tar_samples(samples, buffer) takes samples of files and writes header, bytes and padding of each
   part into the buffer, and of each label. It returns how much it has written, and the columns of a
   Block. It stops before the first sample that does not fit or is odd in any way: a name that needs
   more than one header, a file that is none, cannot be read or changes meanwhile. That one is left
   to Python, which says what is wrong with it.

   crc32(data, start=0) is the checksum that it notes. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "crc.h"

#define BLOCK 512
#define NAME_BYTES 100
#define PREFIX_BYTES 155
#define MAX_TIME 077777777777LL
/* Later times do not fit into 64 bits of nanoseconds. */
#define TIME_LIMIT (INT64_MAX / 1000000000 - 1)
#define NO_LABEL INT32_MIN
/* Below, taking the lock again costs more than others gain by it. */
#define LONG 65536
/* The extension of a part that has the label. */
#define LABEL_PART "cls"

typedef struct {
    const char *bytes;
    Py_ssize_t size;
} Text;

typedef struct {
    Text key, extension;
    PyObject *extension_object; /* NULL of a label. */
    const char *path;           /* NULL of a label: its digits are the bytes. */
    char digits[12];
    int64_t offset, size, time_ns;
    uint32_t crc;
} Part;

typedef struct {
    Text key;
    int32_t label;
    Py_ssize_t first, parts;
} Sample;

typedef struct {
    Sample *samples;
    Part *parts;
    Py_ssize_t sample_count, part_count, part_room;
    PyObject *held; /* What the texts are in, where that is not the samples themselves. */
} Task;

/* -- headers */

static unsigned char same[BLOCK];
static unsigned same_sum;

/* What all headers have in common: mode, owner and group; the kind; the format's name. */
static void make_same(void)
{
    memcpy(same + 100, "0000644\0000000000\0000000000", 24);
    same[156] = '0';
    memcpy(same + 257, "ustar\00000", 8);
    memset(same + 148, ' ', 8);
    for (int at = 0; at < BLOCK; at++)
        same_sum += same[at];
    same[154] = 0;
}

/* Eleven octal digits; return their sum. */
static unsigned write_octal(unsigned char *to, uint64_t value)
{
    unsigned sum = 0;
    for (int at = 10; at >= 0; at--, value >>= 3)
        sum += to[at] = (unsigned char)('0' + (value & 7));
    return sum;
}

static unsigned write_text(unsigned char *to, const char *from, size_t size)
{
    unsigned sum = 0;
    for (size_t at = 0; at < size; at++)
        sum += to[at] = (unsigned char)from[at];
    return sum;
}

/* Write a name, in two pieces if it is long; return the sum of its bytes, 0 if it has no room. */
static unsigned write_name(unsigned char *to, const Part *part)
{
    char name[PREFIX_BYTES + 1 + NAME_BYTES];
    size_t key = (size_t)part->key.size, extension = (size_t)part->extension.size;
    size_t dot = extension ? 1 : 0, size = key + dot + extension;
    if (key > sizeof name || extension > sizeof name || size > sizeof name)
        return 0;
    memcpy(name, part->key.bytes, key);
    if (dot)
        name[key] = '.';
    memcpy(name + key + dot, part->extension.bytes, extension);
    if (size <= NAME_BYTES)
        return write_text(to, name, size);
    const char *from = name + size - NAME_BYTES - 1;
    const char *slash = memchr(from, '/', NAME_BYTES + 1);
    size_t before = slash ? (size_t)(slash - name) : 0;
    if (before == 0 || before > PREFIX_BYTES || before == size - 1)
        return 0;
    return write_text(to, slash + 1, size - before - 1) + write_text(to + 345, name, before);
}

/* The same bytes as TarWriter writes; 0 if one header is not enough. */
static int write_head(unsigned char *to, const Part *part)
{
    int64_t seconds = part->time_ns / 1000000000;
    if (seconds < 0)
        seconds = 0;
    if (seconds > MAX_TIME)
        seconds = MAX_TIME;
    memcpy(to, same, BLOCK);
    unsigned sum = write_name(to, part);
    if (!sum)
        return 0;
    sum += same_sum;
    sum += write_octal(to + 124, (uint64_t)part->size);
    sum += write_octal(to + 136, (uint64_t)seconds);
    for (int at = 153; at >= 148; at--, sum >>= 3)
        to[at] = (unsigned char)('0' + (sum & 7));
    return 1;
}

/* -- files: no Python from here to `write_samples` */

static int is_same_file(const struct stat *one, const struct stat *other)
{
    return one->st_size == other->st_size && one->st_mtim.tv_sec == other->st_mtim.tv_sec &&
           one->st_mtim.tv_nsec == other->st_mtim.tv_nsec;
}

/* Read as many bytes as a file has said it has. */
static int read_whole(int descriptor, unsigned char *to, int64_t size)
{
    while (size) {
        ssize_t more = read(descriptor, to, (size_t)size);
        if (more < 0 && errno == EINTR)
            continue;
        if (more <= 0)
            return 0;
        to += more;
        size -= more;
    }
    return 1;
}

/* Read a file; 0 if it is odd. */
static int read_file(Part *part, unsigned char *to, int64_t room)
{
    struct stat before, after;
    /* A pipe would wait for a writer. */
    int descriptor = open(part->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (descriptor < 0)
        return 0;
    int is_fine = fstat(descriptor, &before) == 0 && S_ISREG(before.st_mode) &&
                  before.st_size >= 0 && before.st_size <= room &&
                  before.st_mtim.tv_sec < TIME_LIMIT && before.st_mtim.tv_sec > -TIME_LIMIT &&
                  read_whole(descriptor, to, before.st_size) && fstat(descriptor, &after) == 0 &&
                  is_same_file(&before, &after);
    close(descriptor);
    if (!is_fine)
        return 0;
    part->size = before.st_size;
    part->time_ns = (int64_t)before.st_mtim.tv_sec * 1000000000 + before.st_mtim.tv_nsec;
    return 1;
}

/* Write one part; return where the next begins, 0 if there is no room or it is odd. */
static int64_t write_part(Part *part, unsigned char *buffer, int64_t at, int64_t limit)
{
    int64_t room = limit - at - 2 * BLOCK; /* Also for the padding. */
    if (room < 0)
        return 0;
    unsigned char *data = buffer + at + BLOCK;
    if (part->path) {
        if (!read_file(part, data, room))
            return 0;
    } else {
        part->size = (int64_t)strlen(part->digits);
        if (part->size > room)
            return 0;
        memcpy(data, part->digits, (size_t)part->size);
    }
    if (!write_head(buffer + at, part))
        return 0;
    part->crc = crc_of(0, data, (size_t)part->size);
    part->offset = at + BLOCK;
    int64_t padding = (BLOCK - part->size % BLOCK) % BLOCK;
    memset(data + part->size, 0, (size_t)padding);
    return at + BLOCK + part->size + padding;
}

/* Write whole samples; return how many, and where they end. */
static Py_ssize_t write_samples(const Task *task, unsigned char *buffer, int64_t limit,
                                int64_t *end)
{
    *end = 0;
    for (Py_ssize_t each = 0; each < task->sample_count; each++) {
        Part *first = task->parts + task->samples[each].first;
        int64_t at = *end;
        for (Part *part = first; part < first + task->samples[each].parts; part++) {
            if (!part->path)
                part->time_ns = first->time_ns;
            at = write_part(part, buffer, at, limit);
            if (!at)
                return each;
        }
        *end = at;
    }
    return task->sample_count;
}

/* -- samples of Python. These return 1, or 0 if the sample is odd, or -1 with an exception. */

/* The bytes of a name as the archive has it, or of a path. They live as long as the task. */
static int take_text(Task *task, PyObject *object, int is_path, Text *text)
{
    if (!PyUnicode_Check(object))
        return 0;
    if (PyUnicode_IS_ASCII(object)) {
        text->bytes = PyUnicode_AsUTF8AndSize(object, &text->size);
        if (!text->bytes)
            return -1;
    } else {
        PyObject *bytes = is_path ? PyUnicode_EncodeFSDefault(object)
                                  : PyUnicode_AsEncodedString(object, "utf-8", "surrogateescape");
        if (!bytes) {
            PyErr_Clear();
            return 0;
        }
        int is_kept = PyList_Append(task->held, bytes) == 0;
        text->bytes = PyBytes_AS_STRING(bytes);
        text->size = PyBytes_GET_SIZE(bytes);
        Py_DECREF(bytes);
        if (!is_kept)
            return -1;
    }
    return memchr(text->bytes, 0, (size_t)text->size) == NULL;
}

/* Room for one more part, or NULL with an exception. */
static Part *add_part(Task *task)
{
    if (task->part_count == task->part_room) {
        Py_ssize_t room = 2 * task->part_room + 64;
        Part *parts = PyMem_Realloc(task->parts, (size_t)room * sizeof(Part));
        if (!parts) {
            PyErr_NoMemory();
            return NULL;
        }
        task->parts = parts;
        task->part_room = room;
    }
    Part *part = task->parts + task->part_count++;
    memset(part, 0, sizeof *part);
    return part;
}

/* A File: extension and path; what has an offset or is held elsewhere is no file by itself. */
static int take_file(Task *task, const Sample *sample, PyObject *file)
{
    if (!PyTuple_Check(file) || PyTuple_GET_SIZE(file) != 8 ||
        PyTuple_GET_ITEM(file, 2) != Py_None || PyTuple_GET_ITEM(file, 7) != Py_None)
        return 0;
    Part *part = add_part(task);
    if (!part)
        return -1;
    Text path;
    part->key = sample->key;
    part->extension_object = PyTuple_GET_ITEM(file, 0);
    int taken = take_text(task, part->extension_object, 0, &part->extension);
    if (taken == 1)
        taken = take_text(task, PyTuple_GET_ITEM(file, 1), 1, &path);
    if (taken != 1)
        return taken;
    part->path = path.bytes;
    /* A part that tells the label itself. */
    return !(part->extension.size == (Py_ssize_t)strlen(LABEL_PART) &&
             memcmp(part->extension.bytes, LABEL_PART, strlen(LABEL_PART)) == 0);
}

static int take_label(Task *task, Sample *sample, PyObject *object)
{
    sample->label = NO_LABEL;
    if (object == Py_None)
        return 1;
    int overflow = 0;
    long label = PyLong_Check(object) ? PyLong_AsLongAndOverflow(object, &overflow) : LONG_MAX;
    if (overflow || label > INT32_MAX || label <= NO_LABEL)
        return 0;
    Part *part = add_part(task);
    if (!part)
        return -1;
    sample->label = (int32_t)label;
    part->key = sample->key;
    part->extension = (Text){LABEL_PART, (Py_ssize_t)strlen(LABEL_PART)};
    snprintf(part->digits, sizeof part->digits, "%ld", label);
    return 1;
}

static int take_sample(Task *task, PyObject *object)
{
    if (!PyTuple_Check(object) || PyTuple_GET_SIZE(object) != 3)
        return 0;
    PyObject *files = PyTuple_GET_ITEM(object, 1);
    if (!PyTuple_Check(files) || PyTuple_GET_SIZE(files) == 0)
        return 0;
    Sample *sample = task->samples + task->sample_count;
    sample->first = task->part_count;
    int taken = take_text(task, PyTuple_GET_ITEM(object, 0), 0, &sample->key);
    for (Py_ssize_t each = 0; taken == 1 && each < PyTuple_GET_SIZE(files); each++)
        taken = take_file(task, sample, PyTuple_GET_ITEM(files, each));
    if (taken == 1)
        taken = take_label(task, sample, PyTuple_GET_ITEM(object, 2));
    sample->parts = task->part_count - sample->first;
    task->sample_count += taken == 1;
    return taken;
}

/* -- the columns of a Block */

/* The number of a part's kind among those met before, which it may add to; -1 with an exception. */
static Py_ssize_t kind_of(PyObject *kinds, const Part *part, const Part **met, Py_ssize_t last)
{
    Py_ssize_t count = PyList_GET_SIZE(kinds);
    for (Py_ssize_t tried = 0; tried < count; tried++) {
        Py_ssize_t at = (last + tried) % count;
        const Part *other = met[at];
        if (!other->path == !part->path && other->extension.size == part->extension.size &&
            memcmp(other->extension.bytes, part->extension.bytes,
                   (size_t)part->extension.size) == 0)
            return at;
    }
    PyObject *kind = part->path ? Py_BuildValue("(OO)", part->extension_object, Py_False)
                                : Py_BuildValue("(sO)", LABEL_PART, Py_True);
    if (!kind)
        return -1;
    int is_added = PyList_Append(kinds, kind) == 0;
    Py_DECREF(kind);
    if (!is_added)
        return -1;
    met[count] = part;
    return count;
}

static PyObject *empty(Py_ssize_t count, size_t size)
{
    return PyBytes_FromStringAndSize(NULL, count * (Py_ssize_t)size);
}

#define COLUMN(object, type) ((type *)PyBytes_AS_STRING(object))

/* Names, their sizes, labels, counts of parts. */
static int fill_samples(const Task *task, Py_ssize_t count, PyObject **columns)
{
    Py_ssize_t size = 0;
    for (Py_ssize_t each = 0; each < count; each++)
        size += task->samples[each].key.size;
    columns[0] = empty(size, 1);
    for (int at = 1; at < 4; at++)
        columns[at] = empty(count, sizeof(uint32_t));
    if (!columns[0] || !columns[1] || !columns[2] || !columns[3])
        return 0;
    char *names = PyBytes_AS_STRING(columns[0]);
    for (Py_ssize_t each = 0; each < count; each++) {
        const Sample *sample = task->samples + each;
        memcpy(names, sample->key.bytes, (size_t)sample->key.size);
        names += sample->key.size;
        COLUMN(columns[1], uint32_t)[each] = (uint32_t)sample->key.size;
        COLUMN(columns[2], int32_t)[each] = sample->label;
        COLUMN(columns[3], uint32_t)[each] = (uint32_t)sample->parts;
    }
    return 1;
}

/* Kinds; the kind of each part, offsets, sizes, checksums, times. */
static int fill_parts(const Task *task, Py_ssize_t count, PyObject **columns)
{
    columns[4] = PyList_New(0);
    columns[5] = empty(count, sizeof(uint32_t));
    columns[6] = empty(count, sizeof(int64_t));
    columns[7] = empty(count, sizeof(uint64_t));
    columns[8] = empty(count, sizeof(uint32_t));
    columns[9] = empty(count, sizeof(int64_t));
    for (int at = 4; at < 10; at++)
        if (!columns[at])
            return 0;
    const Part **met = PyMem_Malloc(((size_t)count + 1) * sizeof *met);
    if (!met) {
        PyErr_NoMemory();
        return 0;
    }
    Py_ssize_t kind = 0;
    for (Py_ssize_t each = 0; kind >= 0 && each < count; each++) {
        const Part *part = task->parts + each;
        kind = kind_of(columns[4], part, met, kind);
        COLUMN(columns[5], uint32_t)[each] = (uint32_t)kind;
        COLUMN(columns[6], int64_t)[each] = part->offset;
        COLUMN(columns[7], uint64_t)[each] = (uint64_t)part->size;
        COLUMN(columns[8], uint32_t)[each] = part->crc;
        COLUMN(columns[9], int64_t)[each] = part->time_ns;
    }
    PyMem_Free(met);
    return kind >= 0;
}

static PyObject *columns_of(const Task *task, Py_ssize_t count)
{
    PyObject *columns[10] = {NULL}, *tuple = NULL;
    Py_ssize_t parts = count ? task->samples[count - 1].first + task->samples[count - 1].parts : 0;
    if (fill_samples(task, count, columns) && fill_parts(task, parts, columns) &&
        (tuple = PyTuple_New(10)))
        for (int at = 0; at < 10; at++)
            PyTuple_SET_ITEM(tuple, at, columns[at]);
    else
        for (int at = 0; at < 10; at++)
            Py_XDECREF(columns[at]);
    return tuple;
}

static PyObject *tar_samples(PyObject *self, PyObject *args)
{
    (void)self;
    PyObject *given, *columns = NULL;
    Py_buffer buffer;
    if (!PyArg_ParseTuple(args, "O!w*", &PyList_Type, &given, &buffer))
        return NULL;
    Task task = {0};
    int64_t end = 0;
    int taken = 1;
    /* The list may be changed by others meanwhile: what is in it is held. */
    PyObject *samples = PyList_GetSlice(given, 0, PyList_GET_SIZE(given));
    Py_ssize_t count = samples ? PyList_GET_SIZE(samples) : 0, done = 0;
    task.held = PyList_New(0);
    task.samples = PyMem_Calloc((size_t)count + 1, sizeof(Sample));
    if (!samples || !task.held || !task.samples) {
        PyErr_NoMemory();
        goto end;
    }
    for (Py_ssize_t each = 0; taken == 1 && each < count; each++)
        taken = take_sample(&task, PyList_GET_ITEM(samples, each));
    if (taken < 0)
        goto end;
    Py_BEGIN_ALLOW_THREADS
    done = write_samples(&task, buffer.buf, buffer.len, &end);
    Py_END_ALLOW_THREADS
    columns = columns_of(&task, done);
end:
    PyMem_Free(task.samples);
    PyMem_Free(task.parts);
    Py_XDECREF(task.held);
    Py_XDECREF(samples);
    PyBuffer_Release(&buffer);
    return columns ? Py_BuildValue("(LN)", (long long)end, columns) : NULL;
}

static PyObject *crc32(PyObject *self, PyObject *args)
{
    (void)self;
    Py_buffer data;
    unsigned int crc = 0;
    if (!PyArg_ParseTuple(args, "y*|I", &data, &crc))
        return NULL;
    if (data.len > LONG) {
        Py_BEGIN_ALLOW_THREADS
        crc = crc_of(crc, data.buf, (size_t)data.len);
        Py_END_ALLOW_THREADS
    } else {
        crc = crc_of(crc, data.buf, (size_t)data.len);
    }
    PyBuffer_Release(&data);
    return PyLong_FromUnsignedLong(crc);
}

static PyMethodDef methods[] = {
    {"crc32", crc32, METH_VARARGS, "The CRC-32 of bytes, or of what goes on with it."},
    {"tar_samples", tar_samples, METH_VARARGS, "Write samples of files into the blocks of a tar."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_intake", "Small files into the blocks of a tar.", 0, methods,
    NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__intake(void)
{
    make_crc();
    if (!same_sum)
        make_same();
    return PyModule_Create(&module);
}
