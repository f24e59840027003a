// SPDX-License-Identifier: Apache-2.0
/* Encoders of the BERT family: memory, weights, and what their layers differ in. encode.c runs them. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/mman.h>

#include "encoder.h"

static size_t round_up(size_t n, size_t to) { return (n + to - 1) / to * to; }

static void *reserve(size_t bytes)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return p == MAP_FAILED ? NULL : p;
}

static void *carve(uint8_t *base, size_t *at, size_t bytes)
{
    size_t start = *at;
    *at += round_up(bytes, 64);
    return base ? base + start : NULL;
}

static void carve_acts(sy_acts *a, uint8_t *base, size_t *at, int32_t cols, size_t tokens, int own)
{
    size_t groups = sy_acts_groups(tokens), blocks = (size_t)(cols / QBLOCK);
    a->cols = cols;
    a->blocks = cols / QBLOCK;
    a->lanes = GROUP;
    a->fold = FOLD_FIVE; /* right for every type */
    a->f_stride = round_up((size_t)cols, QBLOCK);
    a->q = carve(base, at, sy_acts_codes(a->blocks, tokens));
    a->d = carve(base, at, groups * blocks * GROUP * 4);
    a->s = carve(base, at, groups * blocks * SUMS * GROUP * 4);
    a->neg = carve(base, at, groups * blocks * SUMS * GROUP * 4);
    if (own)
        a->f = carve(base, at, groups * GROUP * a->f_stride * 4);
}

/* Most blocks of a batch: each text may leave one unfilled, and has a token at least. */
static size_t most_blocks(const sy_encoder *e)
{
    return ((size_t)e->c.max_tokens + (SY_BLOCK - 1) * (size_t)most_texts(e)) / SY_BLOCK;
}

/* Rows of a matrix of a layer, so the length of its bias; and of other vectors. */
static int32_t length_of(const sy_encoder_config *c, int slot)
{
    return slot == SY_ENC_UP || slot == SY_ENC_GATE ? c->n_ff : c->n_embd;
}

static size_t carve_all(sy_encoder *e, uint8_t *base)
{
    const sy_encoder_config *c = &e->c;
    size_t at = 0, n = round_up((size_t)c->max_tokens, GROUP), embd = (size_t)c->n_embd;
    e->x_stride = round_up(embd, QBLOCK);
    e->h_stride = round_up((size_t)c->n_ff, QBLOCK);
    e->x = carve(base, &at, n * e->x_stride * 4);
    e->q = carve(base, &at, n * e->x_stride * 4);
    e->k = carve(base, &at, n * e->x_stride * 4);
    e->v = carve(base, &at, n * e->x_stride * 4);
    e->by_head = carve(base, &at, n * embd * 4);
    e->by_head_out = carve(base, &at, n * embd * 4);
    e->type_row = carve(base, &at, e->x_stride * 4);
    e->cos_sin = carve(base, &at, n * (size_t)c->n_ropes * (size_t)e->head_dim * 4);
    carve_acts(&e->input, base, &at, c->n_embd, n, c->pre_norm);
    if (!c->pre_norm)
        e->input.f = e->x;
    carve_acts(&e->attended, base, &at, c->n_embd, n, 1);
    carve_acts(&e->hidden, base, &at, c->n_ff, n, 1);
    e->cache = carve(base, &at, most_blocks(e) * (size_t)c->n_head * e->head_bytes);
    e->blocks = carve(base, &at, most_blocks(e) * sizeof *e->blocks);
    e->iota = carve(base, &at, most_blocks(e) * 4);
    e->first_block = carve(base, &at, n * 4);
    e->text = carve(base, &at, n * 4);
    e->tiles = carve(base, &at, n * sizeof *e->tiles);
    e->embed_norm = carve(base, &at, embd * 4);
    e->embed_norm_bias = carve(base, &at, embd * 4);
    e->output_norm = carve(base, &at, embd * 4);
    e->output_norm_bias = carve(base, &at, embd * 4);
    e->frequencies = carve(base, &at, (size_t)c->n_ropes * (size_t)(e->head_dim / 2) * sizeof(double));
    e->layers = carve(base, &at, (size_t)c->n_layer * sizeof *e->layers);
    for (int32_t i = 0; i < c->n_layer; i++)
        for (int slot = 0; slot < VECTORS; slot++) {
            float *place = carve(base, &at, round_up((size_t)length_of(c, slot), PANEL) * 4);
            if (base)
                e->layers[i].vector[slot] = place;
        }
    return at;
}

