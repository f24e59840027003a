# SPDX-License-Identifier: Apache-2.0
"""The library of models against a store of the test's own: loaded once, found by name, evicted when idle."""

from __future__ import annotations

import os
import socket
import tempfile
import threading
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from syntrop.common import loop
from syntrop.common.activation import accept
from syntrop.common.varlink.errors import VarlinkError
from syntrop.common.varlink.server import Call, Identity, Server
from syntrop.runtimed import library as libraries
from syntrop.runtimed.library import MODEL, CannotLoad, Library, NoRoom, NoSuchModel
from syntrop.runtimed.loading import How, Loaded, LoadError
from syntrop.runtimed.model.errors import ModelError
from syntrop.runtimed.processors import cores


class Store:
    """`Model1` with names that a test can move."""

    def __init__(self) -> None:
        self.names = {"a:1": "sha256:aa", "a": "sha256:aa", "b:1": "sha256:bb", "c:1": "sha256:cc"}
        self.inspected: list[str] = []
        self.opened: list[str] = []

    def _digest(self, id: str) -> str:
        digest = id if id.startswith("sha256:") else self.names.get(id)
        if digest is None:
            raise VarlinkError(f"{MODEL}.NoSuchModel", id=id)
        return digest

    async def Inspect(self, call: Call, id: str) -> dict[str, Any]:
        self.inspected.append(id)
        digest = self._digest(id)
        name, _, tag = id.partition(":")
        entry = {
            "id": f"{name}:{tag or '1'}",
            "digest": digest,
            "size_bytes": 1,
            "pinned": False,
            "format": "gguf",
        }
        return {"info": entry}

    async def Open(self, call: Call, id: str) -> dict[str, Any]:
        self.opened.append(id)
        return {"fd": call.give_fd(os.open("/dev/null", os.O_RDONLY)), "size": 1, "digest": self._digest(id)}


class FakeModel:
    def __init__(self) -> None:
        self.memory_bytes = 1000
        self.level = "scalar"
        self.closed = False
        self.threads = 0

    def set_threads(self, threads: int) -> None:
        self.threads = threads

    def close(self) -> None:
        self.closed = True


class Busy:
    def __init__(self) -> None:
        self.held = 0
        self.most = 0

    def __call__(self) -> Busy:
        return self

    def __enter__(self) -> None:
        self.held += 1
        self.most = max(self.most, self.held)

    def __exit__(self, *_: object) -> None:
        self.held -= 1


