/* SPDX-License-Identifier: Apache-2.0 */
/* A loaded model, shared by what loads it (model.c) and what runs it (forward.c). */
#pragma once

#include <pthread.h>

#include "engine.h"
#include "kv.h"

#define STAGES 14 /* of a layer, at most */

typedef struct {
    sy_matrix matrix[SY_FFN_DOWN + 1];
    float *vector[SY_V_BIAS + 1]; /* NULL: the model has none */
    int32_t window, rope;
} layer;

/* What is added to the product of one matrix: up · down, the scale in up. data NULL: nothing. */
typedef struct {
    sy_matrix down, up;
} pair;

struct sy_adapter {
    const sy_model *m; /* may be gone before the adapter is */
    size_t slots;
    pair *pairs; /* SY_FFN_DOWN + 1 a layer, then that of the output */
    size_t bytes;
};

const pair *sy_adapter_at(const sy_adapter *a, int32_t layer, int slot); /* layer is ignored for SY_OUTPUT */

/* Consecutive rows of a step whose sequence goes with an adapter. */
typedef struct {
    int32_t first, last; /* without last */
    const sy_adapter *adapter;
} run;

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
    double *frequencies; /* [rope][pair] */
    float magnitude[2];
    int ropes_set;

    uint8_t *work; /* everything below, reserved at birth, resident when touched */
    size_t work_bytes;
    size_t x_stride, q_stride, kv_stride, logits_stride;
    float *x, *delta, *q, *k, *v, *cos_sin, *logits;
    float *low[3]; /* [token][SY_MAX_RANK]: what adapters have made of the input of up to three matrices */
    sy_acts normed, attended, hidden, last;
    tile *tiles;
    run *runs, *wanted_runs;
    int32_t *wanted;

    sy_kv kv;
    size_t key_bytes, head_bytes; /* of a head in a block: of its keys; of both */
    int32_t head_pad;
};
