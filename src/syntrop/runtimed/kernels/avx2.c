// SPDX-License-Identifier: Apache-2.0
/* AVX2 with FMA and F16C: 8 rows × 2 columns a multiply, so a panel is walked in two halves. */
#include "packed.h"

#if defined(__x86_64__)
#pragma GCC target("avx2,fma,f16c")
#include <immintrin.h>

#define VL 8
#define LEVEL(name) name##avx2
#define QK_ROWS 4
#define PV_ROWS 2
#define PV_VECS 4
#define UNROLL _Pragma("GCC unroll 16") /* or the sums of a tile would live in memory */
#define INLINE static inline __attribute__((always_inline))

typedef float vf __attribute__((vector_size(4 * VL)));
typedef int32_t vi __attribute__((vector_size(4 * VL)));

static inline vf load_half(const uint16_t *p)
{
    return (vf)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
}

static inline vf load_codes(const int8_t *p)
{
    return (vf)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p)));
}

static inline void store_half(uint16_t *p, vf v)
{
    _mm_storeu_si128((__m128i *)p,
                     _mm256_cvtps_ph((__m256)v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

static inline vf larger(vf a, vf b) { return (vf)_mm256_max_ps((__m256)a, (__m256)b); }

static inline float sum(vf v)
{
    __m128 x = _mm_add_ps(_mm256_castps256_ps128((__m256)v), _mm256_extractf128_ps((__m256)v, 1));
    x = _mm_add_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)));
}

static inline float largest(vf v)
{
    __m128 x = _mm_max_ps(_mm256_castps256_ps128((__m256)v), _mm256_extractf128_ps((__m256)v, 1));
    x = _mm_max_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_max_ss(x, _mm_movehdup_ps(x)));
}

static inline int32_t sum_int(vi v)
{
    __m128i x = _mm_add_epi32(_mm256_castsi256_si128((__m256i)v), _mm256_extracti128_si256((__m256i)v, 1));
    x = _mm_add_epi32(x, _mm_unpackhi_epi64(x, x));
    return _mm_cvtsi128_si32(_mm_add_epi32(x, _mm_shuffle_epi32(x, 1)));
}

static inline __m256i word(const int8_t *q)
{
    int32_t x;
    memcpy(&x, q, 4);
    return _mm256_set1_epi32(x);
}

static inline __m256 halves(const uint8_t *p)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
}

/* Codes of more than eight bits leave no room for products of bytes: weights are widened to 16 bits, signed, two columns a word,
   as the activations are (body.h). */
#define EXPANDED 8 /* blocks */
#define TILE 4     /* tokens */

/* Bits [from, from + width) of the lower (odd: the upper) byte of every 16, moved to bit `to`. */
INLINE __m256i field(__m256i x, int from, int width, int to, int odd)
{
    int right = from + 8 * odd - to;
    x = right > 0 ? _mm256_srli_epi16(x, right) : _mm256_slli_epi16(x, -right);
    return _mm256_and_si256(x, _mm256_set1_epi16((short)(((1 << width) - 1) << to)));
}

INLINE __m256i plane(const uint8_t *codes, int index) /* 8 rows of a plane's word */
{
    return _mm256_loadu_si256((const __m256i *)(codes + index * PANEL * 4));
}

INLINE __m256i code_pair(const sy_kind k, const uint8_t *codes, const int quad, const int odd)
{
    if (k.bytes)
        return _mm256_sub_epi16(field(plane(codes, quad), 0, 8, 0, odd), _mm256_set1_epi16(128));
    __m256i code = _mm256_setzero_si256();
    int index = 0, to = 0;
    if (k.nibbles) {
        code = field(plane(codes, quad % 4), quad / 4 * 4, 4, 0, odd);
        index = 4;
        to = 4;
    }
    if (k.pairs) {
        code = _mm256_or_si256(code, field(plane(codes, index + quad / 4), quad % 4 * 2, 2, to, odd));
        index += 2;
        to += 2;
    }
    if (k.bits)
        code = _mm256_or_si256(code, field(plane(codes, index), quad, 1, to, odd));
    if (k.book) {
        const __m256i book = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)sy_codebook));
        code = field(_mm256_shuffle_epi8(book, code), 0, 8, 0, 0);
    }
    return k.offset ? _mm256_sub_epi16(code, _mm256_set1_epi16((short)k.offset)) : code;
}

