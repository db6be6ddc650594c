/* Files that the program opens, counted where it opens them: `open` and `os.open`.
 *
 * What stands in their places are functions of C as they are, with their names and signatures. Made
 * with Python's stable interface, as _gate.c is.
 */
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030a0000
#include <Python.h>
#include <stddef.h>
#include <string.h>
#include <structmember.h>

typedef struct {
    PyObject_HEAD
    long long count;
} Opens;

/* There is one for the process, as there is one `open`. */
static Opens *opens;
static PyObject *originals[2];

static PyObject *count(int which, PyObject *args, PyObject *names)
{
    /* What is made of a descriptor is no file that is opened. */
    if (PyTuple_Size(args) == 0 || !PyLong_Check(PyTuple_GetItem(args, 0)))
        opens->count++;
    return PyObject_Call(originals[which], args, names);
}

static PyObject *count_open(PyObject *self, PyObject *args, PyObject *names)
{
    (void)self;
    return count(0, args, names);
}

static PyObject *count_os_open(PyObject *self, PyObject *args, PyObject *names)
{
    (void)self;
    return count(1, args, names);
}

static PyMethodDef counting[] = {
    {"open", (PyCFunction)(void (*)(void))count_open, METH_VARARGS | METH_KEYWORDS, NULL},
    {"open", (PyCFunction)(void (*)(void))count_os_open, METH_VARARGS | METH_KEYWORDS, NULL},
};

/* What a function of C tells of itself: its signature, two dashes, and what it does. */
static char *words_of(PyObject *function)
{
    PyObject *signature = PyObject_GetAttrString(function, "__text_signature__");
    PyObject *told = signature == NULL ? NULL : PyObject_GetAttrString(function, "__doc__");
    PyObject *whole = NULL, *encoded = NULL;
    char *words = NULL;
    if (told != NULL && PyUnicode_Check(signature) && PyUnicode_Check(told))
        whole = PyUnicode_FromFormat("open%U\n--\n\n%U", signature, told);
    if (whole != NULL)
        encoded = PyUnicode_AsUTF8String(whole);
    if (encoded != NULL && (words = PyMem_Malloc((size_t)PyBytes_Size(encoded) + 1)) != NULL)
        strcpy(words, PyBytes_AsString(encoded));
    PyErr_Clear();
    Py_XDECREF(signature);
    Py_XDECREF(told);
    Py_XDECREF(whole);
    Py_XDECREF(encoded);
    return words;
}

/* instead(original, which): a function that counts, and is like the original. */
static PyObject *instead(PyObject *self, PyObject *args)
{
    PyObject *original, *home, *module, *made;
    int which;
    if (!PyArg_ParseTuple(args, "Oi", &original, &which))
        return NULL;
    if (which < 0 || which > 1 || originals[which] != NULL || (opens != NULL && opens != (Opens *)self)) {
        PyErr_SetString(PyExc_ValueError, "each is counted once");
        return NULL;
    }
    home = PyObject_GetAttrString(original, "__self__");
    module = home == NULL ? NULL : PyObject_GetAttrString(original, "__module__");
    made = NULL;
    if (module != NULL) {
        counting[which].ml_doc = words_of(original);
        made = PyCFunction_NewEx(&counting[which], home, module);
    }
    if (made != NULL) {
        originals[which] = Py_NewRef(original);
        opens = (Opens *)Py_NewRef(self);
    }
    Py_XDECREF(home);
    Py_XDECREF(module);
    return made;
}

static void dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

static PyMethodDef opens_methods[] = {
    {"instead", instead, METH_VARARGS, "Return a function like `open` or `os.open` that counts."},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef opens_members[] = {
    {"count", T_LONGLONG, offsetof(Opens, count), 0, "How many files were opened."},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot opens_slots[] = {
    {Py_tp_dealloc, dealloc},
    {Py_tp_methods, opens_methods},
    {Py_tp_members, opens_members},
    {0, NULL},
};

static PyType_Spec opens_spec = {
    "_opens.Opens", sizeof(Opens), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, opens_slots,
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_opens", "Files that are opened.", -1, NULL, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__opens(void)
{
    PyObject *made = PyModule_Create(&module), *type = PyType_FromSpec(&opens_spec);
    if (made == NULL || type == NULL || PyModule_AddObjectRef(made, "Opens", type) < 0)
        Py_CLEAR(made);
    Py_XDECREF(type);
    return made;
}
