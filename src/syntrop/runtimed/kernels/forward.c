// SPDX-License-Identifier: Apache-2.0
/* The forward of a decoder: every layer for a batch of tokens, as one job of the pool.
 *
 * What architectures differ in is data (sy_config, and which vectors a layer has), not code paths of their own:
 * a stage does what there is to do. Stages that only adapters need are walked only when the batch has some.
 *
 * All threads walk the same list of stages and claim pieces of each (pool.c). Every number is computed by one
 * thread in an order that depends neither on the claims nor on the other tokens of the batch.
 */
#include <math.h>

#include "model.h"
#include "packed.h"

#define FFN_TOKENS 256 /* tokens whose gate and up halves are held in scratch, at most: sy_ops.tokens */
#define LOW_TOKENS 64 /* tokens of one piece of work for adapters */
#define TILE_TOKENS 8 /* of attention */

typedef struct {
    sy_model *m;
    int32_t n, n_wanted, n_tiles, n_sequences, n_runs, n_wanted_runs;
    int hidden; /* no logits are wanted, but what they are made of */
    const int32_t *tokens, *positions, *sequence;
    const int32_t *const *tables;
    const sy_adapter *const *adapters;
} step;

/* The rows that a stage multiplies: all tokens, or those whose logits are wanted. */
typedef struct {
    const sy_acts *acts;
    const run *runs;
    int32_t n, n_runs;
} rows;

/* Pieces of rows of weights: with few tokens the weights are streamed, in long runs; with many, the
   panel is in L1 and one is work enough. */
static int32_t panel_chunk(const sy_walk *w, int32_t panels, int32_t tokens)
{
    int32_t chunk = panels / (w->threads * 4);
    return tokens > GROUP || chunk < 1 ? 1 : chunk;
}

/* The codes of activations for the matrices that share them. */
static int32_t fold_of(const sy_matrix *m, int count)
{
    for (int i = 0; i < count; i++)
        if (sy_kind_of(m[i].type).width == 5)
            return FOLD_FIVE;
    return FOLD_FOUR;
}

static int is_float(const sy_matrix *m) { return m->type == SY_F32 || m->type == SY_F16 || m->type == SY_BF16; }

/* What a block gives waits in delta where it is first normalised or scaled: the next stage adds it to the stream. */
static int deferred(const sy_model *m, const layer *l, int post_norm)
{
    return l->vector[post_norm] || m->c.residual_scale != 1.0f;
}

static void add_delta(const sy_model *m, int32_t t, const float *post_norm)
{
    float *x = m->x + (size_t)t * m->x_stride, *delta = m->delta + (size_t)t * m->x_stride;
    if (post_norm)
        m->ops->norm(delta, post_norm, m->c.n_embd, m->c.rms_eps, delta);
    for (int32_t i = 0; i < m->c.n_embd; i++)
        x[i] += m->c.residual_scale * delta[i];
}

/* `before` is the layer whose block `post_norm` (SY_ATTN_POST_NORM or SY_FFN_POST_NORM) came before; NULL: none did.
   `which` names the tokens, NULL: the first n. */
static int normalize(sy_walk *w, const step *s, sy_acts *a, const float *weight, const layer *before,
                     int post_norm, const int32_t *which, int32_t n)
{
    const sy_model *m = s->m;
    int32_t first, last;
    int pending = before && deferred(m, before, post_norm);
    while (sy_claim(w, n, 4, &first, &last))
        for (int32_t t = first; t < last; t++) {
            int32_t token = which ? which[t] : t;
            float *f = a->f + (size_t)t * a->f_stride;
            if (pending)
                add_delta(m, token, before->vector[post_norm]);
            m->ops->norm(m->x + (size_t)token * m->x_stride, weight, m->c.n_embd, m->c.rms_eps, f);
            m->ops->quantize(f, m->c.n_embd, a, t, 0);
        }
    return sy_stage_end(w, n);
}

