// SPDX-License-Identifier: Apache-2.0
/* The reference level: the platform's baseline, integer products one by one. */
#include "engine.h"

#define VL 4
#define LEVEL(name) name##scalar
#define QK_ROWS 4
#define PV_ROWS 2
#define PV_VECS 2

typedef float vf __attribute__((vector_size(4 * VL)));
typedef int32_t vi __attribute__((vector_size(4 * VL)));

static inline vf load_half(const uint16_t *p)
{
    vf v;
    for (int i = 0; i < VL; i++)
        v[i] = sy_half_to_float(p[i]);
    return v;
}

static inline void store_half(uint16_t *p, vf v)
{
    for (int i = 0; i < VL; i++)
        p[i] = sy_float_to_half(v[i]);
}

static inline vf larger(vf a, vf b)
{
    vi mask = a > b;
    return (vf)(((vi)a & mask) | ((vi)b & ~mask));
}

static inline float sum(vf v) { return (v[0] + v[1]) + (v[2] + v[3]); }

static inline float largest(vf v)
{
    float a = v[0] > v[1] ? v[0] : v[1], b = v[2] > v[3] ? v[2] : v[3];
    return a > b ? a : b;
}

static inline int32_t sum_int(vi v) { return v[0] + v[1] + v[2] + v[3]; }

static inline void narrow(int8_t *p, vi v)
{
    for (int i = 0; i < VL; i++)
        p[i] = (int8_t)v[i];
}

static void tile(const uint8_t *w, int type, const sy_acts *x, int32_t t, float *out, int add)
{
    size_t lanes = (size_t)x->lanes, at = (size_t)t / lanes * (size_t)x->blocks, lane = (size_t)t % lanes;
    float acc[PANEL] = {0};
    for (int32_t b = 0; b < x->blocks; b++, at++) {
        int32_t q[QBLOCK];
        for (size_t i = 0; i < QBLOCK; i++) {
            const int8_t *plane = x->q + at * 2 * QBLOCK * lanes + (i / 4 * lanes + lane) * 4 + i % 4;
            q[i] = plane[0] * (1 << ACT_SHIFT) + plane[QBLOCK * lanes];
        }
        const uint8_t *scales = w, *minima = w + PANEL * 2;
        const uint8_t *codes = w + PANEL * (type == SY_Q4_1 ? 4 : 2);
        int32_t offset = type == SY_Q4_0 ? 8 : type == SY_Q8_0 ? 128 : 0;
        int32_t total[PANEL];
        for (int r = 0; r < PANEL; r++)
            total[r] = offset * x->neg[at * lanes + lane];
        if (type == SY_Q8_0) {
            for (int i = 0; i < 8; i++)
                for (int r = 0; r < PANEL; r++)
                    for (int j = 0; j < 4; j++)
                        total[r] += codes[i * PANEL * 4 + r * 4 + j] * q[i * 4 + j];
            w = codes + PANEL * 32;
        } else {
            for (int i = 0; i < 4; i++)
                for (int r = 0; r < PANEL; r++)
                    for (int j = 0; j < 4; j++) {
                        int code = codes[i * PANEL * 4 + r * 4 + j];
                        total[r] += (code & 15) * q[i * 4 + j] + (code >> 4) * q[16 + i * 4 + j];
                    }
            w = codes + PANEL * 16;
        }
        for (int r = 0; r < PANEL; r++) {
            uint16_t half;
            memcpy(&half, scales + r * 2, 2);
            acc[r] += (float)total[r] * (sy_half_to_float(half) * x->d[at * lanes + lane]);
            if (type == SY_Q4_1) {
                memcpy(&half, minima + r * 2, 2);
                acc[r] += sy_half_to_float(half) * x->s[at * lanes + lane];
            }
        }
    }
    for (int r = 0; r < PANEL; r++)
        out[r] = add ? out[r] + acc[r] : acc[r];
}

static void matmul_quantized(const uint8_t *w, int type, const sy_acts *x, int32_t t0, int32_t t1, float *out,
                             size_t stride, int add)
{
    for (int32_t t = t0; t < t1; t++, out += stride)
        tile(w, type, x, t, out, add);
}

#include "body.h"
