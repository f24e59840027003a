// SPDX-License-Identifier: Apache-2.0
//
// syntrop-triage UNIT: what OnFailure= starts. It tells systemd-sentry that a unit failed, and is gone: one Varlink
// call (io.syntrop.Sentry1.ReportFailure) over its socket. No interpreter, since 200 units may fail at once.
//
// It knocks on the sockets of the daemons that sentry will ask, so that those that sleep start side by side with it.
//
// What the manager knows of the failure is in MONITOR_INVOCATION_ID, MONITOR_SERVICE_RESULT, MONITOR_EXIT_CODE and
// MONITOR_EXIT_STATUS (systemd.exec(5), since 251; absent where several units failed into one). The socket is
// SYNTROP_RUN_ROOT/systemd-sentry/sentry.sock, in /run by default. It exits with 0 once sentry has it; else it says
// why on its standard error, which is the journal's, and exits with 1.

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum { DEADLINE_MS = 15000, RETRY_MS = 2000, PAUSE_MS = 50, MESSAGE_MAX = 8192, REPLY_MAX = 65536, VALUE_MAX = 1024 };

static long now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000L + now.tv_nsec / 1000000L;
}

static int fail(const char *unit, const char *what, const char *why)
{
    fprintf(stderr, "<3>The failure of %s could not be told to systemd-sentry: %s%s%s\n", unit, what, why ? ": " : "",
            why ? why : "");
    return EXIT_FAILURE;
}

struct message {
    char text[MESSAGE_MAX];
    size_t length;
};

static void put(struct message *message, const char *text)
{
    size_t length = strlen(text);
    if (length >= sizeof message->text - message->length)
        length = sizeof message->text - message->length - 1; // cannot be: every value is bounded
    memcpy(message->text + message->length, text, length);
    message->length += length;
    message->text[message->length] = '\0';
}

// A name and a value of JSON; nothing where there is no value. Bytes that are no plain ASCII do not occur in what the
// manager tells; where they do all the same, a question mark stands for each.
static void put_string(struct message *message, const char *name, const char *value)
{
    if (!value || !*value)
        return;
    if (message->text[message->length - 1] != '{')
        put(message, ",");
    put(message, "\"");
    put(message, name);
    put(message, "\":\"");
    for (size_t at = 0; value[at] && at < VALUE_MAX; at++) {
        unsigned char c = (unsigned char)value[at];
        if (c == '"' || c == '\\') {
            char escaped[3] = {'\\', (char)c, '\0'};
            put(message, escaped);
        } else {
            char plain[2] = {c >= 0x20 && c < 0x7f ? (char)c : '?', '\0'};
            put(message, plain);
        }
    }
    put(message, "\"");
}

// Wait until the socket is ready for `events`. Returns 0 when the time is up.
static int ready(int fd, short events, long until)
{
    for (;;) {
        long left = until - now_ms();
        if (left <= 0)
            return 0;
        struct pollfd one = {.fd = fd, .events = events};
        int found = poll(&one, 1, (int)left);
        if (found > 0)
            return 1;
        if (found < 0 && errno != EINTR)
            return 0;
    }
}

static int address_of(struct sockaddr_un *address, const char *name)
{
    const char *root = getenv("SYNTROP_RUN_ROOT");
    *address = (struct sockaddr_un){.sun_family = AF_UNIX};
    int length = snprintf(address->sun_path, sizeof address->sun_path, "%s/%s", root && *root ? root : "/run", name);
    return length > 0 && (size_t)length < sizeof address->sun_path;
}

// Connect and say nothing; the connection is there as long as we are. What goes wrong is for sentry to find out.
static void knock(const char *name)
{
    struct sockaddr_un address;
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd >= 0 && address_of(&address, name) && connect(fd, (const struct sockaddr *)&address, sizeof address) != 0)
        close(fd);
}

// A connection, or -1 with errno. It is tried again while the queue is full, and shortly where the socket is not there,
// since it may be in the middle of a restart.
static int connected(const struct sockaddr_un *address, long until)
{
    long there = now_ms() + RETRY_MS;
    for (;;) {
        int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (fd < 0)
            return -1;
        if (connect(fd, (const struct sockaddr *)address, sizeof *address) == 0)
            return fd;
        int error = errno;
        close(fd);
        int full = error == EAGAIN || error == EINTR, absent = error == ECONNREFUSED || error == ENOENT;
        long limit = full ? until : absent ? there : 0;
        if (now_ms() + PAUSE_MS >= limit) {
            errno = error;
            return -1;
        }
        struct timespec pause = {.tv_nsec = PAUSE_MS * 1000000L};
        nanosleep(&pause, NULL);
    }
}

int main(int argc, char **argv)
{
    if (argc != 2 || !*argv[1]) {
        fputs("usage: syntrop-triage UNIT\n", stderr);
        return 2;
    }
    const char *unit = argv[1];
    struct sockaddr_un address;
    if (!address_of(&address, "systemd-sentry/sentry.sock"))
        return fail(unit, "the path of its socket is too long", NULL);

    struct message message = {.length = 0};
    put(&message, "{\"method\":\"io.syntrop.Sentry1.ReportFailure\",\"parameters\":{");
    put_string(&message, "unit", unit);
    put_string(&message, "invocation_id", getenv("MONITOR_INVOCATION_ID"));
    put_string(&message, "result", getenv("MONITOR_SERVICE_RESULT"));
    put_string(&message, "exit_code", getenv("MONITOR_EXIT_CODE"));
    put_string(&message, "exit_status", getenv("MONITOR_EXIT_STATUS"));
    put(&message, "}}");

    long until = now_ms() + DEADLINE_MS;
    int fd = connected(&address, until);
    if (fd < 0)
        return fail(unit, address.sun_path, strerror(errno));
    knock("syntrop/io.syntrop.Context1");
    knock("syntrop/io.syntrop.Tool1");
    size_t sent = 0, whole = message.length + 1; // a message ends with a NUL
    while (sent < whole) {
        if (!ready(fd, POLLOUT, until))
            return fail(unit, "it takes nothing in time", NULL);
        ssize_t part = send(fd, message.text + sent, whole - sent, MSG_NOSIGNAL);
        if (part < 0 && errno != EAGAIN && errno != EINTR)
            return fail(unit, "the call cannot be sent", strerror(errno));
        sent += part > 0 ? (size_t)part : 0;
    }
    static char reply[REPLY_MAX];
    size_t got = 0;
    while (got == 0 || reply[got - 1] != '\0') {
        if (got == sizeof reply)
            return fail(unit, "its answer does not end", NULL);
        if (!ready(fd, POLLIN, until))
            return fail(unit, "it does not answer in time", NULL);
        ssize_t part = recv(fd, reply + got, sizeof reply - got, 0);
        if (part == 0)
            return fail(unit, "it hung up", NULL);
        if (part < 0 && errno != EAGAIN && errno != EINTR)
            return fail(unit, "its answer cannot be read", strerror(errno));
        got += part > 0 ? (size_t)part : 0;
    }
    return strstr(reply, "\"error\"") ? fail(unit, "it answers", reply) : EXIT_SUCCESS;
}