/* Adapters, first half: down · x for up to three matrices that share their input. */
static int lower(sy_walk *w, const rows *r, int32_t index, int slot, int n_slots)
{
    if (!r->n_runs)
        return 1;
    int32_t chunks = (r->n + LOW_TOKENS - 1) / LOW_TOKENS, total = chunks * n_slots, first, last;
    while (sy_claim(w, total, 1, &first, &last)) {
        int32_t t0 = first / n_slots * LOW_TOKENS, t1 = t0 + LOW_TOKENS, which = first % n_slots;
        for (const run *one = r->runs; one < r->runs + r->n_runs; one++) {
            const sy_model *m = one->adapter->m;
            const sy_matrix *down = &sy_adapter_at(one->adapter, index, slot + which)->down;
            int32_t from = one->first > t0 ? one->first : t0, to = one->last < t1 ? one->last : t1;
            if (down->data && from < to)
                for (int32_t p = 0; p < down->panels; p++)
                    m->ops->matmul(down, p, r->acts, from, to,
                                   m->low[which] + (size_t)from * SY_MAX_RANK + (size_t)p * PANEL, SY_MAX_RANK, 0);
        }
    }
    return sy_stage_end(w, total);
}

/* Panel p of a matrix times tokens [t0, t1), and what adapters add to it, second half. out is at token t0; `which` is
   the matrix's place among those that share their input. */
static void multiply(const sy_model *m, const sy_matrix *matrix, int32_t p, const rows *r, int32_t t0, int32_t t1,
                     float *out, size_t stride, int add, int32_t index, int slot, int which)
{
    m->ops->matmul(matrix, p, r->acts, t0, t1, out, stride, add);
    for (const run *one = r->runs; one < r->runs + r->n_runs; one++) {
        const sy_matrix *up = &sy_adapter_at(one->adapter, index, slot)->up;
        int32_t from = one->first > t0 ? one->first : t0, to = one->last < t1 ? one->last : t1;
        sy_acts low = {.cols = up->cols, .f = m->low[which], .f_stride = SY_MAX_RANK};
        if (up->data && from < to)
            m->ops->matmul(up, p, &low, from, to, out + (size_t)(from - t0) * stride, stride, 1);
    }
}

/* The product that ends a block goes to the stream, or to delta. */
static int end_block(sy_walk *w, const step *s, const rows *r, int32_t index, int slot, int post_norm)
{
    const sy_model *m = s->m;
    const sy_matrix *matrix = &m->layers[index].matrix[slot];
    int wait = deferred(m, &m->layers[index], post_norm);
    float *out = wait ? m->delta : m->x;
    int32_t first, last;
    while (sy_claim(w, matrix->panels, panel_chunk(w, matrix->panels, r->n), &first, &last))
        for (int32_t p = first; p < last; p++)
            multiply(m, matrix, p, r, 0, r->n, out + (size_t)p * PANEL, m->x_stride, !wait, index, slot, 0);
    return sy_stage_end(w, matrix->panels);
}

static int project_logits(sy_walk *w, const step *s, const rows *r)
{
    const sy_model *m = s->m;
    float scale = m->c.logit_scale, cap = m->c.logit_cap;
    int32_t first, last;
    while (sy_claim(w, m->output.panels, panel_chunk(w, m->output.panels, r->n), &first, &last))
        for (int32_t p = first; p < last; p++) {
            float *out = m->logits + (size_t)p * PANEL;
            multiply(m, &m->output, p, r, 0, r->n, out, m->logits_stride, 0, 0, SY_OUTPUT, 0);
            if (scale == 1.0f && cap == 0.0f)
                continue;
            for (int32_t t = 0; t < r->n; t++)
                for (int i = 0; i < PANEL; i++) {
                    float *x = out + (size_t)t * m->logits_stride + i;
                    *x = cap == 0.0f ? *x * scale : cap * tanhf(*x * scale / cap);
                }
        }
    return sy_stage_end(w, m->output.panels);
}

