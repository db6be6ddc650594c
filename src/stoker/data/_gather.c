/* Copies many ranges of files into one buffer, without the interpreter's lock.
 *
 * Everything here has a twin in Python with the same results (gather.py, order.py): the build
 * may leave this file out.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif

/* -- buffers ------------------------------------------------------------------------------ */

#define MAX_BUFFERS 8

typedef struct {
    Py_buffer view[MAX_BUFFERS];
    int count;
} Buffers;

static void release(Buffers *all)
{
    while (all->count > 0)
        PyBuffer_Release(&all->view[--all->count]);
}

/* Takes one buffer of items of a known size; the last one taken may be writable. */
static void *take(Buffers *all, PyObject *object, Py_ssize_t item, int flags, Py_ssize_t *length)
{
    Py_buffer *view = &all->view[all->count];
    if (PyObject_GetBuffer(object, view, flags) < 0)
        return NULL;
    all->count++;
    if (view->len % item != 0 || (view->len > 0 && (uintptr_t)view->buf % (size_t)item != 0)) {
        PyErr_SetString(PyExc_ValueError, "a buffer has items of another size");
        return NULL;
    }
    *length = view->len / item;
    /* An empty buffer may have no address, which is no error. */
    return view->buf ? view->buf : (void *)all;
}

/* -- a mapped file that needs no open file ------------------------------------------------- */

typedef struct {
    PyObject_HEAD
    void *start;
    Py_ssize_t size;
} Mapping;

static int mapping_buffer(PyObject *self, Py_buffer *view, int flags)
{
    Mapping *mapping = (Mapping *)self;
    return PyBuffer_FillInfo(view, self, mapping->start, mapping->size, 1, flags);
}

static void mapping_free(PyObject *self)
{
    Mapping *mapping = (Mapping *)self;
    PyTypeObject *type = Py_TYPE(self);
    if (mapping->size > 0)
        munmap(mapping->start, (size_t)mapping->size);
    type->tp_free(self);
}

static PyBufferProcs mapping_as_buffer = {mapping_buffer, NULL};

static PyTypeObject MappingType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "stoker.data._gather.Mapping",
    .tp_basicsize = sizeof(Mapping),
    .tp_dealloc = mapping_free,
    .tp_as_buffer = &mapping_as_buffer,
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_doc = "The bytes of a file, mapped.",
};

static PyObject *map_file(PyObject *module, PyObject *args)
{
    int file;
    Py_ssize_t size;
    Mapping *mapping;
    void *start = NULL;
    (void)module;
    if (!PyArg_ParseTuple(args, "in", &file, &size))
        return NULL;
    if (size < 0)
        return PyErr_Format(PyExc_ValueError, "no file has %zd bytes", size);
    if (size > 0) {
        start = mmap(NULL, (size_t)size, PROT_READ, MAP_SHARED, file, 0);
        if (start == MAP_FAILED)
            return PyErr_SetFromErrno(PyExc_OSError);
    }
    mapping = PyObject_New(Mapping, &MappingType);
    if (!mapping) {
        if (size > 0)
            munmap(start, (size_t)size);
        return NULL;
    }
    mapping->start = size > 0 ? start : (void *)"";
    mapping->size = size;
    return (PyObject *)mapping;
}

/* -- memory for batches ---------------------------------------------------------------------- */

#define HUGE_PAGE ((size_t)2 << 20)

typedef struct {
    PyObject_HEAD
    void *mapped, *start;
    size_t mapped_size;
    Py_ssize_t size;
} Memory;

static int memory_buffer(PyObject *self, Py_buffer *view, int flags)
{
    Memory *memory = (Memory *)self;
    return PyBuffer_FillInfo(view, self, memory->start, memory->size, 0, flags);
}

static void memory_free(PyObject *self)
{
    Memory *memory = (Memory *)self;
    munmap(memory->mapped, memory->mapped_size);
    Py_TYPE(self)->tp_free(self);
}

static Py_ssize_t memory_length(PyObject *self)
{
    return ((Memory *)self)->size;
}

static PyBufferProcs memory_as_buffer = {memory_buffer, NULL};
static PySequenceMethods memory_as_sequence = {.sq_length = memory_length};

