// SPDX-License-Identifier: Apache-2.0
/* A persistent pool of threads, one for the process.
 *
 * A job runs once on every thread that takes part, the caller being thread 0, and the threads meet at barriers
 * inside it: a whole forward is one job. Waiting is a short spin, since the next stage is microseconds away,
 * and then a sleep, so that an idle pool costs nothing and a preempted thread is not spun against.
 */
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>

#include "engine.h"

#define SPINS 2000 /* about 20 to 80 µs, by processor */

static pthread_mutex_t user = PTHREAD_MUTEX_INITIALIZER; /* held for a job, and to change the pool */
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER; /* guards sleeping only */
static pthread_cond_t wake = PTHREAD_COND_INITIALIZER; /* a new ticket */
static pthread_cond_t meet = PTHREAD_COND_INITIALIZER; /* a new phase */

static pthread_t workers[MAX_THREADS];
static int n_workers; /* without the caller */
static int holders;

/* Number of the job << 16 | threads that take part. One word, so that a thread that sits a job out reads
   nothing else of it. */
static _Atomic uint64_t ticket;
static sy_job job_function;
static void *job_argument;
static _Atomic int job_sleepers;

static _Atomic int arrived;
static _Atomic uint32_t phase;
static _Atomic int phase_sleepers;

static inline void relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ __volatile__("yield");
#endif
}

void sy_barrier(int threads)
{
    if (threads < 2)
        return;
    uint32_t now = atomic_load(&phase);
    if (atomic_fetch_add(&arrived, 1) + 1 == threads) {
        atomic_store(&arrived, 0);
        atomic_fetch_add(&phase, 1);
        /* Either this sees the sleeper, or the sleeper, who counted himself first, sees the new phase. */
        if (atomic_load(&phase_sleepers)) {
            pthread_mutex_lock(&mutex);
            pthread_cond_broadcast(&meet);
            pthread_mutex_unlock(&mutex);
        }
        return;
    }
    for (int i = 0; i < SPINS; i++) {
        if (atomic_load_explicit(&phase, memory_order_acquire) != now)
            return;
        relax();
    }
    pthread_mutex_lock(&mutex);
    atomic_fetch_add(&phase_sleepers, 1);
    while (atomic_load(&phase) == now)
        pthread_cond_wait(&meet, &mutex);
    atomic_fetch_sub(&phase_sleepers, 1);
    pthread_mutex_unlock(&mutex);
}

static uint64_t next_ticket(uint64_t seen)
{
    uint64_t now;
    for (int i = 0; i < SPINS; i++) {
        now = atomic_load_explicit(&ticket, memory_order_acquire);
        if (now != seen)
            return now;
        relax();
    }
    pthread_mutex_lock(&mutex);
    atomic_fetch_add(&job_sleepers, 1);
    while ((now = atomic_load(&ticket)) == seen)
        pthread_cond_wait(&wake, &mutex);
    atomic_fetch_sub(&job_sleepers, 1);
    pthread_mutex_unlock(&mutex);
    return now;
}

static void publish(int threads)
{
    uint64_t old = atomic_load(&ticket);
    atomic_store(&ticket, (((old >> 16) + 1) << 16) | (uint64_t)threads);
    if (atomic_load(&job_sleepers)) {
        pthread_mutex_lock(&mutex);
        pthread_cond_broadcast(&wake);
        pthread_mutex_unlock(&mutex);
    }
}

struct birth {
    int index;
    uint64_t seen;
};

static void *work(void *p)
{
    struct birth birth = *(struct birth *)p;
    free(p);
    uint64_t seen = birth.seen;
    for (;;) {
        seen = next_ticket(seen);
        int threads = (int)(seen & 0xffff);
        if (threads == 0) /* the pool closes */
            return NULL;
        if (birth.index < threads) {
            job_function(job_argument, birth.index, threads);
            sy_barrier(threads);
        }
    }
}

static int grow(int threads)
{
    if (threads > MAX_THREADS)
        threads = MAX_THREADS;
    /* Signals are for the interpreter's own threads. */
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int result = 0;
    while (n_workers < threads - 1) {
        struct birth *birth = malloc(sizeof *birth);
        if (!birth) {
            result = SY_ERR_MEMORY;
            break;
        }
        *birth = (struct birth){n_workers + 1, atomic_load(&ticket)};
        if (pthread_create(&workers[n_workers], NULL, work, birth)) {
            free(birth);
            result = SY_ERR_MEMORY;
            break;
        }
        n_workers++;
    }
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return result;
}

int sy_pool_grow(int threads)
{
    pthread_mutex_lock(&user);
    int result = grow(threads);
    pthread_mutex_unlock(&user);
    return result;
}

int sy_pool_acquire(int threads)
{
    pthread_mutex_lock(&user);
    int result = grow(threads);
    if (result == 0)
        holders++;
    pthread_mutex_unlock(&user);
    return result;
}

void sy_pool_release(void)
{
    pthread_mutex_lock(&user);
    if (--holders == 0 && n_workers) {
        publish(0);
        for (int i = 0; i < n_workers; i++)
            pthread_join(workers[i], NULL);
        n_workers = 0;
    }
    pthread_mutex_unlock(&user);
}

int sy_pool_run(sy_job job, void *arg, int threads)
{
    pthread_mutex_lock(&user);
    if (threads > n_workers + 1)
        threads = n_workers + 1;
    if (threads > 1) {
        job_function = job;
        job_argument = arg;
        publish(threads);
    }
    job(arg, 0, threads);
    sy_barrier(threads);
    pthread_mutex_unlock(&user);
    return threads;
}