static float *angles(const sy_model *m, int32_t token, int32_t rope)
{
    return m->cos_sin + ((size_t)token * (size_t)m->c.n_ropes + (size_t)rope) * (size_t)m->c.rope_dim;
}

static int embed(sy_walk *w, const step *s)
{
    const sy_model *m = s->m;
    int32_t first, last, pairs = m->c.rope_dim / 2;
    while (sy_claim(w, s->n, 4, &first, &last))
        for (int32_t t = first; t < last; t++) {
            float *x = m->x + (size_t)t * m->x_stride;
            sy_unpack_row(&m->embed, s->tokens[t], x);
            if (m->c.embed_scale != 1.0f)
                for (int32_t i = 0; i < m->c.n_embd; i++)
                    x[i] *= m->c.embed_scale;
            for (int32_t rope = 0; rope < m->c.n_ropes; rope++) {
                float *cos_sin = angles(m, t, rope);
                for (int32_t i = 0; i < pairs; i++) {
                    double angle = s->positions[t] * m->frequencies[rope * pairs + i];
                    cos_sin[2 * i] = (float)cos(angle) * m->magnitude[rope];
                    cos_sin[2 * i + 1] = (float)sin(angle) * m->magnitude[rope];
                }
            }
        }
    return sy_stage_end(w, s->n);
}

static int project_qkv(sy_walk *w, const rows *r, const sy_model *m, int32_t index)
{
    const layer *l = &m->layers[index];
    int32_t ends[3], total = 0, first, last;
    for (int i = 0; i < 3; i++)
        ends[i] = total += l->matrix[SY_ATTN_Q + i].panels;
    while (sy_claim(w, total, panel_chunk(w, total, r->n), &first, &last))
        for (int32_t i = first; i < last; i++) {
            int which = i < ends[0] ? 0 : i < ends[1] ? 1 : 2;
            int32_t p = which ? i - ends[which - 1] : i;
            float *out = which == 0 ? m->q : which == 1 ? m->k : m->v;
            multiply(m, &l->matrix[SY_ATTN_Q + which], p, r, 0, r->n, out + (size_t)p * PANEL,
                     which ? m->kv_stride : m->q_stride, 0, index, SY_ATTN_Q + which, which);
        }
    return sy_stage_end(w, total);
}

static size_t key_offset(const sy_model *m, int32_t index, int32_t head)
{
    return ((size_t)index * (size_t)m->c.n_head_kv + (size_t)head) * m->head_bytes;
}

static size_t value_offset(const sy_model *m, size_t key)
{
    return key + m->key_bytes;
}

/* Bias, norm of each head, rotation: what there is of them. */
static void finish_heads(const sy_model *m, float *x, int32_t heads, const float *bias, const float *norm,
                         const float *cos_sin)
{
    int32_t dim = m->c.head_dim, pairs = m->c.rope_dim / 2;
    if (bias)
        for (int32_t i = 0; i < heads * dim; i++)
            x[i] += bias[i];
    for (int32_t h = 0; h < heads; h++, x += dim) {
        if (norm)
            m->ops->norm(x, norm, dim, m->c.rms_eps, x);
        if (m->c.rope_halves)
            m->ops->rotate_halves(x, cos_sin, pairs);
        else
            m->ops->rotate(x, cos_sin, pairs);
    }
}

