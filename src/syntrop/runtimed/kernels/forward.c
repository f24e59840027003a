// SPDX-License-Identifier: Apache-2.0
/* The llama forward: every layer for a batch of tokens, as one job of the pool.
 *
 * All threads walk the same list of stages and claim pieces of each (pool.c). Every number is computed by one
 * thread in an order that depends neither on the claims nor on the other tokens of the batch.
 */
#define _GNU_SOURCE
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "engine.h"

#define HUGE_PAGE ((size_t)2 << 20)
#define MAX_BLOCKS (1 << 20)
#define STAGES 9 /* of a layer, at most */
#define FFN_TOKENS 64 /* tokens whose gate and up halves are held in scratch */
#define TILE_TOKENS 8

typedef struct {
    sy_matrix matrix[7];
    float *norm[2];
} layer;

typedef struct {
    int32_t token, tokens; /* a run of consecutive positions of one sequence */
} tile;

struct sy_model {
    sy_config c;
    const sy_ops *ops;
    int threads;
    pthread_mutex_t busy; /* one forward at a time */

    uint8_t *weights;
    size_t weight_bytes, weight_used;
    layer *layers;
    sy_matrix embed, output;
    float *output_norm;
    double *inverse_freq;

    uint8_t *work; /* everything below, reserved at birth, resident when touched */
    size_t work_bytes;
    size_t x_stride, q_stride, kv_stride, logits_stride;
    float *x, *q, *k, *v, *cos_sin, *logits;
    sy_acts normed, attended, hidden, last;
    tile *tiles;
    int32_t *wanted;

    pthread_mutex_t blocks_mutex;
    uint8_t **blocks; /* by number; NULL: free. Its address never changes, so forwards read without a lock */
    int32_t *free_blocks;
    int32_t n_blocks, n_free;
    size_t block_bytes;
    int32_t head_pad;
};

static size_t round_up(size_t n, size_t to) { return (n + to - 1) / to * to; }

static void *reserve(size_t bytes)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return p == MAP_FAILED ? NULL : p;
}

/* Carves the workspace; with base NULL it only measures. */
static void *carve(uint8_t *base, size_t *at, size_t bytes)
{
    size_t start = *at;
    *at += round_up(bytes, 64);
    return base ? base + start : NULL;
}

static void carve_acts(sy_acts *a, uint8_t *base, size_t *at, int32_t cols, int32_t tokens)
{
    size_t groups = round_up((size_t)tokens, GROUP) / GROUP;
    a->cols = cols;
    a->blocks = cols / QBLOCK;
    a->f_stride = round_up((size_t)cols, QBLOCK);
    a->q = carve(base, at, groups * (size_t)a->blocks * 2 * QBLOCK * GROUP);
    a->d = carve(base, at, groups * (size_t)a->blocks * GROUP * 4);
    a->s = carve(base, at, groups * (size_t)a->blocks * GROUP * 4);
    a->neg = carve(base, at, groups * (size_t)a->blocks * GROUP * 4);
    a->f = carve(base, at, groups * GROUP * a->f_stride * 4);
}

