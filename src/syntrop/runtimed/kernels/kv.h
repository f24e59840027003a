/* SPDX-License-Identifier: Apache-2.0 */
/* The memory of the KV cache: blocks of SY_BLOCK tokens, all layers, by number. Who shares a block, and when it is
 * free, is decided in Python (model/kv.py). */
#pragma once

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

typedef struct {
    pthread_mutex_t mutex;
    uint8_t **blocks; /* by number; NULL: free. Its address never changes, so forwards read without a lock */
    int32_t *spare;   /* free numbers below n_blocks */
    int32_t n_blocks, n_spare;
    size_t block_bytes;
} sy_kv;

/* Bytes of the keys, or of the values, of one head in a block. */
size_t sy_kv_bytes(int32_t kv_type, int32_t head_pad, int values);

int sy_kv_open(sy_kv *kv, size_t block_bytes);
void sy_kv_close(sy_kv *kv); /* also after an open that failed; not twice */