static int rotate_and_store(sy_walk *w, const step *s, int32_t index)
{
    const sy_model *m = s->m;
    const layer *l = &m->layers[index];
    int32_t first, last, dim = m->c.head_dim;
    while (sy_claim(w, s->n, 4, &first, &last))
        for (int32_t t = first; t < last; t++) {
            const float *cos_sin = angles(m, t, l->rope), *bias = l->vector[SY_V_BIAS];
            float *k = m->k + (size_t)t * m->kv_stride, *v = m->v + (size_t)t * m->kv_stride;
            finish_heads(m, m->q + (size_t)t * m->q_stride, m->c.n_head, l->vector[SY_Q_BIAS],
                         l->vector[SY_Q_NORM], cos_sin);
            finish_heads(m, k, m->c.n_head_kv, l->vector[SY_K_BIAS], l->vector[SY_K_NORM], cos_sin);
            if (bias)
                for (int32_t i = 0; i < m->c.n_head_kv * dim; i++)
                    v[i] += bias[i];
            uint8_t *block = m->kv.blocks[s->tables[s->sequence[t]][s->positions[t] / SY_BLOCK]];
            for (int32_t h = 0; h < m->c.n_head_kv; h++) {
                size_t key = key_offset(m, index, h);
                m->ops->store_kv(block + key, block + value_offset(m, key), s->positions[t] % SY_BLOCK,
                                 k + h * dim, v + h * dim, dim, m->head_pad, m->c.kv_type);
            }
        }
    return sy_stage_end(w, s->n);
}

static int attend(sy_walk *w, const step *s, sy_acts *to, int32_t index)
{
    sy_model *m = s->m;
    int32_t dim = m->c.head_dim, group = m->c.n_head / m->c.n_head_kv;
    int32_t heads = group < ATTEND_ROWS ? group : ATTEND_ROWS, parts = (group + heads - 1) / heads;
    int32_t units = s->n_tiles * m->c.n_head_kv * parts, first, last;
    int whole = (heads * dim) % m->ops->span == 0 && (group * dim) % m->ops->span == 0;
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
            .kv_type = m->c.kv_type,
            .table = s->tables[s->sequence[tl->token]],
            .blocks = m->kv.blocks,
            .window = m->layers[index].window,
            .key = key,
            .value = value_offset(m, key),
            .scale = m->c.attn_scale,
            .out = to->f + (size_t)tl->token * to->f_stride + (size_t)head * dim,
            .out_stride = to->f_stride,
        };
        m->ops->attend(&a);
        if (whole)
            for (int32_t t = 0; t < tl->tokens; t++)
                m->ops->quantize(a.out + (size_t)t * a.out_stride, count * dim, to, tl->token + t,
                                 head * dim / QBLOCK);
    }
    if (!sy_stage_end(w, units))
        return 0;
    if (whole)
        return 1;
    /* Columns with a common scale are of different pieces. */
    while (sy_claim(w, s->n, 4, &first, &last))
        for (int32_t t = first; t < last; t++)
            m->ops->quantize(to->f + (size_t)t * to->f_stride, to->blocks * QBLOCK, to, t, 0);
    return sy_stage_end(w, s->n);
}

/* Two panels of gate and of up give 32 columns of hidden activations: a whole block, quantised on the spot, but where
   more columns share a scale. */
