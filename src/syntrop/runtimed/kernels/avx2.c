// SPDX-License-Identifier: Apache-2.0
/* AVX2 with FMA and F16C: 8 rows × 4 columns a multiply, so a panel is walked in two halves. */
#include "engine.h"

#if defined(__x86_64__)
#pragma GCC target("avx2,fma,f16c")
#include <immintrin.h>

#define VL 8
#define LEVEL(name) name##avx2
#define QK_ROWS 4
#define PV_ROWS 2
#define PV_VECS 4

typedef float vf __attribute__((vector_size(4 * VL)));
typedef int32_t vi __attribute__((vector_size(4 * VL)));

static inline vf load_half(const uint16_t *p)
{
    return (vf)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
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

static inline void narrow(int8_t *p, vi v)
{
    __m128i pairs = _mm_packs_epi32(_mm256_castsi256_si128((__m256i)v), _mm256_extracti128_si256((__m256i)v, 1));
    _mm_storel_epi64((__m128i *)p, _mm_packs_epi16(pairs, pairs));
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

/* Eight rows by T tokens of one group; w points to the half panel's first word. Pairs are summed in 16 bits:
   four-bit codes give at most 2 × 15 × 127, eight of which still fit; eight-bit ones are made sign and
   magnitude, at most 2 × 128 × 127, and widened at once. */
static inline __attribute__((always_inline)) void tile(const uint8_t *w, const int type, const sy_acts *x,
                                                       int32_t t, int32_t count, float *out, size_t stride,
                                                       int add, int half, const int T, const int L)
{
    size_t at = (size_t)(t / L) * (size_t)x->blocks;
    int lane = t % L;
    const int8_t *q = x->q + at * 2 * QBLOCK * L + lane * 4;
    const float *d = x->d + at * L + lane, *s = x->s + at * L + lane;
    const int32_t *neg = x->neg + at * L + lane;
    const __m256i low = _mm256_set1_epi8(15), flip = _mm256_set1_epi8(-128);
    const __m256i ones = _mm256_set1_epi16(1), weight = _mm256_set1_epi16(1 << ACT_SHIFT);
    __m256 acc[4];
    for (int i = 0; i < T; i++)
        acc[i] = _mm256_setzero_ps();
    for (int32_t b = 0; b < x->blocks; b++) {
        const uint8_t *codes = w + PANEL * (type == SY_Q4_1 ? 4 : 2) + half * 32;
        __m256i sum[4];
        if (type == SY_Q8_0) {
            for (int i = 0; i < T; i++)
                sum[i] = _mm256_setzero_si256();
            for (int g = 0; g < 8; g++) {
                __m256i code = _mm256_xor_si256(_mm256_loadu_si256((const __m256i *)(codes + g * 64)), flip);
                __m256i size = _mm256_abs_epi8(code); /* -128 becomes 128, read as unsigned */
                for (int i = 0; i < T; i++) {
                    __m256i high = _mm256_sign_epi8(word(q + g * L * 4 + i * 4), code);
                    __m256i rest = _mm256_sign_epi8(word(q + QBLOCK * L + g * L * 4 + i * 4), code);
                    high = _mm256_madd_epi16(_mm256_maddubs_epi16(size, high), weight);
                    rest = _mm256_madd_epi16(_mm256_maddubs_epi16(size, rest), ones);
                    sum[i] = _mm256_add_epi32(sum[i], _mm256_add_epi32(high, rest));
                }
            }
        } else {
            __m256i rest[4];
            for (int i = 0; i < T; i++)
                sum[i] = rest[i] = _mm256_setzero_si256();
            for (int g = 0; g < 4; g++) {
                __m256i both = _mm256_loadu_si256((const __m256i *)(codes + g * 64));
                __m256i first = _mm256_and_si256(both, low);
                __m256i second = _mm256_and_si256(_mm256_srli_epi16(both, 4), low);
                for (int i = 0; i < T; i++) {
                    sum[i] = _mm256_add_epi16(
                        sum[i], _mm256_maddubs_epi16(first, word(q + g * L * 4 + i * 4)));
                    sum[i] = _mm256_add_epi16(
                        sum[i], _mm256_maddubs_epi16(second, word(q + (g + 4) * L * 4 + i * 4)));
                    rest[i] = _mm256_add_epi16(
                        rest[i], _mm256_maddubs_epi16(first, word(q + QBLOCK * L + g * L * 4 + i * 4)));
                    rest[i] = _mm256_add_epi16(
                        rest[i], _mm256_maddubs_epi16(second, word(q + QBLOCK * L + (g + 4) * L * 4 + i * 4)));
                }
            }
            for (int i = 0; i < T; i++) {
                sum[i] = _mm256_add_epi32(_mm256_madd_epi16(sum[i], weight), _mm256_madd_epi16(rest[i], ones));
                if (type == SY_Q4_0) /* codes are stored plus 8 */
                    sum[i] = _mm256_add_epi32(sum[i], _mm256_set1_epi32(8 * neg[i]));
            }
        }
        __m256 scale = halves(w + half * 16);
        for (int i = 0; i < T; i++)
            acc[i] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum[i]),
                                     _mm256_mul_ps(scale, _mm256_set1_ps(d[i])), acc[i]);
        if (type == SY_Q4_1) {
            __m256 minimum = halves(w + PANEL * 2 + half * 16);
            for (int i = 0; i < T; i++)
                acc[i] = _mm256_fmadd_ps(minimum, _mm256_set1_ps(s[i]), acc[i]);
        }
        w += PANEL * (type == SY_Q8_0 ? 34 : type == SY_Q4_1 ? 20 : 18);
        q += 2 * QBLOCK * L;
        d += L;
        s += L;
        neg += L;
    }
    for (int i = 0; i < T; i++)
        if (i < count) {
            float *to = out + (size_t)i * stride + half * 8;
            _mm256_storeu_ps(to, add ? _mm256_add_ps(_mm256_loadu_ps(to), acc[i]) : acc[i]);
        }
}

static inline __attribute__((always_inline)) void tiles(const uint8_t *w, const int type, const sy_acts *x,
                                                        int32_t t0, int32_t t1, float *out, size_t stride,
                                                        int add)
{
    for (int32_t t = t0; t < t1; t += 4, out += 4 * stride)
        for (int half = 0; half < 2; half++) {
            if (t1 - t >= 2)
                tile(w, type, x, t, t1 - t, out, stride, add, half, 4, GROUP);
            else if (x->lanes == GROUP)
                tile(w, type, x, t, 1, out, stride, add, half, 1, GROUP);
            else
                tile(w, type, x, t, 1, out, stride, add, half, 1, 1);
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
