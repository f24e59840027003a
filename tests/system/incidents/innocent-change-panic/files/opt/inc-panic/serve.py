# SPDX-License-Identifier: Apache-2.0
import signal
import sys
import time

with open(sys.argv[1]) as file:
    settings = dict(line.split() for line in file)
workers = list(range(int(settings["workers"])))


def next_worker(*_: object) -> None:
    print(settings["greeting"], workers[len(workers)])


signal.signal(signal.SIGUSR1, next_worker)
print("serving with", settings["workers"], "workers")
while True:
    time.sleep(60)