sy_encoder *sy_encoder_new(const sy_encoder_config *c, int level, int threads, size_t weight_bytes)
{
    const sy_ops *ops = sy_ops_of(level);
    if (!ops || threads < 1 || c->n_layer < 1 || c->n_layer > (SY_MAX_STAGES - 8) / STAGES || c->n_embd < 1 ||
        c->n_ff < 1 || c->n_vocab < 1 || c->n_head < 1 || c->n_embd % c->n_head || c->n_embd / c->n_head > MAX_HEAD ||
        c->n_positions < 0 || c->n_types < 0 || c->n_ropes < 0 || c->n_ropes > 2 ||
        (c->n_ropes && c->n_embd / c->n_head % 2) || c->context < 1 ||
        (c->n_positions && c->context > c->n_positions) || c->max_tokens < c->context ||
        c->activation < SY_ENC_GELU || c->activation > SY_ENC_SILU)
        return NULL;
    sy_encoder *e = calloc(1, sizeof *e);
    if (!e)
        return NULL;
    e->c = *c;
    e->ops = ops;
    e->threads = threads;
    e->head_dim = c->n_embd / c->n_head;
    e->head_pad = (int32_t)round_up((size_t)e->head_dim, PANEL);
    e->head_bytes = (size_t)e->head_pad * SY_BLOCK * 4 * 2;
    if (sy_pool_acquire(threads)) {
        free(e);
        return NULL;
    }
    pthread_mutex_init(&e->busy, NULL);
    e->work_bytes = carve_all(e, NULL);
    e->work = reserve(e->work_bytes);
    e->weight_bytes = round_up(weight_bytes + 64, 4096);
    e->weights = reserve(e->weight_bytes);
    if (!e->work || !e->weights) {
        sy_encoder_free(e);
        return NULL;
    }
    carve_all(e, e->work);
    for (size_t i = 0; i < most_blocks(e); i++) {
        e->iota[i] = (int32_t)i;
        e->blocks[i] = e->cache + i * (size_t)c->n_head * e->head_bytes;
    }
    fill(e->embed_norm, c->n_embd, 1);
    fill(e->output_norm, c->n_embd, 1);
    for (int32_t i = 0; i < c->n_layer; i++) {
        fill(e->layers[i].vector[SY_ENC_ATTN_NORM], c->n_embd, 1);
        fill(e->layers[i].vector[SY_ENC_FFN_NORM], c->n_embd, 1);
    }
    return e;
}

void sy_encoder_free(sy_encoder *e)
{
    if (!e)
        return;
    if (e->work)
        munmap(e->work, e->work_bytes);
    if (e->weights)
        munmap(e->weights, e->weight_bytes);
    pthread_mutex_destroy(&e->busy);
    free(e);
    sy_pool_release();
}

size_t sy_encoder_bytes(const sy_encoder *e) { return e->weight_bytes + e->work_bytes; }

