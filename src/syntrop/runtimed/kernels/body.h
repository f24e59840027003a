/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of a level that need no instruction by name: written once with the compiler's vector types and
 * compiled in every level's unit at that level's width. The unit defines beforehand
 *   VL                    floats in a register (4, 8, 16), and LEVEL(name), its suffix;
 *   vf, vi                VL floats, VL int32;
 *   load_half, store_half conversion of VL halves (round to nearest even);
 *   load_codes            VL bytes with a sign as floats;
 *   larger                the maximum of two registers;
 *   sum, largest, sum_int over the lanes of a register;
 *   QK_ROWS, PV_ROWS, PV_VECS  the register tile of attention;
 *   store_codes, WORDS    a block's 32 codes to the words that the level's tiles multiply, if not pairs; how many;
 *   expanded, expand, tile, and perhaps few: the kernel of the quantised types, the reason why levels exist;
 *   or OWN_CODES, when it has body_quantize and panel_typed itself.
 */

#ifndef INLINE
#define INLINE static inline __attribute__((always_inline))
#endif

typedef vf vf_any __attribute__((aligned(4), may_alias));
typedef uint16_t vh __attribute__((vector_size(2 * VL)));
typedef vh vh_any __attribute__((aligned(2), may_alias));
typedef uint32_t vu __attribute__((vector_size(4 * VL)));

INLINE vf load(const float *p) { return *(const vf_any *)p; }
INLINE void store(float *p, vf v) { *(vf_any *)p = v; }
INLINE vf splat(float x) { return x - (vf){0}; }
INLINE vf choose(vi mask, vf a, vf b) { return (vf)(((vi)a & mask) | ((vi)b & ~mask)); }
INLINE vf magnitude(vf a) { return (vf)((vi)a & 0x7fffffff); }
INLINE vf load_bf16(const uint16_t *p)
{
    return (vf)(__builtin_convertvector(*(const vh_any *)p, vu) << 16);
}

/* Round to nearest even, for |x| < 2^22: the adder does it when the unit of the last place is 1. */
#define ROUND_MAGIC 12582912.0f
INLINE vi round_int(vf x) { return (vi)(x + ROUND_MAGIC) - 0x4b400000; }

/* e^x to about 2 ulp; 0 below -87 (so also for minus infinity), saturating above 88. */
INLINE vf vexp(vf x)
{
    vi tiny = x < splat(-87.0f);
    x = choose(x > splat(88.0f), splat(88.0f), x);
    x = choose(tiny, splat(0.0f), x);
    vf n = (x * 1.44269504f + ROUND_MAGIC) - ROUND_MAGIC;
    vf r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
    vf p = splat(1.9875691500e-4f);
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * (r * r) + r + 1.0f;
    p = (vf)((vi)p + (round_int(n) << 23));
    return choose(tiny, splat(0.0f), p);
}

static void body_exp(const float *x, float *y, int32_t n)
{
    for (int32_t i = 0; i < n; i += VL) {
        float part[VL] = {0};
        int32_t count = n - i < VL ? n - i : VL;
        memcpy(part, x + i, (size_t)count * 4);
        store(part, vexp(load(part)));
        memcpy(y + i, part, (size_t)count * 4);
    }
}

static void body_half(const float *x, uint16_t *half, float *back, int32_t n)
{
    for (int32_t i = 0; i < n; i += VL) {
        float part[VL] = {0};
        uint16_t bits[VL];
        int32_t count = n - i < VL ? n - i : VL;
        memcpy(part, x + i, (size_t)count * 4);
        store_half(bits, load(part));
        memcpy(half + i, bits, (size_t)count * 2);
        store(part, load_half(bits));
        memcpy(back + i, part, (size_t)count * 4);
    }
}

static void body_norm(const float *x, const float *weight, int32_t n, float eps, float *out)
{
    vf squares = {0};
    int32_t i = 0;
    for (; i + VL <= n; i += VL)
        squares += load(x + i) * load(x + i);
    float total = sum(squares);
    for (; i < n; i++)
        total += x[i] * x[i];
    float scale = 1.0f / __builtin_sqrtf(total / (float)n + eps);
    for (i = 0; i + VL <= n; i += VL)
        store(out + i, load(x + i) * scale * load(weight + i));
    for (; i < n; i++)
        out[i] = x[i] * scale * weight[i];
}

