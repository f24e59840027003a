// SPDX-License-Identifier: Apache-2.0
/* AVX-512 with VNNI: 16 rows × 4 columns a multiply. */
#include "packed.h"

#if defined(__x86_64__)
#pragma GCC target("avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,prefer-vector-width=512")
#include "vector512.h"

#define LEVEL(name) name##avx512
#define PLANES

/* acc += codes × the word at q, in every lane. GCC does not fold the broadcast into the multiply by itself. */
static inline __attribute__((always_inline)) __m512i dot(__m512i acc, __m512i codes, const int8_t *q)
{
    __asm__("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(acc) : "v"(codes), "m"(*(const int8_t(*)[4])q));
    return acc;
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
