// SPDX-License-Identifier: Apache-2.0
/* AMX: 16 tokens × 16 rows × 64 columns of bytes a multiply. One token alone: VNNI, to the same bits.
 *
 * Tiles multiply sixteen times as fast as what would scale their sums block by block. So here a sum runs through 256
 * columns, a *segment*: weights become numbers of 16 bits with one scale a row and segment, whatever their type, and
 * activations have one a token and segment. Both are two planes of bytes, number = high × 256 + low, and
 *
 *   sum of weight × activation = 65536 HH + 256 (HL + LH) + LL
 *
 * where each letter pair is a product of planes that a tile sums up in integers, without loss. What a segment gives is
 * that sum / 256, rounded. Integers have one right sum however they are added, so tiles and VNNI agree to the bit.
 *
 * A segment has at most 256 columns, so that nothing overflows: a sum / 256 stays below 2^30.
 *
 * Activations of a batch: tiles of 16 tokens; in a tile steps of 64 columns; in a step the high plane, then the low
 * one; in a plane token by token. d, times 256: [tile][segment][token]. Where the last block has no partner in its
 * step, the weights' half is zero, whatever the activations' is. Activations of one token alone: see store_alone.
 */
#include "packed.h"

#if defined(__x86_64__)
#pragma GCC target("avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,prefer-vector-width=512")
#ifndef TILES
#pragma GCC target("amx-tile,amx-int8")
#endif
#include "vector512.h"

#ifdef TILES /* the same names in C: for tests, where the processor has no tiles */
#include TILES
#endif

#define LEVEL(name) name##amx
#define OWN_CODES
#define SPAN SEGMENT
#define TOKENS 256

#define SEGMENT 256 /* columns */
#define BLOCKS (SEGMENT / QBLOCK)
#define STEP 64 /* columns of a tile */
#define PLANE (ROWS * STEP)
#define ACT_TOP 32639     /* the largest code whose planes are -127..127 and -128..127 */
#define WEIGHT_TOP 32000  /* of a weight, but for the roundings of its scale and its minimum */

_Static_assert(BLOCKS == SUPER, "a segment begins with a head");

static int32_t segments(int32_t blocks) { return (blocks + BLOCKS - 1) / BLOCKS; }

static int32_t steps(int32_t blocks) { return (blocks + 1) / 2; }

/* Activations */

/* Sixteen codes of a token alone, as VNNI's multiply of 16 bits wants them: of each quad four words, the codes' high
   parts of columns 0, 2 and 1, 3, then the low ones likewise. */
INLINE void store_alone(int8_t *q, __m512i high, __m512i low)
{
    const __m512i mask = _mm512_set1_epi32(0xffff);
    high = _mm512_or_si512(_mm512_and_si512(high, mask),
                           _mm512_slli_epi32(_mm512_shuffle_epi32(high, _MM_PERM_DCDC), 16));
    low = _mm512_or_si512(_mm512_and_si512(low, mask),
                          _mm512_slli_epi32(_mm512_shuffle_epi32(low, _MM_PERM_DCDC), 16));
    _mm512_storeu_si512(q, _mm512_unpacklo_epi64(high, low));
}

static int32_t pair_of(const int32_t *sums)
{
    return (int32_t)((uint32_t)(sums[0] & 0xffff) | (uint32_t)sums[1] << 16);
}