#ifndef OWN_CODES
#ifndef WORDS
#define WORDS 16
/* Pairs of codes: words 2j and 2j + 1 hold columns 4j, 4j + 2 and 4j + 1, 4j + 3. */
INLINE void store_codes(int8_t *q, size_t lanes, const vi *code, int32_t fold)
{
    (void)fold;
    int32_t c[QBLOCK];
    memcpy(c, code, sizeof c);
    for (size_t w = 0; w < WORDS; w++) {
        const int32_t *pair = c + w / 2 * 4 + w % 2;
        sy_store_word(q, lanes, w, (uint32_t)(pair[0] & 0xffff) | (uint32_t)pair[2] << 16);
    }
}
#endif

static void body_quantize(const float *x, int32_t n, sy_acts *a, int32_t t, int32_t block)
{
    const float most = (float)sy_code_max(a->fold);
    size_t lanes = (size_t)a->lanes, group = (size_t)t / lanes * (size_t)a->blocks, lane = (size_t)t % lanes;
    for (int32_t b = 0; b < n / QBLOCK; b++, x += QBLOCK) {
        size_t at = group + (size_t)(block + b), sums = at * SUMS * lanes + lane;
        vf top = {0};
        for (int i = 0; i < QBLOCK; i += VL)
            top = larger(magnitude(load(x + i)), top);
        float d = largest(top) / most, inverse = d > 0 ? 1.0f / d : 0.0f;
        vi code[QBLOCK / VL], half[2] = {{0}, {0}};
        for (int i = 0; i < QBLOCK / VL; i++) {
            /* In range by arithmetic, but for what NaN and infinity lead to: `larger` takes its second side then. */
            vf scaled = larger(load(x + i * VL) * inverse, splat(-most));
            code[i] = round_int(-larger(-scaled, splat(-most)));
            half[i * VL / 16] += code[i];
        }
        store_codes(a->q + at * WORDS * 4 * lanes + lane * 4, lanes, code, a->fold);
        int32_t first = sum_int(half[0]), second = sum_int(half[1]);
        a->d[at * lanes + lane] = d;
        a->s[sums] = d * (float)(first + second);
        a->s[sums + lanes] = d * (float)first;
        a->s[sums + 2 * lanes] = d * (float)second;
        a->neg[sums] = -first - second;
        a->neg[sums + lanes] = -first;
        a->neg[sums + 2 * lanes] = -second;
    }
}
#endif

static void body_silu_mul(float *gate, const float *up, int32_t n)
{
    for (int32_t i = 0; i < n; i += VL) {
        vf g = load(gate + i);
        store(gate + i, g / (1.0f + vexp(-g)) * load(up + i));
    }
}

/* g/2 · (1 + tanh z) = g / (1 + e^-2z), where z is √(2/π) · (g + 0.044715 g³). */
static void body_gelu_mul(float *gate, const float *up, int32_t n)
{
    for (int32_t i = 0; i < n; i += VL) {
        vf g = load(gate + i);
        vf z = g * (1.5957691216f + 0.0713548163f * g * g); /* 2z */
        store(gate + i, g / (1.0f + vexp(-z)) * load(up + i));
    }
}

static void body_rotate(float *x, const float *cos_sin, int32_t pairs)
{
    for (int32_t i = 0; i < pairs; i++) {
        float c = cos_sin[2 * i], s = cos_sin[2 * i + 1], a = x[2 * i], b = x[2 * i + 1];
        x[2 * i] = a * c - b * s;
        x[2 * i + 1] = a * s + b * c;
    }
}

/* Column i with column i + pairs; cosine and sine lie side by side, as above. */
static void body_rotate_halves(float *x, const float *cos_sin, int32_t pairs)
{
    for (int32_t i = 0; i < pairs; i++) {
        float c = cos_sin[2 * i], s = cos_sin[2 * i + 1], a = x[i], b = x[i + pairs];
        x[i] = a * c - b * s;
        x[i + pairs] = a * s + b * c;
    }
}

/* Codes of a run of n numbers, and their scale. */
INLINE void kv_codes(const float *x, int32_t n, int8_t *codes, uint16_t *scale)
{
    float top = 0;
    for (int32_t i = 0; i < n; i++)
        top = __builtin_fabsf(x[i]) > top ? __builtin_fabsf(x[i]) : top;
    *scale = sy_float_to_half(top / 127.0f);
    float d = sy_half_to_float(*scale), inverse = d > 0 ? 1.0f / d : 0.0f;
    for (int32_t i = 0; i < n; i++) {
        float code = x[i] * inverse;
        /* Beyond where the scale is so small that halves are coarse; not a number becomes the least. */
        code = code > -127.0f ? code : -127.0f;
        code = code < 127.0f ? code : 127.0f;
        codes[i] = (int8_t)__builtin_rintf(code);
    }
}

