// SPDX-License-Identifier: Apache-2.0
/* The life of a model: its memory and its weights. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/mman.h>

#include "model.h"
#include "packed.h"

#define HUGE_PAGE ((size_t)2 << 20)

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
    size_t groups = sy_acts_groups((size_t)tokens);
    a->cols = cols;
    a->blocks = cols / QBLOCK;
    a->f_stride = round_up((size_t)cols, QBLOCK);
    a->q = carve(base, at, sy_acts_codes(a->blocks, (size_t)tokens));
    a->d = carve(base, at, groups * (size_t)a->blocks * GROUP * 4);
    a->s = carve(base, at, groups * (size_t)a->blocks * SUMS * GROUP * 4);
    a->neg = carve(base, at, groups * (size_t)a->blocks * SUMS * GROUP * 4);
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
    m->delta = carve(base, &at, n * m->x_stride * 4);
    m->q = carve(base, &at, n * m->q_stride * 4);
    m->k = carve(base, &at, n * m->kv_stride * 4);
    m->v = carve(base, &at, n * m->kv_stride * 4);
    m->cos_sin = carve(base, &at, n * (size_t)c->n_ropes * (size_t)c->rope_dim * 4);
    m->logits = carve(base, &at, (size_t)c->max_logits * m->logits_stride * 4);
    carve_acts(&m->normed, base, &at, c->n_embd, c->max_batch);
    carve_acts(&m->attended, base, &at, c->n_head * c->head_dim, c->max_batch);
    carve_acts(&m->hidden, base, &at, c->n_ff, c->max_batch);
    carve_acts(&m->last, base, &at, c->n_embd, c->max_logits);
    for (int i = 0; i < 3; i++)
        m->low[i] = carve(base, &at, n * SY_MAX_RANK * 4);
    m->tiles = carve(base, &at, n * sizeof *m->tiles);
    m->runs = carve(base, &at, n * sizeof *m->runs);
    m->wanted_runs = carve(base, &at, (size_t)c->max_logits * sizeof *m->wanted_runs);
    m->wanted = carve(base, &at, (size_t)c->max_logits * 4);
    m->layers = carve(base, &at, (size_t)c->n_layer * sizeof *m->layers);
    m->frequencies = carve(base, &at, (size_t)c->n_ropes * (size_t)c->rope_dim / 2 * sizeof(double));
    return at;
}

sy_model *sy_model_new(const sy_config *c, int level, int threads, size_t weight_bytes)
{
    const sy_ops *ops = sy_ops_of(level);
    if (!ops || threads < 1 || c->n_layer < 1 || c->n_embd < 1 || c->n_ff < 1 || c->n_vocab < 1 ||
        c->n_head_kv < 1 || c->n_head < c->n_head_kv || c->n_head % c->n_head_kv || c->head_dim < 1 ||
        c->head_dim > MAX_HEAD || c->rope_dim < 0 || c->rope_dim > c->head_dim || c->rope_dim % 2 ||
        c->n_ropes < 1 || c->n_ropes > 2 || c->activation < SY_SILU || c->activation > SY_GELU ||
        c->n_layer > (SY_MAX_STAGES - 8) / STAGES || c->max_batch < 1 || c->max_batch % GROUP || c->max_logits < 1)
        return NULL;
    sy_model *m = calloc(1, sizeof *m);
    if (!m)
        return NULL;
    m->c = *c;
    m->ops = ops;
    m->threads = threads;
    m->head_pad = (int32_t)round_up((size_t)c->head_dim, PANEL);
    if (sy_pool_acquire(threads)) {
        free(m);
        return NULL;
    }
    pthread_mutex_init(&m->busy, NULL);
    m->key_bytes = sy_kv_bytes(c->kv_type, m->head_pad, 0);
    m->head_bytes = m->key_bytes + sy_kv_bytes(c->kv_type, m->head_pad, 1);
    int failed = sy_kv_open(&m->kv, (size_t)c->n_layer * (size_t)c->n_head_kv * m->head_bytes);
    m->work_bytes = carve_all(m, NULL);
    m->work = reserve(m->work_bytes);
    m->weight_bytes = round_up(weight_bytes + HUGE_PAGE, HUGE_PAGE);
    m->weights = reserve(m->weight_bytes);
    if (failed || !m->work || !m->weights) {
        sy_model_free(m);
        return NULL;
    }
    carve_all(m, m->work);
    /* Decoding streams the weights: huge pages keep the translation out of it. Advice only. */
    m->weight_used = round_up((size_t)(uintptr_t)m->weights, HUGE_PAGE) - (size_t)(uintptr_t)m->weights;
    madvise(m->weights + m->weight_used, m->weight_bytes - m->weight_used, MADV_HUGEPAGE);
    return m;
}

