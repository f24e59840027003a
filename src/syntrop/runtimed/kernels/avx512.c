// SPDX-License-Identifier: Apache-2.0
/* AVX-512 with VNNI: 16 rows × 4 columns a multiply. */
#include "packed.h"

#if defined(__x86_64__)
#pragma GCC target("avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,prefer-vector-width=512")
#include <immintrin.h>

#define VL 16
#define LEVEL(name) name##avx512
#define QK_ROWS 8
#define PV_ROWS 4
#define PV_VECS 4
#define PLANES
#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 8") /* or the sums of a tile would live in memory */

typedef float vf __attribute__((vector_size(4 * VL)));
typedef int32_t vi __attribute__((vector_size(4 * VL)));

static inline vf load_half(const uint16_t *p)
{
    return (vf)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
}

static inline vf load_codes(const int8_t *p)
{
    return (vf)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p)));
}

static inline void store_half(uint16_t *p, vf v)
{
    _mm256_storeu_si256((__m256i *)p,
                        _mm512_cvtps_ph((__m512)v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

static inline vf larger(vf a, vf b) { return (vf)_mm512_max_ps((__m512)a, (__m512)b); }

static inline float sum(vf v) { return _mm512_reduce_add_ps((__m512)v); }

static inline float largest(vf v) { return _mm512_reduce_max_ps((__m512)v); }

static inline int32_t sum_int(vi v) { return _mm512_reduce_add_epi32((__m512i)v); }

static inline void narrow(int8_t *p, vi v) { _mm_storeu_si128((__m128i *)p, _mm512_cvtepi32_epi8((__m512i)v)); }

/* acc += codes × the word at q, in every lane. GCC does not fold the broadcast into the multiply by itself. */
static inline __attribute__((always_inline)) __m512i dot(__m512i acc, __m512i codes, const int8_t *q)
{
    __asm__("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(acc) : "v"(codes), "m"(*(const int8_t(*)[4])q));
    return acc;
}

/* A block's codes as eight quads of unsigned bytes, its scales and minima as floats. Codes with an offset stand at
   the top of their bytes, so that the offset is 128 for all; their scales are as much smaller. */
typedef struct {
    __m512i code[8];
    __m512 scale[2], minimum[2];
} block;

/* Bits [from, from + width) of every byte, moved to bit `to`. */
INLINE __m512i field(__m512i x, const int from, const int width, const int to)
{
    if (from > to)
        x = _mm512_srli_epi16(x, from - to);
    if (from < to)
        x = _mm512_slli_epi16(x, to - from);
    return width == 8 ? x : _mm512_and_si512(x, _mm512_set1_epi8((char)(((1 << width) - 1) << to)));
}

INLINE __m512i plane(const uint8_t *codes, int index) { return _mm512_loadu_si512(codes + index * PANEL * 4); }

INLINE __m512i quad(const sy_kind k, const uint8_t *codes, const int j)
{
    if (k.bytes)
        return plane(codes, j);
    int index = 0, to = k.offset && !k.book ? 8 - k.width : 0;
    __m512i code = _mm512_setzero_si512();
    if (k.nibbles) {
        code = field(plane(codes, j % 4), j / 4 * 4, 4, to);
        index = 4;
        to += 4;
    }
    if (k.pairs) {
        __m512i more = field(plane(codes, index + j / 4), j % 4 * 2, 2, to);
        code = k.nibbles ? _mm512_or_si512(code, more) : more;
        index += 2;
        to += 2;
    }
    if (k.bits)
        code = _mm512_or_si512(code, field(plane(codes, index), j, 1, to));
    if (k.book)
        code = _mm512_shuffle_epi8(_mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)sy_codebook)), code);
    return code;
}

INLINE __m512 halves(const uint8_t *p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p)); }

/* Reads block after block; the f16 of a head serve eight of them. */
typedef struct {
    const uint8_t *w;
    __m512 d, m;
} reader;