static size_t carve_all(sy_model *m, uint8_t *base)
{
    const sy_config *c = &m->c;
    size_t at = 0, n = (size_t)c->max_batch;
    m->x_stride = round_up((size_t)c->n_embd, QBLOCK);
    m->q_stride = round_up((size_t)c->n_head * (size_t)c->head_dim, QBLOCK);
    m->kv_stride = round_up((size_t)c->n_head_kv * (size_t)c->head_dim, QBLOCK);
    m->logits_stride = round_up((size_t)c->n_vocab, PANEL);
    m->x = carve(base, &at, n * m->x_stride * 4);
    m->q = carve(base, &at, n * m->q_stride * 4);
    m->k = carve(base, &at, n * m->kv_stride * 4);
    m->v = carve(base, &at, n * m->kv_stride * 4);
    m->cos_sin = carve(base, &at, n * (size_t)c->rope_dim * 4);
    m->logits = carve(base, &at, (size_t)c->max_logits * m->logits_stride * 4);
    carve_acts(&m->normed, base, &at, c->n_embd, c->max_batch);
    carve_acts(&m->attended, base, &at, c->n_head * c->head_dim, c->max_batch);
    carve_acts(&m->hidden, base, &at, c->n_ff, c->max_batch);
    carve_acts(&m->last, base, &at, c->n_embd, c->max_logits);
    m->tiles = carve(base, &at, n * sizeof *m->tiles);
    m->wanted = carve(base, &at, (size_t)c->max_logits * 4);
    m->layers = carve(base, &at, (size_t)c->n_layer * sizeof *m->layers);
    float *norms = carve(base, &at, ((size_t)c->n_layer * 2 + 1) * m->x_stride * 4);
    m->inverse_freq = carve(base, &at, (size_t)c->rope_dim / 2 * sizeof(double));
    if (base) {
        for (int32_t i = 0; i < c->n_layer; i++)
            for (int j = 0; j < 2; j++, norms += m->x_stride)
                m->layers[i].norm[j] = norms;
        m->output_norm = norms;
    }
    return at;
}

sy_model *sy_model_new(const sy_config *c, int level, int threads, size_t weight_bytes)
{
    const sy_ops *ops = sy_ops_of(level);
    if (!ops || threads < 1 || c->n_layer < 1 || c->n_embd < 1 || c->n_ff < 1 || c->n_vocab < 1 ||
        c->n_head_kv < 1 || c->n_head < c->n_head_kv || c->n_head % c->n_head_kv || c->head_dim < 1 ||
        c->head_dim > MAX_HEAD || c->rope_dim < 0 || c->rope_dim > c->head_dim || c->rope_dim % 2 ||
        c->n_layer > (SY_MAX_STAGES - 8) / STAGES || c->max_batch < 1 || c->max_batch % GROUP || c->max_logits < 1)
        return NULL;
    sy_model *m = calloc(1, sizeof *m);
    if (!m)
        return NULL;
    m->c = *c;
    m->ops = ops;
    m->threads = threads;
    m->head_pad = (int32_t)round_up((size_t)c->head_dim, PANEL);
    m->block_bytes = (size_t)c->n_layer * (size_t)c->n_head_kv * 2 * (size_t)m->head_pad * SY_BLOCK *
                     (c->kv_f32 ? 4 : 2);
    if (sy_pool_acquire(threads)) {
        free(m);
        return NULL;
    }
    pthread_mutex_init(&m->busy, NULL);
    pthread_mutex_init(&m->blocks_mutex, NULL);
    m->work_bytes = carve_all(m, NULL);
    m->work = reserve(m->work_bytes);
    m->blocks = reserve(MAX_BLOCKS * sizeof *m->blocks);
    m->free_blocks = reserve(MAX_BLOCKS * sizeof *m->free_blocks);
    m->weight_bytes = round_up(weight_bytes + HUGE_PAGE, HUGE_PAGE);
    m->weights = reserve(m->weight_bytes);
    if (!m->work || !m->blocks || !m->free_blocks || !m->weights) {
        sy_model_free(m);
        return NULL;
    }
    carve_all(m, m->work);
    /* Decoding streams the weights: huge pages keep the translation out of it. Advice only. */
    m->weight_used = round_up((size_t)(uintptr_t)m->weights, HUGE_PAGE) - (size_t)(uintptr_t)m->weights;
    madvise(m->weights + m->weight_used, m->weight_bytes - m->weight_used, MADV_HUGEPAGE);
    for (int32_t i = 0; i < c->rope_dim / 2; i++)
        m->inverse_freq[i] = c->rope_scale * pow(c->rope_theta, -2.0 * i / c->rope_dim);
    return m;
}

