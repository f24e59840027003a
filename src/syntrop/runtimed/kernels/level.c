// SPDX-License-Identifier: Apache-2.0
/* Which instruction-set level this processor and its kernel allow. */
#include "engine.h"

int sy_level_supported(int level)
{
    if (level == SY_SCALAR)
        return 1;
#if defined(__x86_64__)
    /* The builtins ask XGETBV too: a processor may have registers that the kernel does not save. */
    __builtin_cpu_init();
    if (level == SY_AVX2)
        return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
               __builtin_cpu_supports("f16c");
    if (level == SY_AVX512)
        return sy_level_supported(SY_AVX2) && __builtin_cpu_supports("avx512f") &&
               __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
               __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vnni");
#endif
    return 0;
}

int sy_level_best(void)
{
    for (int level = SY_AVX512; level > SY_SCALAR; level--)
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
#endif
    return &sy_ops_scalar;
}
