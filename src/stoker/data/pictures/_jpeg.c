/* Decodes JPEGs, or a piece of one brought to another size, into memory that is given, without
 * the interpreter's lock.
 *
 * Of a piece only its own rows and columns become pixels, and each row is resized as soon as it
 * is there. The pixels are those that Pillow would make of the whole picture: see docs/data.md.
 * Whatever libjpeg warns of is an error here. The build may leave this file out: the libraries in
 * decode.py and picture.py do the same, slower.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <limits.h>
#include <math.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <jpeglib.h>

#include <jerror.h>

/* Tests build it without as well. */
#if defined(__x86_64__) && !defined(WITHOUT_AVX2)
#define WITH_AVX2
#include <immintrin.h>
#endif

/* Other libraries of this name cannot leave out rows and columns; older ones do it wrongly. */
#if !defined(LIBJPEG_TURBO_VERSION_NUMBER) || LIBJPEG_TURBO_VERSION_NUMBER < 2000000
#error "libjpeg-turbo 2.0 or newer is needed"
#endif

/* Above this Pillow speaks of a bomb: it is to decide. */
#define MAX_PIXELS 89478485

/* -- one decoding ------------------------------------------------------------------------- */

typedef struct {
    struct jpeg_decompress_struct info;
    struct jpeg_error_mgr errors;
    jmp_buf way_out;
    char message[JMSG_LENGTH_MAX];
} Decoder;

/* What is asked for. `channels` is 3 for RGB, 1 for grey. */
typedef struct {
    Py_buffer data, place;
    int channels;
} Picture;

typedef struct {
    double top, left, height, width;
    int out_height, out_width, factor, is_flipped;
} Box;

static void leave(j_common_ptr info)
{
    Decoder *decoder = info->client_data;
    info->err->format_message(info, decoder->message);
    longjmp(decoder->way_out, 1);
}

static void hear(j_common_ptr info, int level)
{
    if (level < 0) /* A warning: what follows would be guessed. */
        leave(info);
}

static void refuse(Decoder *decoder, const char *why)
{
    snprintf(decoder->message, sizeof decoder->message, "%s", why);
    longjmp(decoder->way_out, 1);
}

/* Reads the header. Whoever calls this has set the way out, and ends the decoder. */
static void open_picture(Decoder *decoder, const Py_buffer *data)
{
    struct jpeg_decompress_struct *info = &decoder->info;
    jpeg_create_decompress(info);
    jpeg_mem_src(info, data->buf, (unsigned long)data->len);
    jpeg_read_header(info, TRUE);
    if (info->data_precision != 8)
        refuse(decoder, "its pixels have more than 8 bits");
    if (info->jpeg_color_space != JCS_GRAYSCALE && info->jpeg_color_space != JCS_YCbCr
        && info->jpeg_color_space != JCS_RGB)
        refuse(decoder, "its colours are neither RGB nor grey");
    if ((uint64_t)info->image_width * info->image_height > MAX_PIXELS)
        refuse(decoder, "it has too many pixels");
}

static void prepare(Decoder *decoder)
{
    decoder->info.err = jpeg_std_error(&decoder->errors);
    decoder->info.client_data = decoder;
    decoder->info.mem = NULL;
    decoder->errors.error_exit = leave;
    decoder->errors.emit_message = hear;
}

/* Memory that is given back with the decoder, also after an error. */
static void *room(Decoder *decoder, size_t count, size_t size)
{
    j_common_ptr info = (j_common_ptr)&decoder->info;
    if (count > INT_MAX / size)
        refuse(decoder, "it needs too much memory");
    return info->mem->alloc_large(info, JPOOL_IMAGE, count * size);
}

static int read_header(Decoder *decoder, const Picture *picture)
{
    if (setjmp(decoder->way_out))
        return -1;
    open_picture(decoder, &picture->data);
    return 0;
}

/* -- the whole picture ---------------------------------------------------------------------- */

#define MAX_LINES 8

static void check_place(Decoder *decoder, const Picture *picture, uint64_t height, uint64_t width)
{
    uint64_t channels = picture->channels == 1 ? 1 : 3;
    if (channels != (uint64_t)picture->channels || height * width * channels != (uint64_t)picture->place.len)
        refuse(decoder, "the memory for it has another shape");
}

