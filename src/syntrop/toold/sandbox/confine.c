// SPDX-License-Identifier: Apache-2.0
// Starts a program with everything taken from it that it does not need, or does not start it.
//
// Between fork(2) and execve(2) only system calls happen: the parent has threads, and their locks are not ours.
// The C library's headers may be older than the kernel, so that calls and constants are given by number.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "confine.cdef"

// The same on every architecture (asm-generic/unistd.h).
#define NR_CLOSE_RANGE 436
#define NR_LANDLOCK_CREATE_RULESET 444
#define NR_LANDLOCK_ADD_RULE 445
#define NR_LANDLOCK_RESTRICT_SELF 446

#define RULE_PATH_BENEATH 1
#define CREATE_RULESET_VERSION 1

// linux/landlock.h; the kernel takes any prefix of ruleset_attr whose rest would be zero.
struct ruleset_attr {
    uint64_t handled_fs, handled_net, scoped;
};
struct path_beneath {
    uint64_t access;
    int32_t parent;
} __attribute__((packed));

static int failed(struct syn_fault *fault, int stage, int index)
{
    fault->stage = stage;
    fault->number = errno;
    fault->index = index;
    return -1;
}

int syn_landlock_abi(void)
{
    long version = syscall(NR_LANDLOCK_CREATE_RULESET, NULL, 0, CREATE_RULESET_VERSION);
    return version < 0 ? 0 : (int)version;
}

static int restrict_files(const struct syn_landlock *landlock, struct syn_fault *fault)
{
    struct ruleset_attr attr = {landlock->handled_fs, landlock->handled_net, landlock->scoped};
    size_t size = attr.scoped ? sizeof attr : attr.handled_net ? 16 : 8;
    int ruleset = (int)syscall(NR_LANDLOCK_CREATE_RULESET, &attr, size, 0);
    if (ruleset < 0)
        return failed(fault, SYN_AT_RULESET, 0);
    for (int i = 0; i < landlock->count; i++) {
        const struct syn_rule *rule = &landlock->rules[i];
        int parent = open(rule->path, O_PATH | O_CLOEXEC);
        if (parent < 0) {
            if (rule->optional && (errno == ENOENT || errno == ENOTDIR || errno == EACCES))
                continue;
            failed(fault, SYN_AT_RULE, i);
            close(ruleset);
            return -1;
        }
        struct path_beneath beneath = {rule->access & landlock->handled_fs, parent};
        long added = syscall(NR_LANDLOCK_ADD_RULE, ruleset, RULE_PATH_BENEATH, &beneath, 0);
        if (added < 0)
            failed(fault, SYN_AT_RULE, i);
        close(parent);
        if (added < 0) {
            close(ruleset);
            return -1;
        }
    }
    long done = syscall(NR_LANDLOCK_RESTRICT_SELF, ruleset, 0);
    if (done < 0)
        failed(fault, SYN_AT_RESTRICT, 0);
    close(ruleset);
    return done < 0 ? -1 : 0;
}

int syn_confine_thread(const struct syn_landlock *landlock, struct syn_fault *fault)
{
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
        return failed(fault, SYN_AT_NNP, 0);
    return restrict_files(landlock, fault);
}

// --- the child ---------------------------------------------------------------------------------------------------

static int drop_capabilities(void)
{
    struct __user_cap_header_struct head = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct none[2] = {{0, 0, 0}, {0, 0, 0}};
    if (prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0) < 0)
        return -1;
    // Root would get the bounding set back at its next execve(2): close that way too, where we may.
    for (int one = 0; prctl(PR_CAPBSET_READ, one, 0, 0, 0) >= 0; one++)
        if (prctl(PR_CAPBSET_DROP, one, 0, 0, 0) < 0)
            break;
    return (int)syscall(SYS_capset, &head, none);
}

static int set_limits(const struct syn_spawn *spec, int *index)
{
    for (*index = 0; *index < spec->limit_count; ++*index) {
        struct rlimit limit = {spec->limits[*index].value, spec->limits[*index].value};
        struct rlimit now;
        if (getrlimit(spec->limits[*index].resource, &now) < 0)
            return -1;
        if (now.rlim_max < limit.rlim_max) // one that is stricter already stays
            limit.rlim_cur = limit.rlim_max = now.rlim_max;
        if (setrlimit(spec->limits[*index].resource, &limit) < 0)
            return -1;
    }
    return 0;
}

