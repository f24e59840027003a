# SPDX-License-Identifier: Apache-2.0
"""The linters of pyproject.toml, as tests."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

TREE = Path(__file__).parents[2]


def run(*command: str) -> None:
    done = subprocess.run(command, check=False, cwd=TREE, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr


def test_ruff():
    run(sys.executable, "-m", "ruff", "check", "--quiet", "src", "tests", "setup.py")


def test_mypy():
    run(sys.executable, "-m", "mypy", "--no-error-summary")


def test_shell_scripts_parse():
    scripts = [TREE / ".ci" / "run", *TREE.glob("units/*.sh"), *TREE.glob("tests/**/*.sh")]
    for script in scripts:
        words = script.read_text().split("\n", 1)[0].removeprefix("#!").split()
        shell = shutil.which(words[-1].rsplit("/", 1)[-1])
        assert shell, f"{script} wants {words}"
        run(shell, "-n", str(script))


def test_every_source_says_its_licence():
    files = [
        *TREE.glob("src/**/*.py"),
        *TREE.glob("src/**/*.[ch]"),
        *TREE.glob("tests/**/*.py"),
        *TREE.glob("units/*.s*"),
    ]
    missing = []
    for path in files:
        if path.name in ("_kernels.c", "_confine.c") or not path.is_file() or not path.stat().st_size:
            continue
        if "SPDX-License-Identifier: Apache-2.0" not in "".join(path.read_text().splitlines(True)[:2]):
            missing.append(str(path.relative_to(TREE)))
    assert not missing
