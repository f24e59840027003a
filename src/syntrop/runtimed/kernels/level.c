// SPDX-License-Identifier: Apache-2.0
/* Which instruction-set level this processor and its kernel allow. */
#define _GNU_SOURCE
#include <unistd.h>

#include "engine.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>

/* The builtins ask XGETBV too: a processor may have registers that the kernel does not save. */
static const char *avx2_missing(void)
{
    __builtin_cpu_init();
    return !__builtin_cpu_supports("avx2")   ? "avx2"
           : !__builtin_cpu_supports("fma")  ? "fma"
           : !__builtin_cpu_supports("f16c") ? "f16c"
                                             : NULL;
}

static const char *avx512_missing(void)
{
    const char *missing = avx2_missing();
    return missing                                ? missing
           : !__builtin_cpu_supports("avx512f")    ? "avx512f"
           : !__builtin_cpu_supports("avx512bw")   ? "avx512bw"
           : !__builtin_cpu_supports("avx512vl")   ? "avx512vl"
           : !__builtin_cpu_supports("avx512dq")   ? "avx512dq"
           : !__builtin_cpu_supports("avx512vnni") ? "avx512vnni"
                                                   : NULL;
}

/* The registers of tiles are large: Linux saves them (arch/x86/xstate.rst) for processes that asked, once, before. */
#define REQUEST_PERMISSION 0x1023 /* ARCH_REQ_XCOMP_PERM */
#define TILE_CONFIG 17            /* components of the extended state, and bits of XCR0 */
#define TILE_DATA 18

static const char *amx_missing(void)
{
    const char *missing = avx512_missing();
#ifdef TILES /* without tiles of its own: a build of the tests */
    return missing;
#else
    unsigned a, b, c, d, low, high;
    if (missing)
        return missing;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(d >> 24 & 1))
        return "amx-tile";
    if (!(d >> 25 & 1))
        return "amx-int8";
    __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0)); /* AVX-512 came with it */
    if (!(low >> TILE_CONFIG & 1) || !(low >> TILE_DATA & 1))
        return "an operating system that saves tiles (XCR0)";
    if (syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA))
        return "the kernel's permission for tiles (arch_prctl)";
    return NULL;
#endif
}
#endif

const char *sy_level_missing(int level)
{
    switch (level) {
    case SY_SCALAR: return NULL;
#if defined(__x86_64__)
    case SY_AVX2: return avx2_missing();
    case SY_AVX512: return avx512_missing();
    case SY_AMX: return amx_missing();
#endif
    default: return "another processor";
    }
}

int sy_level_supported(int level) { return !sy_level_missing(level); }

int sy_level_best(void)
{
    for (int level = SY_AMX; level > SY_SCALAR; level--)
        if (sy_level_supported(level))
            return level;
    return SY_SCALAR;
}

const sy_ops *sy_ops_of(int level)
{
    if (!sy_level_supported(level))
        return NULL;
#if defined(__x86_64__)
    if (level == SY_AVX2)
        return &sy_ops_avx2;
    if (level == SY_AVX512)
        return &sy_ops_avx512;
    if (level == SY_AMX)
        return &sy_ops_amx;
#endif
    return &sy_ops_scalar;
}