// Descriptors 0, 1 and 2 as given, `status` as 3 and closed on exec, nothing else.
static int set_descriptors(const struct syn_spawn *spec, int *status)
{
    int in = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (in < 0)
        return -1;
    // Above all that is overwritten first, so that no source is.
    int out = fcntl(spec->out, F_DUPFD_CLOEXEC, 16);
    int err = fcntl(spec->err, F_DUPFD_CLOEXEC, 16);
    int report = fcntl(*status, F_DUPFD_CLOEXEC, 16);
    int null = fcntl(in, F_DUPFD_CLOEXEC, 16);
    if (out < 0 || err < 0 || report < 0 || null < 0)
        return -1;
    if (dup2(null, 0) < 0 || dup2(out, 1) < 0 || dup2(err, 2) < 0 || dup3(report, 3, O_CLOEXEC) < 0)
        return -1;
    *status = 3;
    if (!(spec->layers & SYN_FDS))
        return 0;
    return (int)syscall(NR_CLOSE_RANGE, 4U, ~0U, 0);
}

static int enter_group(int folder)
{
    int procs = openat(folder, "cgroup.procs", O_WRONLY | O_CLOEXEC);
    if (procs < 0)
        return -1;
    ssize_t done = write(procs, "0", 1);
    close(procs);
    return done == 1 ? 0 : -1;
}

// Somebody else's namespaces, made for us. To enter the first gives the rights that the others take.
static int enter_view(const int *view)
{
    for (int i = 0; i < 3 && view[i] >= 0; i++)
        if (setns(view[i], 0) < 0)
            return -1;
    return 0;
}

static int enter_session(void)
{
    struct sigaction standard = {.sa_handler = SIG_DFL};
    sigset_t none;
    for (int number = 1; number < 65; number++)
        sigaction(number, &standard, NULL); // SIGKILL and friends refuse, as they should
    sigemptyset(&none);
    if (sigprocmask(SIG_SETMASK, &none, NULL) < 0 || setsid() < 0 || chdir("/") < 0)
        return -1;
    umask(077);
    return 0;
}

// After the last change of credentials, which would take it back (see PR_SET_PDEATHSIG in prctl(2)).
static int die_with_parent(int status)
{
    if (prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0) < 0)
        return -1;
    // It may have died before we asked. Its number says nothing in a process namespace of our own; that nobody
    // is left to hear of us does.
    struct pollfd listener = {status, 0, 0};
    if (poll(&listener, 1, 0) == 0)
        return 0;
    errno = ESRCH;
    return -1;
}

// One namespace at a time: a kernel, or a unit, that refuses one may allow another. Tells of the first refusal.
static int enter_namespaces(const struct syn_spawn *spec, struct syn_fault *fault)
{
    // A view has a user namespace already.
    int entered = spec->view[0] >= 0 ? CLONE_NEWUSER & spec->namespaces : 0;
    // The user namespace first: within it the others need no privilege. Its capabilities go with the rest.
    for (int i = -1; i < 31; i++) {
        int one = spec->namespaces & ~entered & (i < 0 ? CLONE_NEWUSER : 1 << i);
        if (!one)
            continue;
        if (unshare(one) == 0)
            entered |= one;
        else if (spec->required & one && !fault->stage)
            failed(fault, SYN_AT_NAMESPACE, one);
    }
    return entered;
}

// In a mount namespace of its own only: elsewhere it would be everybody's.
static int bind_scratch(const char *scratch, int namespaces)
{
    if (!(namespaces & CLONE_NEWNS)) {
        errno = EPERM;
        return -1;
    }
    if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0)
        return -1;
    return mount(scratch, "/tmp", NULL, MS_BIND, NULL);
}

struct report {
    struct syn_fault fault;
    int namespaces;
    pid_t heir; // who goes on in place of the child; else 0
};

static void tell(int status, const struct report *report)
{
    if (write(status, report, sizeof *report) != (ssize_t)sizeof *report)
        _exit(126);
}

// fork(2) without the C library's part in it, which is for the process that we are a copy of.
static pid_t plain_fork(unsigned long flags)
{
#if defined(__x86_64__) || defined(__aarch64__)
    return (pid_t)syscall(SYS_clone, flags | SIGCHLD, NULL, NULL, NULL, NULL);
#else
    (void)flags;
    errno = ENOSYS;
    return -1;
#endif
}

// The first process of a namespace: it waits for the program, and its end is the end of all that are in there.
static void preside(pid_t program)
{
    int how;
    pid_t gone;
    (void)syscall(NR_CLOSE_RANGE, 0U, ~0U, 0);
    while ((gone = waitpid(-1, &how, 0)) != program)
        if (gone < 0 && errno != EINTR)
            _exit(126);
    _exit(WIFEXITED(how) ? WEXITSTATUS(how) : 128 + WTERMSIG(how));
}