static int decode_whole(Decoder *decoder, const Picture *picture)
{
    struct jpeg_decompress_struct *info = &decoder->info;
    uint8_t *place = picture->place.buf;
    if (setjmp(decoder->way_out))
        return -1;
    open_picture(decoder, &picture->data);
    info->out_color_space = picture->channels == 1 ? JCS_GRAYSCALE : JCS_RGB;
    size_t stride = (size_t)info->image_width * (size_t)picture->channels;
    check_place(decoder, picture, info->image_height, info->image_width);
    jpeg_start_decompress(info);
    while (info->output_scanline < info->output_height) {
        JSAMPROW lines[MAX_LINES];
        JDIMENSION left = info->output_height - info->output_scanline;
        for (int at = 0; at < MAX_LINES; at++)
            lines[at] = place + stride * (info->output_scanline + (JDIMENSION)at);
        jpeg_read_scanlines(info, lines, left < MAX_LINES ? left : MAX_LINES);
    }
    jpeg_finish_decompress(info);
    return 0;
}

/* -- another size --------------------------------------------------------------------------- */

/* Each new pixel is a weighted sum of `count` old ones, from `first` on, `most` of them anywhere.
 * Weights are whole numbers of 1 / (1 << BITS); all of them, and so the sums, are positive and
 * cannot overflow. Those of one pixel are `stride` after those of the one before. */
#define BITS 22
#define HALF (1 << (BITS - 1))

typedef struct {
    int new, most;
    size_t stride;
    int *first, *count;
    int32_t *weights;
} Taps;

static double triangle(double x)
{
    x = fabs(x);
    return x < 1 ? 1 - x : 0;
}

/* Returns the taps that bring the old pixels from `begin` to `end` to a new number. */
static Taps make_taps(Decoder *decoder, int old, float begin, float end, int new)
{
    double scale = (double)(end - begin) / new, reach = scale < 1 ? 1 : scale;
    size_t stride = (size_t)ceil(reach) * 2 + 1;
    Taps taps = {.new = new, .stride = stride};
    taps.first = room(decoder, (size_t)new, sizeof(int));
    taps.count = room(decoder, (size_t)new, sizeof(int));
    taps.weights = room(decoder, (size_t)new, stride * sizeof(int32_t));
    double *shares = room(decoder, stride, sizeof(double));
    for (int at = 0; at < new; at++) {
        double centre = begin + (at + 0.5) * scale, sum = 0;
        int first = (int)(centre - reach + 0.5), last = (int)(centre + reach + 0.5);
        first = first < 0 ? 0 : first;
        int count = (last > old ? old : last) - first;
        for (int each = 0; each < count; each++) {
            shares[each] = triangle((each + first - centre + 0.5) * (1 / reach));
            sum += shares[each];
        }
        int32_t *weights = taps.weights + (size_t)at * stride;
        for (int each = 0; each < count; each++)
            weights[each] = (int32_t)(0.5 + shares[each] / sum * (1 << BITS));
        taps.first[at] = first;
        taps.count[at] = count;
        taps.most = count > taps.most ? count : taps.most;
    }
    return taps;
}

/* Makes a narrow line of RGB of one of RGBX. */
static void narrow_colour(const uint8_t *line, const Taps *taps, uint8_t *out, int is_flipped)
{
    for (int at = 0; at < taps->new; at++, out += 3) {
        int x = is_flipped ? taps->new - 1 - at : at;
        const int32_t *weights = taps->weights + (size_t)x * taps->stride;
        const uint8_t *old = line + 4 * (size_t)taps->first[x];
        int32_t red = HALF, green = HALF, blue = HALF;
        for (int each = 0; each < taps->count[x]; each++, old += 4) {
            red += old[0] * weights[each];
            green += old[1] * weights[each];
            blue += old[2] * weights[each];
        }
        out[0] = (uint8_t)(red >> BITS);
        out[1] = (uint8_t)(green >> BITS);
        out[2] = (uint8_t)(blue >> BITS);
    }
}

static void narrow_grey(const uint8_t *line, const Taps *taps, uint8_t *out, int is_flipped)
{
    for (int at = 0; at < taps->new; at++) {
        int x = is_flipped ? taps->new - 1 - at : at;
        const int32_t *weights = taps->weights + (size_t)x * taps->stride;
        int32_t sum = HALF;
        for (int each = 0; each < taps->count[x]; each++)
            sum += line[taps->first[x] + each] * weights[each];
        out[at] = (uint8_t)(sum >> BITS);
    }
}

