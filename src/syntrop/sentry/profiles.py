# SPDX-License-Identifier: Apache-2.0
"""How the last words of services sound, by class of fault: the fixed texts that the model compares words with.

Each is a heading and a list of lines that ends where one line more would come. The model is never asked what it
thinks: it tells how likely the failed service's words are as that line (a noisy channel). The lines are ours, in
the manner of common programs.
"""

from __future__ import annotations

from syntrop.sentry import signatures as s

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

_SAMPLES: Mapping[str, tuple[str, tuple[str, ...]]] = {
    s.CONFIGURATION: (
        "the configuration is wrong",
        (
            "unknown option 'colour' at line 4",
            "invalid value \"x\" for parameter \"size\"",
            "limit must be between 1 and 64",
            "syntax error in /etc/app/app.conf:7, expected '='",
            "threads: 0 is not a positive number",
            "failed to parse config: unexpected character at column 9",
            "setting max_size is less than min_size",
            "/etc/app.ini: line 12: unknown directive \"lisen\"",
            "bad numeric value: queue_size = some",
            "not a valid duration: '5 lightyears'",
            "unrecognized key 'hots' in section [server]",
        ),
    ),
    s.CRASH: (
        "the program has a bug and crashed",
        (
            "Segfault in worker thread at 0x0",
            "NullPointerException in Main.java:10",
            "panic: invalid memory address or nil pointer dereference",
            "Assertion failed: n < size, file main.c, line 88",
            "IndexError: list index out of range",
            "internal error, this is a bug",
            "unhandled exception: TypeError: x is undefined",
            "malloc(): corrupted top size",
            "thread 'worker' panicked at src/pool.rs:31: called unwrap on None",
            "KeyError: 'name'",
            "IllegalStateException: already closed",
            "terminate called after throwing an exception",
        ),
    ),
    s.DEPENDENCY: (
        "another service is not reachable",
        (
            "lost connection to the database server",
            "host mq.local did not answer",
            "connection to 10.0.0.2:5432 timed out",
            "cannot reach the API auth:8080: Connection refused",
            "server is not available, giving up after 3 attempts",
            "is the redis service running?",
            "dial tcp: lookup db on 127.0.0.53: no such host",
            "the cluster has no leader yet, try again later",
            "cannot resolve host db.local",
            "the backend is down now",
            "connection closed by remote end during handshake",
            "OperationalError: database is starting up",
        ),
    ),
    s.PERMISSION: (
        "permission is missing",
        (
            "open /dev/sda: Permission denied",
            "not allowed to open /root/x",
            "must be run as root",
            "/var/lib/app is owned by root, cannot write",
            "permissions of key.pem are too open",
            "insufficient privileges",
            "directory has wrong owner, expected uid 101",
            "lacks capability CAP_SYS_ADMIN",
            "user app may not read /etc/app/key",
            "operation is not permitted for user app",
            "could not write pid file: access is refused",
        ),
    ),
    s.MISSING_FILE: (
        "a file is missing",
        (
            "cannot find /etc/app/main.key",
            "/srv/data/index does not exist",
            "file not found: schema.json",
            "could not open /opt/app/lib/a.dat: No such file or directory",
            "no such directory: /srv/www",
            "the template page.html is not there",
            "failed to load certificate server.pem: not found",
            "directory /opt/app/migrations is absent",
            "stat /var/lib/app/db: does not exist",
            "the database file users.db is missing",
            "unable to locate plugin auth.so",
            "there is no file at /data/model.bin",
        ),
    ),
    s.DISK_FULL: (
        "the disk is full",
        (
            "write error: No space left on device",
            "volume is full, 0 bytes left",
            "disk quota is used up",
            "cannot write: the file system is full",
            "there is not enough free disk space",
            "disk usage is at 100%, stopping",
            "could not extend file: device is full",
            "no inodes left on /srv",
            "journal: out of space",
            "short write, no free blocks",
            "partition /data has no room left",
            "free space is below the minimum of 1 GB",
        ),
    ),
    s.PACKAGE_UPGRADE: (
        "a package was upgraded and does not fit the rest",
        (
            "data format version 7 is newer than this program supports",
            "plugin was built against version 2, need version 3",
            "option --legacy was removed in this version",
            "incompatible library: expected ABI 5, found ABI 6",
            "the database was initialized by an older release, run the upgrade tool",
            "undefined symbol in module auth.so",
            "protocol version mismatch with the server",
            "schema version 12 is required, found version 11",
            "this file was written by a newer version",
            "API level 4 is no longer supported here",
            "deprecated setting was removed in release 3",
            "module was compiled for another version",
        ),
    ),
    s.PORT_TAKEN: (
        "its port is used by another program",
        (
            "cannot bind 0.0.0.0:80, something else listens there",
            "8080: Address already in use",
            "could not listen on [::]:443: in use",
            "another instance is already running on this port",
            "listen tcp :9090: bind failed, taken",
            "socket is held by pid 812",
            "cannot start server: :5432 is already bound",
            "the port is held by another process",
            "bind failed on 127.0.0.1:6379, in use",
            "socket /run/app.sock is in use by another instance",
        ),
    ),
}  # fmt: skip
# What is told by the same words as another.
_LIKE = {s.JOB_FAILED: s.CRASH, s.READ_ONLY: s.PERMISSION, s.MISSING_LIBRARY: s.MISSING_FILE,
         s.MISSING_PROGRAM: s.MISSING_FILE}  # fmt: skip
PROFILED = frozenset((*_SAMPLES, *_LIKE))
OFTEN = (s.CONFIGURATION, s.CRASH, s.DEPENDENCY, s.PERMISSION, s.MISSING_FILE, s.PACKAGE_UPGRADE, s.DISK_FULL)


def kind(fault_class: str) -> str:
    """The class whose profile is a class's own; empty where words cannot tell it."""
    return fault_class if fault_class in _SAMPLES else _LIKE.get(fault_class, "")


def profile(fault_class: str) -> str:
    """The fixed text of a class that `kind` names. Raises KeyError."""
    why, lines = _SAMPLES[fault_class]
    return f"Log lines of services that failed because {why}:\n" + "".join(f"- {line}\n" for line in lines) + "-"