static void store_kv_q8(uint8_t *keys, uint8_t *values, int32_t slot, const float *k, const float *v,
                        int32_t head_dim, int32_t head_pad)
{
    int32_t bytes = head_pad * SY_BLOCK;
    int8_t *key = (int8_t *)keys + slot, *value = (int8_t *)values + slot * head_pad, codes[KEY_RUN];
    uint16_t *key_scale = (uint16_t *)(keys + bytes) + slot;
    uint16_t *value_scale = (uint16_t *)(values + bytes) + slot * head_pad / VALUE_RUN;
    for (int32_t i = 0; i < head_dim; i += KEY_RUN) {
        int32_t n = head_dim - i < KEY_RUN ? head_dim - i : KEY_RUN;
        kv_codes(k + i, n, codes, key_scale + i / KEY_RUN * SY_BLOCK);
        for (int32_t j = 0; j < n; j++)
            key[(i + j) * SY_BLOCK] = codes[j];
    }
    for (int32_t i = 0; i < head_dim; i += VALUE_RUN)
        kv_codes(v + i, head_dim - i < VALUE_RUN ? head_dim - i : VALUE_RUN, value + i, value_scale + i / VALUE_RUN);
}

static void body_store_kv(uint8_t *keys, uint8_t *values, int32_t slot, const float *k, const float *v,
                          int32_t head_dim, int32_t head_pad, int32_t kv_type)
{
    /* The padding of a head stays zero from the block's birth. */
    if (kv_type == SY_KV_Q8) {
        store_kv_q8(keys, values, slot, k, v, head_dim, head_pad);
        return;
    }
    if (kv_type == SY_KV_F32) {
        float *kf = (float *)keys + slot, *vrow = (float *)values + (size_t)slot * head_pad;
        for (int32_t i = 0; i < head_dim; i++)
            kf[i * SY_BLOCK] = k[i];
        memcpy(vrow, v, (size_t)head_dim * 4);
        return;
    }
    uint16_t *kh = (uint16_t *)keys + slot, *vrow = (uint16_t *)values + (size_t)slot * head_pad, bits[VL];
    int32_t i = 0;
    for (; i + VL <= head_dim; i += VL) {
        store_half(vrow + i, load(v + i));
        store_half(bits, load(k + i));
        for (int j = 0; j < VL; j++)
            kh[(i + j) * SY_BLOCK] = bits[j];
    }
    for (; i < head_dim; i++) {
        kh[i * SY_BLOCK] = sy_float_to_half(k[i]);
        vrow[i] = sy_float_to_half(v[i]);
    }
}

/* Attention, in chunks of the context with a running maximum and sum, so that the scores stay in L1. */
#define CHUNK 256

INLINE vf load_kv(const uint8_t *base, int32_t at, const int type)
{
    if (type == SY_KV_Q8)
        return load_codes((const int8_t *)base + at);
    return type == SY_KV_F32 ? load((const float *)base + at) : load_half((const uint16_t *)base + at);
}

INLINE void scores(const float *q, const uint8_t *keys, int32_t head_dim, int32_t head_pad, float *s,
                   const int rows, const int type)
{
    const uint16_t *scales = (const uint16_t *)(keys + head_pad * SY_BLOCK); /* Q8 */
    for (int c = 0; c < SY_BLOCK; c += VL) {
        vf acc[QK_ROWS];
        for (int r = 0; r < rows; r++)
            acc[r] = splat(0);
        if (type == SY_KV_Q8) {
            for (int32_t d = 0; d < head_dim; d += KEY_RUN) { /* beyond head_dim, both sides are zero */
                vf part[QK_ROWS], scale = load_half(scales + d / KEY_RUN * SY_BLOCK + c);
                for (int r = 0; r < rows; r++)
                    part[r] = splat(0);
                for (int i = 0; i < KEY_RUN; i++) {
                    vf k = load_kv(keys, (d + i) * SY_BLOCK + c, type);
                    for (int r = 0; r < rows; r++)
                        part[r] += k * q[(d + i) * ATTEND_ROWS + r];
                }
                for (int r = 0; r < rows; r++)
                    acc[r] += part[r] * scale;
            }
        } else {
            for (int32_t d = 0; d < head_dim; d++) {
                vf k = load_kv(keys, d * SY_BLOCK + c, type);
                for (int r = 0; r < rows; r++)
                    acc[r] += k * q[d * ATTEND_ROWS + r];
            }
        }
        for (int r = 0; r < rows; r++)
            store(s + r * CHUNK + c, acc[r]);
    }
}

