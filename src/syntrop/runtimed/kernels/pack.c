// SPDX-License-Identifier: Apache-2.0
/* From the file's layout to panels (see packed.h), once, at load; and rows back from there. */
#include "packed.h"

const uint8_t sy_codebook[16] = {1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241};

static size_t float_bytes(int type)
{
    switch (type) {
    case SY_F32: return 4;
    case SY_F16:
    case SY_BF16: return 2;
    default: return 0;
    }
}

int sy_matrix_shape(sy_matrix *m, int type, int32_t rows, int32_t cols)
{
    if (rows < 1 || cols < 1 || rows > INT32_MAX - PANEL)
        return SY_ERR_ARGUMENT;
    m->type = type;
    m->rows = rows;
    m->cols = cols;
    m->panels = (rows + PANEL - 1) / PANEL;
    sy_kind k = sy_kind_of(type);
    if (k.width) {
        if (cols % (k.super ? QBLOCK * SUPER : QBLOCK))
            return SY_ERR_ARGUMENT;
        m->panel_bytes = sy_block_offset(k, cols / QBLOCK);
    } else if (float_bytes(type)) {
        m->panel_bytes = (size_t)cols * PANEL * float_bytes(type);
    } else {
        return SY_ERR_ARGUMENT;
    }
    return 0;
}

size_t sy_packed_bytes(int type, int32_t rows, int32_t cols)
{
    sy_matrix m;
    return sy_matrix_shape(&m, type, rows, cols) ? 0 : (size_t)m.panels * m.panel_bytes;
}

/* The file's blocks. Offsets in bytes: the f16 scale (and minimum), the scales of the parts, the codes by plane. */
typedef struct {
    int size, d, m, scales, low, high;
} file_block;

static inline __attribute__((always_inline)) file_block file_block_of(const int type)
{
    switch (type) {
    case SY_Q4_0:
    case SY_IQ4_NL: return (file_block){.size = 18, .low = 2};
    case SY_Q4_1: return (file_block){.size = 20, .m = 2, .low = 4};
    case SY_Q5_0: return (file_block){.size = 22, .high = 2, .low = 6};
    case SY_Q5_1: return (file_block){.size = 24, .m = 2, .high = 4, .low = 8};
    case SY_Q8_0: return (file_block){.size = 34, .low = 2};
    case SY_Q2_K: return (file_block){.size = 84, .d = 80, .m = 82, .scales = 0, .low = 16};
    case SY_Q3_K: return (file_block){.size = 110, .d = 108, .scales = 96, .low = 32, .high = 0};
    case SY_Q4_K: return (file_block){.size = 144, .m = 2, .scales = 4, .low = 16};
    case SY_Q5_K: return (file_block){.size = 176, .m = 2, .scales = 4, .high = 16, .low = 48};
    case SY_Q6_K: return (file_block){.size = 210, .d = 208, .scales = 192, .low = 0, .high = 128};
    default: return (file_block){.size = 136, .scales = 2, .low = 8}; /* IQ4_XS */
    }
}

static inline uint32_t load_word(const uint8_t *p)
{
    uint32_t w;
    memcpy(&w, p, 4);
    return w;
}

static inline void store_word(uint8_t *panel, int word, int row, uint32_t w)
{
    memcpy(panel + word * PANEL * 4 + row * 4, &w, 4);
}

/* Every fourth bit, the lowest first, into a byte. */
static inline uint32_t every_fourth(uint32_t x)
{
    x &= 0x11111111;
    x = (x | x >> 3) & 0x03030303;
    x = (x | x >> 6) & 0x000f000f;
    return (x | x >> 12) & 0xff;
}

/* The scales of part `part` (of 16 or 32 columns) of a block of 256; up to two bytes. */
static inline __attribute__((always_inline)) void read_scales(const int type, const uint8_t *s, int part,
                                                              uint8_t *scale, uint8_t *minimum)
{
    switch (type) {
    case SY_Q3_K: /* 16 × 6 bits: lower nibbles in 8 bytes, upper pairs in 4 */
        *scale = (uint8_t)(((s[part % 8] >> part / 8 * 4 & 15) | (s[8 + part % 4] >> part / 4 * 2 & 3) << 4) - 32);
        break;
    case SY_Q4_K:
    case SY_Q5_K: /* 8 × two of 6 bits in 12 bytes */
        if (part < 4) {
            *scale = s[part] & 63;
            *minimum = s[part + 4] & 63;
        } else {
            *scale = (uint8_t)((s[part + 4] & 15) | s[part - 4] >> 6 << 4);
            *minimum = (uint8_t)(s[part + 4] >> 4 | s[part] >> 6 << 4);
        }
        break;
    case SY_IQ4_XS:
        *scale = (uint8_t)(((s[2 + part / 2] >> part % 2 * 4 & 15) | (s[part / 4] >> part % 4 * 2 & 3) << 4) - 32);
        break;
    default: /* Q2_K, Q6_K: bytes as they are */
        *scale = s[part];
    }
}

