/* Steps that pass by, without a line of Python.
 *
 * A gate stands before one of our wrappers (hooks.py). While steps pass by it does what the wrapper
 * would do and calls what is wrapped; at other times, and where a step goes otherwise than the one
 * before, it calls the wrapper. Without a compiler the wrappers are there alone.
 *
 * Made with Python's stable interface: the program that is watched may have another Python than the
 * one for which Stoker was built.
 */
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030a0000
#include <Python.h>
#include <pythread.h>
#include <stddef.h>
#include <stdint.h>
#include <structmember.h>

/* As in phases.py and passing.py. */
enum { DATA, H2D, FORWARD, BACKWARD, OPTIMIZER, COMM, GRAPH, OTHER, PREPARE, LOSS };
enum { SEEN_FORWARD = 1, SEEN_BACKWARD = 2, ANSWERED = 4 };
static const unsigned OPEN = 1u << OTHER | 1u << PREPARE | 1u << LOSS | 1u << OPTIMIZER;

/* -- what is noted of steps that pass by: the attributes of Passing ------------------------------- */

typedef struct {
    PyObject_HEAD
    PyObject *order, *ends;
    long long giver;
    double began, until, stepped_at;
    int at, count, left, seen;
} Notes;

static PyTypeObject *notes_type;

static void notes_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    Py_XDECREF(((Notes *)self)->order);
    Py_XDECREF(((Notes *)self)->ends);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