static PyTypeObject MemoryType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "stoker.data._gather.Memory",
    .tp_basicsize = sizeof(Memory),
    .tp_dealloc = memory_free,
    .tp_as_sequence = &memory_as_sequence,
    .tp_as_buffer = &memory_as_buffer,
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_doc = "Memory in large pages, where the system has them.",
};

/* memory(size): the kernel clears 2 MiB at a time instead of 4 KiB, and addresses are found sooner */
static PyObject *new_memory(PyObject *module, PyObject *args)
{
    Py_ssize_t size;
    size_t rounded;
    Memory *memory;
    void *mapped;
    (void)module;
    if (!PyArg_ParseTuple(args, "n", &size))
        return NULL;
    if (size < 0 || size > PY_SSIZE_T_MAX - (Py_ssize_t)(2 * HUGE_PAGE))
        return PyErr_Format(PyExc_ValueError, "no memory has %zd bytes", size);
    rounded = ((size_t)size + HUGE_PAGE) & ~(HUGE_PAGE - 1);
    mapped = mmap(NULL, rounded + HUGE_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
                  -1, 0);
    if (mapped == MAP_FAILED)
        return PyErr_NoMemory();
    memory = PyObject_New(Memory, &MemoryType);
    if (!memory) {
        munmap(mapped, rounded + HUGE_PAGE);
        return NULL;
    }
    memory->mapped = mapped;
    memory->mapped_size = rounded + HUGE_PAGE;
    memory->start = (void *)(((uintptr_t)mapped + HUGE_PAGE - 1) & ~(uintptr_t)(HUGE_PAGE - 1));
    memory->size = size;
#ifdef MADV_HUGEPAGE
    /* Refused where the kernel has none: then the pages are small ones. */
    (void)madvise(memory->start, rounded, MADV_HUGEPAGE);
#endif
    return (PyObject *)memory;
}

static PyObject *address(PyObject *module, PyObject *object)
{
    Py_buffer view;
    PyObject *found;
    (void)module;
    if (PyObject_GetBuffer(object, &view, PyBUF_SIMPLE) < 0)
        return NULL;
    found = PyLong_FromVoidPtr(view.buf);
    PyBuffer_Release(&view);
    return found;
}

/* Memory answers slowly at first: ask for what comes some turns later. */
#define AHEAD 8

/* -- which parts ---------------------------------------------------------------------------- */

/* select(first, extension, samples, wanted, parts) -> how many samples lack the part */
static PyObject *select_parts(PyObject *module, PyObject *args)
{
    PyObject *o[4];
    unsigned int wanted;
    Buffers all = {.count = 0};
    Py_ssize_t firsts, extensions, count, places, missing = 0;
    const uint64_t *first, *samples;
    const uint16_t *extension;
    uint64_t *parts;
    (void)module;
    if (!PyArg_ParseTuple(args, "OOOIO", &o[0], &o[1], &o[2], &wanted, &o[3]))
        return NULL;
    if (!(first = take(&all, o[0], 8, PyBUF_SIMPLE, &firsts)) ||
        !(extension = take(&all, o[1], 2, PyBUF_SIMPLE, &extensions)) ||
        !(samples = take(&all, o[2], 8, PyBUF_SIMPLE, &count)) ||
        !(parts = take(&all, o[3], 8, PyBUF_WRITABLE, &places)))
        goto fail;
    if (places != count) {
        PyErr_SetString(PyExc_ValueError, "there is not one place for each sample");
        goto fail;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        uint64_t sample = samples[i], part, end;
        /* To ask for an address that is not there does no harm. */
        if (i + 2 * AHEAD < count)
            __builtin_prefetch(&first[samples[i + 2 * AHEAD]]);
        if (i + AHEAD < count && samples[i + AHEAD] < (uint64_t)firsts)
            __builtin_prefetch(&extension[first[samples[i + AHEAD]]]);
        if (sample >= (uint64_t)(firsts > 0 ? firsts - 1 : 0)) {
            PyErr_Format(PyExc_IndexError, "there is no sample %llu", (unsigned long long)sample);
            goto fail;
        }
        part = first[sample];
        end = first[sample + 1];
        if (end > (uint64_t)extensions || part > end) {
            PyErr_SetString(PyExc_ValueError, "the index is damaged");
            goto fail;
        }
        while (part < end && extension[part] != wanted)
            part++;
        parts[i] = part < end ? part : UINT64_MAX;
        missing += part == end;
    }
    release(&all);
    return PyLong_FromSsize_t(missing);
fail:
    release(&all);
    return NULL;
}

