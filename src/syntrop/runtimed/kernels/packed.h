/* SPDX-License-Identifier: Apache-2.0 */
/* Packed blocks of the quantised types: what they consist of, and how to read one row of one.
 *
 * A block is 16 rows × 32 columns: first the scales, then the codes in planes. A plane is a run of words of four
 * bytes, 16 rows side by side; byte i of a word holds columns that are i modulo 4, so that one mask or shift of a
 * register of 16 words gives a *quad*, four successive columns of every row, which is what a VNNI lane multiplies:
 *
 *   bytes    8 words: word j is quad j, the sign bit flipped (plus 128: VNNI wants one unsigned side)
 *   nibbles  4 words: the low nibbles of word j are quad j, the high ones quad 4 + j
 *   pairs    2 words: bits 2p, 2p + 1 of every byte of word j are quad 4j + p
 *   bits     1 word: bit j of every byte is quad j
 *
 * A code is made of its planes, the lowest first in the order nibbles, pairs, bits. Scales are f16, 16 side by
 * side, then so the minima. Types of 256 columns have a head before every eighth block, with their f16, and bytes
 * in the blocks: a scale for each part (of 16 or 32 columns), then so the minima; Q2_K has both in one byte, as in
 * the file. Bytes of scales are signed but where there are minima.
 */
#pragma once

#include "engine.h"

#define SUPER 8 /* blocks that share a head */

typedef struct {
    int bytes, nibbles, pairs, bits; /* planes */
    int width;                       /* bits of a code */
    int offset;                      /* number = scale × (code − offset) */
    int minimum;                     /* number = scale × code + minimum */
    int book;                        /* codes are indices of sy_codebook */
    int parts;                       /* scales of a block */
    int super;                       /* has heads */
    int fused;                       /* scale and minimum share a byte */
} sy_kind;

#define EACH_QUANT(do)                                                                                         \
    do(SY_Q4_0) do(SY_Q4_1) do(SY_Q5_0) do(SY_Q5_1) do(SY_Q8_0) do(SY_Q2_K) do(SY_Q3_K) do(SY_Q4_K) do(SY_Q5_K)    \
        do(SY_Q6_K) do(SY_IQ4_NL) do(SY_IQ4_XS)

/* With a constant type the whole of it folds. */
static inline __attribute__((always_inline)) sy_kind sy_kind_of(const int type)
{
    switch (type) {
    case SY_Q4_0: return (sy_kind){.nibbles = 1, .width = 4, .offset = 8, .parts = 1};
    case SY_Q4_1: return (sy_kind){.nibbles = 1, .width = 4, .minimum = 1, .parts = 1};
    case SY_Q5_0: return (sy_kind){.nibbles = 1, .bits = 1, .width = 5, .offset = 16, .parts = 1};
    case SY_Q5_1: return (sy_kind){.nibbles = 1, .bits = 1, .width = 5, .minimum = 1, .parts = 1};
    case SY_Q8_0: return (sy_kind){.bytes = 1, .width = 8, .offset = 128, .parts = 1};
    case SY_Q2_K: return (sy_kind){.pairs = 1, .width = 2, .minimum = 1, .parts = 2, .super = 1, .fused = 1};
    case SY_Q3_K: return (sy_kind){.pairs = 1, .bits = 1, .width = 3, .offset = 4, .parts = 2, .super = 1};
    case SY_Q4_K: return (sy_kind){.nibbles = 1, .width = 4, .minimum = 1, .parts = 1, .super = 1};
    case SY_Q5_K: return (sy_kind){.nibbles = 1, .bits = 1, .width = 5, .minimum = 1, .parts = 1, .super = 1};
    case SY_Q6_K: return (sy_kind){.nibbles = 1, .pairs = 1, .width = 6, .offset = 32, .parts = 2, .super = 1};
    case SY_IQ4_NL: return (sy_kind){.nibbles = 1, .width = 8, .offset = 128, .book = 1, .parts = 1};
    case SY_IQ4_XS: return (sy_kind){.nibbles = 1, .width = 8, .offset = 128, .book = 1, .parts = 1, .super = 1};
    default: return (sy_kind){0}; /* not quantised */
    }
}

/* Bytes of a row: in the head, of the scales in a block, of the codes in a block. */
static inline __attribute__((always_inline)) int sy_head_bytes(const sy_kind k)
{
    return k.super ? 2 + 2 * k.minimum : 0;
}

static inline __attribute__((always_inline)) int sy_scale_bytes(const sy_kind k)
{
    return k.super ? k.parts * (1 + (k.minimum && !k.fused)) : 2 + 2 * k.minimum;
}

static inline __attribute__((always_inline)) int sy_code_bytes(const sy_kind k)
{
    return 32 * k.bytes + 16 * k.nibbles + 8 * k.pairs + 4 * k.bits;
}

/* The values of IQ4's codes, plus 128. */
extern const uint8_t sy_codebook[16];

/* The bytes before block b of a panel. */
static inline size_t sy_block_offset(const sy_kind k, int32_t b)
{
    size_t heads = (size_t)(k.super ? (b + SUPER - 1) / SUPER : 0) * (size_t)sy_head_bytes(k);
    return PANEL * (heads + (size_t)b * (size_t)(sy_scale_bytes(k) + sy_code_bytes(k)));
}

/* Block b of row `lane` of a panel: codes as signed numbers, and scale and minimum of each half. */
void sy_block_read(int type, const uint8_t *panel, int32_t b, int lane, int16_t codes[QBLOCK], float scale[2],
                   float minimum[2]);