/* scales: of the values of each block, MAX_HEAD apart. */
INLINE void blend(const float *s, const uint8_t *const *values, const float *scales, int32_t first, int32_t tokens,
                  int32_t head_pad, int32_t d0, float *o, const int vecs, const int type)
{
    vf acc[PV_ROWS][PV_VECS];
    for (int r = 0; r < PV_ROWS; r++)
        for (int j = 0; j < vecs; j++)
            acc[r][j] = load(o + r * MAX_HEAD + d0 + j * VL);
    for (int32_t t = first; t < tokens; t++) {
        const uint8_t *v = values[t / SY_BLOCK];
        int32_t at = (t % SY_BLOCK) * head_pad + d0;
        vf row[PV_VECS];
        for (int j = 0; j < vecs; j++)
            row[j] = load_kv(v, at + j * VL, type);
        if (type == SY_KV_Q8) {
            const float *scale = scales + t / SY_BLOCK * MAX_HEAD;
            for (int j = 0; j < vecs; j++)
                row[j] *= scale[(at + j * VL) / VALUE_RUN];
        }
        for (int r = 0; r < PV_ROWS; r++)
            for (int j = 0; j < vecs; j++)
                acc[r][j] += row[j] * s[r * CHUNK + t];
    }
    for (int r = 0; r < PV_ROWS; r++)
        for (int j = 0; j < vecs; j++)
            store(o + r * MAX_HEAD + d0 + j * VL, acc[r][j]);
}