/* -- copying -------------------------------------------------------------------------------- */

enum { READY = 0, NOT_MAPPED = 1, OUTSIDE = 2 };

/* lay_out(lengths, shard, offset, size, parts, ends) -> (status, number, is even)
 *
 * Where each part ends in the buffer, and whether all have the same size. The number is the size of the buffer, the shard that is not
 * mapped yet (its length is 2^64 - 1), or the place in `parts` of one that is not in its file. */
static PyObject *lay_out(PyObject *module, PyObject *args)
{
    PyObject *o[6];
    Buffers all = {.count = 0};
    Py_ssize_t shards, total, offsets, sizes, count, places;
    const uint64_t *lengths, *offset, *size, *parts;
    const uint32_t *shard;
    uint64_t *ends, end = 0;
    int status = READY, is_even = 1;
    (void)module;
    if (!PyArg_ParseTuple(args, "OOOOOO", &o[0], &o[1], &o[2], &o[3], &o[4], &o[5]))
        return NULL;
    if (!(lengths = take(&all, o[0], 8, PyBUF_SIMPLE, &shards)) ||
        !(shard = take(&all, o[1], 4, PyBUF_SIMPLE, &total)) ||
        !(offset = take(&all, o[2], 8, PyBUF_SIMPLE, &offsets)) ||
        !(size = take(&all, o[3], 8, PyBUF_SIMPLE, &sizes)) ||
        !(parts = take(&all, o[4], 8, PyBUF_SIMPLE, &count)) ||
        !(ends = take(&all, o[5], 8, PyBUF_WRITABLE, &places)))
        goto fail;
    if (offsets != total || sizes != total || places != count) {
        PyErr_SetString(PyExc_ValueError, "the columns differ in length");
        goto fail;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        uint64_t part = parts[i], length;
        if (i + AHEAD < count) {
            uint64_t later = parts[i + AHEAD];
            __builtin_prefetch(&shard[later]);
            __builtin_prefetch(&offset[later]);
            __builtin_prefetch(&size[later]);
        }
        if (part >= (uint64_t)total || shard[part] >= (uint64_t)shards) {
            PyErr_Format(PyExc_IndexError, "there is no part %llu", (unsigned long long)part);
            goto fail;
        }
        length = lengths[shard[part]];
        if (length == UINT64_MAX) {
            status = NOT_MAPPED;
            end = shard[part];
            break;
        }
        if (size[part] > length || offset[part] > length - size[part]) {
            status = OUTSIDE;
            end = (uint64_t)i;
            break;
        }
        if (size[part] > (uint64_t)PY_SSIZE_T_MAX - end) {
            PyErr_NoMemory();
            goto fail;
        }
        is_even &= size[part] == size[parts[0]];
        end += size[part];
        ends[i] = end;
    }
    release(&all);
    return Py_BuildValue("iKi", status, (unsigned long long)end, is_even);
fail:
    release(&all);
    return NULL;
}

/* Larger batches leave the cache before anybody looks at them. To write past the cache saves reading
 * what is overwritten; of small parts it costs more than it saves. */
#define STREAMED_BATCH ((uint64_t)4 << 20)
#define STREAMED_PART 4096
#define LINE 64

typedef void (*Copier)(char *, const char *, size_t);

static void copy_cached(char *to, const char *from, size_t size)
{
    memcpy(to, from, size);
}