INLINE block next_block(reader *r, const sy_kind k, int32_t index)
{
    block b;
    if (!k.super || index % SUPER == 0) {
        r->d = halves(r->w);
        if (k.offset && !k.bytes && !k.book)
            r->d = _mm512_mul_ps(r->d, _mm512_set1_ps(1.0f / (float)(1 << (8 - k.width))));
        r->m = k.minimum ? halves(r->w + PANEL * 2) : _mm512_setzero_ps();
        if (k.super && k.minimum)
            r->m = _mm512_sub_ps(_mm512_setzero_ps(), r->m);
    }
    if (k.super && index % SUPER == 0)
        r->w += PANEL * sy_head_bytes(k);
    const uint8_t *codes = r->w + PANEL * sy_scale_bytes(k);
    for (int p = 0; p < k.parts; p++) {
        b.scale[p] = r->d;
        b.minimum[p] = r->m;
        if (k.super) {
            __m128i bytes = _mm_loadu_si128((const __m128i *)(r->w + p * PANEL));
            __m512i scale = k.minimum ? _mm512_cvtepu8_epi32(bytes) : _mm512_cvtepi8_epi32(bytes);
            if (k.fused) {
                b.minimum[p] = _mm512_mul_ps(r->m, _mm512_cvtepi32_ps(_mm512_srli_epi32(scale, 4)));
                scale = _mm512_and_si512(scale, _mm512_set1_epi32(15));
            } else if (k.minimum) {
                __m128i minima = _mm_loadu_si128((const __m128i *)(r->w + PANEL));
                b.minimum[p] = _mm512_mul_ps(r->m, _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(minima)));
            }
            b.scale[p] = _mm512_mul_ps(r->d, _mm512_cvtepi32_ps(scale));
        }
    }
    UNROLL for (int j = 0; j < 8; j++)
        b.code[j] = quad(k, codes, j);
    r->w = codes + PANEL * sy_code_bytes(k);
    return b;
}

/* Blocks as the tiles read them, again and again, out of L1. */
#define EXPANDED 24
#define TILE GROUP

typedef struct {
    block blocks[EXPANDED];
} expanded;

INLINE void expand(expanded *e, const uint8_t *w, const int type, int32_t first, int32_t count)
{
    const sy_kind k = sy_kind_of(type);
    reader r = {.w = w + sy_block_offset(k, first)};
    for (int32_t b = 0; b < count; b++)
        e->blocks[b] = next_block(&r, k, first + b);
}

/* acc[i] += a block × token i of T, whose words are L apart. The products of both planes meet in one integer before
   they become a float; the offset, 128 for all, enters where the shift of the high plane makes 128 of 1. */
INLINE void multiply(const block *w, const sy_kind k, const int8_t *q, const float *d, const float *s,
                     const int32_t *neg, __m512 *acc, const int T, const int L)
{
    const int8_t *low = q + QBLOCK * L;
    __m512 scaled[GROUP];
    UNROLL for (int p = 0; p < k.parts; p++)
    {
        const int from = p * 8 / k.parts, to = (p + 1) * 8 / k.parts, which = k.parts == 1 ? 0 : 1 + p;
        __m512i sum[GROUP], rest[2] = {_mm512_setzero_si512(), _mm512_setzero_si512()};
        UNROLL for (int i = 0; i < T; i++)
            sum[i] = k.offset ? _mm512_set1_epi32(neg[which * L + i]) : _mm512_setzero_si512();
        UNROLL for (int g = from; g < to; g++)
            UNROLL for (int i = 0; i < T; i++)
                sum[i] = dot(sum[i], w->code[g], q + (g * L + i) * 4);
        if (T > 2) {
            UNROLL for (int i = 0; i < T; i++)
                sum[i] = _mm512_slli_epi32(sum[i], ACT_SHIFT);
            UNROLL for (int g = from; g < to; g++)
                UNROLL for (int i = 0; i < T; i++)
                    sum[i] = dot(sum[i], w->code[g], low + (g * L + i) * 4);
        } else { /* few tokens: the latency of a single chain would show */
            UNROLL for (int g = from; g < to; g++)
                UNROLL for (int i = 0; i < T; i++)
                    rest[i] = dot(rest[i], w->code[g], low + (g * L + i) * 4);
            UNROLL for (int i = 0; i < T; i++)
                sum[i] = _mm512_add_epi32(_mm512_slli_epi32(sum[i], ACT_SHIFT), rest[i]);
        }
        UNROLL for (int i = 0; i < T; i++)
        {
            __m512 one = _mm512_cvtepi32_ps(sum[i]);
            if (k.parts == 1)
                acc[i] = _mm512_fmadd_ps(one, _mm512_mul_ps(w->scale[0], _mm512_set1_ps(d[i])), acc[i]);
            else if (p == 0)
                scaled[i] = _mm512_mul_ps(one, w->scale[0]);
            else
                acc[i] = _mm512_fmadd_ps(_mm512_fmadd_ps(one, w->scale[1], scaled[i]), _mm512_set1_ps(d[i]), acc[i]);
            if (k.minimum)
                acc[i] = _mm512_fmadd_ps(w->minimum[p], _mm512_set1_ps(s[which * L + i]), acc[i]);
        }
    }
}