/* Sixteen bytes of nibble words out of 32 bytes that have the codes of a block at bit `shift`. */
static inline void pack_nibbles(const uint8_t *src, int shift, uint8_t *dst, int row)
{
    for (int i = 0; i < 4; i++) {
        uint32_t low = load_word(src + 4 * i) >> shift & 0x0f0f0f0f;
        uint32_t high = load_word(src + 16 + 4 * i) >> shift & 0x0f0f0f0f;
        store_word(dst, i, row, low | high << 4);
    }
}

static inline void pack_pairs(const uint8_t *src, int shift, uint8_t *dst, int row)
{
    for (int i = 0; i < 2; i++) {
        uint32_t w = 0;
        for (int p = 0; p < 4; p++)
            w |= (load_word(src + 16 * i + 4 * p) >> shift & 0x03030303) << 2 * p;
        store_word(dst, i, row, w);
    }
}

static inline void pack_bits(const uint8_t *src, int shift, uint8_t *dst, int row)
{
    uint32_t w = 0;
    for (int j = 0; j < 8; j++)
        w |= (load_word(src + 4 * j) >> shift & 0x01010101) << j;
    store_word(dst, 0, row, w);
}

/* The planes of block `sub` of a file block of one row. */
static inline __attribute__((always_inline)) void pack_codes(const int type, const uint8_t *low,
                                                             const uint8_t *high, int sub, uint8_t *dst, int row)
{
    switch (type) {
    case SY_Q8_0:
        for (int i = 0; i < 8; i++)
            store_word(dst, i, row, load_word(low + 4 * i) ^ 0x80808080u);
        break;
    case SY_Q2_K:
    case SY_Q3_K:
        pack_pairs(low + sub / 4 * 32, sub % 4 * 2, dst, row);
        if (type == SY_Q3_K)
            pack_bits(high, sub, dst + PANEL * 8, row);
        break;
    case SY_Q4_K:
    case SY_Q5_K:
        pack_nibbles(low + sub / 2 * 32, sub % 2 * 4, dst, row);
        if (type == SY_Q5_K)
            pack_bits(high, sub, dst + PANEL * 16, row);
        break;
    case SY_Q6_K:
        pack_nibbles(low + sub / 4 * 64 + sub % 2 * 32, sub % 4 / 2 * 4, dst, row);
        pack_pairs(high + sub / 4 * 32, sub % 4 * 2, dst + PANEL * 16, row);
        break;
    default: /* nibbles in our order already */
        for (int i = 0; i < 4; i++)
            store_word(dst, i, row, load_word(low + sub * 16 + 4 * i));
        if (type == SY_Q5_0 || type == SY_Q5_1) {
            uint32_t bits = load_word(high), w = 0;
            for (int i = 0; i < 4; i++)
                w |= every_fourth(bits >> i) << 8 * i;
            store_word(dst, 4, row, w);
        }
    }
}

static inline __attribute__((always_inline)) void pack_rows(const int type, int32_t blocks, const uint8_t *src,
                                                            uint8_t *dst, int rows)
{
    const sy_kind k = sy_kind_of(type);
    const file_block f = file_block_of(type);
    const int every = k.super ? SUPER : 1;
    size_t row_bytes = (size_t)(blocks / every) * (size_t)f.size;
    for (int32_t b = 0; b < blocks; b++, src += b % every ? 0 : f.size) {
        int sub = b % every;
        uint8_t *scales = dst + (sub ? 0 : PANEL * sy_head_bytes(k));
        uint8_t *codes = scales + PANEL * sy_scale_bytes(k);
        for (int row = 0; row < rows; row++) {
            const uint8_t *from = src + (size_t)row * row_bytes;
            if (sub == 0) { /* dst: the head, or the block's own scales */
                memcpy(dst + row * 2, from + f.d, 2);
                if (k.minimum)
                    memcpy(dst + PANEL * 2 + row * 2, from + f.m, 2);
            }
            if (k.super)
                for (int part = 0; part < k.parts; part++)
                    read_scales(type, from + f.scales, sub * k.parts + part, scales + part * PANEL + row,
                                scales + PANEL + row);
            pack_codes(type, from + f.low, from + f.high, sub, codes, row);
        }
        dst = codes + PANEL * sy_code_bytes(k);
    }
}

static void pack_floats(const uint8_t *src, uint8_t *dst, int rows, size_t cols, size_t size)
{
    for (int row = 0; row < rows; row++, src += cols * size)
        if (size == 4)
            for (size_t i = 0; i < cols; i++)
                memcpy(dst + (i * PANEL + (size_t)row) * 4, src + i * 4, 4);
        else
            for (size_t i = 0; i < cols; i++)
                memcpy(dst + (i * PANEL + (size_t)row) * 2, src + i * 2, 2);
}

