# SPDX-License-Identifier: Apache-2.0
import sys
import time

try:
    with open("/srv/inc-absent/page.html") as file:
        page = file.read()
except OSError as error:
    sys.exit(f"cannot read {error.filename}: {error.strerror}")
print("serving a page of", len(page), "letters")
time.sleep(1 << 30)