// What needs open descriptors, or makes namespaces; then, where there is one for processes, as its first process.
static void enter(const struct syn_spawn *spec, int *status, struct report *report)
{
    struct syn_fault *fault = &report->fault;
    if (spec->cgroup >= 0 && enter_group(spec->cgroup) < 0)
        failed(fault, SYN_AT_CGROUP, 0);
    else if (enter_view(spec->view) < 0)
        failed(fault, SYN_AT_VIEW, 0);
    else if (set_descriptors(spec, status) < 0)
        failed(fault, SYN_AT_FDS, 0);
    else
        report->namespaces = enter_namespaces(spec, fault);
    if (fault->stage || !(report->namespaces & CLONE_NEWPID))
        return;
    // Whoever waits for us, and is to take us with it, does so for the heir as well.
    pid_t heir = plain_fork(CLONE_PARENT);
    if (heir < 0) {
        failed(fault, SYN_AT_FORK, 0);
    } else if (heir > 0) {
        report->heir = heir;
        tell(*status, report);
        _exit(0);
    }
}

static void child(const struct syn_spawn *spec, int status)
{
    struct report report = {{0, 0, 0}, 0, 0};
    struct syn_fault *fault = &report.fault;
    struct sock_fprog program = {(unsigned short)spec->filter_length, (struct sock_filter *)spec->filter};
    int index = 0;

    enter(spec, &status, &report);
    // In this order: what takes privileges, before they go; the filter last, since it forbids what others need.
    if (fault->stage)
        ;
    else if (spec->layers & SYN_SESSION && enter_session() < 0)
        failed(fault, SYN_AT_SESSION, 0);
    else if (spec->scratch && bind_scratch(spec->scratch, report.namespaces) < 0)
        failed(fault, SYN_AT_SCRATCH, 0);
    else if (spec->layers & SYN_CAPS && drop_capabilities() < 0)
        failed(fault, SYN_AT_CAPS, 0);
    else if (spec->layers & SYN_SESSION && die_with_parent(status) < 0)
        failed(fault, SYN_AT_SESSION, 0);
    else if (spec->layers & SYN_NNP && prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
        failed(fault, SYN_AT_NNP, 0);
    if (!fault->stage && report.namespaces & CLONE_NEWPID) {
        // Programs behave in other ways as the first process (systemd's log to the console): the second, then.
        pid_t second = plain_fork(0);
        if (second < 0)
            failed(fault, SYN_AT_FORK, 0);
        else if (second > 0)
            preside(second);
    }
    if (fault->stage)
        ;
    else if (spec->layers & SYN_LIMITS && set_limits(spec, &index) < 0)
        failed(fault, SYN_AT_LIMITS, index);
    else if (spec->layers & SYN_LANDLOCK && restrict_files(&spec->landlock, fault) < 0)
        ;
    else if (spec->layers & SYN_SECCOMP && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0) < 0)
        failed(fault, SYN_AT_SECCOMP, 0);
    else {
        // All is in force. The parent hears of it before the program's first instruction.
        tell(status, &report);
        execve(spec->program, spec->argv, spec->envp);
        failed(fault, SYN_AT_EXEC, 0);
    }
    tell(status, &report);
    _exit(127);
}

static void reap(pid_t pid)
{
    while (waitpid(pid, NULL, 0) < 0 && errno == EINTR)
        ;
}

int syn_start(const struct syn_spawn *spec, struct syn_fault *fault, int *namespaces)
{
    int ends[2];
    struct report report = {{0, 0, 0}, 0, 0}, next;
    if (pipe2(ends, O_CLOEXEC) < 0)
        return failed(fault, SYN_AT_PIPE, 0);
    pid_t pid = fork();
    if (pid < 0) {
        failed(fault, SYN_AT_FORK, 0);
        close(ends[0]);
        close(ends[1]);
        return -1;
    }
    if (pid == 0) {
        close(ends[0]);
        child(spec, ends[1]);
        _exit(127);
    }
    close(ends[1]);
    // One report says that all layers hold; the end of the pipe then says that the program runs. One more tells
    // who goes on in the child's place.
    int reports = 0;
    pid_t heir = 0;
    ssize_t got;
    while ((got = read(ends[0], &next, sizeof next)) != 0) {
        if (got < 0 && errno == EINTR)
            continue;
        if (got != (ssize_t)sizeof next)
            break;
        if (next.heir) {
            heir = next.heir;
            continue;
        }
        report = next;
        reports++;
    }
    close(ends[0]);
    if (heir) {
        reap(pid);
        pid = heir;
    }
    if (reports == 1 && !report.fault.stage) {
        *namespaces = report.namespaces;
        return pid;
    }
    kill(pid, SIGKILL);
    reap(pid);
    *fault = report.fault;
    if (!fault->stage) { // it died on the way without a word
        errno = ECHILD;
        failed(fault, SYN_AT_EXEC, 0);
    }
    return -1;
}
