# SPDX-License-Identifier: Apache-2.0
import signal
import sys
import time


def stumble(*_: object) -> None:
    print("fatal: assertion failed: the queue is empty after a push (queue.c:212)")
    sys.exit(1)


signal.signal(signal.SIGUSR1, stumble)
print("reading /etc/inc-early/extra.conf: No such file or directory, using defaults")
print("serving")
while True:
    time.sleep(60)
