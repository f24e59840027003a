// SPDX-License-Identifier: Apache-2.0
/* Single kernels, for differential tests. */
#include <stdlib.h>

#include "engine.h"

struct product {
    const sy_ops *ops;
    const sy_matrix *m;
    const sy_acts *a;
    int32_t n;
    float *out;
};

static void product_job(void *p, int thread, int threads)
{
    struct product *job = p;
    for (int32_t panel = thread; panel < job->m->panels; panel += threads)
        job->ops->matmul(job->m, panel, job->a, 0, job->n, job->out + (size_t)panel * PANEL,
                         (size_t)job->m->panels * PANEL, 0);
}

static void *space(size_t bytes)
{
    void *p = aligned_alloc(64, (bytes + 64) / 64 * 64);
    if (p)
        memset(p, 0, (bytes + 64) / 64 * 64);
    return p;
}

int sy_test_matmul(int level, int threads, int type, int32_t rows, int32_t cols, const void *src, int32_t n,
                   const float *x, float *y)
{
    const sy_ops *ops = sy_ops_of(level);
    sy_matrix m;
    if (!ops || n < 1 || sy_matrix_shape(&m, type, rows, cols))
        return SY_ERR_ARGUMENT;
    if (sy_pool_acquire(threads))
        return SY_ERR_MEMORY;
    size_t groups = (size_t)(n + GROUP - 1) / GROUP, blocks = (size_t)(cols / QBLOCK);
    sy_acts a = {.cols = cols, .blocks = cols / QBLOCK, .lanes = n == 1 ? 1 : GROUP, .f_stride = (size_t)cols};
    m.data = space((size_t)m.panels * m.panel_bytes);
    a.q = space(groups * blocks * 2 * QBLOCK * GROUP);
    a.d = space(groups * blocks * GROUP * 4);
    a.s = space(groups * blocks * GROUP * 4);
    a.neg = space(groups * blocks * GROUP * 4);
    a.f = space((size_t)n * (size_t)cols * 4);
    float *out = space((size_t)n * (size_t)m.panels * PANEL * 4);
    int result = m.data && a.q && a.d && a.s && a.neg && a.f && out ? 0 : SY_ERR_MEMORY;
    if (result == 0) {
        sy_pack_panels(&m, src, 0, m.panels);
        memcpy(a.f, x, (size_t)n * (size_t)cols * 4);
        for (int32_t t = 0; t < n; t++)
            ops->quantize(a.f + (size_t)t * (size_t)cols, a.blocks * QBLOCK, &a, t, 0);
        struct product job = {ops, &m, &a, n, out};
        sy_pool_run(product_job, &job, threads);
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
