// SPDX-License-Identifier: Apache-2.0
/* The reference level: the platform's baseline, integer products one by one. */
#include "packed.h"

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

static inline vf load_codes(const int8_t *p)
{
    vf v;
    for (int i = 0; i < VL; i++)
        v[i] = p[i];
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

/* The blocks of a panel as plain numbers: codes in the order of the activations' words (body.h). */
#define EXPANDED 8 /* blocks */
#define TILE 1     /* tokens */

typedef struct {
    int16_t codes[EXPANDED][PANEL][QBLOCK];
    float scale[EXPANDED][PANEL][2], minimum[EXPANDED][PANEL][2];
} expanded;

static void expand(expanded *e, const uint8_t *w, int type, const sy_acts *x, int32_t first, int32_t count)
{
    (void)x;
    for (int32_t b = 0; b < count; b++)
        for (int r = 0; r < PANEL; r++)
            sy_block_read(type, w, first + b, r, e->codes[b][r], e->scale[b][r], e->minimum[b][r]);
}

static void tile(const expanded *e, const sy_kind k, const sy_acts *x, int32_t t, int32_t tokens, int32_t first,
                 int32_t count, float (*part)[PANEL])
{
    (void)tokens;
    size_t lanes = (size_t)x->lanes, at = (size_t)t / lanes * (size_t)x->blocks + (size_t)first;
    size_t lane = (size_t)t % lanes;
    for (int32_t b = 0; b < count; b++, at++) {
        int16_t q[QBLOCK];
        for (size_t c = 0; c < QBLOCK; c++) {
            size_t word = c / 4 * 2 + c % 2, second = c / 2 % 2;
            memcpy(&q[c], x->q + at * 2 * QBLOCK * lanes + (word * lanes + lane) * 4 + second * 2, 2);
        }
        float d = x->d[at * lanes + lane];
        const float *s = x->s + at * SUMS * lanes + lane;
        for (int r = 0; r < PANEL; r++) {
            int32_t sums[2] = {0, 0};
            for (int c = 0; c < 16; c++) {
                sums[0] += e->codes[b][r][c] * q[c];
                sums[1] += e->codes[b][r][c + 16] * q[c + 16];
            }
            float acc = first + b ? part[0][r] : 0;
            const float *scale = e->scale[b][r], *minimum = e->minimum[b][r];
            if (k.parts == 1) {
                acc += (float)(sums[0] + sums[1]) * (scale[0] * d);
                if (k.minimum)
                    acc += minimum[0] * s[0];
            } else {
                acc += ((float)sums[0] * scale[0] + (float)sums[1] * scale[1]) * d;
                if (k.minimum)
                    acc += minimum[0] * s[lanes] + minimum[1] * s[2 * lanes];
            }
            part[0][r] = acc;
        }
    }
}

#include "body.h"