INLINE __m256 byte_scales(const uint8_t *p, int is_signed)
{
    __m128i bytes = _mm_loadl_epi64((const __m128i *)p);
    return _mm256_cvtepi32_ps(is_signed ? _mm256_cvtepi8_epi32(bytes) : _mm256_cvtepu8_epi32(bytes));
}

typedef struct {
    __m256 scale[2][2], minimum[2][2]; /* by half of the panel, by part */
} scales;

/* Walks from block to block; the f16 of a head serve eight of them. */
typedef struct {
    const uint8_t *w;
    __m256 d[2], m[2];
} reader;

/* The scales of the next block, number `index`; where its codes are. */
INLINE const uint8_t *next_block(reader *r, const sy_kind k, int32_t index, scales *to)
{
    if (!k.super || index % SUPER == 0)
        for (int half = 0; half < 2; half++) {
            r->d[half] = halves(r->w + half * 16);
            r->m[half] = k.minimum ? halves(r->w + PANEL * 2 + half * 16) : _mm256_setzero_ps();
            if (k.super)
                r->m[half] = _mm256_sub_ps(_mm256_setzero_ps(), r->m[half]);
        }
    if (k.super && index % SUPER == 0)
        r->w += PANEL * sy_head_bytes(k);
    for (int half = 0; half < 2; half++)
        for (int p = 0; p < k.parts; p++) {
            const uint8_t *s = r->w + p * PANEL + half * 8;
            __m256 scale = r->d[half], minimum = r->m[half];
            if (k.fused) {
                __m256i both = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)s));
                scale = _mm256_mul_ps(scale, _mm256_cvtepi32_ps(_mm256_and_si256(both, _mm256_set1_epi32(15))));
                minimum = _mm256_mul_ps(minimum, _mm256_cvtepi32_ps(_mm256_srli_epi32(both, 4)));
            } else if (k.super) {
                scale = _mm256_mul_ps(scale, byte_scales(s, !k.minimum));
                if (k.minimum)
                    minimum = _mm256_mul_ps(minimum, byte_scales(s + PANEL, 0));
            }
            to->scale[half][p] = scale;
            to->minimum[half][p] = minimum;
        }
    const uint8_t *codes = r->w + PANEL * sy_scale_bytes(k);
    r->w = codes + PANEL * sy_code_bytes(k);
    return codes;
}

typedef struct {
    __m256i codes[EXPANDED][2][16]; /* by half of the panel: 8 rows × a word */
    scales s[EXPANDED];
} expanded;

INLINE void expand(expanded *e, const uint8_t *w, const int type, const sy_acts *x, int32_t first, int32_t count)
{
    (void)x;
    const sy_kind k = sy_kind_of(type);
    reader r = {.w = w + sy_block_offset(k, first)};
    for (int32_t b = 0; b < count; b++) {
        const uint8_t *codes = next_block(&r, k, first + b, &e->s[b]);
        for (int half = 0; half < 2; half++)
            UNROLL for (int word = 0; word < 16; word++)
                e->codes[b][half][word] = code_pair(k, codes + half * 32, word / 2, word % 2);
    }
}

/* acc[i] += half a block × token i of T, whose words are L apart. The codes are `wide`, or else still `packed`. */
INLINE void multiply(const sy_kind k, const __m256i *wide, const uint8_t *packed, const __m256 *scale,
                     const __m256 *minimum, const int8_t *q, const float *d, const float *s, __m256 *acc, const int T,
                     const int L)
{
    __m256 scaled[TILE];
    UNROLL for (int p = 0; p < k.parts; p++)
    {
        __m256i total[TILE];
        const int words = 16 / k.parts, which = k.parts == 1 ? 0 : 1 + p;
        UNROLL for (int i = 0; i < T; i++)
            total[i] = _mm256_setzero_si256();
        UNROLL for (int g = p * words; g < (p + 1) * words; g++)
        {
            __m256i code = wide ? wide[g] : code_pair(k, packed, g / 2, g % 2);
            UNROLL for (int i = 0; i < T; i++)
                total[i] = _mm256_add_epi32(total[i], _mm256_madd_epi16(code, word(q + (g * L + i) * 4)));
        }
        UNROLL for (int i = 0; i < T; i++)
        {
            __m256 one = _mm256_cvtepi32_ps(total[i]);
            if (k.parts == 1)
                acc[i] = _mm256_fmadd_ps(one, _mm256_mul_ps(scale[0], _mm256_set1_ps(d[i])), acc[i]);
            else if (p == 0)
                scaled[i] = _mm256_mul_ps(one, scale[0]);
            else
                acc[i] = _mm256_fmadd_ps(_mm256_fmadd_ps(one, scale[1], scaled[i]), _mm256_set1_ps(d[i]), acc[i]);
            if (k.minimum)
                acc[i] = _mm256_fmadd_ps(minimum[p], _mm256_set1_ps(s[which * L + i]), acc[i]);
        }
    }
}