void sy_model_free(sy_model *m)
{
    if (!m)
        return;
    if (m->blocks) {
        for (int32_t i = 0; i < m->n_blocks; i++)
            if (m->blocks[i])
                munmap(m->blocks[i], m->block_bytes);
        munmap(m->blocks, MAX_BLOCKS * sizeof *m->blocks);
    }
    if (m->free_blocks)
        munmap(m->free_blocks, MAX_BLOCKS * sizeof *m->free_blocks);
    if (m->work)
        munmap(m->work, m->work_bytes);
    if (m->weights)
        munmap(m->weights, m->weight_bytes);
    pthread_mutex_destroy(&m->busy);
    pthread_mutex_destroy(&m->blocks_mutex);
    free(m);
    sy_pool_release();
}

size_t sy_model_bytes(const sy_model *m) { return m->weight_bytes + m->work_bytes; }

int sy_model_threads(sy_model *m, int threads)
{
    if (threads < 1)
        return SY_ERR_ARGUMENT;
    int result = sy_pool_grow(threads);
    if (result == 0) {
        pthread_mutex_lock(&m->busy);
        m->threads = threads;
        pthread_mutex_unlock(&m->busy);
    }
    return result;
}

/* Loading */

struct packing {
    sy_matrix *m;
    const void *src;
};

static void pack_job(void *p, sy_walk *w)
{
    struct packing *job = p;
    int32_t panels = job->m->panels, chunk = panels / (w->threads * 4) + 1, first, last;
    while (sy_claim(w, panels, chunk, &first, &last))
        sy_pack_panels(job->m, job->src, first, last);
    sy_stage_end(w, panels);
}

static sy_matrix *matrix_of(sy_model *m, int32_t index, int slot)
{
    if (slot == SY_EMBED)
        return &m->embed;
    if (slot == SY_OUTPUT)
        return &m->output;
    if (slot < 0 || slot > SY_FFN_DOWN || index < 0 || index >= m->c.n_layer)
        return NULL;
    return &m->layers[index].matrix[slot];
}

static int right_shape(const sy_config *c, int slot, int32_t rows, int32_t cols)
{
    int32_t q = c->n_head * c->head_dim, kv = c->n_head_kv * c->head_dim;
    switch (slot) {
    case SY_ATTN_Q: return rows == q && cols == c->n_embd;
    case SY_ATTN_K:
    case SY_ATTN_V: return rows == kv && cols == c->n_embd;
    case SY_ATTN_O: return rows == c->n_embd && cols == q;
    case SY_FFN_GATE:
    case SY_FFN_UP: return rows == c->n_ff && cols == c->n_embd;
    case SY_FFN_DOWN: return rows == c->n_embd && cols == c->n_ff;
    default: return rows == c->n_vocab && cols == c->n_embd;
    }
}

int sy_model_matrix(sy_model *m, int32_t index, int slot, int type, int32_t rows, int32_t cols,
                    const void *src)
{
    sy_matrix *matrix = matrix_of(m, index, slot);
    if (!matrix || matrix->data || !right_shape(&m->c, slot, rows, cols) ||
        sy_matrix_shape(matrix, type, rows, cols))
        return SY_ERR_ARGUMENT;
    size_t bytes = round_up((size_t)matrix->panels * matrix->panel_bytes, 64);
    if (bytes > m->weight_bytes - m->weight_used)
        return SY_ERR_MEMORY;
    matrix->data = m->weights + m->weight_used;
    m->weight_used += bytes;
    struct packing job = {matrix, src};
    sy_pool_run(pack_job, &job, m->threads, 1);
    return 0;
}

int sy_model_vector(sy_model *m, int32_t index, int slot, int type, int32_t n, const void *src)
{
    float *to = NULL;
    int32_t want = m->c.n_embd;
    if ((slot == SY_ATTN_NORM || slot == SY_FFN_NORM) && index >= 0 && index < m->c.n_layer)
        to = m->layers[index].norm[slot];
    else if (slot == SY_OUTPUT_NORM)
        to = m->output_norm;
    else if (slot == SY_ROPE_FACTORS)
        want = m->c.rope_dim / 2;
    if (n != want || (!to && slot != SY_ROPE_FACTORS) ||
        (type != SY_F32 && type != SY_F16 && type != SY_BF16))
        return SY_ERR_ARGUMENT;
    for (int32_t i = 0; i < n; i++) {
        float value;
        uint16_t half;
        if (type == SY_F32) {
            memcpy(&value, (const uint8_t *)src + (size_t)i * 4, 4);
        } else {
            memcpy(&half, (const uint8_t *)src + (size_t)i * 2, 2);
            value = type == SY_F16 ? sy_half_to_float(half) : sy_bf16_to_float(half);
        }
        if (to)
            to[i] = value;
        else
            m->inverse_freq[i] /= value;
    }
    return 0;
}

