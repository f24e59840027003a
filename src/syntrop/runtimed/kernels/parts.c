// SPDX-License-Identifier: Apache-2.0
/* Files mapped into one reserved range of addresses, so that whoever reads weights needs to know one buffer only. */
#define _GNU_SOURCE
#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>

#include "parts.cdef"

uint8_t *sy_parts_map(int32_t n, const int32_t *fds, const size_t *sizes, size_t extra, size_t *starts, size_t *total)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE), at = 0;
    for (int32_t i = 0; i <= n; i++) {
        size_t size = i < n ? sizes[i] : extra;
        starts[i] = at;
        if (size > (SIZE_MAX >> 2) || at > (SIZE_MAX >> 2)) {
            errno = ENOMEM;
            return NULL;
        }
        at += (size + page - 1) / page * page;
    }
    *total = at ? at : page;
    uint8_t *base = mmap(NULL, *total, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED)
        return NULL;
    for (int32_t i = 0; i < n; i++)
        if (sizes[i] &&
            mmap(base + starts[i], sizes[i], PROT_READ, MAP_SHARED | MAP_FIXED, fds[i], 0) == MAP_FAILED) {
            int why = errno;
            munmap(base, *total);
            errno = why;
            return NULL;
        }
    return base;
}

void sy_parts_unmap(uint8_t *parts, size_t total) { munmap(parts, total); }