static int gate_up(sy_walk *w, const step *s, const rows *r, sy_acts *to, int32_t index)
{
    sy_model *m = s->m;
    const layer *l = &m->layers[index];
    const sy_matrix *gate = &l->matrix[SY_FFN_GATE], *up = &l->matrix[SY_FFN_UP];
    void (*const activate)(float *, const float *, int32_t) =
        m->c.activation == SY_GELU ? m->ops->gelu_mul : m->ops->silu_mul;
    int32_t pairs = (gate->panels + 1) / 2, n = r->n, first, last;
    int floats = is_float(&l->matrix[SY_FFN_DOWN]), later = !floats && m->ops->span > QBLOCK;
    const int32_t tokens = m->ops->tokens;
    float g[FFN_TOKENS * QBLOCK] __attribute__((aligned(64)));
    float u[FFN_TOKENS * QBLOCK] __attribute__((aligned(64)));
    /* Few tokens: of a run of pairs all of gate, then all of up, so that memory is read in long runs. */
    int32_t most = n < tokens ? FFN_TOKENS / n : 1;
    while (sy_claim(w, pairs, panel_chunk(w, pairs, n), &first, &last))
        for (int32_t from = first; from < last; from += most) {
            int32_t width = last - from < most ? last - from : most;
            for (int32_t t0 = 0; t0 < n; t0 += tokens) {
                int32_t t1 = n - t0 < tokens ? n : t0 + tokens, count = t1 - t0;
                for (int which = 0; which < 2; which++)
                    for (int32_t p = 0; p < 2 * width; p++) {
                        float *to = (which ? u : g) + p / 2 * count * QBLOCK + p % 2 * PANEL;
                        if (from * 2 + p < gate->panels)
                            multiply(m, which ? up : gate, from * 2 + p, r, t0, t1, to, QBLOCK, 0, index,
                                     SY_FFN_GATE + which, which);
                        else
                            for (int32_t t = 0; t < count; t++)
                                memset(to + t * QBLOCK, 0, PANEL * 4);
                    }
                for (int32_t i = 0; i < width * count; i++) {
                    int32_t t = t0 + i % count, both = from + i / count;
                    float *h = g + i * QBLOCK;
                    activate(h, u + i * QBLOCK, QBLOCK);
                    if (floats || later || r->n_runs)
                        memcpy(to->f + (size_t)t * to->f_stride + both * QBLOCK, h, QBLOCK * 4);
                    if (!floats && !later)
                        m->ops->quantize(h, QBLOCK, to, t, both);
                }
            }
        }
    if (!sy_stage_end(w, pairs))
        return 0;
    if (!later)
        return 1;
    while (sy_claim(w, n, 4, &first, &last))
        for (int32_t t = first; t < last; t++)
            m->ops->quantize(to->f + (size_t)t * to->f_stride, m->c.n_ff, to, t, 0);
    return sy_stage_end(w, n);
}

static int run_layer(sy_walk *w, const step *s, int32_t i)
{
    sy_model *m = s->m;
    const layer *l = &m->layers[i];
    int32_t n = s->n;
    /* Each thread's own: the next layer's may be cut otherwise. */
    sy_acts first = m->normed, attended = m->attended, second = m->normed, hidden = m->hidden;
    first.fold = fold_of(&l->matrix[SY_ATTN_Q], 3);
    attended.fold = fold_of(&l->matrix[SY_ATTN_O], 1);
    second.fold = fold_of(&l->matrix[SY_FFN_GATE], 2);
    hidden.fold = fold_of(&l->matrix[SY_FFN_DOWN], 1);
    rows in = {&first, m->runs, n, s->n_runs}, out = in, ffn = in, down = in;
    out.acts = &attended;
    ffn.acts = &second;
    down.acts = &hidden;
    return normalize(w, s, &first, l->vector[SY_ATTN_NORM], i ? l - 1 : NULL, SY_FFN_POST_NORM, NULL, n) &&
           lower(w, &in, i, SY_ATTN_Q, 3) && project_qkv(w, &in, m, i) && rotate_and_store(w, s, i) &&
           attend(w, s, &attended, i) && lower(w, &out, i, SY_ATTN_O, 1) &&
           end_block(w, s, &out, i, SY_ATTN_O, SY_ATTN_POST_NORM) &&
           normalize(w, s, &second, l->vector[SY_FFN_NORM], l, SY_ATTN_POST_NORM, NULL, n) &&
           lower(w, &ffn, i, SY_FFN_GATE, 2) && gate_up(w, s, &ffn, &hidden, i) &&
           lower(w, &down, i, SY_FFN_DOWN, 1) && end_block(w, s, &down, i, SY_FFN_DOWN, SY_FFN_POST_NORM);
}

