# SPDX-License-Identifier: Apache-2.0
"""While the daemon is awake: one look at everything, then the kernel tells what changes. Nothing is polled."""

from __future__ import annotations

import _thread
import os

from syntrop.common import journal, loop, paths
from syntrop.contextd import package_logs
from syntrop.contextd.watches import Watcher

TYPE_CHECKING = False
if TYPE_CHECKING:
    from syntrop.common.service import Daemon
    from syntrop.contextd.keeper import Keeper

JOURNAL_PAUSE = 0.25  # seconds between two looks at a journal that grows


class Live:
    """Owns the watches and the tasks that serve them."""

    def __init__(self, daemon: Daemon, keeper: Keeper) -> None:
        self.scanned = loop.Event()
        self._daemon = daemon
        self._keeper = keeper
        self._wanted = True
        self._watcher: Watcher | None = None
        self._behind = False  # something that was found is not on record
        self._looking = _thread.allocate_lock()  # one look at a time
        self._records = set(package_logs.WATCHED)
        self._tasks: list[loop.Task[None]] = []
        self._followers = 0
        self._journal_task: loop.Task[None] | None = None

    def start(self) -> None:
        self._tasks.append(loop.spawn(self._run(), "watch the machine"))

    def look_again(self) -> None:
        """Look at everything anew if a look failed: the disk may have room again, the store be free."""
        if self._behind and self._wanted and self.scanned.is_set():
            self.scanned.clear()
            self._tasks = [task for task in self._tasks if not task.done]
            again = self._run() if self._watcher is None else self._look()
            self._tasks.append(loop.spawn(again, "look again"))

    async def stop(self) -> None:
        self._wanted = False
        self.follow_journal(-self._followers)
        await self.scanned.wait()
        for task in self._tasks:
            await loop.stop(task)
        if self._watcher is not None:
            loop.forget(self._watcher.fd)
            self._watcher.close()

    async def _look(self) -> None:
        try:
            with self._daemon.busy():
                await loop.thread(self._look_at_everything)
            self._behind = False
        except OSError as error:
            self._failed("Cannot look at the machine", error)
        finally:
            self.scanned.set()

    def _failed(self, what: str, error: OSError) -> None:
        """A full disk, mostly. What changed is found by the next look at everything."""
        journal.error(f"{what}: {error}", ERRNO=error.errno)
        self._behind = True
        self._keeper.unkept = error

    async def _run(self) -> None:
        await self._look()
        if self._watcher is None or not self._wanted:
            return
        while True:
            await loop.readable(self._watcher.fd)
            try:
                with self._daemon.busy():
                    await loop.thread(self._look_at_changes)
            except OSError as error:
                self._failed("Cannot record what changed", error)
                await loop.sleep(1.0)

    # --- in a worker thread --------------------------------------------------------------------------------

    def _look_at_everything(self) -> None:
        keeper = self._keeper
        with keeper.lock.patient:
            keeper.open()
        with self._looking:
            self._compare_everything()

    def _compare_everything(self) -> None:
        keeper = self._keeper
        if self._watcher is None:
            try:
                self._watcher = Watcher(fanotify=keeper.options.fanotify)
            except OSError as error:
                self._incomplete(error)
        for path in self._records:
            if os.path.exists(paths.host(path)):
                self._watch(os.path.dirname(path), {os.path.basename(path)})
        keeper.scan(lambda: self._wanted, self._watch)
        if self._wanted:
            with keeper.lock.patient, keeper.journals.open() as reader:
                keeper.take_in(reader)

    def _watch(self, folder: str, names: set[str] | None) -> None:
        if self._watcher is None:
            return
        try:
            self._watcher.add(folder, names)
        except FileNotFoundError:
            pass
        except OSError as error:
            self._incomplete(error)

    def _incomplete(self, error: OSError) -> None:
        if self._keeper.coverage.unfollowed is None:
            self._keeper.coverage.unfollowed = str(error)
            journal.warning(
                f"Not every folder can be watched; some changes are found at the next start only: {error}"
            )

    def _look_at_changes(self) -> None:
        with self._looking:
            self._compare_changes()

    def _compare_changes(self) -> None:
        assert self._watcher is not None
        keeper = self._keeper
        changed, fresh, lost = self._watcher.read()
        if lost:
            keeper.scan(lambda: self._wanted, self._watch)
            return
        records = changed.keys() & self._records
        with keeper.lock.urgent:
            wanted = [path for path in changed if path not in records and not keeper.coverage.excluded(path)]
            gone = [path for path in wanted if self._was_folder(path)]
            keeper.look(wanted, changed)
            for path in gone:
                below = [one for one in keeper.baseline.folders() if one == path or one.startswith(path + "/")]
                for folder in below:
                    keeper.look_into(folder)
            if records:
                keeper.take_in(None)
        for path in fresh:
            if not keeper.coverage.excluded(path) and keeper.coverage.root_of(path):
                for folder in keeper.coverage.folders(path):
                    self._watch(folder, None)
                    with keeper.lock.urgent:
                        keeper.look_into(folder)

    def _was_folder(self, path: str) -> bool:
        row = self._keeper.baseline.get(path)
        return row is not None and row.kind == "folder" and not os.path.isdir(paths.host(path))

    # --- the journal ---------------------------------------------------------------------------------------

    def follow_journal(self, change: int) -> None:
        """Follow the journal while somebody watches: every message of the machine wakes us meanwhile."""
        self._followers += change
        if self._followers and self._journal_task is None:
            self._journal_task = loop.spawn(self._follow_journal(), "follow the journal")
        elif not self._followers and self._journal_task is not None:
            self._journal_task.cancel()
            self._journal_task = None

    async def _follow_journal(self) -> None:
        keeper = self._keeper
        reader = await loop.thread(keeper.journals.reader)
        if reader is None:
            return

        def news() -> None:
            with keeper.lock.urgent:
                keeper.open()
                if not ended:
                    reader.refresh()
                    # Not through this reader: what it reads it keeps mapped.
                    with keeper.journals.open() as anew:
                        keeper.take_in(anew)

        def end() -> None:
            with keeper.lock.urgent:  # a look that is under way uses the reader until its end
                reader.close()

        ended = False
        fd = reader.fileno()
        try:
            while True:
                await loop.thread(news)
                await loop.readable(fd)
                await loop.sleep(JOURNAL_PAUSE)
        finally:
            ended = True
            loop.forget(fd)
            loop.thread(end)