@pytest.fixture
def root(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        monkeypatch.setenv("SYNTROP_RUN_ROOT", folder)
        (Path(folder) / "syntrop").mkdir()
        yield Path(folder)


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Digests in the order in which they were loaded; `bad` among the names cannot be."""
    done: list[str] = []

    def load(files: Any, identifier: str, digest: str, how: How) -> Loaded:
        for handle, _ in files.values():
            os.close(handle)
        if digest == "sha256:bad":
            raise LoadError(f"{identifier} is broken")
        done.append(digest)
        return Loaded(identifier, digest, "llama", FakeModel(), None, None, "")  # type: ignore[arg-type]

    monkeypatch.setattr(libraries, "_load", load)
    return done


Body = Callable[[Library, Store, Busy], Coroutine[Any, Any, None]]


def run(root: Path, body: Body, models_max: int = 2, memory_max: int = 1 << 40) -> None:
    async def serve(listener: socket.socket, server: Server) -> None:
        while True:
            await loop.readable(listener.fileno())
            while (sock := accept(listener)) is not None:
                connection = server.connect(sock)
                assert connection is not None
                loop.spawn(connection.run())

    async def main() -> None:
        store, busy = Store(), Busy()
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(root / "syntrop" / MODEL))
            listener.listen(16)
            listener.setblocking(False)
            server = Server(Identity("test", "store", "0", "http://localhost"), {MODEL: store})
            serving = loop.spawn(serve(listener, server))
            library = Library(
                busy, threads=1, models_max=models_max, context_max=0, timeout=5.0, memory_max=memory_max
            )
            with loop.deadline(30):
                await body(library, store, busy)
            assert busy.held == 0
            await loop.stop(serving)

    loop.run(main())


def test_concurrent_requests_load_once_by_all_names(root: Path, loads: list[str]) -> None:
    async def body(library: Library, store: Store, busy: Busy) -> None:
        found = await loop.gather(*(library.get(name) for name in ("a:1", "a", "a:1", "sha256:aa", "a")))
        assert len({id(one) for one in found}) == 1
        assert loads == ["sha256:aa"]
        assert store.opened == ["sha256:aa"]
        assert busy.most >= 1
        assert library.find("a") is library.find("a:1") is library.find("sha256:aa") is found[0]
        store.inspected.clear()
        assert await library.get("a") is found[0]
        assert store.inspected == []  # known: modeld is not asked

    run(root, body)


def test_unknown_and_broken_models(root: Path, loads: list[str]) -> None:
    async def body(library: Library, store: Store, busy: Busy) -> None:
        for ask in (library.get, library.resolve):
            with pytest.raises(NoSuchModel):
                await ask("nonesuch")
        store.names["bad:1"] = "sha256:bad"
        for _ in range(2):
            with pytest.raises(CannotLoad, match="bad:1 is broken"):
                await library.get("bad:1")
        assert library.loaded() == []

    run(root, body)


def test_who_gives_up_does_not_stop_the_load(root: Path, loads: list[str]) -> None:
    async def body(library: Library, store: Store, busy: Busy) -> None:
        impatient = loop.spawn(library.get("a"))
        patient = loop.spawn(library.get("a"))
        await loop.sleep(0)
        await loop.stop(impatient)
        assert (await patient).digest == "sha256:aa"

    run(root, body)


def test_a_name_that_moved_is_found_anew(root: Path, loads: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libraries, "CHECK_AFTER", 0.0)

    async def body(library: Library, store: Store, busy: Busy) -> None:
        await library.get("a")
        store.names["a"] = "sha256:bb"
        assert (await library.get("a")).digest == "sha256:aa"  # no call waits for the check
        while library._checking:
            await loop.sleep(0.001)
        assert (await library.get("a")).digest == "sha256:bb"
        del store.names["a"]
        await library.get("a")
        while library._checking:
            await loop.sleep(0.001)
        with pytest.raises(NoSuchModel):
            await library.get("a")

    run(root, body)


def test_the_idle_model_used_longest_ago_makes_room(root: Path, loads: list[str]) -> None:
    async def body(library: Library, store: Store, busy: Busy) -> None:
        a, b = await library.get("a"), await library.get("b:1")
        await library.get("a")
        await library.get("c:1")
        assert [one.digest for one in library.loaded()] == ["sha256:aa", "sha256:cc"]
        assert b.model.closed and not a.model.closed  # type: ignore[attr-defined]
        for one in library.loaded():
            one.users += 1
        with pytest.raises(NoRoom, match="2 of 2 models"):
            await library.get("b:1")
        a.users -= 1
        await library.get("b:1")
        assert a.model.closed  # type: ignore[attr-defined]

    run(root, body)


def test_models_share_a_budget_and_the_idle_ones_make_room(root: Path, loads: list[str]) -> None:
    async def body(library: Library, store: Store, busy: Busy) -> None:
        a = await library.get("a")
        await library.get("b:1")
        assert library.budget.used == library.budget.weights == 2000
        a.users += 1
        await library.get("c:1")
        assert [one.digest for one in library.loaded()] == ["sha256:aa", "sha256:cc"]
        library.loaded()[1].users += 1
        with pytest.raises(NoRoom, match=r"b:1 does not fit beside .* 1 bytes are wanted, 0 of the 2000"):
            await library.get("b:1")
        assert library.budget.used == 2000
        for one in library.loaded():
            one.users -= 1
            await library.unload(one)
        assert library.budget.used == 0

    run(root, body, models_max=5, memory_max=2000)


def test_what_turns_out_not_to_fit_goes_again(root: Path, loads: list[str]) -> None:
    async def body(library: Library, store: Store, busy: Busy) -> None:
        for _ in range(2):
            with pytest.raises(NoRoom, match="1000 bytes are wanted"):
                await library.get("a")
        assert library.loaded() == []
        assert library.budget.used == 0

    run(root, body, memory_max=999)


def test_a_broken_model_takes_nothing(root: Path, loads: list[str]) -> None:
    async def body(library: Library, store: Store, busy: Busy) -> None:
        store.names["bad:1"] = "sha256:bad"
        descriptors = len(os.listdir("/proc/self/fd"))
        with pytest.raises(CannotLoad):
            await library.get("bad:1")
        assert library.budget.used == 0
        while len(os.listdir("/proc/self/fd")) > descriptors:  # the store's side of the connection
            await loop.sleep(0.001)

    run(root, body)


@pytest.fixture
def held(loads: list[str], monkeypatch: pytest.MonkeyPatch) -> tuple[threading.Event, threading.Event]:
    """Loading is held: set once one has begun, and to be set for it to go on."""
    loading, go_on = threading.Event(), threading.Event()
    load = libraries._load

    def slowly(*what: Any) -> Loaded:
        loading.set()
        assert go_on.wait(60)
        return load(*what)

    monkeypatch.setattr(libraries, "_load", slowly)
    return loading, go_on


async def nobody_waits(library: Library, name: str, held: tuple[threading.Event, threading.Event]) -> None:
    """Who asked for it leaves while it is loaded; until it is, or is not."""
    loading, go_on = held
    impatient = loop.spawn(library.get(name))
    while not loading.is_set():
        await loop.sleep(0.001)
    await loop.stop(impatient)
    go_on.set()
    while library._loading or library._resolving:
        await loop.sleep(0.001)


def test_a_refusal_that_nobody_waits_for_is_no_fault(
    root: Path, held: tuple[threading.Event, threading.Event], capfd: pytest.CaptureFixture[str]
) -> None:
    async def body(library: Library, store: Store, busy: Busy) -> None:
        store.names["bad:1"] = "sha256:bad"
        await nobody_waits(library, "bad:1", held)

    run(root, body)
    assert "Traceback" not in capfd.readouterr().err


def test_a_fault_that_nobody_waits_for_is_logged(
    root: Path,
    held: tuple[threading.Event, threading.Event],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    async def body(library: Library, store: Store, busy: Busy) -> None:
        def faulty(*_: Any) -> None:
            raise KeyError("a bug")

        monkeypatch.setattr(library, "_account", faulty)
        await nobody_waits(library, "a:1", held)

    run(root, body)
    assert "KeyError: 'a bug'" in capfd.readouterr().err


def test_a_model_that_goes_before_its_caller_runs_is_loaded_again(root: Path, loads: list[str]) -> None:
    async def body(library: Library, store: Store, busy: Busy) -> None:
        async def evict() -> None:
            while not library.loaded():
                await loop.sleep(0)
            await library.unload(library.loaded()[0])

        evicting = loop.spawn(evict())
        model = await library.get("a")
        assert not model.model.closed
        await evicting

    run(root, body)


def test_threads_change_while_models_are_loaded(root: Path, loads: list[str]) -> None:
    async def body(library: Library, store: Store, busy: Busy) -> None:
        model = await library.get("a")
        await library.set_threads(3)
        assert model.model.threads == 3
        await library.set_threads(0)
        assert model.model.threads == cores()

    run(root, body)


def test_a_step_that_runs_holds_up_the_threads_and_not_the_loop(root: Path, loads: list[str]) -> None:
    """A model takes new threads between two steps; whoever has none follows, and the others all the same."""
    step, asked = threading.Lock(), threading.Event()

    async def body(library: Library, store: Store, busy: Busy) -> None:
        model, other = await library.get("a"), await library.get("b:1")

        def busy_with_a_step(threads: int) -> None:
            asked.set()
            with step:
                model.model.threads = threads
                raise ModelError("threads", "there are none")

        model.model.set_threads = busy_with_a_step
        with step:
            changing = loop.spawn(library.set_threads(3))
            while not asked.is_set():
                await loop.sleep(0.001)
            assert not changing.done
        await changing
        assert (model.model.threads, other.model.threads) == (3, 3)

    run(root, body, models_max=2)


def test_a_model_that_is_being_loaded_has_the_new_threads_too(
    root: Path, held: tuple[threading.Event, threading.Event]
) -> None:
    loading, go_on = held

    async def body(library: Library, store: Store, busy: Busy) -> None:
        getting = loop.spawn(library.get("a"))
        while not loading.is_set():
            await loop.sleep(0.001)
        await library.set_threads(7)
        go_on.set()
        model = await getting
        while model.model.threads != 7:
            await loop.sleep(0.001)

    run(root, body)


def test_unloading(root: Path, loads: list[str]) -> None:
    async def body(library: Library, store: Store, busy: Busy) -> None:
        model = await library.get("a")
        assert await library.unload(model) == 1000
        assert model.model.closed  # type: ignore[attr-defined]
        assert library.find("a") is None
        assert await library.resolve("a") is None
        await library.get("a")
        assert loads == ["sha256:aa"] * 2

    run(root, body)


def test_a_store_that_is_away(root: Path) -> None:
    async def main() -> None:
        library = Library(Busy(), threads=1, models_max=1, context_max=0, timeout=1.0)
        with pytest.raises(CannotLoad, match="cannot be reached"):
            await library.get("a")

    loop.run(main())
