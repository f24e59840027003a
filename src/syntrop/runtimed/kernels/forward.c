// SPDX-License-Identifier: Apache-2.0
/* The llama forward: every layer for a batch of tokens, as one job of the pool.
 *
 * All threads walk the same list of stages and claim pieces of each (pool.c). Every number is computed by one
 * thread in an order that depends neither on the claims nor on the other tokens of the batch.
 */
#include <math.h>

#include "model.h"

#define FFN_TOKENS 64 /* tokens whose gate and up halves are held in scratch */
#define TILE_TOKENS 8 /* of attention */

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
            uint8_t *block = m->kv.blocks[s->tables[s->sequence[t]][s->positions[t] / SY_BLOCK]];
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
            .blocks = m->kv.blocks,
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
        if (block < 0 || block >= m->kv.n_blocks || !m->kv.blocks[block])
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
