/* SPDX-License-Identifier: Apache-2.0 */
/* What the translation units of the engine share.
 *
 * Layouts
 *   packed matrix   Panels of 16 rows. Quantised types: blocks of 32 columns, see packed.h. A panel of a float type is
 *                   cols × 16 numbers of that type.
 *   activations     Codes of 11 or 12 bits, by the weights that they meet (sy_acts.fold). (Codes of 8 bits, the usual
 *                   choice, cost SmolLM2 three top-1 answers in a hundred; 11 bits are where that vanishes.) Groups of 8
 *                   tokens; inside a group blocks of 32 columns; inside a block 12 or 16 words of 4 bytes, each 8
 *                   tokens side by side, so that a tile of tokens lies at fixed offsets. What a word holds is the
 *                   level's own: two codes of 16 bits (body.h), or bytes that codes are made of (avx512.c). A token
 *                   that is alone in its batch is a group of one: what decoding reads again and again stays dense.
 *                   f32: row by row.
 *                   (The level of tiles has codes and an arrangement of its own, see amx.c.)
 *   KV block        For each layer and KV head the keys as head_pad × 16 tokens (a column of 16 scores
 *                   is one register, without horizontal sums), then the values as 16 tokens × head_pad.
 *                   In Q8, codes of 8 bits; behind the keys the scales (f16) of each run of dimensions, by 16
 *                   tokens, and behind the values those of each token.
 */
#pragma once

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "engine.cdef"

#define PANEL 16 /* rows of a panel */
#define QBLOCK 32 /* columns that share a scale */
#define GROUP 8 /* tokens of a group of activations */
#define ROWS 16 /* tokens of a tile: the most that a level keeps together, so memory is for whole ones */
#define SUMS 3  /* sums of a block's codes: of the whole, of its halves */
#define FOLD_FOUR 16 /* sy_acts.fold where no weight's code has five bits */
#define FOLD_FIVE 7  /* and where some do: 31 + 7 × 31 is a byte */
#define KEY_RUN 8 /* dimensions of Q8 keys that share a scale: few, since in some models a few dwarf the others */
#define VALUE_RUN SY_BLOCK /* and of values: a block's scales are as many as a head has dimensions */
#define MAX_HEAD 256 /* widest head: bounds the stack of attention */
#define MAX_THREADS 256

typedef struct {
    int32_t type, rows, cols, panels;
    size_t panel_bytes;
    uint8_t *data;
} sy_matrix;

/* Activations of up to max_batch tokens, in the forms that their consumers need (others are NULL). */
typedef struct {
    int32_t cols, blocks;
    int32_t lanes; /* tokens of a group: GROUP, or 1 for a batch of 1 */
    int32_t fold;  /* what two weights are multiplied together by, see avx512.c: it bounds the codes at every level */
    int8_t *q;     /* [group][block][words][lanes][4] */
    float *d;      /* [group][block][lanes]: scale */
    float *s;      /* [group][block][whole, first half, second half][lanes]: scale × sum of codes, for minima */
    int32_t *neg;  /* [group][block][whole, first half, second half][lanes]: - sum of codes, for codes with offset */
    float *f;      /* [token][f_stride] */
    size_t f_stride;
} sy_acts;

/* Attention of the heads of one group over one run of consecutive tokens of one sequence. */
typedef struct {
    const float *q; /* first token, first head; rotated */
    size_t q_stride;
    int32_t tokens, first, heads, head_dim, head_pad, kv_type;
    const int32_t *table;
    uint8_t *const *blocks;
    int32_t window; /* tokens that a token sees, itself included; 0: all */
    int32_t end;    /* tokens that there are, where some of this run would stand behind them; 0: it ends with them */
    size_t key, value; /* offsets inside a block of the keys and values of this layer and KV head */
    float scale;
    float *out; /* as q */
    size_t out_stride;
} sy_attend;

/* The largest code of activations. */
static inline int32_t sy_code_max(int32_t fold) { return fold == FOLD_FOUR ? 1904 : 911; }

#define ATTEND_ROWS 32 /* query rows (tokens × heads) of one call to attend */