void sy_model_free(sy_model *m)
{
    if (!m)
        return;
    sy_kv_close(&m->kv);
    if (m->work)
        munmap(m->work, m->work_bytes);
    if (m->weights)
        munmap(m->weights, m->weight_bytes);
    pthread_mutex_destroy(&m->busy);
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

static void *place(sy_model *m, size_t bytes)
{
    bytes = round_up(bytes, 64);
    if (bytes > m->weight_bytes - m->weight_used)
        return NULL;
    void *to = m->weights + m->weight_used;
    m->weight_used += bytes;
    return to;
}

int sy_model_matrix(sy_model *m, int32_t index, int slot, int type, int32_t rows, int32_t cols,
                    const void *src)
{
    sy_matrix *matrix = matrix_of(m, index, slot);
    if (!matrix || matrix->data || !right_shape(&m->c, slot, rows, cols) ||
        sy_matrix_shape(matrix, type, rows, cols))
        return SY_ERR_ARGUMENT;
    matrix->data = place(m, (size_t)matrix->panels * matrix->panel_bytes);
    if (!matrix->data)
        return SY_ERR_MEMORY;
    struct packing job = {matrix, src};
    sy_pool_run(pack_job, &job, m->threads, 1);
    return 0;
}

static int32_t vector_length(const sy_config *c, int slot)
{
    switch (slot) {
    case SY_Q_NORM:
    case SY_K_NORM: return c->head_dim;
    case SY_Q_BIAS: return c->n_head * c->head_dim;
    case SY_K_BIAS:
    case SY_V_BIAS: return c->n_head_kv * c->head_dim;
    default: return c->n_embd;
    }
}

int sy_model_vector(sy_model *m, int32_t index, int slot, int type, int32_t n, const void *src)
{
    float **where = &m->output_norm;
    if (slot != SY_OUTPUT_NORM) {
        if (slot < 0 || slot > SY_V_BIAS || index < 0 || index >= m->c.n_layer)
            return SY_ERR_ARGUMENT;
        where = &m->layers[index].vector[slot];
    }
    if (*where || n != vector_length(&m->c, slot) || (type != SY_F32 && type != SY_F16 && type != SY_BF16))
        return SY_ERR_ARGUMENT;
    float *to = place(m, (size_t)n * 4);
    if (!to)
        return SY_ERR_MEMORY;
    for (int32_t i = 0; i < n; i++) {
        uint16_t half;
        if (type == SY_F32) {
            memcpy(&to[i], (const uint8_t *)src + (size_t)i * 4, 4);
        } else {
            memcpy(&half, (const uint8_t *)src + (size_t)i * 2, 2);
            to[i] = type == SY_F16 ? sy_half_to_float(half) : sy_bf16_to_float(half);
        }
    }
    *where = to;
    return 0;
}

int sy_model_rope(sy_model *m, int32_t rope, int32_t n, const double *frequencies, float magnitude)
{
    if (rope < 0 || rope >= m->c.n_ropes || n != m->c.rope_dim / 2)
        return SY_ERR_ARGUMENT;
    memcpy(m->frequencies + (size_t)rope * (size_t)n, frequencies, (size_t)n * sizeof(double));
    m->magnitude[rope] = magnitude;
    m->ropes_set |= 1 << rope;
    return 0;
}

int sy_model_layer(sy_model *m, int32_t index, int32_t window, int32_t rope)
{
    if (index < 0 || index >= m->c.n_layer || window < 0 || rope < 0 || rope >= m->c.n_ropes)
        return SY_ERR_ARGUMENT;
    m->layers[index].window = window;
    m->layers[index].rope = rope;
    return 0;
}

int sy_model_tie(sy_model *m)
{
    if (!m->embed.data || m->output.data)
        return SY_ERR_ARGUMENT;
    m->output = m->embed;
    return 0;
}