/* Lines may be read so far beyond their end. */
#define BLOCK 32

/* Makes one line of several. Written for compilers to make many sums at once. */
static void join_lines(const uint8_t *const *lines, const int32_t *weights, int count,
                       uint8_t *restrict out, int width)
{
    for (int x = 0; x < width; x += BLOCK) {
        int size = width - x < BLOCK ? width - x : BLOCK;
        int32_t sums[BLOCK];
        for (int at = 0; at < BLOCK; at++)
            sums[at] = HALF;
        for (int each = 0; each < count; each++) {
            const uint8_t *line = lines[each] + x;
            int32_t weight = weights[each];
            for (int at = 0; at < BLOCK; at++)
                sums[at] += line[at] * weight;
        }
        for (int at = 0; at < size; at++)
            out[x + at] = (uint8_t)(sums[at] >> BITS);
    }
}

/* -- the same, sixteen products at once, where the processor can: found out when this is loaded -- */

#ifdef WITH_AVX2
#define AVX2 __attribute__((target("avx2")))

static int has_avx2 = 0;

/* Products are of 16 bits: a weight is split into what is above these bits and what is below. */
#define LOW_BITS 8
#define ABOVE(weight) ((int16_t)((weight) >> LOW_BITS))
#define BELOW(weight) ((int16_t)((weight) & ((1 << LOW_BITS) - 1)))

/* Weights of four old pixels: of the first two, for each of four channels, then of the others. */
typedef struct {
    int16_t above[16], below[16];
} Quad;

static Quad *make_quads(Decoder *decoder, const Taps *taps)
{
    size_t count = (size_t)(taps->most + 3) / 4;
    Quad *quads = room(decoder, (size_t)taps->new * count, sizeof(Quad));
    for (size_t at = 0; at < (size_t)taps->new; at++)
        for (size_t each = 0; each < 16 * count; each++) {
            size_t tap = each / 16 * 4 + each % 16 / 8 * 2 + each % 2;
            int is_used = (int)tap < taps->count[at];
            int32_t weight = is_used ? taps->weights[at * taps->stride + tap] : 0;
            quads[at * count + each / 16].above[each % 16] = ABOVE(weight);
            quads[at * count + each / 16].below[each % 16] = BELOW(weight);
        }
    return quads;
}

/* Inlined, so that there is no loop over one quad: the usual case. */
AVX2 static inline __attribute__((always_inline)) void narrow_by_quads(
    const uint8_t *line, const Taps *taps, const Quad *quads, size_t count, uint8_t *out, int is_flipped)
{
    /* Red of two pixels side by side, then green, blue and nothing. */
    const __m256i by_colour = _mm256_setr_epi8(
        0, -1, 4, -1, 1, -1, 5, -1, 2, -1, 6, -1, 3, -1, 7, -1,
        8, -1, 12, -1, 9, -1, 13, -1, 10, -1, 14, -1, 11, -1, 15, -1);
    const __m128i lowest = _mm_setr_epi8(0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1);
    ptrdiff_t x = is_flipped ? taps->new - 1 : 0, step = is_flipped ? -1 : 1;
    for (const uint8_t *end = out + 3 * (size_t)taps->new; out < end; out += 3, x += step) {
        const uint8_t *old = line + 4 * (size_t)taps->first[x];
        const Quad *quad = quads + (size_t)x * count;
        __m256i above = _mm256_setzero_si256(), below = above;
        for (size_t each = 0; each < count; each++) {
            __m256i four =
                _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(old + 16 * each)));
            four = _mm256_shuffle_epi8(four, by_colour);
            const __m256i *weights = (const __m256i *)(quad + each);
            above = _mm256_add_epi32(above, _mm256_madd_epi16(four, _mm256_loadu_si256(weights)));
            below = _mm256_add_epi32(below, _mm256_madd_epi16(four, _mm256_loadu_si256(weights + 1)));
        }
        __m256i both = _mm256_add_epi32(_mm256_slli_epi32(above, LOW_BITS), below);
        __m128i sum = _mm_add_epi32(_mm256_castsi256_si128(both), _mm256_extracti128_si256(both, 1));
        sum = _mm_srli_epi32(_mm_add_epi32(sum, _mm_set1_epi32(HALF)), BITS);
        int made = _mm_cvtsi128_si32(_mm_shuffle_epi8(sum, lowest));
        /* The fourth byte is written over by the next pixel. */
        memcpy(out, &made, sizeof made);
    }
}