static PyMemberDef notes_members[] = {
    {"order", T_OBJECT_EX, offsetof(Notes, order), 0, NULL},
    {"ends", T_OBJECT_EX, offsetof(Notes, ends), 0, NULL},
    {"giver", T_LONGLONG, offsetof(Notes, giver), 0, NULL},
    {"began", T_DOUBLE, offsetof(Notes, began), 0, NULL},
    {"until", T_DOUBLE, offsetof(Notes, until), 0, NULL},
    {"stepped_at", T_DOUBLE, offsetof(Notes, stepped_at), 0, NULL},
    {"at", T_INT, offsetof(Notes, at), 0, NULL},
    {"count", T_INT, offsetof(Notes, count), 0, NULL},
    {"left", T_INT, offsetof(Notes, left), 0, NULL},
    {"seen", T_INT, offsetof(Notes, seen), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot notes_slots[] = {
    {Py_tp_dealloc, notes_dealloc},
    {Py_tp_members, notes_members},
    {0, NULL},
};

static PyType_Spec notes_spec = {
    "_gate.Notes", sizeof(Notes), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, notes_slots,
};

/* Say whether this is the object whose address stands where the optimizers have got to. */
static int is_its_turn(Notes *passing, PyObject *args)
{
    PyObject *number = PyList_GetItem(passing->order, passing->at);
    void *address = number == NULL ? NULL : PyLong_AsVoidPtr(number);
    PyErr_Clear();
    return address != NULL && PyTuple_Size(args) > 0 && address == PyTuple_GetItem(args, 0);
}

/* -- the gate ----------------------------------------------------------------------------------- */

typedef struct Gate Gate;
typedef PyObject *(*Way)(Gate *, Notes *, PyObject *args, PyObject *names);

struct Gate {
    PyObject_HEAD
    Way way;
    PyObject *timeline;
    PyObject *wrapper;
    /* What is wrapped; a class stands for its `__call__` of the moment. */
    PyObject *original;
    PyObject *attributes;
    PyObject *references;
};

static PyTypeObject *gate_type;
static PyObject *method_type, *getattr_function, *getitem_function;
static PyObject *name_base, *name_call, *name_clock, *name_current, *name_owner, *name_passing;
static PyObject *name_forward_ends, *name_backward_ends, *name_batch_fails, *name_training;

/* The timeline's phase; below zero if it cannot be told. */
static long phase_of(Gate *gate)
{
    PyObject *current = PyObject_GetAttr(gate->timeline, name_current);
    long phase = current == NULL ? -1 : PyLong_AsLong(current);
    Py_XDECREF(current);
    PyErr_Clear();
    return phase;
}

static void set_phase(Gate *gate, int phase)
{
    PyObject *number = PyLong_FromLong(phase);
    if (number == NULL || PyObject_SetAttr(gate->timeline, name_current, number) < 0)
        PyErr_Clear();
    Py_XDECREF(number);
}

/* The time in seconds, as a float of Python's; NULL without an exception if it cannot be told. */
static PyObject *time_of(Gate *gate)
{
    PyObject *clock = PyObject_GetAttr(gate->timeline, name_clock);
    PyObject *now = clock == NULL ? NULL : PyObject_CallNoArgs(clock);
    Py_XDECREF(clock);
    if (now == NULL)
        PyErr_Clear();
    return now;
}

/* Call a method of the timeline; an error of ours is dropped. Below zero, with an exception: the
 * program was interrupted meanwhile. */
static int tell(Gate *gate, PyObject *name, PyObject *about)
{
    PyObject *answer = PyObject_CallMethodObjArgs(gate->timeline, name, about, NULL);
    if (answer == NULL) {
        if (!PyErr_ExceptionMatches(PyExc_Exception))
            return -1;
        PyErr_Clear();
    }
    Py_XDECREF(answer);
    return 0;
}

/* Have the exception of now, if there is one, or else that one, of which the references are taken. */
static void restore(PyObject *type, PyObject *value, PyObject *traceback)
{
    if (!PyErr_Occurred()) {
        PyErr_Restore(type, value, traceback);
        return;
    }
    Py_XDECREF(type);
    Py_XDECREF(value);
    Py_XDECREF(traceback);
}

/* `__next__` of a loader, as `asking`. */
static PyObject *ask(Gate *gate, Notes *passing, PyObject *args, PyObject *names)
{
    PyObject *batch, *now, *type, *value, *traceback;
    int is_passing = 0;
    if (passing->at == passing->count && PyTuple_Size(args) == 1
        && passing->giver == (long long)(intptr_t)PyTuple_GetItem(args, 0)
        && PyList_Size(passing->ends) < passing->left && (now = time_of(gate)) != NULL) {
        if (PyFloat_AsDouble(now) < passing->until && PyList_Append(passing->ends, now) == 0) {
            is_passing = 1;
            passing->at = passing->seen = 0;
            set_phase(gate, PREPARE);
        }
        PyErr_Clear();
        Py_DECREF(now);
    }
    if (!is_passing)
        return PyObject_Call(gate->wrapper, args, names);
    batch = PyObject_Call(gate->original, args, names);
    if (batch == NULL) {
        PyErr_Fetch(&type, &value, &traceback);
        tell(gate, name_batch_fails, PyTuple_GetItem(args, 0));
        restore(type, value, traceback);
    }
    return batch;
}

/* Before and after an optimizer's step, as `around_steps`. */
static PyObject *before_step(Gate *gate, Notes *passing, PyObject *args, PyObject *names)
{
    if (passing->at == 0 || is_its_turn(passing, args))
        Py_RETURN_NONE;
    return PyObject_Call(gate->wrapper, args, names);
}

static PyObject *after_step(Gate *gate, Notes *passing, PyObject *args, PyObject *names)
{
    PyObject *now;
    long phase;
    if (!is_its_turn(passing, args) || (now = time_of(gate)) == NULL)
        return PyObject_Call(gate->wrapper, args, names);
    passing->stepped_at = PyFloat_AsDouble(now);
    PyErr_Clear();
    passing->at++;
    Py_DECREF(now);
    phase = phase_of(gate);
    if (phase != FORWARD && phase != BACKWARD)
        set_phase(gate, OTHER);
    Py_RETURN_NONE;
}

static int is_owner(Gate *gate)
{
    PyObject *owner = PyObject_GetAttr(gate->timeline, name_owner);
    int answer = owner != NULL && PyLong_AsUnsignedLong(owner) == PyThread_get_thread_ident();
    Py_XDECREF(owner);
    PyErr_Clear();
    return answer;
}

/* The end of a span that began in that phase. Below zero: the program was interrupted. */
static int end_span(Gate *gate, Notes *passing, int is_forward, long before)
{
    PyObject *type, *value, *traceback, *now, *base, *number;
    int answer = 0;
    PyErr_Fetch(&type, &value, &traceback);
    now = PyObject_GetAttr(gate->timeline, name_passing);
    if (now != (PyObject *)passing) {
        PyErr_Clear();
        number = is_forward ? NULL : PyLong_FromLong(before);
        answer = tell(gate, is_forward ? name_forward_ends : name_backward_ends, number);
        Py_XDECREF(number);
    } else if (is_forward && !(passing->seen & ANSWERED)) {
        set_phase(gate, LOSS);
    } else if (!is_forward && before == FORWARD) {
        set_phase(gate, FORWARD);
    } else {
        base = PyObject_GetAttr(gate->timeline, name_base);
        if (base == NULL || PyObject_SetAttr(gate->timeline, name_current, base) < 0)
            PyErr_Clear();
        Py_XDECREF(base);
    }
    Py_XDECREF(now);
    restore(type, value, traceback);
    return answer;
}

/* A forward or a backward pass, as `spanning`. */
static PyObject *span(Gate *gate, Notes *passing, int is_forward, PyObject *args, PyObject *names)
{
    PyObject *original, *result;
    unsigned where = is_forward ? OPEN : OPEN | 1u << FORWARD;
    long before = phase_of(gate);
    int is_begun = before >= 0 && where >> before & 1 && is_owner(gate);
    if (is_begun) {
        passing->seen = is_forward ? (passing->seen & ~ANSWERED) | SEEN_FORWARD
                                   : passing->seen | SEEN_BACKWARD | ANSWERED;
        set_phase(gate, is_forward ? FORWARD : BACKWARD);
    }
    if (PyType_Check(gate->original))
        original = PyObject_GetAttr(gate->original, name_call);
    else
        original = Py_NewRef(gate->original);
    result = original == NULL ? NULL : PyObject_Call(original, args, names);
    Py_XDECREF(original);
    if (is_begun && end_span(gate, passing, is_forward, before) < 0)
        Py_CLEAR(result);
    return result;
}

/* Whether a model is in evaluation mode: then the wrapper asks whether it is evaluated. */
static int is_in_evaluation(PyObject *args)
{
    PyObject *answer = NULL;
    if (PyTuple_Size(args) > 0)
        answer = PyObject_GetAttr(PyTuple_GetItem(args, 0), name_training);
    PyErr_Clear();
    Py_XDECREF(answer);
    return answer == Py_False;
}

static PyObject *go_forward(Gate *gate, Notes *passing, PyObject *args, PyObject *names)
{
    if (is_in_evaluation(args))
        return PyObject_Call(gate->wrapper, args, names);
    return span(gate, passing, 1, args, names);
}

static PyObject *go_backward(Gate *gate, Notes *passing, PyObject *args, PyObject *names)
{
    return span(gate, passing, 0, args, names);
}

static PyObject *gate_call(PyObject *self, PyObject *args, PyObject *names)
{
    Gate *gate = (Gate *)self;
    PyObject *result, *passing = PyObject_GetAttr(gate->timeline, name_passing);
    if (passing == NULL)
        PyErr_Clear();
    if (passing != NULL && PyObject_TypeCheck(passing, notes_type))
        result = gate->way(gate, (Notes *)passing, args, names);
    else
        result = PyObject_Call(gate->wrapper, args, names);
    Py_XDECREF(passing);
    return result;
}

/* -- what else a function is ---------------------------------------------------------------------- */

static PyObject *gate_get(PyObject *self, PyObject *object, PyObject *type)
{
    (void)type;
    if (object == NULL || object == Py_None)
        return Py_NewRef(self);
    return PyObject_CallFunctionObjArgs(method_type, self, object, NULL);
}

static PyObject *gate_repr(PyObject *self)
{
    return PyObject_Repr(((Gate *)self)->wrapper);
}

/* Found by its name, as a function is. The `__call__` of a class goes where the class goes, by name
 * or, with cloudpickle, in pieces: what is wrapped goes with it. */
static PyObject *gate_reduce(PyObject *self, PyObject *unused)
{
    Gate *gate = (Gate *)self;
    (void)unused;
    if (gate->way != go_forward)
        return PyObject_GetAttrString(self, "__qualname__");
    if (PyType_Check(gate->original))
        return Py_BuildValue("O(OO)", getattr_function, gate->original, name_call);
    return Py_BuildValue("O((O)i)", getitem_function, gate->original, 0);
}

static PyObject *gate_copy(PyObject *self, PyObject *unused)
{
    (void)unused;
    return Py_NewRef(self);
}

static int gate_traverse(PyObject *self, visitproc visit, void *arg)
{
    Gate *gate = (Gate *)self;
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(gate->timeline);
    Py_VISIT(gate->wrapper);
    Py_VISIT(gate->original);
    Py_VISIT(gate->attributes);
    return 0;
}

static int gate_clear(PyObject *self)
{
    /* The rest is needed as long as it can be called. */
    Py_CLEAR(((Gate *)self)->attributes);
    return 0;
}

static void gate_dealloc(PyObject *self)
{
    Gate *gate = (Gate *)self;
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    if (gate->references != NULL)
        PyObject_ClearWeakRefs(self);
    Py_XDECREF(gate->timeline);
    Py_XDECREF(gate->wrapper);
    Py_XDECREF(gate->original);
    Py_XDECREF(gate->attributes);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

static PyMethodDef gate_methods[] = {
    {"__reduce__", gate_reduce, METH_NOARGS, NULL},
    {"__copy__", gate_copy, METH_NOARGS, NULL},
    {"__deepcopy__", gate_copy, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef gate_members[] = {
    {"__dictoffset__", T_PYSSIZET, offsetof(Gate, attributes), READONLY, NULL},
    {"__weaklistoffset__", T_PYSSIZET, offsetof(Gate, references), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyGetSetDef gate_attributes[] = {
    {"__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot gate_slots[] = {
    {Py_tp_call, gate_call},         {Py_tp_descr_get, gate_get}, {Py_tp_repr, gate_repr},
    {Py_tp_traverse, gate_traverse}, {Py_tp_clear, gate_clear},   {Py_tp_dealloc, gate_dealloc},
    {Py_tp_methods, gate_methods},   {Py_tp_members, gate_members}, {Py_tp_getset, gate_attributes},
    {0, NULL},
};

static PyType_Spec gate_spec = {
    "_gate.Gate",
    sizeof(Gate),
    0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_METHOD_DESCRIPTOR,
    gate_slots,
};

static PyObject *make(Way way, PyObject *args)
{
    PyObject *timeline, *wrapper, *original;
    Gate *gate;
    if (!PyArg_ParseTuple(args, "OOO", &timeline, &wrapper, &original))
        return NULL;
    gate = (Gate *)PyType_GenericAlloc(gate_type, 0);
    if (gate == NULL)
        return NULL;
    gate->way = way;
    gate->timeline = Py_NewRef(timeline);
    gate->wrapper = Py_NewRef(wrapper);
    gate->original = Py_NewRef(original);
    return (PyObject *)gate;
}

#define MAKER(name, way)                                         \
    static PyObject *name(PyObject *module, PyObject *args)      \
    {                                                            \
        (void)module;                                            \
        return make(way, args);                                  \
    }

MAKER(make_asking, ask)
MAKER(make_before, before_step)
MAKER(make_after, after_step)
MAKER(make_forward, go_forward)
MAKER(make_backward, go_backward)

static PyMethodDef methods[] = {
    {"asking", make_asking, METH_VARARGS, "Return a gate before `__next__` of a loader."},
    {"before", make_before, METH_VARARGS, "Return a gate before what precedes a step."},
    {"after", make_after, METH_VARARGS, "Return a gate before what follows a step."},
    {"forward", make_forward, METH_VARARGS, "Return a gate before a model's call."},
    {"backward", make_backward, METH_VARARGS, "Return a gate before the backward pass."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_gate", "Steps that pass by.", -1, methods, NULL, NULL, NULL, NULL,
};

static int name_all(void)
{
    return (name_base = PyUnicode_InternFromString("base")) != NULL
           && (name_call = PyUnicode_InternFromString("__call__")) != NULL
           && (name_clock = PyUnicode_InternFromString("clock")) != NULL
           && (name_current = PyUnicode_InternFromString("current")) != NULL
           && (name_owner = PyUnicode_InternFromString("owner")) != NULL
           && (name_passing = PyUnicode_InternFromString("passing")) != NULL
           && (name_forward_ends = PyUnicode_InternFromString("forward_ends")) != NULL
           && (name_backward_ends = PyUnicode_InternFromString("backward_ends")) != NULL
           && (name_batch_fails = PyUnicode_InternFromString("batch_fails")) != NULL
           && (name_training = PyUnicode_InternFromString("training")) != NULL;
}

static PyObject *find(const char *module, const char *name)
{
    PyObject *home = PyImport_ImportModule(module);
    PyObject *found = home == NULL ? NULL : PyObject_GetAttrString(home, name);
    Py_XDECREF(home);
    return found;
}

PyMODINIT_FUNC PyInit__gate(void)
{
    PyObject *made;
    if ((method_type = find("types", "MethodType")) == NULL
        || (getattr_function = find("builtins", "getattr")) == NULL
        || (getitem_function = find("operator", "getitem")) == NULL || !name_all()
        || (notes_type = (PyTypeObject *)PyType_FromSpec(&notes_spec)) == NULL
        || (gate_type = (PyTypeObject *)PyType_FromSpec(&gate_spec)) == NULL)
        return NULL;
    made = PyModule_Create(&module);
    if (made != NULL && PyModule_AddObjectRef(made, "Notes", (PyObject *)notes_type) < 0)
        Py_CLEAR(made);
    return made;
}