#if defined(__x86_64__)
/* Both copy up to the first line of the cache, then whole lines, then the rest. */
__attribute__((target("avx2"))) static void copy_avx2(char *to, const char *from, size_t size)
{
    size_t head = -(uintptr_t)to & (LINE - 1);
    memcpy(to, from, head);
    for (to += head, from += head, size -= head; size >= LINE; to += LINE, from += LINE, size -= LINE) {
        __m256i low = _mm256_loadu_si256((const __m256i *)from);
        __m256i high = _mm256_loadu_si256((const __m256i *)(from + 32));
        _mm256_stream_si256((__m256i *)to, low);
        _mm256_stream_si256((__m256i *)(to + 32), high);
    }
    memcpy(to, from, size);
}

__attribute__((target("avx512f"))) static void copy_avx512(char *to, const char *from, size_t size)
{
    size_t head = -(uintptr_t)to & (LINE - 1);
    memcpy(to, from, head);
    for (to += head, from += head, size -= head; size >= 4 * LINE; size -= 4 * LINE) {
        __m512i line[4];
        for (int at = 0; at < 4; at++)
            line[at] = _mm512_loadu_si512(from + LINE * at);
        for (int at = 0; at < 4; at++) {
            __builtin_prefetch(from + 2048 + LINE * at);
            _mm512_stream_si512((__m512i *)(to + LINE * at), line[at]);
        }
        to += 4 * LINE;
        from += 4 * LINE;
    }
    memcpy(to, from, size);
}
#endif

static Copier streamer(void)
{
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f"))
        return copy_avx512;
    if (__builtin_cpu_supports("avx2"))
        return copy_avx2;
#endif
    return copy_cached;
}

static inline void end_stream(void)
{
#if defined(__x86_64__)
    _mm_sfence();
#endif
}

/* How often this thread has had to wait, for a disk or a server. */
static long num_waits(void)
{
#ifdef RUSAGE_THREAD
    struct rusage used;
    if (getrusage(RUSAGE_THREAD, &used) == 0)
        return used.ru_nvcsw;
#endif
    return 0;
}

/* Ask for the first lines of a part; what reads them finds out about the rest. */
static inline void prefetch(const char *from, uint64_t size)
{
    for (uint64_t at = 0; at < size && at < 4 * LINE; at += LINE)
        __builtin_prefetch(from + at);
}

/* Where the parts are: columns of the index, which is a file that others may write to. */
typedef struct {
    const uint64_t *lengths, *addresses, *offset, *parts, *ends;
    const uint32_t *shard;
    Py_ssize_t shards, total, count;
} Places;

static inline uint64_t size_at(const Places *all, Py_ssize_t at)
{
    return all->ends[at] - (at > 0 ? all->ends[at - 1] : 0);
}

/* The bytes of a part, or NULL if its file does not have them. */
static inline const char *source(const Places *all, Py_ssize_t at)
{
    uint64_t part = all->parts[at], size = size_at(all, at), from, length;
    uint32_t shard;
    if (part >= (uint64_t)all->total || (shard = all->shard[part]) >= (uint64_t)all->shards)
        return NULL;
    from = all->offset[part];
    length = all->lengths[shard];
    if (length == UINT64_MAX || size > length || from > length - size)
        return NULL;
    return (const char *)(uintptr_t)all->addresses[shard] + from;
}

/* What the kernel itself reads around a page that is missing: an epoch needs the neighbours too. */
#define WINDOW ((uint64_t)128 << 10)

/* Ask for the pages of a part, within its file: the disk can work on many parts at once. */
static void ask_for(const Places *all, Py_ssize_t at)
{
    const char *from = source(all, at);
    uint64_t size = size_at(all, at), start, begin, end, length;
    uint32_t shard;
    if (!from || !size)
        return;
    shard = all->shard[all->parts[at]];
    if (shard >= (uint64_t)all->shards || (length = all->lengths[shard]) == UINT64_MAX)
        return;
    start = (uint64_t)(uintptr_t)from - all->addresses[shard];
    if (start > length)
        return;
    begin = start & ~(WINDOW - 1);
    end = (start + size + WINDOW - 1) & ~(WINDOW - 1);
    end = end < length ? end : length;
    (void)madvise((void *)(uintptr_t)(all->addresses[shard] + begin), end - begin, MADV_WILLNEED);
}