AVX2 static void narrow_avx2(const uint8_t *line, const Taps *taps, const Quad *quads, uint8_t *out,
                             int is_flipped)
{
    if (taps->most <= 4)
        narrow_by_quads(line, taps, quads, 1, out, is_flipped);
    else
        narrow_by_quads(line, taps, quads, (size_t)(taps->most + 3) / 4, out, is_flipped);
}

/* Sixteen sums of two lines or more, from here on. Lines come in pairs: an odd one with itself. */
AVX2 static inline __m128i join_sixteen(const uint8_t *const *lines, const int32_t *weights, int count, int x)
{
    __m256i above[2] = {_mm256_setzero_si256(), _mm256_setzero_si256()};
    __m256i below[2] = {above[0], above[0]};
    for (int each = 0; each < count; each += 2) {
        const uint8_t *next = each + 1 < count ? lines[each + 1] : lines[each];
        int32_t weight = weights[each], other = each + 1 < count ? weights[each + 1] : 0;
        __m256i upper = _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)(lines[each] + x)));
        __m256i lower = _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)(next + x)));
        __m256i pairs[2] = {_mm256_unpacklo_epi16(upper, lower), _mm256_unpackhi_epi16(upper, lower)};
        __m256i high = _mm256_set1_epi32(ABOVE(weight) | ABOVE(other) << 16);
        __m256i low = _mm256_set1_epi32(BELOW(weight) | BELOW(other) << 16);
        for (int at = 0; at < 2; at++) {
            above[at] = _mm256_add_epi32(above[at], _mm256_madd_epi16(pairs[at], high));
            below[at] = _mm256_add_epi32(below[at], _mm256_madd_epi16(pairs[at], low));
        }
    }
    for (int at = 0; at < 2; at++) {
        __m256i sum = _mm256_add_epi32(_mm256_slli_epi32(above[at], LOW_BITS), below[at]);
        above[at] = _mm256_srli_epi32(_mm256_add_epi32(sum, _mm256_set1_epi32(HALF)), BITS);
    }
    __m256i words = _mm256_packus_epi32(above[0], above[1]);
    return _mm_packus_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
}

AVX2 static void join_avx2(const uint8_t *const *lines, const int32_t *weights, int count, uint8_t *out,
                           int width)
{
    int x = 0;
    for (; x + 16 <= width; x += 16)
        _mm_storeu_si128((__m128i *)(out + x), join_sixteen(lines, weights, count, x));
    if (x < width) {
        uint8_t rest[16];
        _mm_storeu_si128((__m128i *)rest, join_sixteen(lines, weights, count, x));
        memcpy(out + x, rest, (size_t)(width - x));
    }
}

#endif

/* -- a piece of a picture --------------------------------------------------------------------- */

/* So many columns more on each side: colours at the edge are mixed with those beside them. */
#define MARGIN 4

/* A stretch of rows or columns, in the pixels that are decoded, and what of it is wanted. */
typedef struct {
    int first, last;
    float begin, end;
} Span;

static Span make_span(Decoder *decoder, double start, double length, int decoded, int whole)
{
    double share = (double)decoded / whole;
    /* Also false for what is no number. */
    if (!(start >= 0 && length > 0 && start + length <= whole + 1e-3))
        refuse(decoder, "the box is not inside of the picture");
    start *= share;
    length *= share;
    int first = (int)start, last = (int)fmin(ceil(start + length), decoded);
    if (first >= last)
        refuse(decoder, "the box is not inside of the picture");
    return (Span){first, last, (float)(start - first), (float)fmin(start - first + length, last - first)};
}

/* A file that was cut off has no end; bytes of pixels are never like an end. */
static void check_end(Decoder *decoder)
{
    const struct jpeg_source_mgr *source = decoder->info.src;
    const uint8_t *next = source->next_input_byte;
    if (decoder->info.unread_marker == JPEG_EOI || jpeg_input_complete(&decoder->info))
        return;
    for (size_t at = source->bytes_in_buffer; at >= 2; at--)
        if (next[at - 2] == 0xFF && next[at - 1] == JPEG_EOI)
            return;
    refuse(decoder, "it ends too early");
}

/* How lines as they are decoded become lines of the piece. */
typedef struct {
    Span down, across;
    Taps rows, columns;
    /* A Quad each, where these are used. */
    void *quads;
    int channels, is_flipped;
    /* Of a narrow line, and of the memory that it has. */
    size_t width, stride;
    /* The last `rows.most` narrow lines: line n is at n modulo their number. */
    uint8_t *narrow;
    const uint8_t **joined;
} Scaler;

