# SPDX-License-Identifier: Apache-2.0
"""Runs inside the virtual machine: the incidents that need a kernel that enforces limits, or a clock of their own.

`/opt/incidents` has their folders (`tests/system/incidents/README.md`), and their files are in place. One line of
JSON each, as `proof.py` tells.
"""

from __future__ import annotations

import json
import subprocess
import time
import tomllib
from pathlib import Path
from typing import Any

PATIENCE = 300.0  # seconds: everything is emulated
FOLDERS = Path("/opt/incidents")
SETTINGS = """
[diagnose]
patience_sec = 60.0
model = ""
[restore]
probation_sec = 1.0
"""


def run(*words: str, check: bool = True) -> str:
    done = subprocess.run(words, check=False, capture_output=True, text=True, timeout=PATIENCE)
    if check and done.returncode != 0:
        raise RuntimeError(f"{words}: {done.stdout}{done.stderr}")
    return done.stdout


def script(folder: Path, name: str, default: str = "") -> None:
    path = folder / f"{name}.sh"
    run("bash", "-eu", "-c", path.read_text() if path.is_file() else default)


def state(unit: str) -> str:
    return run("systemctl", "show", "--value", "-p", "ActiveState", unit).strip()


def content(paths: list[str]) -> dict[str, tuple[bytes, int] | None]:
    """Content and time of files; None of those that are not there."""
    return {
        path: (Path(path).read_bytes(), Path(path).stat().st_mtime_ns) if Path(path).exists() else None
        for path in paths
    }


def play(folder: Path) -> dict[str, Any]:
    """What was found, and what is not as it should be."""
    case = tomllib.loads((folder / "incident.toml").read_text())
    unit, wrong = case["unit"], []
    run("systemctl", "daemon-reload")
    script(folder, "setup", f"systemctl start {unit}")
    run("syntropctl", "drift", unit)
    script(folder, "break")
    deadline = time.monotonic() + PATIENCE
    while state(unit) != "failed":
        if time.monotonic() > deadline:
            raise RuntimeError(f"{unit} is {state(unit)}")
        time.sleep(0.2)
    run("journalctl", "--sync")
    before = content(case["changed"])
    one = json.loads(run("syntropctl", "triage", unit, "--json"))
    if one["status"] != {"act": "recovered", "stage": "staged"}[case["done"]]:
        wrong.append(f"it is {one['status']}")
    if one["status"] == "staged" and case.get("approve"):
        one = json.loads(run("syntropctl", "approve", one["id"], "--json"))
    found = one["causes"][0]
    if found["fault_class"] != case["cause"]:
        wrong.append(f"found {one['causes']}")
    if state(unit) != "active":
        wrong.append(f"{unit} is {state(unit)}")
    # What was there is reverted, and so gone; what was not is written.
    wrong += [f"{path} is still there" for path, was in before.items() if was is not None and Path(path).exists()]
    wrong += [f"{path} was not written" for path, was in before.items() if was is None and not Path(path).exists()]
    if wrong:
        wrong.append(run("syntropctl", "explain", unit, check=False)[-2000:])
    run("syntropctl", "rollback", one["action"].get("rollback_id") or "none", check=False)
    if content(case["changed"]) != before:
        wrong.append("not put back to the byte")
    words = f"{found['fault_class']} {found['confidence']:.2f}, {one['status']}"
    return {"with": words, "without": "; ".join(wrong) or "nothing wrong", "holds": not wrong}


def main() -> None:
    Path("/etc/syntrop").mkdir(exist_ok=True)
    Path("/etc/syntrop/systemd-sentry.toml").write_text(SETTINGS)
    deadline = time.monotonic() + PATIENCE
    while "first look" in run("syntropctl", "drift") and time.monotonic() < deadline:
        time.sleep(1)  # what changed before contextd has looked at everything is no change to it
    for folder in sorted(FOLDERS.iterdir()):
        try:
            proof = play(folder)
        except (RuntimeError, OSError, ValueError, LookupError, subprocess.SubprocessError) as error:
            proof = {"with": f"{type(error).__name__}: {error}"[-2000:], "without": None, "holds": False}
        print(json.dumps({"proof": folder.name, **proof}), flush=True)


if __name__ == "__main__":
    main()
