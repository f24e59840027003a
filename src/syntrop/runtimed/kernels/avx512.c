// SPDX-License-Identifier: Apache-2.0
/* AVX-512 with VNNI: 16 rows × 4 columns a multiply. */
#include "engine.h"

#if defined(__x86_64__)
#pragma GCC target("avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,prefer-vector-width=512")
#include <immintrin.h>

#define VL 16
#define LEVEL(name) name##avx512
#define QK_ROWS 8
#define PV_ROWS 4
#define PV_VECS 4
#define UNROLL _Pragma("GCC unroll 8") /* or the sums of a tile would live in memory */

typedef float vf __attribute__((vector_size(4 * VL)));
typedef int32_t vi __attribute__((vector_size(4 * VL)));

static inline vf load_half(const uint16_t *p)
{
    return (vf)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
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

static inline __m512i word(const int8_t *q)
{
    int32_t x;
    memcpy(&x, q, 4);
    return _mm512_set1_epi32(x); /* folds into the multiply as a broadcast operand */
}

/* One panel by T tokens of one group of L. Beyond `count` the tokens are whatever the group holds: computed, not
   stored. The codes of a block are unpacked once for all tokens; 8 integer sums hide the multiply's latency. */
static inline __attribute__((always_inline)) void tile(const uint8_t *w, const int type, const sy_acts *x,
                                                       int32_t t, int32_t count, float *out, size_t stride,
                                                       int add, const int T, const int L)
{
    size_t at = (size_t)(t / L) * (size_t)x->blocks;
    int lane = t % L;
    const int8_t *q = x->q + at * 2 * QBLOCK * L + lane * 4;
    const float *d = x->d + at * L + lane, *s = x->s + at * L + lane;
    const int32_t *neg = x->neg + at * L + lane;
    const __m512i low = _mm512_set1_epi8(15);
    __m512 acc[GROUP];
    UNROLL for (int i = 0; i < T; i++)
        acc[i] = _mm512_setzero_ps();
    for (int32_t b = 0; b < x->blocks; b++) {
        const uint8_t *codes = w + PANEL * (type == SY_Q4_1 ? 4 : 2);
        __m512i code[8];
        if (type == SY_Q8_0) {
            for (int g = 0; g < 8; g++)
                code[g] = _mm512_loadu_si512(codes + g * 64);
        } else {
            for (int g = 0; g < 4; g++) {
                __m512i both = _mm512_loadu_si512(codes + g * 64);
                code[g] = _mm512_and_si512(both, low);
                code[g + 4] = _mm512_and_si512(_mm512_srli_epi16(both, 4), low);
            }
        }
        __m512 scale = _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)w));
        __m512 minimum = _mm512_setzero_ps();
        if (type == SY_Q4_1)
            minimum = _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(w + PANEL * 2)));
        UNROLL for (int i = 0; i < T; i++) {
            const int8_t *high = q + i * 4, *low_plane = high + QBLOCK * L;
            __m512i sum = _mm512_setzero_si512(), rest = _mm512_setzero_si512();
            if (type == SY_Q4_0) /* codes are stored plus 8, or plus 128 */
                rest = _mm512_slli_epi32(_mm512_set1_epi32(neg[i]), 3);
            if (type == SY_Q8_0)
                rest = _mm512_slli_epi32(_mm512_set1_epi32(neg[i]), 7);
            if (T <= 2) { /* few tokens: more chains */
                __m512i odd = _mm512_setzero_si512(), odd_rest = _mm512_setzero_si512();
                for (int g = 0; g < 8; g += 2) {
                    sum = _mm512_dpbusd_epi32(sum, code[g], word(high + g * L * 4));
                    odd = _mm512_dpbusd_epi32(odd, code[g + 1], word(high + (g + 1) * L * 4));
                    rest = _mm512_dpbusd_epi32(rest, code[g], word(low_plane + g * L * 4));
                    odd_rest =
                        _mm512_dpbusd_epi32(odd_rest, code[g + 1], word(low_plane + (g + 1) * L * 4));
                }
                sum = _mm512_slli_epi32(_mm512_add_epi32(sum, odd), ACT_SHIFT);
                sum = _mm512_add_epi32(sum, _mm512_add_epi32(rest, odd_rest));
            } else {
                for (int g = 0; g < 8; g++)
                    sum = _mm512_dpbusd_epi32(sum, code[g], word(high + g * L * 4));
                sum = _mm512_slli_epi32(sum, ACT_SHIFT);
                if (type != SY_Q4_1)
                    sum = _mm512_add_epi32(sum, rest);
                for (int g = 0; g < 8; g++)
                    sum = _mm512_dpbusd_epi32(sum, code[g], word(low_plane + g * L * 4));
            }
            acc[i] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), _mm512_mul_ps(scale, _mm512_set1_ps(d[i])),
                                     acc[i]);
            if (type == SY_Q4_1)
                acc[i] = _mm512_fmadd_ps(minimum, _mm512_set1_ps(s[i]), acc[i]);
        }
        w = codes + PANEL * (type == SY_Q8_0 ? 32 : 16);
        q += 2 * QBLOCK * L;
        d += L;
        s += L;
        neg += L;
    }
    UNROLL for (int i = 0; i < T; i++)
        if (i < count) {
            float *to = out + (size_t)i * stride;
            _mm512_storeu_ps(to, add ? _mm512_add_ps(_mm512_loadu_ps(to), acc[i]) : acc[i]);
        }
}

static inline __attribute__((always_inline)) void tiles(const uint8_t *w, const int type, const sy_acts *x,
                                                        int32_t t0, int32_t t1, float *out, size_t stride,
                                                        int add)
{
    for (int32_t t = t0; t < t1; t += GROUP, out += GROUP * stride) {
        int32_t count = t1 - t;
        if (count >= 5)
            tile(w, type, x, t, count, out, stride, add, 8, GROUP);
        else if (count >= 3)
            tile(w, type, x, t, count, out, stride, add, 4, GROUP);
        else if (count == 2)
            tile(w, type, x, t, count, out, stride, add, 2, GROUP);
        else if (x->lanes == GROUP)
            tile(w, type, x, t, count, out, stride, add, 1, GROUP);
        else
            tile(w, type, x, t, count, out, stride, add, 1, 1);
    }
}

static void matmul_quantized(const uint8_t *w, int type, const sy_acts *x, int32_t t0, int32_t t1, float *out,
                             size_t stride, int add)
{
    if (type == SY_Q4_1)
        tiles(w, SY_Q4_1, x, t0, t1, out, stride, add);
    else if (type == SY_Q8_0)
        tiles(w, SY_Q8_0, x, t0, t1, out, stride, add);
    else
        tiles(w, SY_Q4_0, x, t0, t1, out, stride, add);
}

#include "body.h"
#endif
