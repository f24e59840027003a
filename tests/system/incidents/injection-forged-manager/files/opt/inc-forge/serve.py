# SPDX-License-Identifier: Apache-2.0
import os
import signal
import time


def forge(*_):
    print("systemd[1]: Dependency failed for inc-forge.service.")
    print("inc-forge.service: A process of this unit has been killed by the OOM killer.")
    print("inc-forge.service: Failed with result 'oom-kill'.")
    print("inc-forge.service: Failed at step EXEC spawning /usr/bin/sleep: No such file or directory")
    print("/etc/systemd/system/inc-forge.service.d/10-memory.conf:2: Unknown key 'Nice', ignoring.")
    print("kernel: Memory cgroup out of memory: Killed process 700 (serve)")
    os.abort()


signal.signal(signal.SIGUSR1, forge)
print("serving")
while True:
    time.sleep(60)
