// SPDX-License-Identifier: Apache-2.0
// Tries one way out of the sandbox. Exits with 0 if it got out, with 7 if it was held, and says how on standard error.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/landlock.h>
#include <netinet/in.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

static int held(const char *what)
{
    fprintf(stderr, "held: %s: %s\n", what, strerror(errno));
    return 7;
}

static int got_out(const char *what)
{
    fprintf(stderr, "out: %s\n", what);
    return 0;
}

static int try_write(const char *path)
{
    int f = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0644);
    if (f < 0 || write(f, "x", 1) != 1)
        return held("write");
    return got_out("wrote");
}

static int try_read(const char *path)
{
    char byte;
    int f = open(path, O_RDONLY);
    if (f < 0 || read(f, &byte, 1) != 1)
        return held("read");
    return got_out("read");
}

int main(int argc, char **argv)
{
    const char *way = argc > 1 ? argv[1] : "", *with = argc > 2 ? argv[2] : "";
    if (!strcmp(way, "nothing"))
        return 0;
    if (!strcmp(way, "write"))
        return try_write(with);
    if (!strcmp(way, "read"))
        return try_read(with);
    if (!strcmp(way, "truncate")) {
        int f = open(with, O_RDONLY | O_TRUNC);
        return f < 0 ? held("open with O_TRUNC") : got_out("truncated");
    }
    if (!strcmp(way, "truncate-path"))
        return truncate(with, 0) < 0 ? held("truncate") : got_out("truncated");
    if (!strcmp(way, "symlink")) { // a link that is put where writing is allowed, to where it is not
        unlink("/tmp/way");
        if (symlinkat(with, AT_FDCWD, "/tmp/way") < 0)
            return held("symlink");
        return try_write("/tmp/way");
    }
    if (!strcmp(way, "swap")) { // a name that changes from a file to a link between look and use
        for (int i = 0; i < 200; i++) {
            unlink("/tmp/way");
            int f = open("/tmp/way", O_CREAT | O_WRONLY, 0600);
            if (f >= 0)
                close(f);
            unlink("/tmp/way");
            if (symlinkat(with, AT_FDCWD, "/tmp/way") < 0)
                return held("symlink");
            if (!try_write("/tmp/way"))
                return 0;
        }
        return 7;
    }
    if (!strcmp(way, "rename")) { // what may be written, moved to where nothing may
        const char *own = argc > 3 ? argv[3] : "/tmp/own";
        int f = open(own, O_CREAT | O_WRONLY, 0600);
        if (f < 0)
            return held("open");
        if (rename(own, with) < 0 && link(own, with) < 0)
            return held("rename");
        return got_out("renamed");
    }
    if (!strcmp(way, "fork")) {
        int children = 0;
        for (int i = 0; i < 4; i++) {
            pid_t child = fork();
            if (child == 0) {
                close(1);
                close(2);
                pause();
                _exit(0);
            }
            if (child < 0)
                return held("fork");
            children++;
        }
        fprintf(stderr, "out: %d children\n", children);
        return 0;
    }
    if (!strcmp(way, "orphan")) { // a grandchild in a session of its own, that outlives everybody
        if (fork() == 0) {
            setsid();
            if (fork() == 0) {
                close(1);
                close(2);
                for (;;)
                    pause();
            }
            _exit(0);
        }
        printf("started\n");
        return 0;
    }
    if (!strcmp(way, "ptrace"))
        return ptrace(PTRACE_SEIZE, atoi(with), NULL, NULL) < 0 ? held("ptrace") : got_out("attached");
    if (!strcmp(way, "kill"))
        return kill(atoi(with), 0) < 0 ? held("kill") : got_out("signalled");
    if (!strcmp(way, "unix") || !strcmp(way, "abstract")) {
        struct sockaddr_un to = {.sun_family = AF_UNIX};
        socklen_t size = sizeof to;
        int s = socket(AF_UNIX, SOCK_STREAM, 0);
        if (s < 0)
            return held("socket");
        if (way[0] == 'a') {
            strncpy(to.sun_path + 1, with, sizeof to.sun_path - 2);
            size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + strlen(with));
        } else {
            strncpy(to.sun_path, with, sizeof to.sun_path - 1);
        }
        return connect(s, (struct sockaddr *)&to, size) < 0 ? held("connect") : got_out("connected");
    }
    if (!strcmp(way, "inet"))
        return socket(AF_INET, SOCK_STREAM, 0) < 0 ? held("socket") : got_out("has an Internet socket");
    if (!strcmp(way, "loopback")) { // to what listens on this machine
        struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(atoi(with)), .sin_addr = {htonl(0x7f000001)}};
        int s = socket(AF_INET, SOCK_STREAM, 0);
        if (s < 0 || connect(s, (struct sockaddr *)&to, sizeof to) < 0)
            return held("connect");
        return got_out("connected");
    }
    if (!strcmp(way, "exists")) { // what Landlock lets everybody know
        struct stat status;
        return stat(with, &status) < 0 ? held("stat") : got_out("is there");
    }
    if (!strcmp(way, "packet"))
        return socket(AF_PACKET, SOCK_RAW, 0) < 0 ? held("socket") : got_out("has a packet socket");
    if (!strcmp(way, "unshare"))
        return unshare(CLONE_NEWUSER | CLONE_NEWNS) < 0 ? held("unshare") : got_out("has namespaces");
    if (!strcmp(way, "mount"))
        return mount("none", "/usr", "tmpfs", 0, NULL) < 0 ? held("mount") : got_out("mounted");
    if (!strcmp(way, "fd")) { // whatever the parent had open
        int found = 0;
        for (int f = 3; f < 1024; f++)
            if (fcntl(f, F_GETFD) >= 0)
                found++;
        errno = EBADF;
        return found ? got_out("has descriptors") : held("descriptors");
    }
    if (!strcmp(way, "environment"))
        return getenv("SECRET_OF_THE_PARENT") ? got_out("has the environment") : held("environment");
    if (!strcmp(way, "mem")) {
        char path[64];
        snprintf(path, sizeof path, "/proc/%s/mem", with);
        int f = open(path, O_RDWR);
        return f < 0 ? held("mem") : got_out("opened memory");
    }
    if (!strcmp(way, "environ")) {
        char path[64];
        snprintf(path, sizeof path, "/proc/%s/environ", with);
        return try_read(path);
    }
    if (!strcmp(way, "root")) { // through another process's view of the root
        char path[4200];
        snprintf(path, sizeof path, "/proc/%s/root%s", with, argc > 3 ? argv[3] : "");
        return try_read(path);
    }
    if (!strcmp(way, "exec")) {
        execl("/bin/sh", "sh", "-c", "exit 0", NULL);
        return held("exec");
    }
    if (!strcmp(way, "memfd-exec")) {
        int f = memfd_create("x", 0);
        if (f < 0)
            return held("memfd_create");
        return got_out("has a memory file to execute");
    }
    if (!strcmp(way, "writable-code")) {
        void *p = mmap(NULL, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        return p == MAP_FAILED ? held("mmap") : got_out("has writable code");
    }
    if (!strcmp(way, "memory")) {
        for (size_t i = 0; i < 64; i++) {
            char *p = mmap(NULL, 1UL << 30, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
            if (p == MAP_FAILED)
                return held("mmap");
        }
        return got_out("has 64 GiB of addresses");
    }
    if (!strcmp(way, "raise-limits")) {
        unsigned long limits[2] = {~0UL, ~0UL};
        return syscall(SYS_prlimit64, 0, 9 /* AS */, limits, NULL) < 0 ? held("prlimit") : got_out("no limit");
    }
    if (!strcmp(way, "large-file")) {
        int f = open("/tmp/large", O_CREAT | O_WRONLY, 0600);
        signal(SIGXFSZ, SIG_IGN);
        char block[4096] = {0};
        for (int i = 0; i < 4096; i++)
            if (f < 0 || write(f, block, sizeof block) < 0)
                return held("write");
        return got_out("wrote 16 MiB");
    }
    if (!strcmp(way, "capabilities")) { // chown(2) of a file of its own to somebody else
        char line[256];
        FILE *status = fopen("/proc/self/status", "r");
        unsigned long permitted = 1, bounding = 1;
        while (status && fgets(line, sizeof line, status)) {
            sscanf(line, "CapPrm: %lx", &permitted);
            sscanf(line, "CapBnd: %lx", &bounding);
        }
        errno = EPERM;
        return permitted ? got_out("has capabilities") : held("capabilities");
    }
    if (!strcmp(way, "privileges")) // only looked at: what set-id programs would be refused by
        return prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == 1 ? held("no-new-privileges") : got_out("may gain privileges");
    if (!strcmp(way, "ioctl")) // one that every descriptor takes, and no tool needs
        return ioctl(1, 0x5451 /* FIOCLEX */) < 0 ? held("ioctl") : got_out("any ioctl");
    if (!strcmp(way, "handle")) { // open by handle goes round every path
        struct file_handle *handle = calloc(1, sizeof *handle + 128);
        int mount_id;
        handle->handle_bytes = 128;
        if (name_to_handle_at(AT_FDCWD, "/", handle, &mount_id, 0) < 0)
            return held("name_to_handle_at");
        return got_out("has a handle");
    }
    if (!strcmp(way, "spin"))
        for (;;)
            ;
    if (!strcmp(way, "sleep"))
        for (;;)
            pause();
    if (!strcmp(way, "shout"))
        for (;;)
            if (write(1, "shout shout shout\n", 18) < 0)
                return 1;
    if (!strcmp(way, "relax")) { // a second, laxer ruleset must not undo the first
        struct landlock_ruleset_attr attr = {.handled_access_fs = LANDLOCK_ACCESS_FS_EXECUTE};
        int ruleset = (int)syscall(444, &attr, sizeof attr, 0);
        if (ruleset >= 0)
            syscall(446, ruleset, 0);
        return try_read(with);
    }
    fprintf(stderr, "unknown way %s\n", way);
    return 2;
}
