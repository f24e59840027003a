/* SPDX-License-Identifier: Apache-2.0 */
/* What the levels of 512 bits share: registers of 16 lanes, and the packed blocks as they come out of memory. The
 * unit has said before which instructions it may use. */
#pragma once

#include "packed.h"

#include <immintrin.h>

#define VL 16
#define QK_ROWS 8
#define PV_ROWS 4
#define PV_VECS 4
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

/* Quad j; `to`: where in their bytes the codes begin, for those that fill them not. */
INLINE __m512i quad(const sy_kind k, const uint8_t *codes, const int j, int to)
{
    if (k.bytes)
        return plane(codes, j);
    int index = 0;
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

/* The scales of block `index`; where its codes are. `top`: codes with an offset stand at the top of their bytes. */
INLINE const uint8_t *next_scales(reader *r, const sy_kind k, int32_t index, const int top, __m512 *scales,
                                  __m512 *minima)
{
    if (!k.super || index % SUPER == 0) {
        r->d = halves(r->w);
        if (top && k.offset && !k.bytes && !k.book)
            r->d = _mm512_mul_ps(r->d, _mm512_set1_ps(1.0f / (float)(1 << (8 - k.width))));
        r->m = k.minimum ? halves(r->w + PANEL * 2) : _mm512_setzero_ps();
        if (k.super && k.minimum)
            r->m = _mm512_sub_ps(_mm512_setzero_ps(), r->m);
    }
    if (k.super && index % SUPER == 0)
        r->w += PANEL * sy_head_bytes(k);
    const uint8_t *codes = r->w + PANEL * sy_scale_bytes(k);
    for (int p = 0; p < k.parts; p++) {
        scales[p] = r->d;
        minima[p] = r->m;
        if (k.super) {
            __m128i bytes = _mm_loadu_si128((const __m128i *)(r->w + p * PANEL));
            __m512i scale = k.minimum ? _mm512_cvtepu8_epi32(bytes) : _mm512_cvtepi8_epi32(bytes);
            if (k.fused) {
                minima[p] = _mm512_mul_ps(r->m, _mm512_cvtepi32_ps(_mm512_srli_epi32(scale, 4)));
                scale = _mm512_and_si512(scale, _mm512_set1_epi32(15));
            } else if (k.minimum) {
                __m128i more = _mm_loadu_si128((const __m128i *)(r->w + PANEL));
                minima[p] = _mm512_mul_ps(r->m, _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(more)));
            }
            scales[p] = _mm512_mul_ps(r->d, _mm512_cvtepi32_ps(scale));
        }
    }
    r->w = codes + PANEL * sy_code_bytes(k);
    return codes;
}

INLINE block next_block(reader *r, const sy_kind k, int32_t index)
{
    block b;
    const uint8_t *codes = next_scales(r, k, index, 1, b.scale, b.minimum);
    UNROLL for (int j = 0; j < 8; j++)
        b.code[j] = quad(k, codes, j, k.offset && !k.book ? 8 - k.width : 0);
    return b;
}
