// SPDX-License-Identifier: Apache-2.0
/* A file that is shorter than its mapping, or whose disk does not give it, answers a read with SIGBUS, which would end
 * all streams of the daemon. Here such a read finds zeros, and whoever loads the file asks afterwards whether it
 * did. Every other SIGBUS goes where it went before. */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>

#include "watch.cdef"

#define WATCHES 64

/* A watch is seen by the handler from when its end is set. */
static struct {
    _Atomic uintptr_t start, end;
    _Atomic int lost;
    int taken;
} watches[WATCHES];
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER; /* of taken, and of what follows */
static int installed;
static uintptr_t page;
static struct sigaction before;

static void unreadable(int number, siginfo_t *info, void *context)
{
    (void)number;
    (void)context;
    uintptr_t at = (uintptr_t)info->si_addr;
    for (int i = 0; info->si_code == BUS_ADRERR && i < WATCHES; i++) {
        uintptr_t end = atomic_load(&watches[i].end), first = at & ~(page - 1);
        if (at >= end || at < atomic_load(&watches[i].start))
            continue;
        int saved = errno;
        /* To the end: what is behind is gone as well, or nobody wants it any more. Writable, since buffers of several
           files are. */
        void *zeros = mmap((void *)first, end - first, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_FIXED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        errno = saved;
        if (zeros == MAP_FAILED)
            break;
        atomic_store(&watches[i].lost, 1);
        return; /* the read is done again */
    }
    sigaction(SIGBUS, &before, NULL); /* and here again too, in its own way */
}

int32_t sy_watch(const void *start, size_t bytes)
{
    int32_t watch = -1;
    sigset_t bus;
    sigemptyset(&bus);
    sigaddset(&bus, SIGBUS);
    pthread_mutex_lock(&mutex);
    for (int32_t i = 0; bytes && i < WATCHES && watch < 0; i++)
        if (!watches[i].taken)
            watch = i;
    if (!installed) {
        struct sigaction action = {.sa_sigaction = unreadable, .sa_flags = SA_SIGINFO};
        page = (uintptr_t)sysconf(_SC_PAGESIZE);
        sigemptyset(&action.sa_mask);
        installed = sigaction(SIGBUS, &action, &before) == 0;
    }
    if (!installed || pthread_sigmask(SIG_UNBLOCK, &bus, NULL))
        watch = -1;
    if (watch >= 0) {
        watches[watch].taken = 1;
        atomic_store(&watches[watch].lost, 0);
        atomic_store(&watches[watch].start, (uintptr_t)start);
        atomic_store(&watches[watch].end, (uintptr_t)start + bytes);
    }
    pthread_mutex_unlock(&mutex);
    return watch;
}

int32_t sy_watch_lost(int32_t watch) { return atomic_load(&watches[watch].lost); }

void sy_watch_end(int32_t watch)
{
    pthread_mutex_lock(&mutex);
    atomic_store(&watches[watch].end, 0);
    watches[watch].taken = 0;
    pthread_mutex_unlock(&mutex);
}