/* neg, of one token alone: of each block two words, the sums of its halves' high parts, and of their low ones. */
static void body_quantize(const float *x, int32_t n, sy_acts *a, int32_t t, int32_t block)
{
    const int alone = a->lanes == 1;
    const __m512 top_code = _mm512_set1_ps(ACT_TOP), bottom_code = _mm512_set1_ps(-ACT_TOP);
    const size_t tile = (size_t)(t / ROWS), lane = (size_t)(t % ROWS);
    n -= n % QBLOCK; /* of other widths are float weights only, which read no codes: there is no room for them */
    for (int32_t first = 0; first < n; first += SEGMENT) {
        const int32_t last = n - first < SEGMENT ? n : first + SEGMENT;
        __m512 top = _mm512_setzero_ps();
        for (int32_t c = first; c < last; c += VL)
            top = _mm512_max_ps(_mm512_abs_ps(_mm512_loadu_ps(x + c)), top);
        const float d = _mm512_reduce_max_ps(top) / ACT_TOP;
        const __m512 inverse = _mm512_set1_ps(d > 0 ? 1.0f / d : 0.0f);
        const size_t segment = (size_t)(block + first / QBLOCK) / BLOCKS;
        if (alone)
            a->d[segment] = d * 256.0f;
        else
            a->d[(tile * (size_t)segments(a->blocks) + segment) * ROWS + lane] = d * 256.0f;
        int32_t sums[2][2];
        for (int32_t c = first; c < last; c += VL) {
            /* In range by arithmetic, but for what NaN and infinity lead to: the second side is taken then. */
            __m512 scaled = _mm512_mul_ps(_mm512_loadu_ps(x + c), inverse);
            scaled = _mm512_min_ps(_mm512_max_ps(scaled, bottom_code), top_code);
            const __m512i code = _mm512_cvtps_epi32(scaled);
            const __m512i high = _mm512_srai_epi32(_mm512_add_epi32(code, _mm512_set1_epi32(128)), 8);
            const __m512i low = _mm512_sub_epi32(code, _mm512_slli_epi32(high, 8));
            const size_t column = (size_t)block * QBLOCK + (size_t)c, half = column / VL % 2;
            if (!alone) {
                int8_t *q = a->q + (tile * (size_t)steps(a->blocks) + column / STEP) * 2 * PLANE;
                q += lane * STEP + column % STEP;
                _mm_storeu_si128((__m128i *)q, _mm512_cvtepi32_epi8(high));
                _mm_storeu_si128((__m128i *)(q + PLANE), _mm512_cvtepi32_epi8(low));
                continue;
            }
            store_alone(a->q + column * 4, high, low);
            sums[0][half] = _mm512_reduce_add_epi32(high);
            sums[1][half] = _mm512_reduce_add_epi32(low);
            if (half) {
                a->neg[column / QBLOCK * 2] = pair_of(sums[0]);
                a->neg[column / QBLOCK * 2 + 1] = pair_of(sums[1]);
            }
        }
    }
}

/* Weights */

/* What makes numbers of 16 bits of a segment's codes: (code - 128) × scale / 128 + minimum, of each part of a block,
   in units of the segment's scale. Each row's value stands in both halves of its lane. */
typedef struct {
    __m512 unit;
    __m512i scale[BLOCKS][2], minimum[BLOCKS][2];
} segment;

INLINE __m512i twice(__m512 x)
{
    const __m512i lower = _mm512_broadcast_i32x4(_mm_setr_epi8(0, 1, 0, 1, 4, 5, 4, 5, 8, 9, 8, 9, 12, 13, 12, 13));
    return _mm512_shuffle_epi8(_mm512_cvtps_epi32(x), lower);
}

INLINE void prepare(segment *g, const uint8_t *w, const sy_kind k, int32_t first, int32_t count)
{
    reader r = {.w = w + sy_block_offset(k, first)};
    __m512 scale[BLOCKS][2], minimum[BLOCKS][2], top = _mm512_setzero_ps();
    for (int32_t b = 0; b < count; b++) {
        const block one = next_block(&r, k, first + b);
        for (int p = 0; p < k.parts; p++) {
            scale[b][p] = _mm512_mul_ps(one.scale[p], _mm512_set1_ps(128.0f));
            minimum[b][p] = _mm512_setzero_ps();
            __m512 most = _mm512_abs_ps(scale[b][p]);
            if (k.minimum) { /* codes are not at the top of their bytes yet, nor is their middle 0 */
                scale[b][p] = _mm512_mul_ps(one.scale[p], _mm512_set1_ps((float)(1 << (k.width - 1))));
                minimum[b][p] = _mm512_add_ps(one.minimum[p], scale[b][p]);
                most = _mm512_add_ps(_mm512_abs_ps(scale[b][p]), _mm512_abs_ps(minimum[b][p]));
            }
            top = _mm512_max_ps(most, top);
        }
    }
    const __mmask16 some = _mm512_cmp_ps_mask(top, _mm512_setzero_ps(), _CMP_GT_OQ);
    const __m512 inverse = _mm512_maskz_div_ps(some, _mm512_set1_ps(WEIGHT_TOP), top);
    g->unit = _mm512_div_ps(top, _mm512_set1_ps(WEIGHT_TOP));
    for (int32_t b = 0; b < count; b++)
        for (int p = 0; p < k.parts; p++) {
            g->scale[b][p] = twice(_mm512_mul_ps(scale[b][p], inverse));
            if (k.minimum)
                g->minimum[b][p] = twice(_mm512_mul_ps(minimum[b][p], inverse));
        }
}

