// SPDX-License-Identifier: Apache-2.0
/* AVX-512 with VNNI: 16 rows × 4 columns a multiply. */
#include "packed.h"

#if defined(__x86_64__)
#pragma GCC target("avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,prefer-vector-width=512")
#include "vector512.h"

#define LEVEL(name) name##avx512

/* acc += codes × the word at q, in every lane. GCC does not fold the broadcast into the multiply by itself. */
static inline __attribute__((always_inline)) __m512i dot(__m512i acc, __m512i codes, const int8_t *q)
{
    __asm__("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(acc) : "v"(codes), "m"(*(const int8_t(*)[4])q));
    return acc;
}

/* Folding. A weight's code of four or five bits leaves room in its byte, an activation's of eleven or twelve is more
 * than one. So the codes a and b of two columns share a byte, a + fold × b, and three multiplies do for both where
 * two planes would take four: with activations p and q,
 *
 *   p = mixed + 16 × upper,  q = fold × mixed + rest:
 *   a × p + b × q = (a + fold × b) × mixed + 16 × a × upper + b × rest.
 *
 * `mixed` is equal to p modulo 16, so 16 successive numbers have one that is; and all of those leave a rest of one
 * byte. Codes are bounded (sy_code_max) so that all three parts are bytes with a sign. Weights that fill their bytes
 * multiply the same parts in four multiplies, and so do those of six bits (with fold 3 they would fit, but leave
 * activations ten bits, which is too few). Columns c and 16 + c of a block go together. */
#define WORDS 12 /* of four columns: upper 0..3, mixed 4..7, rest 8..11 */

INLINE void store_codes(int8_t *q, size_t lanes, const vi *code, int32_t fold)
{
    uint32_t words[WORDS];
    vi first = code[0], second = code[1], top;
    if (fold == FOLD_FOUR) /* the largest that leaves -128 at least */
        top = (second + 128) >> 4;
    else /* some above second / 7, but none beyond a byte */
        top = (vi)_mm512_max_epi32(_mm512_min_epi32((__m512i)(((second * 9363) >> 16) + 8), _mm512_set1_epi32(127)),
                                   _mm512_set1_epi32(-113));
    vi mixed = top - ((top - first) & 15);
    narrow((int8_t *)words, (first - mixed) >> 4);
    narrow((int8_t *)(words + 4), mixed);
    narrow((int8_t *)(words + 8), second - fold * mixed);
    for (size_t w = 0; w < WORDS; w++)
        sy_store_word(q, lanes, w, words[w]);
}

/* A block: quads 0..7, and where they fold, quads j and 4 + j together; else those with an offset have it at 128. */
typedef struct {
    __m512i code[8], both[4];
    __m512 scale[2], minimum[2];
} weights;

INLINE int folds(const sy_kind k, const int fold)
{
    return k.parts == 1 && !k.book && k.width <= (fold == FOLD_FOUR ? 4 : 5);
}

INLINE weights next(reader *r, const sy_kind k, const int fold, const int folded, int32_t index)
{
    weights w;
    const uint8_t *codes = next_scales(r, k, index, !folded, w.scale, w.minimum);
    UNROLL for (int j = 0; j < 8; j++)
        w.code[j] = quad(k, codes, j, !folded && k.offset && !k.book ? 8 - k.width : 0);
    if (!folded)
        return w;
    UNROLL for (int j = 0; j < 4; j++)
        if (fold == FOLD_FOUR) /* as they lie there */
            w.both[j] = plane(codes, j);
        else
            w.both[j] = _mm512_sub_epi8(_mm512_add_epi8(w.code[j], _mm512_slli_epi16(w.code[4 + j], 3)), w.code[4 + j]);
    return w;
}

/* Blocks as the tiles read them, again and again, out of L1. */
#define EXPANDED 24
#define TILE GROUP

typedef struct {
    weights blocks[EXPANDED];
} expanded;

INLINE void expand_of(expanded *e, const uint8_t *w, const sy_kind k, const int fold, int32_t first, int32_t count)
{
    reader r = {.w = w + sy_block_offset(k, first)};
    for (int32_t b = 0; b < count; b++)
        e->blocks[b] = next(&r, k, fold, folds(k, fold), first + b);
}

INLINE void expand(expanded *e, const uint8_t *w, const int type, const sy_acts *x, int32_t first, int32_t count)
{
    if (x->fold == FOLD_FOUR)
        expand_of(e, w, sy_kind_of(type), FOLD_FOUR, first, count);
    else
        expand_of(e, w, sy_kind_of(type), FOLD_FIVE, first, count);
}

/* sum[i] += four quads × the words at q of token i of T, whose words are L apart. */
INLINE void dots(__m512i *sum, const __m512i *code, const int8_t *q, const int T, const int L)
{
    UNROLL for (int g = 0; g < 4; g++)
        UNROLL for (int i = 0; i < T; i++)
            sum[i] = dot(sum[i], code[g], q + (g * L + i) * 4);
}

/* The same; with few tokens in a chain of its own, whose latency would show behind the other. */
INLINE void more_dots(__m512i *sum, const __m512i *code, const int8_t *q, const int T, const int L)
{
    __m512i rest[2] = {_mm512_setzero_si512(), _mm512_setzero_si512()};
    if (T > 2) {
        dots(sum, code, q, T, L);
        return;
    }
    dots(rest, code, q, T, L);
    UNROLL for (int i = 0; i < T; i++)
        sum[i] = _mm512_add_epi32(sum[i], rest[i]);
}

/* What follows: the integers of one block, for weights that fold. neg: minus the sum of the activations' codes. */
INLINE void folded_sums(__m512i *sum, const weights *w, const sy_kind k, const int8_t *q, const int32_t *neg,
                        const int T, const int L)
{
    UNROLL for (int i = 0; i < T; i++) /* an offset of 16 enters where the shift makes 16 of 1 */
        sum[i] = k.offset == 16 ? _mm512_set1_epi32(neg[i]) : _mm512_setzero_si512();
    dots(sum, w->code, q, T, L);
    UNROLL for (int i = 0; i < T; i++)
        if (k.offset == 8)
            sum[i] = _mm512_slli_epi32(_mm512_add_epi32(_mm512_add_epi32(sum[i], sum[i]), _mm512_set1_epi32(neg[i])), 3);
        else
            sum[i] = _mm512_slli_epi32(sum[i], 4);
    more_dots(sum, w->both, q + 16 * L, T, L);
    more_dots(sum, w->code + 4, q + 32 * L, T, L);
}

/* For weights that do not: of columns 0..15, and of 16..31 on top. */
INLINE void first_sums(__m512i *sum, const weights *w, const sy_kind k, const int8_t *q, const int32_t *neg,
                       const int T, const int L)
{
    UNROLL for (int i = 0; i < T; i++)
        sum[i] = k.offset ? _mm512_slli_epi32(_mm512_set1_epi32(neg[i]), 3) : _mm512_setzero_si512();
    dots(sum, w->code, q, T, L);
    UNROLL for (int i = 0; i < T; i++)
        sum[i] = _mm512_slli_epi32(sum[i], 4);
    more_dots(sum, w->code, q + 16 * L, T, L);
}

INLINE void second_sums(__m512i *sum, const weights *w, const int8_t *q, const int fold, const int T, const int L)
{
    __m512i mixed[GROUP];
    UNROLL for (int i = 0; i < T; i++)
        mixed[i] = _mm512_setzero_si512();
    dots(mixed, w->code + 4, q + 16 * L, T, L);
    UNROLL for (int i = 0; i < T; i++)
    {
        __m512i more = _mm512_slli_epi32(mixed[i], fold == FOLD_FOUR ? 4 : 3);
        sum[i] = _mm512_add_epi32(sum[i], fold == FOLD_FOUR ? more : _mm512_sub_epi32(more, mixed[i]));
    }
    more_dots(sum, w->code + 4, q + 32 * L, T, L);
}

/* acc[i] += a block × token i of T, whose words are L apart. What belongs to one scale meets in one integer. */
INLINE void multiply(const weights *w, const sy_kind k, const int fold, const int folded, const int8_t *q,
                     const float *d, const float *s, const int32_t *neg, __m512 *acc, const int T, const int L)
{
    __m512i sum[GROUP], second[GROUP];
    if (folded) {
        folded_sums(sum, w, k, q, neg, T, L);
    } else if (k.parts == 1) {
        first_sums(sum, w, k, q, neg, T, L);
        second_sums(sum, w, q, fold, T, L);
    } else {
        first_sums(sum, w, k, q, neg + L, T, L);
        UNROLL for (int i = 0; i < T; i++)
            second[i] = k.offset ? _mm512_slli_epi32(_mm512_set1_epi32(neg[2 * L + i]), 7) : _mm512_setzero_si512();
        second_sums(second, w, q, fold, T, L);
    }
    UNROLL for (int i = 0; i < T; i++)
    {
        const __m512 one = _mm512_cvtepi32_ps(sum[i]), scale = _mm512_set1_ps(d[i]);
        if (k.parts == 1) {
            acc[i] = _mm512_fmadd_ps(one, _mm512_mul_ps(w->scale[0], scale), acc[i]);
            if (k.minimum)
                acc[i] = _mm512_fmadd_ps(w->minimum[0], _mm512_set1_ps(s[i]), acc[i]);
        } else {
            const __m512 two = _mm512_cvtepi32_ps(second[i]);
            if (k.minimum)
                acc[i] = _mm512_fmadd_ps(w->minimum[0], _mm512_set1_ps(s[L + i]), acc[i]);
            acc[i] = _mm512_fmadd_ps(_mm512_fmadd_ps(two, w->scale[1], _mm512_mul_ps(one, w->scale[0])), scale, acc[i]);
            if (k.minimum)
                acc[i] = _mm512_fmadd_ps(w->minimum[1], _mm512_set1_ps(s[2 * L + i]), acc[i]);
        }
    }
}

INLINE void tile_of(const expanded *e, const sy_kind k, const int fold, const sy_acts *x, int32_t t, int32_t first,
                    int32_t count, float (*part)[PANEL], const int T)
{
    size_t at = (size_t)(t / GROUP) * (size_t)x->blocks + (size_t)first;
    const int8_t *q = x->q + at * WORDS * 4 * GROUP;
    const float *d = x->d + at * GROUP, *s = x->s + at * SUMS * GROUP;
    const int32_t *neg = x->neg + at * SUMS * GROUP;
    __m512 acc[TILE];
    UNROLL for (int i = 0; i < T; i++)
        acc[i] = first ? _mm512_loadu_ps(part[i]) : _mm512_setzero_ps();
    const size_t ahead = (size_t)x->blocks * WORDS * 4 * GROUP;
    for (int32_t b = 0; b < count; b++) {
        UNROLL for (int i = 0; i < WORDS / 2; i++) /* of the next tile, or of nothing */
            _mm_prefetch((const char *)q + ahead + i * 64, _MM_HINT_T0);
        multiply(&e->blocks[b], k, fold, folds(k, fold), q, d, s, neg, acc, T, GROUP);
        q += WORDS * 4 * GROUP;
        d += GROUP;
        s += SUMS * GROUP;
        neg += SUMS * GROUP;
    }
    UNROLL for (int i = 0; i < T; i++)
        _mm512_storeu_ps(part[i], acc[i]);
}

INLINE void tile_folded(const expanded *e, const sy_kind k, const int fold, const sy_acts *x, int32_t t, int32_t tokens,
                        int32_t first, int32_t count, float (*part)[PANEL])
{
    if (tokens > 4)
        tile_of(e, k, fold, x, t, first, count, part, 8);
    else if (tokens > 2)
        tile_of(e, k, fold, x, t, first, count, part, 4);
    else
        tile_of(e, k, fold, x, t, first, count, part, 2);
}

/* Beyond `tokens` the tokens are whatever the group holds: computed, not used. */
INLINE void tile(const expanded *e, const sy_kind k, const sy_acts *x, int32_t t, int32_t tokens, int32_t first,
                 int32_t count, float (*part)[PANEL])
{
    if (x->fold == FOLD_FOUR)
        tile_folded(e, k, FOLD_FOUR, x, t, tokens, first, count, part);
    else
        tile_folded(e, k, FOLD_FIVE, x, t, tokens, first, count, part);
}

/* A single tile of tokens: every block serves once, so it goes from the file's bits straight into the multiply. */
#define FEW GROUP
INLINE void few_of(const uint8_t *panel, const sy_kind k, const int fold, const sy_acts *x, int32_t t,
                   float (*part)[PANEL], const int T, const int L)
{
    size_t at = (size_t)(t / L) * (size_t)x->blocks;
    const int8_t *q = x->q + at * WORDS * 4 * L;
    const float *d = x->d + at * L, *s = x->s + at * SUMS * L;
    const int32_t *neg = x->neg + at * SUMS * L;
    /* With one or two tokens folding costs what it saves, but where it is done already: the nibbles of the file. */
    const int folded = folds(k, fold) && (T > 2 || fold == FOLD_FOUR);
    reader r = {.w = panel};
    __m512 acc[GROUP];
    UNROLL for (int i = 0; i < T; i++)
        acc[i] = _mm512_setzero_ps();
    for (int32_t b = 0; b < x->blocks; b++) {
        /* All lines of a block at once, before their first use. (Further ahead is slower: it upsets the processor's
           own prefetching.) */
        UNROLL for (int i = 0; i < PANEL * (sy_scale_bytes(k) + sy_code_bytes(k)); i += 64)
            _mm_prefetch((const char *)r.w + i, _MM_HINT_T0);
        const weights w = next(&r, k, fold, folded, b);
        multiply(&w, k, fold, folded, q, d, s, neg, acc, T, L);
        q += WORDS * 4 * L;
        d += L;
        s += SUMS * L;
        neg += SUMS * L;
    }
    UNROLL for (int i = 0; i < T; i++)
        _mm512_storeu_ps(part[i], acc[i]);
}

INLINE void few_folded(const uint8_t *panel, const sy_kind k, const int fold, const sy_acts *x, int32_t t,
                       int32_t tokens, float (*part)[PANEL])
{
    if (x->lanes == 1)
        few_of(panel, k, fold, x, t, part, 1, 1);
    else if (tokens > 4)
        few_of(panel, k, fold, x, t, part, 8, GROUP);
    else if (tokens > 2)
        few_of(panel, k, fold, x, t, part, 4, GROUP);
    else
        few_of(panel, k, fold, x, t, part, 2, GROUP);
}

INLINE void few(const uint8_t *panel, const sy_kind k, const sy_acts *x, int32_t t, int32_t tokens,
                float (*part)[PANEL])
{
    if (x->fold == FOLD_FOUR)
        few_folded(panel, k, FOLD_FOUR, x, t, tokens, part);
    else
        few_folded(panel, k, FOLD_FIVE, x, t, tokens, part);
}

#include "body.h"
#endif
