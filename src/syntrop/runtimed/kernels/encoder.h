/* SPDX-License-Identifier: Apache-2.0 */
/* A loaded encoder, shared by what loads it (encoder.c) and what runs it (encode.c). */
#pragma once

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

#include "encoder.cdef"
#include "engine.h"

#define MATRICES 7
#define VECTORS 11
#define STAGES 11 /* of a layer, at most */

typedef struct {
    sy_matrix matrix[MATRICES];
    float *vector[VECTORS];
    int32_t span, rope;
    int bare;
} layer;

typedef struct {
    int32_t start, text; /* tokens start … of that text, up to ATTEND_ROWS of them */
} tile;

struct sy_encoder {
    sy_encoder_config c;
    const sy_ops *ops;
    int threads;
    int coded; /* whether any matrix of a layer is quantised, and activations must be too */
    pthread_mutex_t busy;

    uint8_t *weights, *work;
    size_t weight_bytes, weight_used, work_bytes;
    layer *layers;
    sy_matrix words, positions, types;
    float *embed_norm, *embed_norm_bias, *output_norm, *output_norm_bias;
    double *frequencies; /* [rope][pair] */
    float magnitude[2];
    int ropes_set;

    int32_t head_dim, head_pad;
    size_t x_stride, h_stride, head_bytes; /* of one head's keys and values in a block */
    float *x, *q, *k, *v, *type_row;
    float *cos_sin; /* [token][rope][pair][2] */
    float *by_head, *by_head_out; /* [head][token][head_dim] */
    sy_acts input, attended, hidden;
    uint8_t *cache, **blocks;
    int32_t *iota, *first_block, *text; /* text: of each token */
    tile *tiles;
};

static inline int32_t most_texts(const sy_encoder *e)
{
    return e->c.max_tokens < SY_ENC_TEXTS ? e->c.max_tokens : SY_ENC_TEXTS;
}

static inline void fill(float *x, int32_t n, float value)
{
    for (int32_t i = 0; i < n; i++)
        x[i] = value;
}