static void walk(void *p, sy_walk *w)
{
    const step *s = p;
    sy_model *m = s->m;
    if (!embed(w, s))
        return;
    for (int32_t i = 0; i < m->c.n_layer; i++)
        if (!run_layer(w, s, i))
            return;
    rows wanted = {&m->last, m->wanted_runs, s->n_wanted, s->n_wanted_runs};
    if (wanted.n && normalize(w, s, &m->last, m->output_norm, &m->layers[m->c.n_layer - 1], SY_FFN_POST_NORM,
                              m->wanted, wanted.n) &&
        !s->hidden && lower(w, &wanted, 0, SY_OUTPUT, 1))
        project_logits(w, s, &wanted);
}

static int complete(const sy_model *m)
{
    for (int32_t i = 0; i < m->c.n_layer; i++) {
        for (int slot = 0; slot <= SY_FFN_DOWN; slot++)
            if (!m->layers[i].matrix[slot].data)
                return 0;
        if (!m->layers[i].vector[SY_ATTN_NORM] || !m->layers[i].vector[SY_FFN_NORM])
            return 0;
    }
    return m->embed.data && m->output.data && m->output_norm && m->ropes_set == (1 << m->c.n_ropes) - 1;
}

/* The last line of defence: what Python should have refused is refused here, not computed. */
static int check(const step *s)
{
    const sy_model *m = s->m;
    if (s->n < 1 || s->n > m->c.max_batch || !complete(m))
        return SY_ERR_ARGUMENT;
    for (int32_t i = 0; s->adapters && i < s->n_sequences; i++)
        if (s->adapters[i] && s->adapters[i]->m != m)
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

/* Counts row i, of a sequence, into the runs. */
static void extend_runs(const step *s, run *runs, int32_t *n_runs, int32_t i, int32_t sequence)
{
    const sy_adapter *adapter = s->adapters ? s->adapters[sequence] : NULL;
    run *last = *n_runs ? &runs[*n_runs - 1] : NULL;
    if (last && last->last == i && last->adapter == adapter)
        last->last++;
    else if (adapter)
        runs[(*n_runs)++] = (run){i, i + 1, adapter};
}

int sy_forward(sy_model *m, int32_t n, const int32_t *tokens, const int32_t *positions, const int32_t *sequence,
               const int32_t *const *tables, int32_t n_sequences, const uint8_t *wants,
               const sy_adapter *const *adapters)
{
    step s = {.m = m, .n = n, .n_sequences = n_sequences, .tokens = tokens, .positions = positions,
              .sequence = sequence, .tables = tables, .adapters = adapters};
    pthread_mutex_lock(&m->busy);
    int result = check(&s);
    if (result == 0) {
        int32_t heads = m->c.n_head / m->c.n_head_kv, most = heads < ATTEND_ROWS ? ATTEND_ROWS / heads : 1;
        if (most > TILE_TOKENS)
            most = TILE_TOKENS;
        for (int32_t t = 0; t < n && result == 0; t++) {
            if (wants[t]) {
                if (s.n_wanted == m->c.max_logits) {
                    result = SY_ERR_ARGUMENT;
                } else {
                    s.hidden |= wants[t] == SY_HIDDEN;
                    extend_runs(&s, m->wanted_runs, &s.n_wanted_runs, s.n_wanted, sequence[t]);
                    m->wanted[s.n_wanted++] = t;
                }
            }
            extend_runs(&s, m->runs, &s.n_runs, t, sequence[t]);
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
        m->last.fold = fold_of(&m->output, 1);
        sy_pool_run(walk, &s, m->threads, m->c.n_layer * STAGES + 4);
    }
    pthread_mutex_unlock(&m->busy);
    return result;
}

float *sy_model_logits(sy_model *m) { return m->logits; }

size_t sy_model_logits_stride(const sy_model *m) { return m->logits_stride; }

const float *sy_model_hidden(const sy_model *m) { return m->last.f; }

size_t sy_model_hidden_stride(const sy_model *m) { return m->last.f_stride; }
