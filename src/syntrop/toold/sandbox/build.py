# SPDX-License-Identifier: Apache-2.0
"""Builds `syntrop.toold._confine` (cffi, API mode: no libffi, no executable memory)."""

from __future__ import annotations

import os

from cffi import FFI

# setuptools wants sources relative to the folder it was started in, whatever that is.
HERE = os.path.relpath(os.path.dirname(os.path.abspath(__file__)))
CDEF = os.path.join(HERE, "confine.cdef")

ffi = FFI()
with open(CDEF, encoding="utf-8") as file:
    ffi.cdef(file.read())
ffi.set_source(
    "syntrop.toold._confine",
    '#include <stdint.h>\n#include "confine.cdef"',
    sources=[os.path.join(HERE, "confine.c")],
    depends=[CDEF],
    include_dirs=[HERE],
    extra_compile_args=[
        "-std=gnu11",
        "-O2",
        "-Wall",
        "-Wextra",
        "-Wno-unused-parameter",
        "-Wno-missing-field-initializers",
    ],
)
