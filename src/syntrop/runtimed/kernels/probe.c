// SPDX-License-Identifier: Apache-2.0
/* Single kernels, for differential tests. */
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

#include "engine.h"

struct product {
    const sy_ops *ops;
    const sy_matrix *m;
    const sy_acts *a;
    int32_t n;
    float *out;
};

static void product_job(void *p, sy_walk *w)
{
    struct product *job = p;
    int32_t first, last, panels = job->m->panels;
    while (sy_claim(w, panels, 1, &first, &last))
        job->ops->matmul(job->m, first, job->a, 0, job->n, job->out + (size_t)first * PANEL,
                         (size_t)panels * PANEL, 0);
    sy_stage_end(w, panels);
}

/* Exactly so many bytes, so that a sanitizer sees the first one beyond. */
static void *space(size_t bytes)
{
    void *p = NULL;
    if (posix_memalign(&p, 64, bytes ? bytes : 1))
        return NULL;
    return memset(p, 0, bytes);
}

int sy_test_matmul(int level, int threads, int fold, int type, int32_t rows, int32_t cols, const void *src,
                   int32_t n, const float *x, float *y)
{
    const sy_ops *ops = sy_ops_of(level);
    sy_matrix m;
    if (!ops || n < 1 || (fold != FOLD_FOUR && fold != FOLD_FIVE) || sy_matrix_shape(&m, type, rows, cols))
        return SY_ERR_ARGUMENT;
    if (sy_pool_acquire(threads))
        return SY_ERR_MEMORY;
    size_t groups = sy_acts_groups((size_t)n), blocks = (size_t)(cols / QBLOCK);
    sy_acts a = {.cols = cols, .blocks = cols / QBLOCK, .lanes = n == 1 ? 1 : GROUP, .fold = fold,
                 .f_stride = (size_t)cols};
    m.data = space((size_t)m.panels * m.panel_bytes);
    a.q = space(sy_acts_codes(a.blocks, (size_t)n));
    a.d = space(groups * blocks * GROUP * 4);
    a.s = space(groups * blocks * SUMS * GROUP * 4);
    a.neg = space(groups * blocks * SUMS * GROUP * 4);
    a.f = space((size_t)n * (size_t)cols * 4);
    float *out = space((size_t)n * (size_t)m.panels * PANEL * 4);
    int result = m.data && a.q && a.d && a.s && a.neg && a.f && out ? 0 : SY_ERR_MEMORY;
    if (result == 0) {
        sy_pack_panels(&m, src, 0, m.panels);
        memcpy(a.f, x, (size_t)n * (size_t)cols * 4);
        for (int32_t t = 0; t < n; t++)
            ops->quantize(a.f + (size_t)t * (size_t)cols, a.blocks * QBLOCK, &a, t, 0);
        struct product job = {ops, &m, &a, n, out};
        sy_pool_run(product_job, &job, threads, 1);
        for (int32_t t = 0; t < n; t++)
            memcpy(y + (size_t)t * (size_t)rows, out + (size_t)t * (size_t)m.panels * PANEL, (size_t)rows * 4);
    }
    free(m.data);
    free(a.q);
    free(a.d);
    free(a.s);
    free(a.neg);
    free(a.f);
    free(out);
    sy_pool_release();
    return result;
}

int sy_test_row(int type, int32_t rows, int32_t cols, const void *src, int32_t row, float *out)
{
    sy_matrix m;
    if (sy_matrix_shape(&m, type, rows, cols) || row < 0 || row >= rows)
        return SY_ERR_ARGUMENT;
    m.data = space((size_t)m.panels * m.panel_bytes);
    if (!m.data)
        return SY_ERR_MEMORY;
    sy_pack_panels(&m, src, 0, m.panels);
    sy_unpack_row(&m, row, out);
    free(m.data);
    return 0;
}

int sy_test_exp(int level, int32_t n, const float *x, float *y)
{
    const sy_ops *ops = sy_ops_of(level);
    if (!ops)
        return SY_ERR_ARGUMENT;
    ops->exp(x, y, n);
    return 0;
}

int sy_test_half(int level, int32_t n, const float *x, uint16_t *half, float *back)
{
    const sy_ops *ops = sy_ops_of(level);
    if (!ops)
        return SY_ERR_ARGUMENT;
    ops->half(x, half, back, n);
    return 0;
}

int sy_test_norm(int level, int32_t n, const float *x, const float *weight, float eps, float *y)
{
    const sy_ops *ops = sy_ops_of(level);
    if (!ops)
        return SY_ERR_ARGUMENT;
    ops->norm(x, weight, n, eps, y);
    return 0;
}

struct reading {
    const uint64_t *words;
    size_t n;
    _Atomic uint64_t sum; /* keeps the reads from being left out */
};

static void reading_job(void *p, sy_walk *w)
{
    struct reading *job = p;
    uint64_t sums[8] = {0};
    int32_t pages = (int32_t)(job->n / 512), first, last;
    while (sy_claim(w, pages, 256, &first, &last))
        for (size_t i = (size_t)first * 512; i < (size_t)last * 512; i += 8)
            for (size_t j = 0; j < 8; j++)
                sums[j] ^= job->words[i + j];
    for (int j = 0; j < 8; j++)
        atomic_fetch_xor(&job->sum, sums[j]);
    sy_stage_end(w, pages);
}

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

int sy_test_read(int threads, size_t bytes, double *rate)
{
    *rate = 0;
    if (threads < 1 || bytes < 4096)
        return SY_ERR_ARGUMENT;
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return SY_ERR_MEMORY;
    madvise(memory, bytes, MADV_HUGEPAGE);
    memset(memory, 1, bytes);
    if (sy_pool_acquire(threads)) {
        munmap(memory, bytes);
        return SY_ERR_MEMORY;
    }
    struct reading job = {memory, bytes / 8, 0};
    for (int pass = 0; pass < 6; pass++) {
        double start = seconds();
        sy_pool_run(reading_job, &job, threads, 1);
        double took = seconds() - start;
        if (took > 0 && (double)bytes / took > *rate)
            *rate = (double)bytes / took;
    }
    sy_pool_release();
    munmap(memory, bytes);
    return 0;
}
