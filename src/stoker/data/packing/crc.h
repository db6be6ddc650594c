/* CRC-32, as zlib's: by multiplication without carries where the processor has it, else by tables.

   make_crc() comes before the first crc_of(). */

#include <stddef.h>
#include <stdint.h>

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
#define HAS_FOLDING 1
#endif

static uint32_t table[16][256];

static void make_table(void)
{
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t value = byte;
        for (int bit = 0; bit < 8; bit++)
            value = value >> 1 ^ (value & 1 ? 0xEDB88320u : 0);
        table[0][byte] = value;
    }
    for (int byte = 0; byte < 256; byte++)
        for (int at = 1; at < 16; at++)
            table[at][byte] = table[at - 1][byte] >> 8 ^ table[0][table[at - 1][byte] & 255];
}

static uint32_t four(const unsigned char *data)
{
    return (uint32_t)data[0] | (uint32_t)data[1] << 8 | (uint32_t)data[2] << 16 |
           (uint32_t)data[3] << 24;
}

static uint32_t look_up(uint32_t value, int from)
{
    return table[from + 3][value & 255] ^ table[from + 2][value >> 8 & 255] ^
           table[from + 1][value >> 16 & 255] ^ table[from][value >> 24];
}

static uint32_t crc_by_table(uint32_t crc, const unsigned char *data, size_t size)
{
    for (; size >= 16; size -= 16, data += 16)
        crc = look_up(four(data) ^ crc, 12) ^ look_up(four(data + 4), 8) ^
              look_up(four(data + 8), 4) ^ look_up(four(data + 12), 0);
    while (size--)
        crc = crc >> 8 ^ table[0][(crc ^ *data++) & 255];
    return crc;
}

#ifdef HAS_FOLDING
/* Sixteen bytes are moved on by a distance when their halves are multiplied by powers of x; what
   is left after the last move has the same checksum as all that came before. */
typedef struct {
    uint64_t low, high;
} Move;

static int can_fold;
static Move by_one, by_four;

/* x to a power, modulo the polynomial, its bits in the order of the checksum's, one place up. */
static uint64_t power(int exponent)
{
    uint32_t value = 0x80000000u;
    for (; exponent; exponent--)
        value = value >> 1 ^ (value & 1 ? 0xEDB88320u : 0);
    return (uint64_t)value << 1;
}

static void make_moves(void)
{
    by_one = (Move){power(128 + 32), power(128 - 32)};
    by_four = (Move){power(4 * 128 + 32), power(4 * 128 - 32)};
    can_fold = __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1");
}

__attribute__((target("pclmul,sse4.1"))) static __m128i moved(__m128i value, __m128i move)
{
    return _mm_xor_si128(_mm_clmulepi64_si128(value, move, 0x00),
                         _mm_clmulepi64_si128(value, move, 0x11));
}

__attribute__((target("pclmul,sse4.1"))) static __m128i load(const unsigned char *data)
{
    return _mm_loadu_si128((const __m128i *)data);
}

/* At least 64 bytes. */
__attribute__((target("pclmul,sse4.1"))) static uint32_t
crc_by_folding(uint32_t crc, const unsigned char *data, size_t size)
{
    __m128i move = _mm_set_epi64x((long long)by_four.high, (long long)by_four.low);
    __m128i a = _mm_xor_si128(load(data), _mm_cvtsi32_si128((int)crc));
    __m128i b = load(data + 16), c = load(data + 32), d = load(data + 48);
    for (data += 64, size -= 64; size >= 64; data += 64, size -= 64) {
        a = _mm_xor_si128(moved(a, move), load(data));
        b = _mm_xor_si128(moved(b, move), load(data + 16));
        c = _mm_xor_si128(moved(c, move), load(data + 32));
        d = _mm_xor_si128(moved(d, move), load(data + 48));
    }
    move = _mm_set_epi64x((long long)by_one.high, (long long)by_one.low);
    b = _mm_xor_si128(moved(a, move), b);
    c = _mm_xor_si128(moved(b, move), c);
    d = _mm_xor_si128(moved(c, move), d);
    for (; size >= 16; data += 16, size -= 16)
        d = _mm_xor_si128(moved(d, move), load(data));
    unsigned char left[16];
    _mm_storeu_si128((__m128i *)left, d);
    return crc_by_table(crc_by_table(0, left, 16), data, size);
}
#endif

/* Go on with a checksum: that of nothing is 0. */
static uint32_t crc_of(uint32_t crc, const unsigned char *data, size_t size)
{
#ifdef HAS_FOLDING
    if (can_fold && size >= 64)
        return ~crc_by_folding(~crc, data, size);
#endif
    return ~crc_by_table(~crc, data, size);
}

static void make_crc(void)
{
    make_table();
#ifdef HAS_FOLDING
    make_moves();
#endif
}
