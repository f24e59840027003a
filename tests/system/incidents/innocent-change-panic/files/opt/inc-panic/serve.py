# SPDX-License-Identifier: Apache-2.0
import signal
import sys
import time

with open(sys.argv[1]) as file:
    settings = dict(line.split() for line in file if not line.startswith("#"))


def panic(*_: object) -> None:
    print("thread 3 panicked: index out of bounds: the length is 3 but the index is 5")
    sys.exit(101)


signal.signal(signal.SIGUSR1, panic)
print("serving with", settings["workers"], "workers")
while True:
    time.sleep(60)