int sy_model_tie(sy_model *m)
{
    if (!m->embed.data || m->output.data)
        return SY_ERR_ARGUMENT;
    m->output = m->embed;
    return 0;
}

/* KV blocks */

size_t sy_block_bytes(const sy_model *m) { return m->block_bytes; }

int32_t sy_block_new(sy_model *m)
{
    uint8_t *memory = reserve(m->block_bytes);
    if (!memory)
        return SY_ERR_MEMORY;
    pthread_mutex_lock(&m->blocks_mutex);
    int32_t block = SY_ERR_MEMORY;
    if (m->n_free)
        block = m->free_blocks[--m->n_free];
    else if (m->n_blocks < MAX_BLOCKS)
        block = m->n_blocks++;
    if (block >= 0)
        m->blocks[block] = memory;
    pthread_mutex_unlock(&m->blocks_mutex);
    if (block < 0)
        munmap(memory, m->block_bytes);
    return block;
}

void sy_block_free(sy_model *m, int32_t block)
{
    pthread_mutex_lock(&m->blocks_mutex);
    uint8_t *memory = block >= 0 && block < m->n_blocks ? m->blocks[block] : NULL;
    if (memory) {
        m->blocks[block] = NULL;
        m->free_blocks[m->n_free++] = block;
    }
    pthread_mutex_unlock(&m->blocks_mutex);
    if (memory)
        munmap(memory, m->block_bytes);
}

/* The step */

typedef struct {
    sy_model *m;
    int32_t n, n_wanted, n_tiles, n_sequences;
    const int32_t *tokens, *positions, *sequence;
    const int32_t *const *tables;
} step;

/* Pieces of rows of weights: with few tokens the weights are streamed, in long runs; with many, the
   panel is in L1 and one is work enough. */
static int32_t panel_chunk(const sy_walk *w, int32_t panels, int32_t tokens)
{
    int32_t chunk = panels / (w->threads * 4);
    return tokens > GROUP || chunk < 1 ? 1 : chunk;
}

static int is_float(const sy_matrix *m) { return m->type == SY_F32 || m->type == SY_F16 || m->type == SY_BF16; }

static int normalize(sy_walk *w, const step *s, sy_acts *a, const float *weight, const int32_t *rows, int32_t n)
{
    const sy_model *m = s->m;
    int32_t first, last;
    while (sy_claim(w, n, 4, &first, &last))
        for (int32_t t = first; t < last; t++) {
            float *f = a->f + (size_t)t * a->f_stride;
            m->ops->norm(m->x + (size_t)(rows ? rows[t] : t) * m->x_stride, weight, m->c.n_embd, m->c.rms_eps,
                         f);
            m->ops->quantize(f, m->c.n_embd, a, t, 0);
        }
    return sy_stage_end(w, n);
}

static int matmul_add(sy_walk *w, const step *s, const sy_matrix *matrix, const sy_acts *a, float *out, size_t stride,
                       int32_t n, int add)
{
    int32_t first, last;
    while (sy_claim(w, matrix->panels, panel_chunk(w, matrix->panels, n), &first, &last))
        for (int32_t p = first; p < last; p++)
            s->m->ops->matmul(matrix, p, a, 0, n, out + (size_t)p * PANEL, stride, add);
    return sy_stage_end(w, matrix->panels);
}