static Scaler make_scaler(Decoder *decoder, const Picture *picture, const Box *box)
{
    const struct jpeg_decompress_struct *info = &decoder->info;
    Scaler made = {.channels = picture->channels, .is_flipped = box->is_flipped};
    Span down = make_span(decoder, box->top, box->height, (int)info->output_height, (int)info->image_height);
    Span across = make_span(decoder, box->left, box->width, (int)info->output_width, (int)info->image_width);
    made.down = down;
    made.across = across;
    made.rows = make_taps(decoder, down.last - down.first, down.begin, down.end, box->out_height);
    made.columns = make_taps(decoder, across.last - across.first, across.begin, across.end, box->out_width);
#ifdef WITH_AVX2
    if (has_avx2 && made.channels == 3)
        made.quads = make_quads(decoder, &made.columns);
#endif
    made.width = (size_t)box->out_width * (size_t)made.channels;
    made.stride = made.width + BLOCK;
    made.narrow = room(decoder, (size_t)made.rows.most, made.stride);
    made.joined = room(decoder, (size_t)made.rows.most, sizeof *made.joined);
    return made;
}

static uint8_t *narrow_line(const Scaler *scaler, int row)
{
    return scaler->narrow + (size_t)(row % scaler->rows.most) * scaler->stride;
}

static void narrow(const Scaler *scaler, const uint8_t *line, int row)
{
    uint8_t *out = narrow_line(scaler, row);
    if (scaler->channels == 1)
        narrow_grey(line, &scaler->columns, out, scaler->is_flipped);
#ifdef WITH_AVX2
    else if (scaler->quads)
        narrow_avx2(line, &scaler->columns, scaler->quads, out, scaler->is_flipped);
#endif
    else
        narrow_colour(line, &scaler->columns, out, scaler->is_flipped);
}

static void join(const Scaler *scaler, int row, uint8_t *out)
{
    const Taps *rows = &scaler->rows;
    const int32_t *weights = rows->weights + (size_t)row * rows->stride;
    for (int each = 0; each < rows->count[row]; each++)
        scaler->joined[each] = narrow_line(scaler, rows->first[row] + each);
#ifdef WITH_AVX2
    if (has_avx2) {
        join_avx2(scaler->joined, weights, rows->count[row], out, (int)scaler->width);
        return;
    }
#endif
    join_lines(scaler->joined, weights, rows->count[row], out, (int)scaler->width);
}

/* Has nothing decoded but what is needed; returns at which column lines begin now. */
static int leave_out(Decoder *decoder, const Scaler *scaler)
{
    struct jpeg_decompress_struct *info = &decoder->info;
    int first = scaler->across.first, last = scaler->across.last + MARGIN;
    JDIMENSION left = first < MARGIN ? 0 : (JDIMENSION)(first - MARGIN);
    JDIMENSION end = (JDIMENSION)last < info->output_width ? (JDIMENSION)last : info->output_width;
    JDIMENSION width = end - left, above = (JDIMENSION)(scaler->down.first + scaler->rows.first[0]);
    if (width < info->output_width)
        jpeg_crop_scanline(info, &left, &width);
    if (above)
        jpeg_skip_scanlines(info, above);
    return (int)left;
}

static void resize(Decoder *decoder, const Scaler *scaler, uint8_t *out)
{
    struct jpeg_decompress_struct *info = &decoder->info;
    size_t skipped = (size_t)(scaler->across.first - leave_out(decoder, scaler));
    size_t pixel = scaler->channels == 1 ? 1 : 4;
    size_t stride = (info->output_width + (size_t)scaler->columns.most + 3) * pixel;
    JSAMPROW lines[MAX_LINES];
    lines[0] = room(decoder, MAX_LINES, stride);
    for (int at = 1; at < MAX_LINES; at++)
        lines[at] = lines[0] + stride * (size_t)at;
    const Taps *rows = &scaler->rows;
    int row = rows->first[0], made = 0;
    while (made < rows->new) {
        int count = (int)jpeg_read_scanlines(info, lines, MAX_LINES);
        for (int at = 0; at < count && made < rows->new; at++, row++) {
            narrow(scaler, lines[at] + skipped * pixel, row);
            for (; made < rows->new && rows->first[made] + rows->count[made] <= row + 1; made++)
                join(scaler, made, out + scaler->width * (size_t)made);
        }
    }
}

