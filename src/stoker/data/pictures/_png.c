/* Undoes the filters of a PNG's lines, into memory that is given.
 *
 * A line is a byte that names a filter, then the difference of each byte to what is foretold from
 * its neighbours: the pixel to the left, the one above, and the one above that to the left. The
 * build may leave this file out: other libraries in decode.py do the same, slower.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* Up to so many bytes, others wait for less time than it takes to give them the lock. */
#define SMALL (1 << 16)
#define INLINE static inline __attribute__((always_inline))

enum { NONE, SUB, UP, AVERAGE, PAETH };

/* `of` channels of a pixel become `to`: as many, or three of one. */
typedef struct {
    Py_buffer lines, place;
    Py_ssize_t width;
    int of, to;
} Picture;

INLINE int foretell(int filter, int left, int above, int corner)
{
    if (filter == PAETH) {
        int by_left = abs(above - corner), by_above = abs(left - corner);
        int by_corner = abs(left + above - 2 * corner);
        /* Chosen without a jump: which one it is cannot be guessed. */
        int nearest = by_above < by_left ? above : left;
        int least = by_above < by_left ? by_above : by_left;
        return by_corner < least ? corner : nearest;
    }
    return filter == SUB ? left : filter == UP ? above : filter == AVERAGE ? (left + above) / 2 : 0;
}

/* Inlined with numbers for the filter and the channels: each case becomes a loop of its own. */
INLINE void undo_line(int filter, const uint8_t *line, const uint8_t *above, uint8_t *out, size_t width,
                      int of, int to)
{
    int left[3] = {0}, corner[3] = {0};
    for (size_t x = 0; x < width; x++, line += of, above += to, out += to)
        for (int at = 0; at < of; at++) {
            left[at] = (line[at] + foretell(filter, left[at], above[at], corner[at])) & 0xFF;
            corner[at] = above[at];
            for (int copy = at; copy < to; copy += of)
                out[copy] = (uint8_t)left[at];
        }
}

INLINE int undo_lines(const Picture *picture, const uint8_t *nothing, int of, int to)
{
    size_t width = (size_t)picture->width;
    size_t stride = width * (size_t)of + 1, out_stride = width * (size_t)to;
    const uint8_t *line = picture->lines.buf, *end = line + picture->lines.len, *above = nothing;
    uint8_t *out = picture->place.buf;
    for (; line < end; line += stride, above = out, out += out_stride)
        switch (line[0]) {
        case NONE: undo_line(NONE, line + 1, above, out, width, of, to); break;
        case SUB: undo_line(SUB, line + 1, above, out, width, of, to); break;
        case UP: undo_line(UP, line + 1, above, out, width, of, to); break;
        case AVERAGE: undo_line(AVERAGE, line + 1, above, out, width, of, to); break;
        case PAETH: undo_line(PAETH, line + 1, above, out, width, of, to); break;
        default: return -1;
        }
    return 0;
}

/* Says what does not fit together; after this, whole lines fill the memory exactly. */
static const char *check(const Picture *picture)
{
    Py_ssize_t width = picture->width;
    if (picture->of == 1 ? picture->to != 1 && picture->to != 3 : picture->of != 3 || picture->to != 3)
        return "channels become as many, or three of one";
    if (width < 1 || width > PY_SSIZE_T_MAX / 4 || picture->lines.len % (width * picture->of + 1))
        return "the lines are not whole";
    Py_ssize_t height = picture->lines.len / (width * picture->of + 1);
    if (picture->place.len % (width * picture->to) || picture->place.len / (width * picture->to) != height)
        return "the memory for it has another shape";
    return NULL;
}

static const char *undo_picture(const Picture *picture)
{
    const char *why = check(picture);
    if (why)
        return why;
    /* What is above the first line. */
    uint8_t *nothing = calloc((size_t)picture->width, (size_t)picture->to);
    int status = 0;
    if (!nothing)
        return "there is no memory for a line of it";
    if (picture->of == 3)
        status = undo_lines(picture, nothing, 3, 3);
    else if (picture->to == 3)
        status = undo_lines(picture, nothing, 1, 3);
    else
        status = undo_lines(picture, nothing, 1, 1);
    free(nothing);
    return status < 0 ? "a line has a filter that is not known" : NULL;
}

static PyObject *undo(PyObject *module, PyObject *args)
{
    Picture picture;
    const char *why;
    (void)module;
    if (!PyArg_ParseTuple(args, "y*w*nii", &picture.lines, &picture.place, &picture.width, &picture.of,
                          &picture.to))
        return NULL;
    PyThreadState *state = picture.lines.len > SMALL ? PyEval_SaveThread() : NULL;
    why = undo_picture(&picture);
    if (state)
        PyEval_RestoreThread(state);
    PyBuffer_Release(&picture.lines);
    PyBuffer_Release(&picture.place);
    if (why) {
        PyErr_SetString(PyExc_ValueError, why);
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"undo", undo, METH_VARARGS, "undo(lines, place, width, of, to): the filters of all lines"},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_png", "The filters of PNGs undone.", -1, methods, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__png(void)
{
    return PyModule_Create(&module);
}