/* A run of parts that one thread copies, and what came of it. */
typedef struct {
    const Places *all;
    char *out;
    Py_ssize_t first, end, copied;
    long waits;
    int ask, is_begun;
    pthread_t thread;
} Run;

/* Copies until a part is not where it should be. */
static void copy_run(Run *run)
{
    const Places *all = run->all;
    uint64_t size = all->count > 0 ? all->ends[all->count - 1] : 0;
    Copier stream = size >= STREAMED_BATCH ? streamer() : copy_cached;
    char *out = run->out + (run->first > 0 ? all->ends[run->first - 1] : 0);
    const char *from;
    long waits = num_waits();
    for (Py_ssize_t i = run->first; run->ask && i < run->end; i++)
        ask_for(all, i);
    Py_ssize_t i = run->first;
    for (; i < run->end; i++) {
        if (i + AHEAD < run->end && (from = source(all, i + AHEAD)))
            prefetch(from, size_at(all, i + AHEAD));
        if (!(from = source(all, i)))
            break;
        size = size_at(all, i);
        if (size >= STREAMED_PART)
            stream(out, from, size);
        else
            memcpy(out, from, size);
        out += size;
    }
    end_stream();
    run->copied = i - run->first;
    run->waits = num_waits() - waits;
}

static void *copy_run_in_thread(void *run)
{
    copy_run(run);
    return NULL;
}

#define MAX_RUNS 16

/* Divides the parts into runs of about as many bytes; returns how many runs there are. */
static int divide(const Places *all, int threads, Run *runs)
{
    uint64_t size = all->count > 0 ? all->ends[all->count - 1] : 0;
    int wanted = size < STREAMED_BATCH || threads < 1 ? 1 : threads, count = 0;
    Py_ssize_t at = 0;
    wanted = wanted < MAX_RUNS ? wanted : MAX_RUNS;
    for (int each = 1; each <= wanted; each++) {
        Py_ssize_t first = at;
        uint64_t until = each < wanted ? size / (uint64_t)wanted * (uint64_t)each : UINT64_MAX;
        while (at < all->count && all->ends[at] <= until)
            at++;
        if (at > first || each == wanted)
            runs[count++] = (Run){.all = all, .first = first, .end = at};
    }
    return count;
}

/* Copies all parts, with the help of some threads that live no longer than this; returns how many
 * were copied before one that is not where it should be. */
static Py_ssize_t copy_all(const Places *all, char *out, int ask, int threads, long *waits)
{
    Run runs[MAX_RUNS];
    int count = divide(all, threads, runs);
    Py_ssize_t copied = 0;
    sigset_t every, before;
    /* Signals are for the program's own threads. */
    sigfillset(&every);
    if (count > 1)
        pthread_sigmask(SIG_SETMASK, &every, &before);
    for (int at = count - 1; at >= 0; at--) {
        runs[at].out = out;
        runs[at].ask = ask;
        runs[at].is_begun =
            at > 0 && pthread_create(&runs[at].thread, NULL, copy_run_in_thread, &runs[at]) == 0;
    }
    if (count > 1)
        pthread_sigmask(SIG_SETMASK, &before, NULL);
    for (int at = 0; at < count; at++) {
        if (runs[at].is_begun)
            pthread_join(runs[at].thread, NULL);
        else
            copy_run(&runs[at]);
        *waits += runs[at].waits;
    }
    for (int at = 0; at < count; at++) {
        copied += runs[at].copied;
        if (runs[at].copied < runs[at].end - runs[at].first)
            break;
    }
    return copied;
}

static int rises_to(const uint64_t *ends, Py_ssize_t count, Py_ssize_t room)
{
    uint64_t last = 0;
    for (Py_ssize_t i = 0; i < count; last = ends[i++])
        if (ends[i] < last)
            return 0;
    return last <= (uint64_t)room;
}

/* copy(lengths, addresses, shard, offset, parts, ends, out, ask, threads) -> how often it had to wait
 *
 * `ends` is of lay_out. With `ask`, all parts are asked for before the first is copied. A large batch
 * is divided among so many threads. */