static int decode_piece(Decoder *decoder, const Picture *picture, const Box *box)
{
    struct jpeg_decompress_struct *info = &decoder->info;
    if (setjmp(decoder->way_out))
        return -1;
    open_picture(decoder, &picture->data);
    if (box->out_height < 1 || box->out_width < 1)
        refuse(decoder, "a piece has at least one pixel");
    check_place(decoder, picture, (uint64_t)box->out_height, (uint64_t)box->out_width);
    if (box->factor != 1 && box->factor != 2 && box->factor != 4 && box->factor != 8)
        refuse(decoder, "it is decoded at 1, 1/2, 1/4 or 1/8 of its size");
    info->out_color_space = picture->channels == 1 ? JCS_GRAYSCALE : JCS_EXT_RGBX;
    info->scale_denom = (unsigned)box->factor;
    jpeg_start_decompress(info);
    Scaler scaler = make_scaler(decoder, picture, box);
    resize(decoder, &scaler, picture->place.buf);
    check_end(decoder);
    return 0;
}

/* -- Python ----------------------------------------------------------------------------------- */

static PyObject *failure(const Decoder *decoder)
{
    if (decoder->errors.msg_code == JERR_OUT_OF_MEMORY)
        return PyErr_NoMemory();
    PyErr_SetString(PyExc_ValueError, decoder->message);
    return NULL;
}

static PyObject *header(PyObject *module, PyObject *data)
{
    Picture picture = {.channels = 0};
    Decoder decoder;
    int status;
    (void)module;
    if (PyObject_GetBuffer(data, &picture.data, PyBUF_SIMPLE) < 0)
        return NULL;
    prepare(&decoder);
    Py_BEGIN_ALLOW_THREADS
    status = read_header(&decoder, &picture);
    jpeg_destroy_decompress(&decoder.info);
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&picture.data);
    if (status < 0)
        return failure(&decoder);
    return Py_BuildValue("(II)", decoder.info.image_height, decoder.info.image_width);
}

static PyObject *decode(PyObject *module, PyObject *args)
{
    Picture picture;
    Decoder decoder;
    int status;
    (void)module;
    if (!PyArg_ParseTuple(args, "y*w*i", &picture.data, &picture.place, &picture.channels))
        return NULL;
    prepare(&decoder);
    Py_BEGIN_ALLOW_THREADS
    status = decode_whole(&decoder, &picture);
    jpeg_destroy_decompress(&decoder.info);
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&picture.data);
    PyBuffer_Release(&picture.place);
    if (status < 0)
        return failure(&decoder);
    Py_RETURN_NONE;
}

static PyObject *crop(PyObject *module, PyObject *args)
{
    Picture picture;
    Box box;
    Decoder decoder;
    int status;
    (void)module;
    if (!PyArg_ParseTuple(args, "y*w*i(ddddiip)i", &picture.data, &picture.place, &picture.channels,
                          &box.top, &box.left, &box.height, &box.width, &box.out_height,
                          &box.out_width, &box.is_flipped, &box.factor))
        return NULL;
    prepare(&decoder);
    Py_BEGIN_ALLOW_THREADS
    status = decode_piece(&decoder, &picture, &box);
    jpeg_destroy_decompress(&decoder.info);
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&picture.data);
    PyBuffer_Release(&picture.place);
    if (status < 0)
        return failure(&decoder);
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"header", header, METH_O, "header(data) -> height, width"},
    {"decode", decode, METH_VARARGS, "decode(data, place, channels): the whole picture"},
    {"crop", crop, METH_VARARGS,
     "crop(data, place, channels, box, factor): a piece, decoded smaller by a factor, then resized"},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_jpeg", "JPEGs decoded into given memory.", -1, methods, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__jpeg(void)
{
    /* A library of another version than the header's refuses itself; decoders would only say so. */
    Decoder decoder;
    prepare(&decoder);
    if (setjmp(decoder.way_out)) {
        PyErr_SetString(PyExc_ImportError, decoder.message);
        return NULL;
    }
    jpeg_create_decompress(&decoder.info);
    jpeg_destroy_decompress(&decoder.info);
#ifdef WITH_AVX2
    has_avx2 = __builtin_cpu_supports("avx2");
#endif
    return PyModule_Create(&module);
}