static int embed(sy_walk *w, const step *s)
{
    const sy_model *m = s->m;
    int32_t first, last, pairs = m->c.rope_dim / 2;
    while (sy_claim(w, s->n, 4, &first, &last))
        for (int32_t t = first; t < last; t++) {
            sy_unpack_row(&m->embed, s->tokens[t], m->x + (size_t)t * m->x_stride);
            float *cos_sin = m->cos_sin + (size_t)t * m->c.rope_dim;
            for (int32_t i = 0; i < pairs; i++) {
                double angle = s->positions[t] * m->inverse_freq[i];
                cos_sin[2 * i] = (float)cos(angle);
                cos_sin[2 * i + 1] = (float)sin(angle);
            }
        }
    return sy_stage_end(w, s->n);
}

static int project_qkv(sy_walk *w, const step *s, const layer *l)
{
    const sy_model *m = s->m;
    const sy_matrix *q = &l->matrix[SY_ATTN_Q], *k = &l->matrix[SY_ATTN_K], *v = &l->matrix[SY_ATTN_V];
    int32_t total = q->panels + k->panels + v->panels, first, last, n = s->n;
    while (sy_claim(w, total, panel_chunk(w, total, n), &first, &last))
        for (int32_t i = first; i < last; i++) {
            const sy_matrix *matrix = q;
            float *out = m->q;
            size_t stride = m->q_stride;
            int32_t p = i;
            if (p >= q->panels) {
                p -= q->panels;
                matrix = p < k->panels ? k : v;
                out = p < k->panels ? m->k : m->v;
                p -= p < k->panels ? 0 : k->panels;
                stride = m->kv_stride;
            }
            m->ops->matmul(matrix, p, &m->normed, 0, n, out + (size_t)p * PANEL, stride, 0);
        }
    return sy_stage_end(w, total);
}

static size_t key_offset(const sy_model *m, int32_t index, int32_t head)
{
    return ((size_t)index * (size_t)m->c.n_head_kv + (size_t)head) * 2 * (size_t)m->head_pad * SY_BLOCK *
           (m->c.kv_f32 ? 4 : 2);
}

static size_t value_offset(const sy_model *m, size_t key)
{
    return key + (size_t)m->head_pad * SY_BLOCK * (m->c.kv_f32 ? 4 : 2);
}

static int rotate_and_store(sy_walk *w, const step *s, int32_t index)
{
    const sy_model *m = s->m;
    int32_t first, last, dim = m->c.head_dim, pairs = m->c.rope_dim / 2;
    while (sy_claim(w, s->n, 4, &first, &last))
        for (int32_t t = first; t < last; t++) {
            const float *cos_sin = m->cos_sin + (size_t)t * m->c.rope_dim;
            float *q = m->q + (size_t)t * m->q_stride, *k = m->k + (size_t)t * m->kv_stride;
            float *v = m->v + (size_t)t * m->kv_stride;
            for (int32_t h = 0; h < m->c.n_head; h++)
                m->ops->rotate(q + h * dim, cos_sin, pairs);
            uint8_t *block = m->blocks[s->tables[s->sequence[t]][s->positions[t] / SY_BLOCK]];
            for (int32_t h = 0; h < m->c.n_head_kv; h++) {
                size_t key = key_offset(m, index, h);
                m->ops->rotate(k + h * dim, cos_sin, pairs);
                m->ops->store_kv(block + key, block + value_offset(m, key), s->positions[t] % SY_BLOCK,
                                 k + h * dim, v + h * dim, dim, m->head_pad, m->c.kv_f32);
            }
        }
    return sy_stage_end(w, s->n);
}