static PyObject *copy(PyObject *module, PyObject *args)
{
    PyObject *o[7];
    Buffers all = {.count = 0};
    Places places;
    Py_ssize_t lengths, offsets, ends, room, copied;
    char *out;
    int ask, threads;
    long waits = 0;
    (void)module;
    if (!PyArg_ParseTuple(args, "OOOOOOOpi", &o[0], &o[1], &o[2], &o[3], &o[4], &o[5], &o[6], &ask,
                          &threads))
        return NULL;
    if (!(places.lengths = take(&all, o[0], 8, PyBUF_SIMPLE, &lengths)) ||
        !(places.addresses = take(&all, o[1], 8, PyBUF_SIMPLE, &places.shards)) ||
        !(places.shard = take(&all, o[2], 4, PyBUF_SIMPLE, &places.total)) ||
        !(places.offset = take(&all, o[3], 8, PyBUF_SIMPLE, &offsets)) ||
        !(places.parts = take(&all, o[4], 8, PyBUF_SIMPLE, &places.count)) ||
        !(places.ends = take(&all, o[5], 8, PyBUF_SIMPLE, &ends)) ||
        !(out = take(&all, o[6], 1, PyBUF_WRITABLE, &room)))
        goto fail;
    if (lengths != places.shards || offsets != places.total || ends != places.count ||
        !rises_to(places.ends, ends, room)) {
        PyErr_SetString(PyExc_ValueError, "the columns differ in length, or the buffer is too small");
        goto fail;
    }
    Py_BEGIN_ALLOW_THREADS
    copied = copy_all(&places, out, ask, threads, &waits);
    Py_END_ALLOW_THREADS
    if (copied < places.count) {
        PyErr_SetString(PyExc_IndexError, "a part is not in its file");
        goto fail;
    }
    release(&all);
    return PyLong_FromLong(waits);
fail:
    release(&all);
    return NULL;
}

/* read(files, offset, parts, ends, out, ask) -> (place of the part that ends early or -1, waits)
 *
 * `files` has one open file for each part. */
static PyObject *read_parts(PyObject *module, PyObject *args)
{
    PyObject *o[5];
    Buffers all = {.count = 0};
    Py_ssize_t files, offsets, count, places, room, early = -1;
    const int32_t *file;
    const uint64_t *offset, *parts, *ends;
    char *out;
    int error = 0, ask;
    long waits = 0;
    (void)module;
    if (!PyArg_ParseTuple(args, "OOOOOp", &o[0], &o[1], &o[2], &o[3], &o[4], &ask))
        return NULL;
    if (!(file = take(&all, o[0], 4, PyBUF_SIMPLE, &files)) ||
        !(offset = take(&all, o[1], 8, PyBUF_SIMPLE, &offsets)) ||
        !(parts = take(&all, o[2], 8, PyBUF_SIMPLE, &count)) ||
        !(ends = take(&all, o[3], 8, PyBUF_SIMPLE, &places)) ||
        !(out = take(&all, o[4], 1, PyBUF_WRITABLE, &room)))
        goto fail;
    if (places != count || files != count || !rises_to(ends, count, room)) {
        PyErr_SetString(PyExc_ValueError, "the columns differ in length, or the buffer is too small");
        goto fail;
    }
    for (Py_ssize_t i = 0; i < count; i++)
        if (parts[i] >= (uint64_t)offsets) {
            PyErr_Format(PyExc_IndexError, "there is no part %llu", (unsigned long long)parts[i]);
            goto fail;
        }
    Py_BEGIN_ALLOW_THREADS
    uint64_t at = 0;
    waits = num_waits();
    for (Py_ssize_t i = 0; ask && i < count; i++)
        (void)posix_fadvise(file[i], (off_t)offset[parts[i]],
                            (off_t)(ends[i] - (i > 0 ? ends[i - 1] : 0)), POSIX_FADV_WILLNEED);
    for (Py_ssize_t i = 0; i < count && early < 0 && !error; i++) {
        uint64_t from = offset[parts[i]];
        while (at < ends[i]) {
            ssize_t got = pread(file[i], out + at, ends[i] - at, (off_t)from);
            if (got < 0 && errno == EINTR)
                continue;
            if (got <= 0) {
                error = got < 0 ? errno : 0;
                early = i;
                break;
            }
            at += (uint64_t)got;
            from += (uint64_t)got;
        }
    }
    waits = num_waits() - waits;
    Py_END_ALLOW_THREADS
    release(&all);
    if (error) {
        errno = error;
        return PyErr_SetFromErrno(PyExc_OSError);
    }
    return Py_BuildValue("nl", early, waits);
fail:
    release(&all);
    return NULL;
}