/* Half a panel by T tokens of a group. */
INLINE void half_tile(const expanded *e, const sy_kind k, const sy_acts *x, int32_t t, int32_t first, int32_t count,
                      float (*part)[PANEL], const int half, const int T)
{
    size_t at = (size_t)(t / GROUP) * (size_t)x->blocks + (size_t)first;
    int lane = t % GROUP;
    const int8_t *q = x->q + at * 2 * QBLOCK * GROUP + lane * 4;
    const float *d = x->d + at * GROUP + lane, *s = x->s + at * SUMS * GROUP + lane;
    __m256 acc[TILE];
    UNROLL for (int i = 0; i < T; i++)
        acc[i] = first ? _mm256_loadu_ps(part[i] + half * 8) : _mm256_setzero_ps();
    for (int32_t b = 0; b < count; b++) {
        multiply(k, e->codes[b][half], NULL, e->s[b].scale[half], e->s[b].minimum[half], q, d, s, acc, T, GROUP);
        q += 2 * QBLOCK * GROUP;
        d += GROUP;
        s += SUMS * GROUP;
    }
    UNROLL for (int i = 0; i < T; i++)
        _mm256_storeu_ps(part[i] + half * 8, acc[i]);
}

INLINE void tile(const expanded *e, const sy_kind k, const sy_acts *x, int32_t t, int32_t tokens, int32_t first,
                 int32_t count, float (*part)[PANEL])
{
    for (int half = 0; half < 2; half++)
        if (tokens == 1)
            half_tile(e, k, x, t, first, count, part, half, 1);
        else
            half_tile(e, k, x, t, first, count, part, half, TILE);
}

/* Two tokens or one: every block serves once, so it goes from the file's bits straight into the multiply. */
#define FEW 2
INLINE void few_of(const uint8_t *panel, const sy_kind k, const sy_acts *x, int32_t t, float (*part)[PANEL],
                   const int T, const int L)
{
    size_t at = (size_t)(t / L) * (size_t)x->blocks;
    const int8_t *q = x->q + at * 2 * QBLOCK * L;
    const float *d = x->d + at * L, *s = x->s + at * SUMS * L;
    reader r = {.w = panel};
    __m256 acc[2][FEW];
    for (int half = 0; half < 2; half++)
        for (int i = 0; i < T; i++)
            acc[half][i] = _mm256_setzero_ps();
    for (int32_t b = 0; b < x->blocks; b++) {
        scales to;
        const uint8_t *codes = next_block(&r, k, b, &to);
        for (int half = 0; half < 2; half++)
            multiply(k, NULL, codes + half * 32, to.scale[half], to.minimum[half], q, d, s, acc[half], T, L);
        q += 2 * QBLOCK * L;
        d += L;
        s += SUMS * L;
    }
    for (int half = 0; half < 2; half++)
        for (int i = 0; i < T; i++)
            _mm256_storeu_ps(part[i] + half * 8, acc[half][i]);
}

INLINE void few(const uint8_t *panel, const sy_kind k, const sy_acts *x, int32_t t, int32_t tokens,
                float (*part)[PANEL])
{
    (void)tokens; /* of the others in the group something is computed, and not used */
    if (x->lanes == 1)
        few_of(panel, k, x, t, part, 1, 1);
    else
        few_of(panel, k, x, t, part, FEW, GROUP);
}

#include "body.h"
#endif