INLINE void attend_typed(const sy_attend *a, const int type)
{
    float q[MAX_HEAD * ATTEND_ROWS] __attribute__((aligned(64)));
    float s[ATTEND_ROWS * CHUNK] __attribute__((aligned(64)));
    float o[ATTEND_ROWS * MAX_HEAD] __attribute__((aligned(64)));
    float scales[type == SY_KV_Q8 ? CHUNK / SY_BLOCK * MAX_HEAD : 1] __attribute__((aligned(64)));
    float top[ATTEND_ROWS], total[ATTEND_ROWS];
    int32_t rows = a->tokens * a->heads, padded = (rows + QK_ROWS / 2 - 1) / (QK_ROWS / 2) * (QK_ROWS / 2);
    int32_t length = a->end && a->end < a->first + a->tokens ? a->end : a->first + a->tokens;
    int32_t behind = a->window && a->first >= a->window ? a->first - a->window + 1 : 0; /* nobody sees these */
    /* Where chunks begin does not depend on the window: sums are the same whoever shares the tile. */
    int32_t begin = behind / CHUNK * CHUNK;

    for (int32_t r = 0; r < padded; r++) {
        if (r < rows) {
            const float *from = a->q + (size_t)(r / a->heads) * a->q_stride + (r % a->heads) * a->head_dim;
            for (int32_t d = 0; d < a->head_dim; d++)
                q[d * ATTEND_ROWS + r] = from[d] * a->scale;
        }
        for (int32_t d = r < rows ? a->head_dim : 0; d < a->head_pad; d++)
            q[d * ATTEND_ROWS + r] = 0;
        top[r] = -__builtin_inff();
        total[r] = 0;
        memset(o + r * MAX_HEAD, 0, (size_t)a->head_pad * 4);
    }

    for (int32_t start = begin; start < length; start += CHUNK) {
        int32_t count = length - start < CHUNK ? length - start : CHUNK;
        int32_t blocks = (count + SY_BLOCK - 1) / SY_BLOCK, skip = start < behind ? (behind - start) / SY_BLOCK : 0;
        const uint8_t *values[CHUNK / SY_BLOCK];
        for (int32_t b = skip; b < blocks; b++) {
            const uint8_t *block = a->blocks[a->table[start / SY_BLOCK + b]];
            values[b] = block + a->value;
            /* head_pad × 16 codes in runs of 16 have head_pad scales. */
            for (int32_t i = 0; type == SY_KV_Q8 && i < a->head_pad; i += VL)
                store(scales + b * MAX_HEAD + i,
                      load_half((const uint16_t *)(values[b] + a->head_pad * SY_BLOCK) + i));
            int32_t r = 0;
            for (; r + QK_ROWS <= padded; r += QK_ROWS)
                scores(q + r, block + a->key, a->head_dim, a->head_pad, s + r * CHUNK + b * SY_BLOCK, QK_ROWS,
                       type);
            if (r < padded)
                scores(q + r, block + a->key, a->head_dim, a->head_pad, s + r * CHUNK + b * SY_BLOCK,
                       QK_ROWS / 2, type);
        }
        for (int32_t r = 0; r < padded; r++) {
            float *row = s + r * CHUNK;
            /* A token sees itself and what stands before it. The rest of the last block is not initialised. */
            int32_t seen = r < rows ? a->first + r / a->heads + 1 - start : count;
            int32_t unseen = a->window && r < rows ? seen - a->window : 0;
            if (seen > count)
                seen = count;
            for (int32_t t = seen < 0 ? 0 : seen; t < blocks * SY_BLOCK; t++)
                row[t] = -__builtin_inff();
            if (unseen < skip * SY_BLOCK)
                unseen = skip * SY_BLOCK;
            for (int32_t t = 0; t < unseen && t < blocks * SY_BLOCK; t++)
                row[t] = -__builtin_inff();
            vf peak = splat(top[r]);
            for (int32_t t = 0; t < blocks * SY_BLOCK; t += VL)
                peak = larger(load(row + t), peak);
            float highest = largest(peak), now = highest;
            if (now == -__builtin_inff()) /* nothing seen yet: keep exp away from inf - inf */
                now = 0;
            vf mass = {0};
            for (int32_t t = 0; t < blocks * SY_BLOCK; t += VL) {
                vf p = vexp(load(row + t) - now);
                store(row + t, p);
                mass += p;
            }
            if (start > begin) {
                float keep[VL];
                store(keep, vexp(splat(top[r] - now)));
                total[r] *= keep[0];
                for (int32_t d = 0; d < a->head_pad; d += VL)
                    store(o + r * MAX_HEAD + d, load(o + r * MAX_HEAD + d) * keep[0]);
            }
            total[r] += sum(mass);
            top[r] = highest;
        }
        for (int32_t r = 0; r < padded; r += PV_ROWS) {
            int32_t d = 0;
            for (; d + PV_VECS * VL <= a->head_pad; d += PV_VECS * VL)
                blend(s + r * CHUNK, values, scales, skip * SY_BLOCK, count, a->head_pad, d, o + r * MAX_HEAD,
                      PV_VECS, type);
            for (; d < a->head_pad; d += VL)
                blend(s + r * CHUNK, values, scales, skip * SY_BLOCK, count, a->head_pad, d, o + r * MAX_HEAD, 1, type);
        }
    }

    for (int32_t r = 0; r < rows; r++) {
        float *to = a->out + (size_t)(r / a->heads) * a->out_stride + (r % a->heads) * a->head_dim;
        float inverse = 1.0f / total[r];
        for (int32_t d = 0; d < a->head_dim; d++)
            to[d] = o[r * MAX_HEAD + d] * inverse;
    }
}

static void body_attend(const sy_attend *a)
{
    if (a->kv_type == SY_KV_Q8)
        attend_typed(a, SY_KV_Q8);
    else if (a->kv_type == SY_KV_F32)
        attend_typed(a, SY_KV_F32);
    else
        attend_typed(a, SY_KV_F16);
}

/* Float weights: F32, F16, BF16 by float32 activations. */
INLINE vf load_weight(const uint8_t *w, int32_t at, const int type)
{
    if (type == SY_F32)
        return load((const float *)w + at);
    if (type == SY_F16)
        return load_half((const uint16_t *)w + at);
    return load_bf16((const uint16_t *)w + at);
}

#define FLOAT_TILE 4
INLINE void float_tile(const uint8_t *w, const sy_acts *x, int32_t t, int32_t count, float *out,
                       size_t stride, int add, const int type)
{
    const float *row[FLOAT_TILE];
    for (int i = 0; i < FLOAT_TILE; i++) /* tokens that are not there repeat the last */
        row[i] = x->f + (size_t)(t + (i < count ? i : count - 1)) * x->f_stride;
    for (int c = 0; c < PANEL; c += VL) {
        vf acc[FLOAT_TILE];
        for (int i = 0; i < FLOAT_TILE; i++)
            acc[i] = splat(0);
        for (int32_t k = 0; k < x->cols; k++) {
            vf weight = load_weight(w, k * PANEL + c, type);
            for (int i = 0; i < FLOAT_TILE; i++)
                acc[i] += weight * row[i][k];
        }
        for (int i = 0; i < FLOAT_TILE; i++)
            if (i < count) {
                float *to = out + (size_t)i * stride + c;
                store(to, add ? load(to) + acc[i] : acc[i]);
            }
    }
}