/* -- the order of an epoch ------------------------------------------------------------------ */

static inline uint64_t mixed(uint64_t value)
{
    value = (value ^ (value >> 33)) * UINT64_C(0xFF51AFD7ED558CCD);
    value = (value ^ (value >> 33)) * UINT64_C(0xC4CEB9FE1A85EC53);
    return value ^ (value >> 33);
}

typedef struct {
    const uint64_t *keys;
    Py_ssize_t rounds;
    uint64_t low_mask, high_mask;
    int low_bits;
} Network;

/* A processor works on several positions at once, as none of them waits for another. */
#define LANES 4

static inline void pass(const Network *network, uint64_t *position, int lanes)
{
    uint64_t low[LANES], high[LANES];
    for (int lane = 0; lane < lanes; lane++) {
        low[lane] = position[lane] & network->low_mask;
        high[lane] = position[lane] >> network->low_bits;
    }
    for (Py_ssize_t at = 0; at + 1 < network->rounds; at += 2)
        for (int lane = 0; lane < lanes; lane++) {
            low[lane] ^= mixed(high[lane] + network->keys[at]) & network->low_mask;
            high[lane] ^= mixed(low[lane] + network->keys[at + 1]) & network->high_mask;
        }
    for (int lane = 0; lane < lanes; lane++)
        position[lane] = high[lane] << network->low_bits | low[lane];
}

/* permute(length, keys, start, step, out): order.py says what it computes */
static PyObject *permute(PyObject *module, PyObject *args)
{
    PyObject *o[2];
    Buffers all = {.count = 0};
    unsigned long long length, start, step;
    Py_ssize_t rounds, count;
    const uint64_t *keys;
    uint64_t *out;
    (void)module;
    if (!PyArg_ParseTuple(args, "KOKKO", &length, &o[0], &start, &step, &o[1]))
        return NULL;
    if (!(keys = take(&all, o[0], 8, PyBUF_SIMPLE, &rounds)) ||
        !(out = take(&all, o[1], 8, PyBUF_WRITABLE, &count)))
        goto fail;
    /* A position outside would walk for ever. */
    if (count > 0 && (start >= length || (length - 1 - start) / (step ? step : 1) <
                                             (unsigned long long)(step ? count - 1 : 0))) {
        PyErr_SetString(PyExc_IndexError, "the epoch has no such position");
        goto fail;
    }
    Py_BEGIN_ALLOW_THREADS
    Network network = {.keys = keys, .rounds = rounds};
    int bits = 8;
    while (bits < 64 && (length - 1) >> bits)
        bits++;
    network.low_bits = bits / 2;
    network.low_mask = (UINT64_C(1) << network.low_bits) - 1;
    network.high_mask = (UINT64_C(1) << (bits - network.low_bits)) - 1;
    for (Py_ssize_t i = 0; i < count; i += LANES) {
        uint64_t position[LANES];
        /* Past the end some are computed that nobody wants. */
        for (int lane = 0; lane < LANES; lane++)
            position[lane] = start + (uint64_t)(i + lane) * step;
        pass(&network, position, LANES);
        for (int lane = 0; lane < LANES && i + lane < count; lane++) {
            while (position[lane] >= length)
                pass(&network, &position[lane], 1);
            out[i + lane] = position[lane];
        }
    }
    Py_END_ALLOW_THREADS
    release(&all);
    Py_RETURN_NONE;
fail:
    release(&all);
    return NULL;
}

/* -- checksums ------------------------------------------------------------------------------- */