INLINE void tile_of(const expanded *e, const sy_kind k, const sy_acts *x, int32_t t, int32_t first, int32_t count,
                    float (*part)[PANEL], const int T)
{
    size_t at = (size_t)(t / GROUP) * (size_t)x->blocks + (size_t)first;
    const int8_t *q = x->q + at * 2 * QBLOCK * GROUP;
    const float *d = x->d + at * GROUP, *s = x->s + at * SUMS * GROUP;
    const int32_t *neg = x->neg + at * SUMS * GROUP;
    __m512 acc[TILE];
    UNROLL for (int i = 0; i < T; i++)
        acc[i] = first ? _mm512_loadu_ps(part[i]) : _mm512_setzero_ps();
    const size_t ahead = (size_t)x->blocks * 2 * QBLOCK * GROUP;
    for (int32_t b = 0; b < count; b++) {
        UNROLL for (int i = 0; i < 8; i++) /* of the next tile, or of nothing */
            _mm_prefetch((const char *)q + ahead + i * 64, _MM_HINT_T0);
        multiply(&e->blocks[b], k, q, d, s, neg, acc, T, GROUP);
        q += 2 * QBLOCK * GROUP;
        d += GROUP;
        s += SUMS * GROUP;
        neg += SUMS * GROUP;
    }
    UNROLL for (int i = 0; i < T; i++)
        _mm512_storeu_ps(part[i], acc[i]);
}

/* Beyond `tokens` the tokens are whatever the group holds: computed, not used. */
INLINE void tile(const expanded *e, const sy_kind k, const sy_acts *x, int32_t t, int32_t tokens, int32_t first,
                 int32_t count, float (*part)[PANEL])
{
    if (tokens > 4)
        tile_of(e, k, x, t, first, count, part, 8);
    else if (tokens > 2)
        tile_of(e, k, x, t, first, count, part, 4);
    else
        tile_of(e, k, x, t, first, count, part, 2);
}

/* A single tile of tokens: every block serves once, so it goes from the file's bits straight into the multiply. */
#define FEW GROUP
INLINE void few_of(const uint8_t *panel, const sy_kind k, const sy_acts *x, int32_t t, float (*part)[PANEL],
                   const int T, const int L)
{
    size_t at = (size_t)(t / L) * (size_t)x->blocks;
    const int8_t *q = x->q + at * 2 * QBLOCK * L;
    const float *d = x->d + at * L, *s = x->s + at * SUMS * L;
    const int32_t *neg = x->neg + at * SUMS * L;
    reader r = {.w = panel};
    __m512 acc[GROUP];
    UNROLL for (int i = 0; i < T; i++)
        acc[i] = _mm512_setzero_ps();
    for (int32_t b = 0; b < x->blocks; b++) {
        block w = next_block(&r, k, b);
        multiply(&w, k, q, d, s, neg, acc, T, L);
        q += 2 * QBLOCK * L;
        d += L;
        s += SUMS * L;
        neg += SUMS * L;
    }
    UNROLL for (int i = 0; i < T; i++)
        _mm512_storeu_ps(part[i], acc[i]);
}

INLINE void few(const uint8_t *panel, const sy_kind k, const sy_acts *x, int32_t t, int32_t tokens,
                float (*part)[PANEL])
{
    if (x->lanes == 1)
        few_of(panel, k, x, t, part, 1, 1);
    else if (tokens > 4)
        few_of(panel, k, x, t, part, 8, GROUP);
    else if (tokens > 2)
        few_of(panel, k, x, t, part, 4, GROUP);
    else
        few_of(panel, k, x, t, part, 2, GROUP);
}

#include "body.h"
#endif
