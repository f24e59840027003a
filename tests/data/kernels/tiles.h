/* SPDX-License-Identifier: Apache-2.0 */
/* The instructions of AMX that the kernels use, under the intrinsics' names, in C: for tests on processors that lack
 * them. It follows the operations as Intel's manual writes them (volume 2: LDTILECFG, TILELOADD, TILESTORED, TILEZERO,
 * TDPB[SU][SU]D, TILERELEASE). What would raise an exception aborts, and so does what would be undefined. */
#pragma once

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TMUL_MAXK 16 /* CPUID leaf 1EH: rows of the second factor */
#define TMUL_MAXN 64 /* bytes of a row of it */
#define TILE_ROWS 16 /* CPUID leaf 1DH, palette 1 */
#define TILE_BYTES_PER_ROW 64
#define TILE_NAMES 8

typedef struct {
    int configured;
    uint16_t colsb[TILE_NAMES];
    uint8_t rows[TILE_NAMES];
    uint8_t data[TILE_NAMES][TILE_ROWS][TILE_BYTES_PER_ROW];
} tile_state;

static __thread tile_state tiles_;

/* A condition of the manual under which the instruction raises #UD or #GP. */
#define TILE_FAULT(instruction, condition)                                                                        \
    do {                                                                                                          \
        if (condition) {                                                                                          \
            fprintf(stderr, "%s: fault: %s\n", instruction, #condition);                                          \
            abort();                                                                                              \
        }                                                                                                         \
    } while (0)

static void tiles_release_(void) { memset(&tiles_, 0, sizeof tiles_); }

static void tiles_configure_(const void *memory)
{
    uint8_t c[64];
    memcpy(c, memory, sizeof c);
    TILE_FAULT("LDTILECFG", c[0] > 1);
    if (c[0] == 0) {
        tiles_release_();
        return;
    }
    for (int i = 2; i < 16; i++)
        TILE_FAULT("LDTILECFG", c[i] != 0);
    TILE_FAULT("LDTILECFG", c[1] > TILE_ROWS);
    TILE_FAULT("LDTILECFG", c[1] != 0); /* allowed: but nobody here resumes an interrupted load */
    tiles_release_();
    for (int n = 0; n < 16; n++) {
        uint16_t colsb;
        memcpy(&colsb, c + 16 + 2 * n, 2);
        uint8_t rows = c[48 + n];
        if (n >= TILE_NAMES) {
            TILE_FAULT("LDTILECFG", colsb != 0 || rows != 0);
            continue;
        }
        TILE_FAULT("LDTILECFG", colsb > TILE_BYTES_PER_ROW);
        TILE_FAULT("LDTILECFG", rows > TILE_ROWS);
        TILE_FAULT("LDTILECFG", (colsb == 0) != (rows == 0));
        tiles_.colsb[n] = colsb;
        tiles_.rows[n] = rows;
    }
    tiles_.configured = 1;
}

static void tile_check_(const char *instruction, int tile)
{
    TILE_FAULT(instruction, !tiles_.configured);
    TILE_FAULT(instruction, tile < 0 || tile >= TILE_NAMES);
    TILE_FAULT(instruction, tiles_.rows[tile] == 0 || tiles_.colsb[tile] == 0);
}

static void tile_zero_(int tile)
{
    tile_check_("TILEZERO", tile);
    memset(tiles_.data[tile], 0, sizeof tiles_.data[tile]);
}

static void tile_load_(int tile, const void *base, long stride)
{
    tile_check_("TILELOADD", tile);
    for (int row = 0; row < tiles_.rows[tile]; row++) {
        memset(tiles_.data[tile][row], 0, TILE_BYTES_PER_ROW);
        memcpy(tiles_.data[tile][row], (const uint8_t *)base + row * stride, tiles_.colsb[tile]);
    }
    for (int row = tiles_.rows[tile]; row < TILE_ROWS; row++)
        memset(tiles_.data[tile][row], 0, TILE_BYTES_PER_ROW);
}

static void tile_store_(int tile, void *base, long stride)
{
    tile_check_("TILESTORED", tile);
    for (int row = 0; row < tiles_.rows[tile]; row++)
        memcpy((uint8_t *)base + row * stride, tiles_.data[tile][row], tiles_.colsb[tile]);
}

static void tile_check_dot_(int dst, int a, int b)
{
    tile_check_("TDPB", dst);
    tile_check_("TDPB", a);
    tile_check_("TDPB", b);
    TILE_FAULT("TDPB", dst == a || dst == b || a == b);
    TILE_FAULT("TDPB", tiles_.colsb[dst] % 4 != 0);
    TILE_FAULT("TDPB", tiles_.colsb[a] % 4 != 0);
    TILE_FAULT("TDPB", tiles_.colsb[b] % 4 != 0);
    TILE_FAULT("TDPB", tiles_.rows[dst] != tiles_.rows[a]);
    TILE_FAULT("TDPB", tiles_.colsb[dst] != tiles_.colsb[b]);
    TILE_FAULT("TDPB", tiles_.colsb[a] / 4 != tiles_.rows[b]);
    TILE_FAULT("TDPB", tiles_.colsb[b] > TMUL_MAXN);
    TILE_FAULT("TDPB", tiles_.rows[b] > TMUL_MAXK);
}

/* dst[m][n] += sum over k and i of a[m][4k + i] · b[k][4n + i], each of a and b with a sign or without. Sums wrap.
   The loops touch nothing but the tiles, whose bounds are checked above: a sanitizer would only make them slow. */
#define TILE_DOT(name, A, B)                                                                                      \
    static __attribute__((noinline, optimize("O3"), no_sanitize("address", "undefined"))) void name(int dst, int a, \
                                                                                                    int b)        \
    {                                                                                                             \
        tile_check_dot_(dst, a, b);                                                                               \
        for (int m = 0; m < tiles_.rows[dst]; m++) {                                                              \
            uint32_t sums[TILE_BYTES_PER_ROW / 4];                                                                \
            memcpy(sums, tiles_.data[dst][m], sizeof sums);                                                       \
            for (int k = 0; k < tiles_.colsb[a] / 4; k++) {                                                       \
                const A *left = (const A *)tiles_.data[a][m] + 4 * k;                                             \
                const B *right = (const B *)tiles_.data[b][k];                                                    \
                for (int n = 0; n < tiles_.colsb[b] / 4; n++)                                                     \
                    for (int i = 0; i < 4; i++)                                                                   \
                        sums[n] += (uint32_t)((int32_t)left[i] * (int32_t)right[4 * n + i]);                      \
            }                                                                                                     \
            memset(tiles_.data[dst][m], 0, TILE_BYTES_PER_ROW);                                                   \
            memcpy(tiles_.data[dst][m], sums, tiles_.colsb[dst]);                                                 \
        }                                                                                                         \
        for (int m = tiles_.rows[dst]; m < TILE_ROWS; m++)                                                        \
            memset(tiles_.data[dst][m], 0, TILE_BYTES_PER_ROW);                                                   \
    }
TILE_DOT(tile_dpbssd_, int8_t, int8_t)
TILE_DOT(tile_dpbsud_, int8_t, uint8_t)
TILE_DOT(tile_dpbusd_, uint8_t, int8_t)
TILE_DOT(tile_dpbuud_, uint8_t, uint8_t)

#undef _tile_loadd
#undef _tile_stored
#undef _tile_zero
#undef _tile_dpbssd
#undef _tile_dpbsud
#undef _tile_dpbusd
#undef _tile_dpbuud
#define _tile_loadconfig(memory) tiles_configure_(memory)
#define _tile_release() tiles_release_()
#define _tile_loadd(tile, base, stride) tile_load_(tile, base, stride)
#define _tile_stored(tile, base, stride) tile_store_(tile, base, stride)
#define _tile_zero(tile) tile_zero_(tile)
#define _tile_dpbssd(dst, a, b) tile_dpbssd_(dst, a, b)
#define _tile_dpbsud(dst, a, b) tile_dpbsud_(dst, a, b)
#define _tile_dpbusd(dst, a, b) tile_dpbusd_(dst, a, b)
#define _tile_dpbuud(dst, a, b) tile_dpbuud_(dst, a, b)
