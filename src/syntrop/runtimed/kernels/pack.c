// SPDX-License-Identifier: Apache-2.0
/* From the file's layout to panels (see engine.h), once, at load. */
#include "engine.h"

static size_t block_bytes(int type) /* of a packed block: 16 rows × 32 columns */
{
    switch (type) {
    case SY_Q4_0: return PANEL * (2 + 16);
    case SY_Q4_1: return PANEL * (4 + 16);
    case SY_Q8_0: return PANEL * (2 + 32);
    default: return 0;
    }
}

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
    if (block_bytes(type)) {
        if (cols % QBLOCK)
            return SY_ERR_ARGUMENT;
        m->panel_bytes = (size_t)(cols / QBLOCK) * block_bytes(type);
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

/* One block of one row: `scales` halves (scale, minimum), then `words` words of codes. */
static inline void pack_block(const uint8_t *src, uint8_t *dst, int row, int scales, int words,
                              uint32_t flip)
{
    for (int i = 0; i < scales; i++)
        memcpy(dst + i * PANEL * 2 + row * 2, src + i * 2, 2);
    src += scales * 2;
    dst += scales * PANEL * 2;
    for (int i = 0; i < words; i++) {
        uint32_t word;
        memcpy(&word, src + i * 4, 4);
        word ^= flip;
        memcpy(dst + i * PANEL * 4 + row * 4, &word, 4);
    }
}

static inline void pack_rows(const sy_matrix *m, const uint8_t *src, uint8_t *dst, int rows, int scales,
                             int words, uint32_t flip)
{
    size_t from = (size_t)(scales * 2 + words * 4), to = from * PANEL;
    int32_t blocks = m->cols / QBLOCK;
    for (int32_t b = 0; b < blocks; b++)
        for (int row = 0; row < rows; row++)
            pack_block(src + ((size_t)row * blocks + b) * from, dst + b * to, row, scales, words, flip);
}

void sy_pack_panels(sy_matrix *m, const void *source, int32_t first, int32_t last)
{
    const uint8_t *src = source;
    for (int32_t p = first; p < last; p++) {
        uint8_t *dst = m->data + (size_t)p * m->panel_bytes;
        int rows = m->rows - p * PANEL < PANEL ? m->rows - p * PANEL : PANEL;
        size_t row0 = (size_t)p * PANEL;
        if (rows < PANEL) /* rows that do not exist: zero scales */
            memset(dst, 0, m->panel_bytes);
        size_t blocks = (size_t)(m->cols / QBLOCK);
        switch (m->type) {
        case SY_Q4_0: pack_rows(m, src + row0 * blocks * 18, dst, rows, 1, 4, 0); break;
        case SY_Q4_1: pack_rows(m, src + row0 * blocks * 20, dst, rows, 2, 4, 0); break;
        case SY_Q8_0: pack_rows(m, src + row0 * blocks * 34, dst, rows, 1, 8, 0x80808080u); break;
        default: {
            size_t size = float_bytes(m->type), cols = (size_t)m->cols;
            for (int row = 0; row < rows; row++) {
                const uint8_t *from = src + (row0 + (size_t)row) * cols * size;
                if (size == 4)
                    for (size_t k = 0; k < cols; k++)
                        memcpy(dst + (k * PANEL + (size_t)row) * 4, from + k * 4, 4);
                else
                    for (size_t k = 0; k < cols; k++)
                        memcpy(dst + (k * PANEL + (size_t)row) * 2, from + k * 2, 2);
            }
        }
        }
    }
}

void sy_unpack_row(const sy_matrix *m, int32_t row, float *out)
{
    const uint8_t *panel = m->data + (size_t)(row / PANEL) * m->panel_bytes;
    int lane = row % PANEL;
    int32_t blocks = m->cols / QBLOCK;
    uint16_t half[2];
    uint32_t bits;
    switch (m->type) {
    case SY_Q4_0:
    case SY_Q4_1:
        for (int32_t b = 0; b < blocks; b++) {
            const uint8_t *w = panel + (size_t)b * block_bytes(m->type);
            memcpy(&half[0], w + lane * 2, 2);
            float d = sy_half_to_float(half[0]), base = -8 * d;
            w += PANEL * 2;
            if (m->type == SY_Q4_1) {
                memcpy(&half[1], w + lane * 2, 2);
                base = sy_half_to_float(half[1]);
                w += PANEL * 2;
            }
            for (int j = 0; j < 16; j++) {
                uint8_t code = w[(j / 4) * PANEL * 4 + lane * 4 + j % 4];
                out[b * QBLOCK + j] = (float)(code & 15) * d + base;
                out[b * QBLOCK + 16 + j] = (float)(code >> 4) * d + base;
            }
        }
        break;
    case SY_Q8_0:
        for (int32_t b = 0; b < blocks; b++) {
            const uint8_t *w = panel + (size_t)b * block_bytes(m->type);
            memcpy(&half[0], w + lane * 2, 2);
            float d = sy_half_to_float(half[0]);
            w += PANEL * 2;
            for (int j = 0; j < QBLOCK; j++)
                out[b * QBLOCK + j] = (float)((int)w[(j / 4) * PANEL * 4 + lane * 4 + j % 4] - 128) * d;
        }
        break;
    case SY_F32:
        for (int32_t k = 0; k < m->cols; k++)
            memcpy(&out[k], panel + ((size_t)k * PANEL + (size_t)lane) * 4, 4);
        break;
    default:
        for (int32_t k = 0; k < m->cols; k++) {
            memcpy(&half[0], panel + ((size_t)k * PANEL + (size_t)lane) * 2, 2);
            bits = half[0];
            out[k] = m->type == SY_F16 ? sy_half_to_float((uint16_t)bits) : sy_bf16_to_float((uint16_t)bits);
        }
    }
}
