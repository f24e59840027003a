# SPDX-License-Identifier: Apache-2.0
"""The kernels compiled with the address and undefined-behaviour sanitizers, under the kernels' own unit tests.

This build alone has the level `amx` on any processor with AVX-512: its instructions are those of
tests/data/kernels/tiles.h, in C. Where a processor has tiles, the unit tests run them natively, without this.
"""

from __future__ import annotations

import importlib.util
import os
import shlex
import subprocess
import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
KERNELS = ROOT / "src" / "syntrop" / "runtimed" / "kernels"
TILES = ROOT / "tests" / "data" / "kernels"
COMPILER = shlex.split(os.environ.get("CC", "gcc"))
# Checks of pointers that AddressSanitizer makes anyway would double the time to compile; calls instead of code in
# line at every access halve it.
FLAGS = shlex.split(
    "-DTILES='\"tiles.h\"' -std=gnu11 -O1 -g1 -pthread -fPIC -fno-math-errno -Wno-psabi -fvisibility=hidden "
    "-fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize=pointer-overflow,null,object-size "
    "-fno-sanitize-recover=all --param=asan-instrumentation-with-call-threshold=0"
)
# Everything of the kernels, whole steps of small models through them, and what else is C: caches, adapters,
# vocabularies, the sampler.
TESTS = {
    "test_kernels.py": "",
    "test_llama.py": "level or batch or chunks or threads",
    "test_encoder.py": "every_type",
    "test_encoder_oracle.py": "(amx and every_type and modernbert) or (scalar and vectors)",
    "test_batch_invariance.py": "(amx and every) or (scalar and Q4_1)",
    "test_arch_oracle.py": "(amx or scalar) and llama_tied",
    "test_lora.py": "adapted or mixes or ranks",
    "test_kv.py": "",
    # Vocabularies of files that lie, texts of any kind, and the draw of a token.
    "test_hostile_files.py": "any_value or lengths_inside or cut_short",
    "test_vocabulary.py": "",
    "test_merging.py": "",
    "test_tokenizer_json.py": "tokens_of or any_bytes",
    "test_sampler.py": "ties or penalties or logprobs or nan",
}

# Puts the instrumented module where the tests look for it, then runs them.
RUN = """
import importlib.machinery, importlib.util, sys
import syntrop.runtimed
path, *arguments = sys.argv[1:]
name = "syntrop.runtimed._kernels"
loader = importlib.machinery.ExtensionFileLoader(name, path)
module = importlib.util.module_from_spec(importlib.util.spec_from_file_location(name, path, loader=loader))
sys.modules[name] = syntrop.runtimed._kernels = module
loader.exec_module(module)
import pytest
sys.exit(pytest.main(arguments))
"""


def library(name: str) -> str:
    command = [*COMPILER, f"-print-file-name={name}"]
    path = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout.strip()
    assert os.path.isabs(path), f"the compiler has no {name}: Debian's libgcc-*-dev holds it"
    return path


@pytest.fixture(scope="module")
def instrumented(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("kernels")
    spec = importlib.util.spec_from_file_location("kernels_build", KERNELS / "build.py")
    assert spec is not None and spec.loader is not None
    build = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(build)
    glue = folder / "_kernels.c"
    build.ffi.emit_c_code(str(glue))
    include = sysconfig.get_paths()["include"]

    def compile_one(source: Path) -> str:
        target = folder / f"{source.stem}.o"
        flags = [*FLAGS, f"-I{KERNELS}", f"-I{TILES}", f"-I{include}"]
        subprocess.run([*COMPILER, *flags, "-c", str(source), "-o", str(target)], check=True, timeout=600)
        return str(target)

    # The longest first.
    sources = sorted([glue, *KERNELS.glob("*.c")], key=lambda path: "avx" not in path.name)
    with ThreadPoolExecutor(os.cpu_count()) as workers:
        objects = list(workers.map(compile_one, sources))
    module = folder / "_kernels.abi3.so"
    subprocess.run([*COMPILER, *FLAGS, "-shared", *objects, "-lm", "-o", str(module)], check=True, timeout=600)
    return module


@pytest.mark.parametrize("name", TESTS)
def test_the_kernels_own_tests_find_no_fault(instrumented: Path, tmp_path: Path, name: str) -> None:
    environment = {
        **{key: value for key, value in os.environ.items() if not key.startswith("PYTEST")},
        "LD_PRELOAD": f"{library('libasan.so')}:{library('libubsan.so')}",
        # The interpreter keeps what it has to the end.
        "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=0:allocator_may_return_null=1",
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "PYTHONPATH": str(ROOT / "src"),
        "OPENBLAS_NUM_THREADS": "1",
    }
    # A sanitizer writes to the descriptor and ends the process: what pytest holds back would be lost.
    arguments = ["-q", "-x", "--capture=sys", "-p", "no:cacheprovider", "--import-mode=importlib"]
    arguments.append(f"--basetemp={tmp_path / 'inner'}")
    if TESTS[name]:
        arguments += ["-k", TESTS[name]]
    command = [sys.executable, "-c", RUN, str(instrumented), *arguments, str(ROOT / "tests/unit/runtimed" / name)]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=900, check=False
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]
    assert " passed" in done.stdout and " skipped" not in done.stdout