INLINE const uint8_t *codes_of(const uint8_t *w, const sy_kind k, int32_t b)
{
    const int head = k.super && b % SUPER == 0 ? sy_head_bytes(k) : 0;
    return w + sy_block_offset(k, b) + PANEL * (head + sy_scale_bytes(k));
}

/* The bits of mask at the top of every 16, less the half of what they can be. */
INLINE __m512i centred(__m512i x, const int mask)
{
    const __m512i bits = _mm512_set1_epi16((short)mask), sign = _mm512_set1_epi16((short)0x8000);
    return _mm512_ternarylogic_epi32(x, bits, sign, 0x6a); /* (x & bits) ^ sign */
}

/* Quad j in numbers of 16 bits, before its minimum: columns 0 and 2 in a lane, columns 1 and 3. */
INLINE void numbers(const sy_kind k, const uint8_t *codes, const int j, __m512i scale, __m512i *even, __m512i *odd)
{
    __m512i left, right;
    if (k.nibbles && k.width == 4) { /* less work than the general case: a word has four nibbles in 16 bits */
        const __m512i x = plane(codes, j % 4);
        left = centred(_mm512_slli_epi16(x, j < 4 ? 12 : 8), 0xf000);
        right = centred(j < 4 ? _mm512_slli_epi16(x, 4) : x, 0xf000);
    } else {
        const __m512i code = quad(k, codes, j, k.book ? 0 : 8 - k.width);
        left = _mm512_xor_si512(_mm512_slli_epi16(code, 8), _mm512_set1_epi16((short)0x8000));
        right = centred(code, 0xff00);
    }
    *even = _mm512_mulhrs_epi16(left, scale);
    *odd = _mm512_mulhrs_epi16(right, scale);
}

/* acc += two numbers × the two of the word at q, in every lane. */
INLINE __m512i dot(__m512i acc, __m512i numbers, const int8_t *q)
{
    __asm__("vpdpwssd %2%{1to16%}, %1, %0" : "+v"(acc) : "v"(numbers), "m"(*(const int8_t(*)[4])q));
    return acc;
}

/* The sum / 256 of a segment, rounded, enters the sum of all. */
INLINE __m512 enter(__m512 acc, __m512i high, __m512i low, __m512 unit, float d)
{
    const __m512i rest = _mm512_srai_epi32(_mm512_add_epi32(low, _mm512_set1_epi32(128)), 8);
    const __m512 all = _mm512_cvtepi32_ps(_mm512_add_epi32(high, rest));
    return _mm512_fmadd_ps(all, _mm512_mul_ps(unit, _mm512_set1_ps(d)), acc);
}

#define AHEAD 1 /* segments */

/* One token alone: from the packed bits into the multiply. */
INLINE __m512 panel_alone(const uint8_t *w, const sy_kind k, const sy_acts *x)
{
    __m512 acc = _mm512_setzero_ps();
    for (int32_t first = 0; first < x->blocks; first += BLOCKS) {
        const int32_t count = x->blocks - first < BLOCKS ? x->blocks - first : BLOCKS;
        segment g;
        prepare(&g, w, k, first, count);
        __m512i sum[2][4]; /* high and low, in four chains each: the latency of one would show */
        for (int i = 0; i < 4; i++)
            sum[0][i] = sum[1][i] = _mm512_setzero_si512();
        for (int32_t b = 0; b < count; b++) {
            const uint8_t *codes = codes_of(w, k, first + b);
            const int8_t *q = x->q + (size_t)(first + b) * QBLOCK * 4;
            /* The first look at a segment's scales is no stream that the processor would see coming. */
            UNROLL for (int i = 0; i < PANEL * (sy_code_bytes(k) + sy_scale_bytes(k)); i += 64)
                _mm_prefetch((const char *)codes + AHEAD * sy_block_offset(k, BLOCKS) + i, _MM_HINT_T0);
            UNROLL for (int j = 0; j < 8; j++)
            {
                __m512i even, odd;
                numbers(k, codes, j, g.scale[b][j * k.parts / 8], &even, &odd);
                const int chain = j % 2 * 2;
                sum[0][chain] = dot(sum[0][chain], even, q + 16 * j);
                sum[0][chain + 1] = dot(sum[0][chain + 1], odd, q + 16 * j + 4);
                sum[1][chain] = dot(sum[1][chain], even, q + 16 * j + 8);
                sum[1][chain + 1] = dot(sum[1][chain + 1], odd, q + 16 * j + 12);
            }
            if (k.minimum) { /* those of the halves × the sums of the halves */
                const int8_t *sums = (const int8_t *)(x->neg + (first + b) * 2);
                __m512i pair = g.minimum[b][0];
                if (k.parts == 2)
                    pair = _mm512_mask_blend_epi16(0xaaaaaaaau, pair, g.minimum[b][1]);
                sum[0][0] = dot(sum[0][0], pair, sums);
                sum[1][0] = dot(sum[1][0], pair, sums + 4);
            }
        }
        for (int i = 0; i < 2; i++)
            sum[i][0] = _mm512_add_epi32(_mm512_add_epi32(sum[i][0], sum[i][1]),
                                         _mm512_add_epi32(sum[i][2], sum[i][3]));
        acc = enter(acc, sum[0][0], sum[1][0], g.unit, x->d[first / BLOCKS]);
    }
    return acc;
}