static int attend(sy_walk *w, const step *s, int32_t index)
{
    sy_model *m = s->m;
    int32_t dim = m->c.head_dim, group = m->c.n_head / m->c.n_head_kv;
    int32_t heads = group < ATTEND_ROWS ? group : ATTEND_ROWS, parts = (group + heads - 1) / heads;
    int32_t units = s->n_tiles * m->c.n_head_kv * parts, first, last;
    int whole = (heads * dim) % QBLOCK == 0 && (group * dim) % QBLOCK == 0;
    while (sy_claim(w, units, 1, &first, &last)) {
        int32_t unit = units - 1 - first; /* the longest contexts first: no long piece is left for the end */
        const tile *tl = &m->tiles[unit / (m->c.n_head_kv * parts)];
        int32_t kv = unit / parts % m->c.n_head_kv, head = kv * group + unit % parts * heads;
        int32_t count = (kv + 1) * group - head < heads ? (kv + 1) * group - head : heads;
        size_t key = key_offset(m, index, kv);
        sy_attend a = {
            .q = m->q + (size_t)tl->token * m->q_stride + (size_t)head * dim,
            .q_stride = m->q_stride,
            .tokens = tl->tokens,
            .first = s->positions[tl->token],
            .heads = count,
            .head_dim = dim,
            .head_pad = m->head_pad,
            .kv_f32 = m->c.kv_f32,
            .table = s->tables[s->sequence[tl->token]],
            .blocks = m->blocks,
            .key = key,
            .value = value_offset(m, key),
            .scale = 1.0f / sqrtf((float)dim),
            .out = m->attended.f + (size_t)tl->token * m->attended.f_stride + (size_t)head * dim,
            .out_stride = m->attended.f_stride,
        };
        m->ops->attend(&a);
        if (whole)
            for (int32_t t = 0; t < tl->tokens; t++)
                m->ops->quantize(a.out + (size_t)t * a.out_stride, count * dim, &m->attended, tl->token + t,
                                 head * dim / QBLOCK);
    }
    if (!sy_stage_end(w, units))
        return 0;
    if (whole)
        return 1;
    /* A block of 32 spans heads of different pieces. */
    while (sy_claim(w, s->n, 4, &first, &last))
        for (int32_t t = first; t < last; t++)
            m->ops->quantize(m->attended.f + (size_t)t * m->attended.f_stride, m->attended.blocks * QBLOCK,
                             &m->attended, t, 0);
    return sy_stage_end(w, s->n);
}

/* Two panels of gate and of up give 32 columns of hidden activations: a whole block, quantised on the spot. */
static int gate_up(sy_walk *w, const step *s, const layer *l)
{
    sy_model *m = s->m;
    const sy_matrix *gate = &l->matrix[SY_FFN_GATE], *up = &l->matrix[SY_FFN_UP];
    int32_t pairs = (gate->panels + 1) / 2, n = s->n, first, last;
    int keep = is_float(&l->matrix[SY_FFN_DOWN]);
    float g[FFN_TOKENS * QBLOCK] __attribute__((aligned(64)));
    float u[FFN_TOKENS * QBLOCK] __attribute__((aligned(64)));
    while (sy_claim(w, pairs, panel_chunk(w, pairs, n), &first, &last))
        for (int32_t pair = first; pair < last; pair++)
            for (int32_t t0 = 0; t0 < n; t0 += FFN_TOKENS) {
                int32_t t1 = n - t0 < FFN_TOKENS ? n : t0 + FFN_TOKENS;
                for (int half = 0; half < 2; half++) {
                    int32_t p = pair * 2 + half;
                    if (p < gate->panels) {
                        m->ops->matmul(gate, p, &m->normed, t0, t1, g + half * PANEL, QBLOCK, 0);
                        m->ops->matmul(up, p, &m->normed, t0, t1, u + half * PANEL, QBLOCK, 0);
                    } else {
                        for (int32_t t = 0; t < t1 - t0; t++) {
                            memset(g + t * QBLOCK + PANEL, 0, PANEL * 4);
                            memset(u + t * QBLOCK + PANEL, 0, PANEL * 4);
                        }
                    }
                }
                for (int32_t t = t0; t < t1; t++) {
                    float *h = g + (t - t0) * QBLOCK;
                    m->ops->silu_mul(h, u + (t - t0) * QBLOCK, QBLOCK);
                    if (keep)
                        memcpy(m->hidden.f + (size_t)t * m->hidden.f_stride + pair * QBLOCK, h, QBLOCK * 4);
                    else
                        m->ops->quantize(h, QBLOCK, &m->hidden, t, pair);
                }
            }
    return sy_stage_end(w, pairs);
}

