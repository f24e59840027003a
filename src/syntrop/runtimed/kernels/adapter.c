// SPDX-License-Identifier: Apache-2.0
/* LoRA adapters: pairs of thin float32 matrices beside those of a model, which stay as they are. */
#include <stdlib.h>

#include "model.h"

#define SLOTS (SY_FFN_DOWN + 1)

sy_adapter *sy_adapter_new(const sy_model *m)
{
    sy_adapter *a = calloc(1, sizeof *a);
    if (!a)
        return NULL;
    a->m = m;
    a->slots = (size_t)m->c.n_layer * SLOTS + 1;
    a->pairs = calloc(a->slots, sizeof *a->pairs);
    if (!a->pairs) {
        free(a);
        return NULL;
    }
    a->bytes = a->slots * sizeof *a->pairs;
    return a;
}

void sy_adapter_free(sy_adapter *a)
{
    if (!a)
        return;
    for (size_t i = 0; i < a->slots; i++) {
        free(a->pairs[i].down.data);
        free(a->pairs[i].up.data);
    }
    free(a->pairs);
    free(a);
}

size_t sy_adapter_bytes(const sy_adapter *a) { return a->bytes; }

const pair *sy_adapter_at(const sy_adapter *a, int32_t layer, int slot)
{
    return &a->pairs[slot == SY_OUTPUT ? a->slots - 1 : (size_t)layer * SLOTS + (size_t)slot];
}

static uint8_t *space(const sy_matrix *m)
{
    return aligned_alloc(64, ((size_t)m->panels * m->panel_bytes + 63) / 64 * 64);
}

/* A matrix of any type as panels of float32, times a factor. */
static int widen(sy_matrix *to, int type, int32_t rows, int32_t cols, const void *src, float factor)
{
    sy_matrix from;
    if (sy_matrix_shape(&from, type, rows, cols) || sy_matrix_shape(to, SY_F32, rows, cols))
        return SY_ERR_ARGUMENT;
    from.data = space(&from);
    to->data = space(to);
    float *numbers = malloc((size_t)rows * (size_t)cols * 4);
    int result = from.data && to->data && numbers ? 0 : SY_ERR_MEMORY;
    if (result == 0) {
        sy_pack_panels(&from, src, 0, from.panels);
        for (int32_t r = 0; r < rows; r++)
            sy_unpack_row(&from, r, numbers + (size_t)r * (size_t)cols);
        for (size_t i = 0; i < (size_t)rows * (size_t)cols; i++)
            numbers[i] *= factor;
        sy_pack_panels(to, numbers, 0, to->panels);
    }
    free(from.data);
    free(numbers);
    return result;
}

int sy_adapter_pair(sy_adapter *a, int32_t layer, int slot, int32_t rank, float scale, int down_type,
                    const void *down, int up_type, const void *up)
{
    const sy_model *m = a->m;
    if (rank < 1 || rank > SY_MAX_RANK || layer < 0 || layer >= m->c.n_layer || slot < 0 ||
        (slot > SY_FFN_DOWN && slot != SY_OUTPUT))
        return SY_ERR_ARGUMENT;
    const sy_matrix *base = slot == SY_OUTPUT ? &m->output : &m->layers[layer].matrix[slot];
    pair *p = (pair *)sy_adapter_at(a, layer, slot);
    if (!base->data || p->down.data || p->up.data)
        return SY_ERR_ARGUMENT;
    int result = widen(&p->down, down_type, rank, base->cols, down, 1.0f);
    if (result == 0)
        result = widen(&p->up, up_type, base->rows, rank, up, scale);
    if (result) {
        free(p->down.data);
        free(p->up.data);
        *p = (pair){0};
        return result;
    }
    a->bytes += (size_t)p->down.panels * p->down.panel_bytes + (size_t)p->up.panels * p->up.panel_bytes;
    return 0;
}
