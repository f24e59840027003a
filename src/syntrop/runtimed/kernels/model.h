/* SPDX-License-Identifier: Apache-2.0 */
/* A loaded model, shared by what loads it (model.c) and what runs it (forward.c). */
#pragma once

#include <pthread.h>

#include "engine.h"
#include "kv.h"

#define STAGES 9 /* of a layer, at most */

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

    sy_kv kv;
    int32_t head_pad;
};