void sy_pack_panels(sy_matrix *m, const void *source, int32_t first, int32_t last)
{
    const uint8_t *src = source;
    size_t cols = (size_t)m->cols, row_bytes = cols * float_bytes(m->type);
    sy_kind k = sy_kind_of(m->type);
    if (k.width)
        row_bytes = cols / (QBLOCK * (k.super ? SUPER : 1)) * (size_t)file_block_of(m->type).size;
    for (int32_t p = first; p < last; p++) {
        uint8_t *dst = m->data + (size_t)p * m->panel_bytes;
        const uint8_t *from = src + (size_t)p * PANEL * row_bytes;
        int rows = m->rows - p * PANEL < PANEL ? m->rows - p * PANEL : PANEL;
        if (rows < PANEL) /* rows that do not exist: zero scales */
            memset(dst, 0, m->panel_bytes);
        switch (m->type) {
#define CASE(type)                                                                                             \
    case type: pack_rows(type, m->cols / QBLOCK, from, dst, rows); break;
            EACH_QUANT(CASE)
#undef CASE
        default: pack_floats(from, dst, rows, cols, float_bytes(m->type));
        }
    }
}

static float half_at(const uint8_t *p, int lane)
{
    uint16_t half;
    memcpy(&half, p + lane * 2, 2);
    return sy_half_to_float(half);
}

static int code_at(const sy_kind k, const uint8_t *codes, int lane, int column)
{
    int quad = column / 4, at = lane * 4 + column % 4, code = 0, shift = 0;
    if (k.bytes)
        return codes[quad * PANEL * 4 + at];
    if (k.nibbles) {
        code = codes[quad % 4 * PANEL * 4 + at] >> quad / 4 * 4 & 15;
        codes += PANEL * 16;
        shift = 4;
    }
    if (k.pairs) {
        code |= (codes[quad / 4 * PANEL * 4 + at] >> quad % 4 * 2 & 3) << shift;
        codes += PANEL * 8;
        shift += 2;
    }
    if (k.bits)
        code |= (codes[at] >> quad & 1) << shift;
    return k.book ? sy_codebook[code] : code;
}

void sy_block_read(int type, const uint8_t *panel, int32_t b, int lane, int16_t codes[QBLOCK], float scale[2],
                   float minimum[2])
{
    const sy_kind k = sy_kind_of(type);
    const uint8_t *at = panel + sy_block_offset(k, b), *head = at;
    if (k.super) {
        head = panel + sy_block_offset(k, b / SUPER * SUPER);
        at += b % SUPER ? 0 : PANEL * sy_head_bytes(k);
    }
    float d = half_at(head, lane), m = k.minimum ? half_at(head + PANEL * 2, lane) : 0;
    for (int part = 0; part < 2; part++) {
        const uint8_t *s = at + part % k.parts * PANEL + lane;
        scale[part] = d;
        minimum[part] = m;
        if (k.super) {
            scale[part] *= k.fused ? (float)(*s & 15) : k.minimum ? (float)*s : (float)(int8_t)*s;
            minimum[part] *= k.fused ? -(float)(*s >> 4) : k.minimum ? -(float)s[PANEL] : 0;
        }
    }
    for (int c = 0; c < QBLOCK; c++)
        codes[c] = (int16_t)(code_at(k, at + PANEL * sy_scale_bytes(k), lane, c) - k.offset);
}

void sy_unpack_row(const sy_matrix *m, int32_t row, float *out)
{
    const uint8_t *panel = m->data + (size_t)(row / PANEL) * m->panel_bytes;
    int lane = row % PANEL;
    if (!float_bytes(m->type)) {
        int16_t codes[QBLOCK];
        float scale[2], minimum[2];
        int has_minimum = sy_kind_of(m->type).minimum;
        for (int32_t b = 0; b < m->cols / QBLOCK; b++, out += QBLOCK) {
            sy_block_read(m->type, panel, b, lane, codes, scale, minimum);
            for (int c = 0; c < QBLOCK; c++) {
                float number = (float)codes[c] * scale[c / 16];
                out[c] = has_minimum ? number + minimum[c / 16] : number;
            }
        }
        return;
    }
    for (int32_t i = 0; i < m->cols; i++) {
        const uint8_t *at = panel + ((size_t)i * PANEL + (size_t)lane) * float_bytes(m->type);
        uint16_t half;
        memcpy(&half, at, 2);
        if (m->type == SY_F32)
            memcpy(&out[i], at, 4);
        else
            out[i] = m->type == SY_F16 ? sy_half_to_float(half) : sy_bf16_to_float(half);
    }
}