typedef struct {
    int32_t span;   /* columns that share a scale: quantize wants whole ones, but at the end of a row */
    int32_t tokens; /* that gate and up of a piece are held for: a panel is expanded once for so many */
    /* out[t][0..16) (+)= panel · x[t] for tokens [t0, t1); t0 a multiple of ROWS. out is at token t0. */
    void (*matmul)(const sy_matrix *m, int32_t panel, const sy_acts *x, int32_t t0, int32_t t1, float *out,
                   size_t stride, int add);
    void (*norm)(const float *x, const float *weight, int32_t n, float eps, float *out);
    /* Blocks [block, block + n / 32) of token t, from n floats. */
    void (*quantize)(const float *x, int32_t n, sy_acts *a, int32_t t, int32_t block);
    void (*silu_mul)(float *gate, const float *up, int32_t n);
    void (*gelu_mul)(float *gate, const float *up, int32_t n);
    void (*rotate)(float *x, const float *cos_sin, int32_t pairs);
    void (*rotate_halves)(float *x, const float *cos_sin, int32_t pairs);
    void (*store_kv)(uint8_t *keys, uint8_t *values, int32_t slot, const float *k, const float *v,
                     int32_t head_dim, int32_t head_pad, int32_t kv_type);
    void (*attend)(const sy_attend *a);
    void (*exp)(const float *x, float *y, int32_t n);
    void (*half)(const float *x, uint16_t *half, float *back, int32_t n);
} sy_ops;

extern const sy_ops sy_ops_scalar;
#if defined(__x86_64__)
extern const sy_ops sy_ops_avx2, sy_ops_avx512, sy_ops_amx;
#endif

const sy_ops *sy_ops_of(int level); /* NULL when it cannot run here */

/* Memory of activations: codes; and how many groups the numbers beside them are for. */
static inline size_t sy_acts_groups(size_t tokens) { return (tokens + ROWS - 1) / ROWS * (ROWS / GROUP); }
static inline size_t sy_acts_codes(int32_t blocks, size_t tokens)
{
    return sy_acts_groups(tokens) * GROUP * (size_t)(blocks + blocks % 2) * 2 * QBLOCK; /* tiles take two blocks */
}

/* pack.c */
void sy_pack_panels(sy_matrix *m, const void *src, int32_t first, int32_t last);
void sy_unpack_row(const sy_matrix *m, int32_t row, float *out);
int sy_matrix_shape(sy_matrix *m, int type, int32_t rows, int32_t cols);

/* pool.c: one pool for the process, one job at a time. */
#define SY_MAX_STAGES 16384

/* A thread's walk through the stages of a job. */
typedef struct {
    int thread, threads, stage, inside;
    int32_t claimed;
    uint64_t job;
} sy_walk;

typedef void (*sy_job)(void *arg, sy_walk *walk);

int sy_pool_acquire(int threads); /* make sure that many can run; hold the pool */
int sy_pool_grow(int threads);
void sy_pool_release(void);
/* Returns when the job did, with the caller as its thread 0. n_stages: at most SY_MAX_STAGES. */
void sy_pool_run(sy_job job, void *arg, int threads, int n_stages);
/* The next items [first, last) of this stage, of `total`; 0 when none are left. */
int sy_claim(sy_walk *walk, int32_t total, int32_t chunk, int32_t *first, int32_t *last);
/* Wait until all items are done. 0: the job went on without this thread, which must touch nothing more of it. */
int sy_stage_end(sy_walk *walk, int32_t total);

/* Word `word` of a block of activations for one token; lanes tokens stand side by side. */
static inline void sy_store_word(int8_t *q, size_t lanes, size_t word, uint32_t value)
{
    memcpy(q + word * lanes * 4, &value, 4);
}

static inline float sy_half_to_float(uint16_t h)
{
    uint32_t bits = (uint32_t)(h & 0x7fff) << 13, out;
    float f;
    memcpy(&f, &bits, 4);
    f *= 0x1p112f; /* rebias; exact, subnormals included */
    memcpy(&out, &f, 4);
    if ((h & 0x7c00) == 0x7c00)
        out |= 0x7f800000;
    out |= (uint32_t)(h & 0x8000) << 16;
    memcpy(&f, &out, 4);
    return f;
}

static inline float sy_bf16_to_float(uint16_t h)
{
    uint32_t bits = (uint32_t)h << 16;
    float f;
    memcpy(&f, &bits, 4);
    return f;
}

static inline uint16_t sy_float_to_half(float f)
{
    uint32_t x;
    memcpy(&x, &f, 4);
    uint32_t sign = (x >> 16) & 0x8000;
    x &= 0x7fffffff;
    if (x >= 0x47800000) /* 65536 and more, infinity, not a number */
        return (uint16_t)(sign | (x > 0x7f800000 ? 0x7e00 : 0x7c00));
    if (x < 0x38800000) { /* subnormal: adding a half lets the adder round to multiples of 2^-24 */
        float a;
        memcpy(&a, &x, 4);
        a += 0.5f;
        memcpy(&x, &a, 4);
        return (uint16_t)(sign | (x - 0x3f000000));
    }
    x += 0xc8000fff + ((x >> 13) & 1); /* rebias and round to even */
    return (uint16_t)(sign | (x >> 13));
}
