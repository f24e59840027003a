// SPDX-License-Identifier: Apache-2.0
/* A persistent pool of threads, one for the process.
 *
 * A job is a list of stages; a stage is a number of items that threads claim in chunks. Whoever finds nothing
 * left to claim waits until the claimed items are done, and goes on to the next stage. What counts is that the
 * work is done, not that everybody came: a worker that the system does not run (other programs want the
 * processors too) is not waited for unless it holds a chunk, and when it comes late, it walks past what the
 * others did meanwhile.
 *
 * The caller is one of the threads and sees every stage through. A worker is inside the job only while it may
 * touch the job's data: it leaves the gate before it waits and asks to be let in again, so the caller can
 * return as soon as nobody is inside. The counters of the stages belong to the pool, not to the job, since a
 * worker outside the gate still looks at them.
 *
 * Waiting is a short spin, since the next stage is microseconds away, and then a sleep: an idle pool costs nothing.
 */
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>

#include "engine.h"

#define SPINS 2000 /* about 20 to 80 µs, by processor */

static pthread_mutex_t user = PTHREAD_MUTEX_INITIALIZER; /* held for a job, and to change the pool */
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER; /* guards sleeping only */
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static _Atomic int sleepers;

static pthread_t workers[MAX_THREADS];
static int n_workers; /* without the caller */
static int holders;

/* number of the job << 32 | OPEN | threads that may take part << 16 | workers inside */
static _Atomic uint64_t gate;
#define JOB(word) ((word) >> 32)
#define OPEN ((uint64_t)1 << 31)
#define MAY(word) ((int)((word) >> 16 & 0x7fff))
#define INSIDE(word) ((int)((word) & 0xffff))

static sy_job job_function; /* read inside the gate only */
static void *job_argument;

static struct {
    _Atomic int32_t next, done;
} stages[SY_MAX_STAGES];

static inline void relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ __volatile__("yield");
#endif
}

/* Whoever changes something that may be waited for says so. Either this sees the sleeper, or the sleeper, who
   counted himself before he looked, sees the change. */
static void tell(void)
{
    if (atomic_load(&sleepers)) {
        pthread_mutex_lock(&mutex);
        pthread_cond_broadcast(&changed);
        pthread_mutex_unlock(&mutex);
    }
}

#define WAIT_UNTIL(condition)                                                                                  \
    do {                                                                                                       \
        int spins = SPINS;                                                                                     \
        while (spins && !(condition)) {                                                                        \
            relax();                                                                                           \
            spins--;                                                                                           \
        }                                                                                                      \
        if (spins)                                                                                             \
            break;                                                                                             \
        pthread_mutex_lock(&mutex);                                                                            \
        atomic_fetch_add(&sleepers, 1);                                                                        \
        while (!(condition))                                                                                   \
            pthread_cond_wait(&changed, &mutex);                                                               \
        atomic_fetch_sub(&sleepers, 1);                                                                        \
        pthread_mutex_unlock(&mutex);                                                                          \
    } while (0)

static int enter(sy_walk *w)
{
    uint64_t word = atomic_load(&gate);
    do {
        if (JOB(word) != w->job || !(word & OPEN) || w->thread >= MAY(word))
            return 0;
    } while (!atomic_compare_exchange_weak(&gate, &word, word + 1));
    w->inside = 1;
    return 1;
}

static void leave(sy_walk *w)
{
    w->inside = 0;
    uint64_t word = atomic_fetch_sub(&gate, 1) - 1;
    if (!(word & OPEN) && INSIDE(word) == 0)
        tell(); /* the caller waits for the last one */
}

int sy_claim(sy_walk *w, int32_t total, int32_t chunk, int32_t *first, int32_t *last)
{
    int32_t at = atomic_fetch_add_explicit(&stages[w->stage].next, chunk, memory_order_relaxed);
    if (at >= total)
        return 0;
    *first = at;
    *last = total - at < chunk ? total : at + chunk;
    w->claimed += *last - at;
    return 1;
}

int sy_stage_end(sy_walk *w, int32_t total)
{
    _Atomic int32_t *done = &stages[w->stage].done;
    int32_t mine = w->claimed;
    w->claimed = 0;
    w->stage++;
    if (mine && atomic_fetch_add(done, mine) + mine == total) {
        if (w->threads > 1)
            tell();
        return 1;
    }
    if (atomic_load(done) == total)
        return 1;
    if (w->thread == 0) {
        WAIT_UNTIL(atomic_load(done) == total);
        return 1;
    }
    leave(w);
    WAIT_UNTIL(atomic_load(done) == total || JOB(atomic_load(&gate)) != w->job);
    return enter(w);
}

static void *work(void *p)
{
    sy_walk w = *(sy_walk *)p;
    free(p);
    for (;;) {
        uint64_t seen = w.job;
        WAIT_UNTIL(JOB(atomic_load(&gate)) != seen);
        uint64_t word = atomic_load(&gate);
        w = (sy_walk){.thread = w.thread, .threads = MAY(word), .job = JOB(word)};
        if (w.threads == 0) /* the pool closes */
            return NULL;
        if (enter(&w)) {
            job_function(job_argument, &w);
            if (w.inside)
                leave(&w);
        }
    }
}

static int grow(int threads)
{
    if (threads > MAX_THREADS)
        threads = MAX_THREADS;
    /* Signals are for the interpreter's own threads, but for what a thread's own reads may raise (watch.c). */
    sigset_t all, old;
    sigfillset(&all);
    sigdelset(&all, SIGBUS);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int result = 0;
    while (n_workers < threads - 1) {
        sy_walk *birth = malloc(sizeof *birth);
        if (!birth) {
            result = SY_ERR_MEMORY;
            break;
        }
        *birth = (sy_walk){.thread = n_workers + 1, .job = JOB(atomic_load(&gate))};
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

static void open_gate(int threads)
{
    atomic_store(&gate, (JOB(atomic_load(&gate)) + 1) << 32 | (threads ? OPEN : 0) | (uint64_t)threads << 16);
    tell();
}

static void disband(void)
{
    open_gate(0);
    for (int i = 0; i < n_workers; i++)
        pthread_join(workers[i], NULL);
    n_workers = 0;
}

int sy_pool_acquire(int threads)
{
    pthread_mutex_lock(&user);
    int result = grow(threads);
    if (result == 0)
        holders++;
    else if (holders == 0)
        disband();
    pthread_mutex_unlock(&user);
    return result;
}

void sy_pool_release(void)
{
    pthread_mutex_lock(&user);
    if (--holders == 0)
        disband();
    pthread_mutex_unlock(&user);
}

void sy_pool_run(sy_job job, void *arg, int threads, int n_stages)
{
    pthread_mutex_lock(&user);
    if (threads > n_workers + 1)
        threads = n_workers + 1;
    for (int i = 0; i < n_stages; i++) {
        atomic_store_explicit(&stages[i].next, 0, memory_order_relaxed);
        atomic_store_explicit(&stages[i].done, 0, memory_order_relaxed);
    }
    job_function = job;
    job_argument = arg;
    if (threads > 1)
        open_gate(threads);
    sy_walk w = {.threads = threads};
    job(arg, &w);
    if (threads > 1 && INSIDE(atomic_fetch_and(&gate, ~OPEN)))
        WAIT_UNTIL(INSIDE(atomic_load(&gate)) == 0);
    pthread_mutex_unlock(&user);
}