/* Columns of a panel as tiles read them, again and again, out of L1: of each step the high plane and the low one
   (which has no sign), a row four columns of 16 outputs. */
#define EXPANDED (3 * BLOCKS)

typedef struct {
    uint8_t planes[EXPANDED / 2][2][PLANE] __attribute__((aligned(64)));
    __m512 unit[EXPANDED / BLOCKS];
} expanded;

INLINE void expand(expanded *e, const uint8_t *w, const sy_kind k, int32_t first, int32_t count)
{
    for (int32_t at = 0; at < count; at += BLOCKS) {
        const int32_t blocks = count - at < BLOCKS ? count - at : BLOCKS;
        segment g;
        prepare(&g, w, k, first + at, blocks);
        e->unit[at / BLOCKS] = g.unit;
        for (int32_t b = 0; b < blocks; b++) {
            const uint8_t *codes = codes_of(w, k, first + at + b);
            uint8_t *to = e->planes[(at + b) / 2][0] + (at + b) % 2 * (PLANE / 2);
            UNROLL for (int j = 0; j < 8; j++)
            {
                __m512i even, odd;
                numbers(k, codes, j, g.scale[b][j * k.parts / 8], &even, &odd);
                if (k.minimum) {
                    even = _mm512_add_epi16(even, g.minimum[b][j * k.parts / 8]);
                    odd = _mm512_add_epi16(odd, g.minimum[b][j * k.parts / 8]);
                }
                /* a | (b & c): what lies in the upper bytes comes from b */
                const __m512i upper = _mm512_set1_epi16((short)0xff00);
                const __m512i high = _mm512_ternarylogic_epi32(_mm512_srli_epi16(even, 8), odd, upper, 0xf8);
                const __m512i low = _mm512_ternarylogic_epi32(_mm512_slli_epi16(odd, 8), even,
                                                              _mm512_set1_epi16(0xff), 0xf8);
                _mm512_store_si512(to + j * 4 * PANEL, high);
                _mm512_store_si512(to + PLANE + j * 4 * PANEL, low);
            }
        }
    }
    if (count % 2) {
        memset(e->planes[count / 2][0] + PLANE / 2, 0, PLANE / 2);
        memset(e->planes[count / 2][1] + PLANE / 2, 0, PLANE / 2);
    }
}

/* Tiles 0 to 3: sums, tokens by outputs; 4, 5: activations, tokens by columns; 6, 7: weights. */
typedef struct {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} __attribute__((aligned(64))) configuration;

_Static_assert(sizeof(configuration) == 64, "as LDTILECFG reads it");

static void configure(int tokens)
{
    configuration c = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        c.row_bytes[i] = STEP;
        c.rows[i] = (uint8_t)(i < 6 && tokens < ROWS ? tokens : ROWS);
    }
    /* GCC 12's intrinsic names 8 bytes of it as its input: the stores of the rest would be left out. */
    __asm__ volatile("" ::"m"(c) : "memory");
    _tile_loadconfig(&c);
}