#ifndef OWN_CODES
/* Quantised weights: some blocks of the panel are expanded into what the tiles multiply, which serves all tokens
   of a run; the sums of the run so far stay beside it in L1. A token's sum is one chain over the blocks, whatever
   the company. */
#define RUN 128 /* tokens */

INLINE void add_part(float *out, size_t stride, const float (*part)[PANEL], int32_t tokens, int add)
{
    for (int32_t t = 0; t < tokens; t++, out += stride)
        for (int r = 0; r < PANEL; r += VL)
            store(out + r, add ? load(out + r) + load(part[t] + r) : load(part[t] + r));
}

INLINE void panel_typed(const uint8_t *w, const int type, const sy_acts *x, int32_t t0, int32_t t1, float *out,
                        size_t stride, int add)
{
    const sy_kind k = sy_kind_of(type);
    expanded e;
    float part[RUN][PANEL] __attribute__((aligned(64)));
#ifdef FEW
    if (t1 - t0 <= FEW) {
        few(w, k, x, t0, t1 - t0, part);
        add_part(out, stride, part, t1 - t0, add);
        return;
    }
#endif
    /* Even pieces, of whole super blocks. */
    int32_t pieces = (x->blocks + EXPANDED - 1) / EXPANDED;
    int32_t size = ((x->blocks + pieces - 1) / pieces + SUPER - 1) / SUPER * SUPER;
    for (; t0 < t1; t0 += RUN, out += RUN * stride) {
        int32_t run = t1 - t0 < RUN ? t1 - t0 : RUN;
        for (int32_t b = 0; b < x->blocks; b += size) {
            int32_t count = x->blocks - b < size ? x->blocks - b : size;
            expand(&e, w, type, x, b, count);
            for (int32_t t = 0; t < run; t += TILE)
                tile(&e, k, x, t0 + t, run - t, b, count, part + t);
        }
        add_part(out, stride, part, run, add);
    }
}

#endif

#define PANEL_TYPED(type)                                                                                      \
    static __attribute__((noinline)) void panel_##type(const uint8_t *w, const sy_acts *x, int32_t t0,          \
                                                       int32_t t1, float *out, size_t stride, int add)         \
    {                                                                                                          \
        panel_typed(w, type, x, t0, t1, out, stride, add);                                                     \
    }
EACH_QUANT(PANEL_TYPED)

static void matmul_quantized(const uint8_t *w, int type, const sy_acts *x, int32_t t0, int32_t t1, float *out,
                             size_t stride, int add)
{
    switch (type) {
#define PANEL_CASE(type)                                                                                       \
    case type: panel_##type(w, x, t0, t1, out, stride, add); break;
        EACH_QUANT(PANEL_CASE)
    }
}

static void body_matmul(const sy_matrix *m, int32_t panel, const sy_acts *x, int32_t t0, int32_t t1,
                        float *out, size_t stride, int add)
{
    const uint8_t *w = m->data + (size_t)panel * m->panel_bytes;
    if (m->type != SY_F32 && m->type != SY_F16 && m->type != SY_BF16) {
        matmul_quantized(w, m->type, x, t0, t1, out, stride, add);
        return;
    }
    for (int32_t t = t0; t < t1; t += FLOAT_TILE, out += FLOAT_TILE * stride) {
        int32_t count = t1 - t < FLOAT_TILE ? t1 - t : FLOAT_TILE;
        if (m->type == SY_F32)
            float_tile(w, x, t, count, out, stride, add, SY_F32);
        else if (m->type == SY_F16)
            float_tile(w, x, t, count, out, stride, add, SY_F16);
        else
            float_tile(w, x, t, count, out, stride, add, SY_BF16);
    }
}

#ifndef SPAN
#define SPAN QBLOCK
#define TOKENS 64
#endif

const sy_ops LEVEL(sy_ops_) = {
    .span = SPAN,
    .tokens = TOKENS,
    .matmul = body_matmul,
    .norm = body_norm,
    .quantize = body_quantize,
    .silu_mul = body_silu_mul,
    .gelu_mul = body_gelu_mul,
    .rotate = body_rotate,
    .rotate_halves = body_rotate_halves,
    .store_kv = body_store_kv,
    .attend = body_attend,
    .exp = body_exp,
    .half = body_half,
};