int sy_encoder_threads(sy_encoder *e, int threads)
{
    if (threads < 1)
        return SY_ERR_ARGUMENT;
    int result = sy_pool_grow(threads);
    if (result == 0) {
        pthread_mutex_lock(&e->busy);
        e->threads = threads;
        pthread_mutex_unlock(&e->busy);
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

static int is_float(const sy_matrix *m) { return m->type == SY_F32 || m->type == SY_F16 || m->type == SY_BF16; }

int sy_encoder_matrix(sy_encoder *e, int32_t index, int slot, int type, int32_t rows, int32_t cols, const void *src)
{
    const sy_encoder_config *c = &e->c;
    sy_matrix *m = NULL;
    int32_t want_rows = c->n_embd, want_cols = c->n_embd;
    if (slot >= 0 && slot < MATRICES && index >= 0 && index < c->n_layer && (slot != SY_ENC_GATE || c->gated)) {
        m = &e->layers[index].matrix[slot];
        want_rows = length_of(c, slot);
        want_cols = slot == SY_ENC_DOWN ? c->n_ff : c->n_embd;
    } else if (slot == SY_ENC_WORDS) {
        m = &e->words;
        want_rows = c->n_vocab;
    } else if (slot == SY_ENC_POSITIONS) {
        m = &e->positions;
        want_rows = c->n_positions;
    } else if (slot == SY_ENC_TYPES) {
        m = &e->types;
        want_rows = c->n_types;
    }
    if (!m || m->data || rows != want_rows || cols != want_cols || sy_matrix_shape(m, type, rows, cols))
        return SY_ERR_ARGUMENT;
    size_t bytes = round_up((size_t)m->panels * m->panel_bytes, 64);
    if (bytes > e->weight_bytes - e->weight_used)
        return SY_ERR_MEMORY;
    m->data = e->weights + e->weight_used;
    e->weight_used += bytes;
    struct packing job = {m, src};
    sy_pool_run(pack_job, &job, e->threads, 1);
    if (slot < MATRICES && !is_float(m))
        e->coded = 1;
    if (slot == SY_ENC_TYPES)
        sy_unpack_row(m, 0, e->type_row);
    return 0;
}

int sy_encoder_vector(sy_encoder *e, int32_t index, int slot, int type, int32_t n, const void *src)
{
    float *to = NULL;
    if (slot >= 0 && slot < VECTORS && index >= 0 && index < e->c.n_layer)
        to = e->layers[index].vector[slot];
    else if (slot == SY_ENC_EMBED_NORM)
        to = e->embed_norm;
    else if (slot == SY_ENC_EMBED_NORM_BIAS)
        to = e->embed_norm_bias;
    else if (slot == SY_ENC_OUTPUT_NORM)
        to = e->output_norm;
    else if (slot == SY_ENC_OUTPUT_NORM_BIAS)
        to = e->output_norm_bias;
    if (!to || n != length_of(&e->c, slot) ||
        (type != SY_F32 && type != SY_F16 && type != SY_BF16))
        return SY_ERR_ARGUMENT;
    for (int32_t i = 0; i < n; i++) {
        uint16_t half;
        if (type == SY_F32) {
            memcpy(&to[i], (const uint8_t *)src + (size_t)i * 4, 4);
        } else {
            memcpy(&half, (const uint8_t *)src + (size_t)i * 2, 2);
            to[i] = type == SY_F16 ? sy_half_to_float(half) : sy_bf16_to_float(half);
        }
    }
    return 0;
}

int sy_encoder_layer(sy_encoder *e, int32_t index, int32_t span, int32_t rope, int bare)
{
    if (index < 0 || index >= e->c.n_layer || span < 0 || rope < 0 || (rope && rope >= e->c.n_ropes))
        return SY_ERR_ARGUMENT;
    e->layers[index].span = span;
    e->layers[index].rope = rope;
    e->layers[index].bare = bare;
    return 0;
}

int sy_encoder_rope(sy_encoder *e, int32_t rope, int32_t n, const double *frequencies, float magnitude)
{
    if (rope < 0 || rope >= e->c.n_ropes || n != e->head_dim / 2)
        return SY_ERR_ARGUMENT;
    memcpy(e->frequencies + (size_t)rope * (size_t)n, frequencies, (size_t)n * sizeof(double));
    e->magnitude[rope] = magnitude;
    e->ropes_set |= 1 << rope;
    return 0;
}
