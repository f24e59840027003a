# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's library as its header declares it. No machine of ours has one, so a small library of the same functions
and structures is compiled in its place: what is tested is that we call it rightly and believe it nothing odd."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from syntrop.inferenced import nvml, topology
from syntrop.inferenced.gauges import Fill, Gauges

SOURCE = r"""
#include <string.h>
typedef char *handle;
static char devices[2];
static int ready;
int nvmlInit_v2(void) { ready = 1; return FAILS; }
int nvmlShutdown(void) { ready = 0; return 0; }
int nvmlDeviceGetHandleByPciBusId_v2(const char *id, handle *found) {
    if (!ready) return 1;
    if (!strcmp(id, "0000:01:00.0")) *found = &devices[0];
    else if (!strcmp(id, "0000:02:00.0")) *found = &devices[1];
    else return 6;
    return 0;
}
struct memory { unsigned long long total, free, used; };
int nvmlDeviceGetMemoryInfo(handle device, struct memory *to) {
    to->total = 25769803776ull;
    to->free = 24696061952ull;
    to->used = device == &devices[0] ? USED : 5368709120ull;
    return 0;
}
struct process { unsigned pid; unsigned long long used; unsigned gi, ci; };
int nvmlDeviceGetComputeRunningProcesses_v3(handle device, unsigned *count, struct process *to) {
    if (*count < 3) return 7;
    *count = 3;
    to[0] = (struct process){10, 1 << 20, -1, -1};
    to[1] = (struct process){11, -1ull, -1, -1};
    to[2] = (struct process){12, 3 << 20, -1, -1};
    return 0;
}
int nvmlDeviceGetGraphicsRunningProcesses_v3(handle device, unsigned *count, struct process *to) {
    *count = 1;
    to[0] = (struct process){12, 3 << 20, -1, -1};
    return 0;
}
struct pci { char legacy[16]; unsigned domain, bus, device, identity, subsystem; char address[32]; };
int nvmlDeviceGetNvLinkState(handle device, unsigned link, unsigned *up) {
    if (link >= 4) return 2;
    *up = link != 3;
    return 0;
}
int nvmlDeviceGetNvLinkRemoteDeviceType(handle device, unsigned link, unsigned *kind) {
    *kind = KIND;
    return 0;
}
int nvmlDeviceGetNvLinkRemotePciInfo_v2(handle device, unsigned link, struct pci *to) {
    memset(to, 0, sizeof *to);
    to->bus = device == &devices[0] ? 2 : 1;
    return 0;
}
struct field {
    unsigned field, scope;
    long long timestamp, latency;
    unsigned type, result;
    union { unsigned one; unsigned long long two; } value;
};
#ifndef OLD
int nvmlDeviceGetFieldValues(handle device, int count, struct field *to) {
    if (count != 1 || to->field != 90) return 2;
    to->type = 1;
    to->result = 0;
    to->value.two = -1ull;
    to->value.one = 14063;
    return 0;
}
#endif
"""
Built = Callable[..., str]
A, B = "0000:01:00.0", "0000:02:00.0"


@pytest.fixture
def built(tmp_path: Path) -> Built:
    def build(fails: int = 0, used: str = "1073741824ull", kind: int = 0, *flags: str) -> str:
        target = tmp_path / f"libnvidia-ml-{len(list(tmp_path.iterdir()))}.so"
        words = [f"-DFAILS={fails}", f"-DUSED={used}", f"-DKIND={kind}", *flags]
        command = ["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(target), *words]
        subprocess.run(command, input=SOURCE, text=True, check=True, timeout=120)
        return str(target)

    return build


@pytest.fixture
def library(built: Built) -> Iterator[nvml.Library]:
    one = nvml.Library(built())
    yield one
    one.close()


def test_memory(library: nvml.Library) -> None:
    assert library.memory(A) == (24 << 30, 1 << 30)
    assert library.memory(B) == (24 << 30, 5 << 30)
    assert library.memory("0000:03:00.0") is None


def test_processes(library: nvml.Library) -> None:
    assert library.processes(A) == {10: 1 << 20, 11: None, 12: 3 << 20}
    assert library.processes("0000:03:00.0") is None


def test_links(library: nvml.Library, built: Built) -> None:
    assert library.links(A) == ({B: 3}, 0, 14_063_000_000)
    assert library.links("0000:03:00.0") == ({}, 0, None)
    switched = nvml.Library(built(0, "1ull", 2))
    assert switched.links(A) == ({}, 3, 14_063_000_000)
    switched.close()
    old = nvml.Library(built(0, "1ull", 0, "-DOLD"))  # a driver without the function
    assert old.links(A) == ({B: 3}, 0, None)
    old.close()


def test_odd_figures_are_unknown(built: Built) -> None:
    odd = nvml.Library(built(0, "-1ull"))
    assert odd.memory(A) is None
    odd.close()
    assert odd.memory(A) is None  # after it was shut down


def test_no_library_or_no_driver(built: Built, tmp_path: Path) -> None:
    with pytest.raises(nvml.Unavailable):
        nvml.Library(str(tmp_path / "none.so"))
    with pytest.raises(nvml.Unavailable):
        nvml.Library(built(9))  # NVML_ERROR_DRIVER_NOT_LOADED
    (tmp_path / "text.so").write_text("no library")
    with pytest.raises(nvml.Unavailable):
        nvml.Library(str(tmp_path / "text.so"))


def test_planes(built: Built, machine: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    machine("nvidia-pair")
    monkeypatch.setattr(nvml, "NAME", built())
    a, b = f"gpu-{A}", f"gpu-{B}"
    with Gauges() as gauges:
        found = gauges.topology
        assert [plane.total for plane in found.planes.values()] == [67325091840, 24 << 30, 24 << 30]
        assert gauges.fill(found.planes[a]) == Fill(24 << 30, 1 << 30, 23 << 30, True)
        assert gauges.processes(found.planes[a]) == {10: 1 << 20, 11: None, 12: 3 << 20}
        assert gauges.processes(found.planes["cpu0"]) is None
        link = found.link(a, b)
        assert link is not None
        assert (link.type, link.bandwidth, link.distance) == ("nvlink", 42_189_000_000, 10)


def test_it_is_not_imported_where_there_is_no_such_device() -> None:
    code = "import sys; from syntrop.inferenced import gauges; gauges.Gauges().close(); "
    code += "print('ctypes' in sys.modules)"
    environment = {
        "PYTHONPATH": str(Path(nvml.__file__).parents[2]),
        "SYNTROP_SYS_ROOT": "/nonexistent",
        "SYNTROP_PROC_ROOT": "/nonexistent",
    }
    said = subprocess.run(
        [sys.executable, "-S", "-c", code], env=environment, capture_output=True, text=True, timeout=60, check=True
    )
    assert said.stdout == "False\n"
    assert topology.library_for([]) is None