static int run_layer(sy_walk *w, const step *s, int32_t i)
{
    sy_model *m = s->m;
    const layer *l = &m->layers[i];
    int32_t n = s->n;
    return normalize(w, s, &m->normed, l->norm[SY_ATTN_NORM], NULL, n) && project_qkv(w, s, l) &&
           rotate_and_store(w, s, i) && attend(w, s, i) &&
           matmul_add(w, s, &l->matrix[SY_ATTN_O], &m->attended, m->x, m->x_stride, n, 1) &&
           normalize(w, s, &m->normed, l->norm[SY_FFN_NORM], NULL, n) && gate_up(w, s, l) &&
           matmul_add(w, s, &l->matrix[SY_FFN_DOWN], &m->hidden, m->x, m->x_stride, n, 1);
}

static void run(void *p, sy_walk *w)
{
    const step *s = p;
    sy_model *m = s->m;
    if (!embed(w, s))
        return;
    for (int32_t i = 0; i < m->c.n_layer; i++)
        if (!run_layer(w, s, i))
            return;
    if (s->n_wanted && normalize(w, s, &m->last, m->output_norm, m->wanted, s->n_wanted))
        matmul_add(w, s, &m->output, &m->last, m->logits, m->logits_stride, s->n_wanted, 0);
}

static int complete(const sy_model *m)
{
    for (int32_t i = 0; i < m->c.n_layer; i++)
        for (int slot = 0; slot <= SY_FFN_DOWN; slot++)
            if (!m->layers[i].matrix[slot].data)
                return 0;
    return m->embed.data && m->output.data;
}

/* The last line of defence: what Python should have refused is refused here, not computed. */
static int check(const step *s)
{
    const sy_model *m = s->m;
    if (s->n < 1 || s->n > m->c.max_batch || !complete(m))
        return SY_ERR_ARGUMENT;
    for (int32_t t = 0; t < s->n; t++) {
        if (s->tokens[t] < 0 || s->tokens[t] >= m->c.n_vocab || s->positions[t] < 0 || s->sequence[t] < 0 ||
            s->sequence[t] >= s->n_sequences)
            return SY_ERR_ARGUMENT;
        int32_t block = s->tables[s->sequence[t]][s->positions[t] / SY_BLOCK];
        if (block < 0 || block >= m->n_blocks || !m->blocks[block])
            return SY_ERR_ARGUMENT;
    }
    return 0;
}

int sy_forward(sy_model *m, int32_t n, const int32_t *tokens, const int32_t *positions, const int32_t *sequence,
               const int32_t *const *tables, int32_t n_sequences, const uint8_t *wants)
{
    step s = {m, n, 0, 0, n_sequences, tokens, positions, sequence, tables};
    pthread_mutex_lock(&m->busy);
    int result = check(&s);
    if (result == 0) {
        int32_t heads = m->c.n_head / m->c.n_head_kv, most = heads < ATTEND_ROWS ? ATTEND_ROWS / heads : 1;
        if (most > TILE_TOKENS)
            most = TILE_TOKENS;
        for (int32_t t = 0; t < n && result == 0; t++) {
            if (wants[t]) {
                if (s.n_wanted == m->c.max_logits)
                    result = SY_ERR_ARGUMENT;
                else
                    m->wanted[s.n_wanted++] = t;
            }
            tile *last = s.n_tiles ? &m->tiles[s.n_tiles - 1] : NULL;
            if (last && last->tokens < most && sequence[t] == sequence[t - 1] &&
                positions[t] == positions[t - 1] + 1)
                last->tokens++;
            else
                m->tiles[s.n_tiles++] = (tile){t, 1};
        }
    }
    if (result == 0) {
        m->normed.lanes = m->attended.lanes = m->hidden.lanes = n == 1 ? 1 : GROUP;
        m->last.lanes = s.n_wanted == 1 ? 1 : GROUP;
        sy_pool_run(run, &s, m->threads, m->c.n_layer * STAGES + 3);
    }
    pthread_mutex_unlock(&m->busy);
    return result;
}

float *sy_model_logits(sy_model *m) { return m->logits; }

size_t sy_model_logits_stride(const sy_model *m) { return m->logits_stride; }