/* Tokens [t, t + rows) by columns [first, first + count) blocks, onto part. Four independent sums of 16 cycles each
   cover the latency of one (52); what scales them overlaps with the next segment's. */
INLINE void tile(const expanded *e, const sy_acts *x, int32_t t, int rows, int32_t first, int32_t count,
                 float (*part)[PANEL])
{
    int32_t sums[4][ROWS][PANEL] __attribute__((aligned(64)));
    const int8_t *q = x->q + ((size_t)(t / ROWS) * (size_t)steps(x->blocks) + (size_t)first / 2) * 2 * PLANE;
    const float *d = x->d + ((size_t)(t / ROWS) * (size_t)segments(x->blocks) + (size_t)first / BLOCKS) * ROWS;
    const int32_t n_steps = steps(count);
    for (int32_t s = 0; s < n_steps; d += ROWS) {
        const int32_t end = s + BLOCKS / 2 < n_steps ? s + BLOCKS / 2 : n_steps;
        const __m512 unit = e->unit[s / (BLOCKS / 2)];
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
        for (; s < end; s++, q += 2 * PLANE) {
            _tile_loadd(6, e->planes[s][0], 4 * PANEL);
            _tile_loadd(4, q, STEP);
            _tile_loadd(7, e->planes[s][1], 4 * PANEL);
            _tile_loadd(5, q + PLANE, STEP);
            _tile_dpbssd(0, 4, 6);
            _tile_dpbsud(1, 4, 7);
            _tile_dpbssd(2, 5, 6);
            _tile_dpbsud(3, 5, 7);
        }
        _tile_stored(0, sums[0], 4 * PANEL);
        _tile_stored(1, sums[1], 4 * PANEL);
        _tile_stored(2, sums[2], 4 * PANEL);
        _tile_stored(3, sums[3], 4 * PANEL);
        for (int i = 0; i < rows; i++) {
            __m512i high = _mm512_slli_epi32(_mm512_load_si512(sums[0][i]), 8);
            high = _mm512_add_epi32(high, _mm512_load_si512(sums[1][i]));
            high = _mm512_add_epi32(high, _mm512_load_si512(sums[2][i]));
            const __m512 acc = first || end > BLOCKS / 2 ? _mm512_load_ps(part[i]) : _mm512_setzero_ps();
            _mm512_store_ps(part[i], enter(acc, high, _mm512_load_si512(sums[3][i]), unit, d[i]));
        }
    }
}

INLINE void give(float *out, __m512 sum, int add)
{
    _mm512_storeu_ps(out, add ? _mm512_add_ps(_mm512_loadu_ps(out), sum) : sum);
}

#define RUN 512 /* tokens for which a panel is expanded once: their sums stay in L2 */

INLINE void panel_typed(const uint8_t *w, const int type, const sy_acts *x, int32_t t0, int32_t t1, float *out,
                        size_t stride, int add)
{
    const sy_kind k = sy_kind_of(type);
    if (x->lanes == 1) {
        give(out, panel_alone(w, k, x), add);
        return;
    }
    expanded e;
    float part[RUN][PANEL] __attribute__((aligned(64)));
    const int32_t pieces = (x->blocks + EXPANDED - 1) / EXPANDED;
    const int32_t size = ((x->blocks + pieces - 1) / pieces + BLOCKS - 1) / BLOCKS * BLOCKS;
    const int rows = t1 - t0 < ROWS ? t1 - t0 : ROWS;
    configure(rows);
    for (; t0 < t1; t0 += RUN, out += RUN * stride) {
        const int32_t run = t1 - t0 < RUN ? t1 - t0 : RUN;
        for (int32_t b = 0; b < x->blocks; b += size) {
            const int32_t count = x->blocks - b < size ? x->blocks - b : size;
            expand(&e, w, k, b, count);
            __asm__ volatile("" ::"r"(&e) : "memory"); /* the intrinsics do not say what they read */
            /* Beyond `run` the tokens are whatever the tile holds: computed, not used. */
            for (int32_t t = 0; t < run; t += ROWS)
                tile(&e, x, t0 + t, rows, b, count, part + t);
        }
        for (int32_t t = 0; t < run; t++)
            give(out + (size_t)t * stride, _mm512_load_ps(part[t]), add);
    }
    _tile_release(); /* registers in use would be saved at every switch, and keep an idle core awake */
}

#include "body.h"
#endif