/* CRC-32C, of TFRecord. Each step takes the checksum so far, inverted. */
static uint32_t crc_by_table(uint32_t crc, const unsigned char *data, size_t size)
{
    static uint32_t table[256];
    if (!table[1]) {
        /* Written from its end: whoever sees table[1] sees them all. */
        for (uint32_t byte = 256; byte-- > 0;) {
            uint32_t value = byte;
            for (int bit = 0; bit < 8; bit++)
                value = value >> 1 ^ (value & 1 ? UINT32_C(0x82F63B78) : 0);
            __atomic_store_n(&table[byte], value, __ATOMIC_RELEASE);
        }
    }
    while (size--)
        crc = table[(crc ^ *data++) & 0xFF] ^ crc >> 8;
    return crc;
}

#if defined(__x86_64__)
#define CRC_WORD(crc, word) ((uint32_t)_mm_crc32_u64(crc, word))
#define CRC_TARGET __attribute__((target("sse4.2")))
static int has_crc_instruction(void)
{
    __builtin_cpu_init();
    return __builtin_cpu_supports("sse4.2");
}
#elif defined(__aarch64__) && defined(__linux__)
#define CRC_TARGET
#define HAS_CRC32 (1 << 7) /* HWCAP_CRC32 */
static inline uint32_t crc_word_arm(uint32_t crc, uint64_t word)
{
    __asm__(".arch_extension crc\n\tcrc32cx %w0, %w0, %x1" : "+r"(crc) : "r"(word));
    return crc;
}
#define CRC_WORD(crc, word) crc_word_arm(crc, word)
static int has_crc_instruction(void)
{
    return (getauxval(AT_HWCAP) & HAS_CRC32) != 0;
}
#endif

#ifdef CRC_WORD
CRC_TARGET static uint32_t crc_by_instruction(uint32_t crc, const unsigned char *data, size_t size)
{
    uint64_t word;
    for (; size >= 8; data += 8, size -= 8) {
        memcpy(&word, data, 8);
        crc = CRC_WORD(crc, word);
    }
    return crc_by_table(crc, data, size);
}
#endif

/* Shorter work is done before another thread could begin. */
#define LOCKED_BYTES 65536

/* crc32c(buffer, value=0, by_table=False) -> the checksum of what `value` is of and the buffer */
static PyObject *crc32c(PyObject *module, PyObject *args)
{
    Py_buffer data;
    unsigned int crc = 0;
    int by_table = 0;
    uint32_t (*step)(uint32_t, const unsigned char *, size_t) = crc_by_table;
    PyThreadState *state = NULL;
    (void)module;
    if (!PyArg_ParseTuple(args, "y*|Ip", &data, &crc, &by_table))
        return NULL;
#ifdef CRC_WORD
    if (!by_table && has_crc_instruction())
        step = crc_by_instruction;
#endif
    if (data.len > LOCKED_BYTES)
        state = PyEval_SaveThread();
    crc = ~step(~crc, data.buf, (size_t)data.len);
    if (state)
        PyEval_RestoreThread(state);
    PyBuffer_Release(&data);
    return PyLong_FromUnsignedLong(crc);
}

static PyMethodDef methods[] = {
    {"memory", new_memory, METH_VARARGS, "Return memory for a batch."},
    {"crc32c", crc32c, METH_VARARGS, "Return the CRC-32C of a buffer."},
    {"map_file", map_file, METH_VARARGS, "Map the bytes of an open file."},
    {"address", address, METH_O, "Return where a buffer begins."},
    {"select", select_parts, METH_VARARGS, "Find one part of each sample."},
    {"lay_out", lay_out, METH_VARARGS, "Find where each part ends in a buffer."},
    {"copy", copy, METH_VARARGS, "Copy parts of mapped files into a buffer."},
    {"read", read_parts, METH_VARARGS, "Read parts of open files into a buffer."},
    {"permute", permute, METH_VARARGS, "Fill in samples of a shuffled epoch."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_gather", "Gathers ranges of files without the interpreter's lock.",
    -1, methods, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__gather(void)
{
    if (PyType_Ready(&MappingType) < 0 || PyType_Ready(&MemoryType) < 0)
        return NULL;
    return PyModule_Create(&module);
}
