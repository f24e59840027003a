// SPDX-License-Identifier: Apache-2.0
/* How many 8-bit multiplies with addition a second the processor can do: `peak THREADS` prints the unit's name and
   the rate of all threads together, best of several passes. Nothing is loaded or stored in the loops: a limit, not
   an aim. Units: the matrix tiles (AMX) where they are, AVX-512 VNNI, else AVX2. */
#define _GNU_SOURCE
#include <cpuid.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define ROUNDS 400000
#define PASSES 5
#define THREADS_MAX 256

struct unit {
    const char *name;
    double work; /* multiplies a round */
    void (*run)(void);
};

__attribute__((target("avx2"))) static void avx2(void)
{
    for (int i = 0; i < ROUNDS; i++)
        __asm__ volatile(
            "vpmaddubsw %%ymm14, %%ymm15, %%ymm0\n vpmaddubsw %%ymm14, %%ymm15, %%ymm1\n"
            "vpmaddubsw %%ymm14, %%ymm15, %%ymm2\n vpmaddubsw %%ymm14, %%ymm15, %%ymm3\n"
            "vpmaddubsw %%ymm14, %%ymm15, %%ymm4\n vpmaddubsw %%ymm14, %%ymm15, %%ymm5\n"
            "vpmaddubsw %%ymm14, %%ymm15, %%ymm6\n vpmaddubsw %%ymm14, %%ymm15, %%ymm7\n" ::
                : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7");
}

#define VNNI(n) "vpdpbusd %%zmm30, %%zmm31, %%zmm" #n "\n"

__attribute__((target("avx512f"))) static void vnni(void)
{
    for (int i = 0; i < ROUNDS; i++)
        __asm__ volatile(VNNI(0) VNNI(1) VNNI(2) VNNI(3) VNNI(4) VNNI(5) VNNI(6) VNNI(7) VNNI(8) VNNI(9) VNNI(10)
                             VNNI(11) VNNI(12) VNNI(13) VNNI(14) VNNI(15) ::
                             : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9",
                               "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15");
}

static void amx(void)
{
    static const struct {
        uint8_t palette, start, reserved[14];
        uint16_t columns[16];
        uint8_t rows[16];
    } config = {.palette = 1,
                .columns = {64, 64, 64, 64, 64, 64, 64, 64},
                .rows = {16, 16, 16, 16, 16, 16, 16, 16}};
    __asm__ volatile("ldtilecfg %0" ::"m"(config));
    __asm__ volatile("tilezero %tmm4\n tilezero %tmm5\n tilezero %tmm6\n tilezero %tmm7\n");
    __asm__ volatile("tilezero %tmm0\n tilezero %tmm1\n tilezero %tmm2\n tilezero %tmm3\n");
    for (int i = 0; i < ROUNDS; i++)
        __asm__ volatile("tdpbusd %tmm4, %tmm6, %tmm0\n tdpbusd %tmm5, %tmm6, %tmm1\n"
                         "tdpbusd %tmm4, %tmm7, %tmm2\n tdpbusd %tmm5, %tmm7, %tmm3\n");
    __asm__ volatile("tilerelease");
}

static uint64_t enabled_states(void)
{
    uint32_t low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (uint64_t)high << 32 | low;
}

static struct unit best(void)
{
    uint32_t a, b, c, d;
    __builtin_cpu_init();
    uint64_t states = __get_cpuid(1, &a, &b, &c, &d) && c & 1u << 27 ? enabled_states() : 0;
    if (__get_cpuid_count(7, 0, &a, &b, &c, &d) && d & 1u << 24 && d & 1u << 25 && (states >> 17 & 3) == 3 &&
        syscall(SYS_arch_prctl, 0x1023 /* ARCH_REQ_XCOMP_PERM */, 18) == 0)
        return (struct unit){"AMX", 4.0 * 16 * 16 * 64, amx};
    if (__builtin_cpu_supports("avx512vnni"))
        return (struct unit){"AVX-512 VNNI", 16.0 * 64, vnni};
    if (__builtin_cpu_supports("avx2"))
        return (struct unit){"AVX2", 8.0 * 32, avx2};
    return (struct unit){NULL, 0, NULL};
}

static pthread_barrier_t barrier;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

struct job {
    struct unit unit;
    double began[PASSES], ended[PASSES]; /* by this thread's own look: who waits for it may be late */
};

static void *work(void *given)
{
    struct job *job = given;
    for (int pass = 0; pass < PASSES; pass++) {
        pthread_barrier_wait(&barrier);
        job->began[pass] = now();
        job->unit.run();
        job->ended[pass] = now();
    }
    return NULL;
}

int main(int argc, char **argv)
{
    int threads = argc == 2 ? atoi(argv[1]) : 0;
    struct unit unit = best();
    if (threads < 1 || threads > THREADS_MAX || !unit.run)
        return 2;
    static pthread_t thread[THREADS_MAX];
    static struct job jobs[THREADS_MAX];
    pthread_barrier_init(&barrier, NULL, (unsigned)threads);
    for (int i = 0; i < threads; i++) {
        jobs[i].unit = unit;
        if (pthread_create(&thread[i], NULL, work, &jobs[i]))
            return 3;
    }
    for (int i = 0; i < threads; i++)
        pthread_join(thread[i], NULL);
    double most = 0;
    for (int pass = 0; pass < PASSES; pass++) {
        double began = jobs[0].began[pass], ended = jobs[0].ended[pass];
        for (int i = 1; i < threads; i++) {
            began = jobs[i].began[pass] < began ? jobs[i].began[pass] : began;
            ended = jobs[i].ended[pass] > ended ? jobs[i].ended[pass] : ended;
        }
        double rate = threads * (double)ROUNDS * unit.work / (ended - began);
        most = rate > most ? rate : most;
    }
    printf("%s\t%.0f\n", unit.name, most);
    return 0;
}
