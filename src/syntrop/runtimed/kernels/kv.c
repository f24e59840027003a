// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include <sys/mman.h>

#include "kv.h"
#include "model.h"

#define MAX_BLOCKS (1 << 20)

static void *reserve(size_t bytes)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return p == MAP_FAILED ? NULL : p;
}

size_t sy_kv_bytes(int32_t kv_type, int32_t head_pad, int values)
{
    size_t numbers = (size_t)head_pad * SY_BLOCK;
    return kv_type == SY_KV_Q8 ? numbers + numbers / (values ? VALUE_RUN : KEY_RUN) * 2
                               : numbers * (kv_type == SY_KV_F32 ? 4 : 2);
}

int sy_kv_open(sy_kv *kv, size_t block_bytes)
{
    pthread_mutex_init(&kv->mutex, NULL);
    kv->block_bytes = block_bytes;
    kv->blocks = reserve(MAX_BLOCKS * sizeof *kv->blocks);
    kv->spare = reserve(MAX_BLOCKS * sizeof *kv->spare);
    return kv->blocks && kv->spare ? 0 : SY_ERR_MEMORY;
}

void sy_kv_close(sy_kv *kv)
{
    for (int32_t i = 0; i < kv->n_blocks; i++)
        if (kv->blocks[i])
            munmap(kv->blocks[i], kv->block_bytes);
    if (kv->blocks)
        munmap(kv->blocks, MAX_BLOCKS * sizeof *kv->blocks);
    if (kv->spare)
        munmap(kv->spare, MAX_BLOCKS * sizeof *kv->spare);
    pthread_mutex_destroy(&kv->mutex);
}

size_t sy_block_bytes(const sy_model *m) { return m->kv.block_bytes; }

int32_t sy_block_new(sy_model *m)
{
    sy_kv *kv = &m->kv;
    uint8_t *memory = reserve(kv->block_bytes);
    if (!memory)
        return SY_ERR_MEMORY;
    pthread_mutex_lock(&kv->mutex);
    int32_t block = SY_ERR_MEMORY;
    if (kv->n_spare)
        block = kv->spare[--kv->n_spare];
    else if (kv->n_blocks < MAX_BLOCKS)
        block = kv->n_blocks++;
    if (block >= 0)
        kv->blocks[block] = memory;
    pthread_mutex_unlock(&kv->mutex);
    if (block < 0)
        munmap(memory, kv->block_bytes);
    return block;
}

static uint8_t *memory_of(sy_kv *kv, int32_t block)
{
    return block >= 0 && block < kv->n_blocks ? kv->blocks[block] : NULL;
}

void sy_block_free(sy_model *m, int32_t block)
{
    sy_kv *kv = &m->kv;
    pthread_mutex_lock(&kv->mutex);
    uint8_t *memory = memory_of(kv, block);
    if (memory) {
        kv->blocks[block] = NULL;
        kv->spare[kv->n_spare++] = block;
    }
    pthread_mutex_unlock(&kv->mutex);
    if (memory)
        munmap(memory, kv->block_bytes);
}

uint8_t *sy_block_memory(sy_model *m, int32_t block)
{
    pthread_mutex_lock(&m->kv.mutex);
    uint8_t *memory = memory_of(&m->kv, block);
    pthread_mutex_unlock(&m->kv.mutex);
    return memory;
}

int sy_block_copy(sy_model *m, int32_t to, int32_t from)
{
    uint8_t *target = sy_block_memory(m, to), *source = sy_block_memory(m, from);
    if (!target || !source || target == source)
        return SY_ERR_ARGUMENT;
    memcpy(target, source, m->kv.block_bytes);
    return 0;
}
