# SPDX-License-Identifier: Apache-2.0
"""Units as files: where they come from, which paths they name, what they depend on (systemd.unit(5)).

Read from the folders themselves, so no bus, no manager and no privilege are needed, and a unit that failed to load
is understood like any other.
"""

from __future__ import annotations

import os
import re

from syntrop.common import paths
from syntrop.contextd import plainfile

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

# systemd.unit(5), table 1, strongest first.
FOLDERS = (
    "/etc/systemd/system.control",
    "/run/systemd/system.control",
    "/run/systemd/transient",
    "/run/systemd/generator.early",
    "/etc/systemd/system",
    "/etc/systemd/system.attached",
    "/run/systemd/system",
    "/run/systemd/system.attached",
    "/run/systemd/generator",
    "/usr/local/lib/systemd/system",
    "/usr/lib/systemd/system",
    "/lib/systemd/system",
    "/run/systemd/generator.late",
)
NAME = re.compile(
    r"[A-Za-z0-9:_.\\@-]{1,251}\.(?:service|socket|device|mount|automount|swap|target|path|timer|slice|scope)\Z"
)

# Roles of paths, in the words of a reason.
FRAGMENT, DROP_IN, ENVIRONMENT, PROGRAM, CONFIGURATION, LINK = (
    "unit file",
    "drop-in",
    "environment file",
    "program",
    "configuration",
    "link that enables",
)
_DEPENDENCIES = {
    "Requires": "requires",
    "Requisite": "requires",
    "BindsTo": "is bound to",
    "PartOf": "is part of",
    "Wants": "wants",
    "Upholds": "upholds",
    "After": "starts after",
    "Sockets": "is activated by",
    "Slice": "runs in",
    "JoinsNamespaceOf": "shares a namespace with",
}
_PATH_SETTINGS = frozenset(
    (
        "ReadOnlyPaths", "ReadWritePaths", "InaccessiblePaths", "ExecPaths", "NoExecPaths", "BindPaths",
        "BindReadOnlyPaths", "LoadCredential", "LoadCredentialEncrypted", "RootDirectory", "RootImage",
        "WorkingDirectory", "PIDFile", "ConditionPathExists", "AssertPathExists", "PathExists", "PathChanged",
        "PathModified", "SourcePath", "OpenFile", "ReadOnlyDirectories", "ReadWriteDirectories",
    )
)  # fmt: skip
# Of those, the ones that name what is read and not what is kept: a folder there stands for the files in it.
_READ_SETTINGS = frozenset(("ReadOnlyPaths", "ReadOnlyDirectories", "BindReadOnlyPaths", "LoadCredential"))
_IN_FOLDER_MAX = 64
# Folders that many share, or whose files are nobody's configuration.
_SHARED = re.compile(r"/[^/]*|/usr(/local)?(/[^/]+)?|/var/[^/]+|/run/(systemd|user)(/.*)?|/home/.*")
_FILE_MAX = 1 << 20
_WORD = re.compile(r"""(?:[^\s"'\\]+|\\.|"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')+""")
_IN_WORD = re.compile(r"(?:^|[=:,])(/[^\s=:,;]+)")


class Unit:
    """A unit: `files` are its fragment and drop-ins, `named` what they name; both map paths to roles."""

    __slots__ = ("aliases", "dependencies", "files", "fragment", "name", "named")

    def __init__(self, name: str) -> None:
        self.name = name
        self.fragment: str | None = None
        self.aliases: set[str] = {name}
        self.files: dict[str, str] = {}
        self.named: dict[str, str] = {}
        self.dependencies: dict[str, str] = {}

    @property
    def programs(self) -> list[str]:
        return [path for path, role in self.named.items() if role == PROGRAM]


def is_name(name: str) -> bool:
    return NAME.match(name) is not None and not name.startswith(".")


def join(folder: str, name: str) -> str:
    """A path in a folder, which may be the root."""
    return f"{folder.rstrip('/')}/{name}"


class Index:
    """Names in the unit folders, listed again only when a folder has changed."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[int, int, frozenset[str]]] = {}

    def names(self, folder: str) -> frozenset[str]:
        try:
            status = os.stat(paths.host(folder))
        except OSError:
            return frozenset()
        known = self._known.get(folder)
        if known is None or known[:2] != (status.st_ino, status.st_mtime_ns):
            known = self._known[folder] = (status.st_ino, status.st_mtime_ns, frozenset(_listed(folder)))
        return known[2]


def load(name: str, index: Index | None = None, *, links: bool = True) -> Unit:
    """A unit by its name, aliases resolved. One that has no file has no paths either."""
    unit = Unit(name)
    index = index or Index()
    listing = {folder: index.names(folder) for folder in FOLDERS}
    _find_fragment(unit, listing)
    for folder, base in _drop_in_bases(unit, listing):
        for kind in ("wants", "requires", "upholds"):
            if f"{base}.{kind}" in listing[folder]:
                for other in _listed(f"{folder}/{base}.{kind}"):
                    unit.dependencies.setdefault(other, _DEPENDENCIES[kind.capitalize()])
        if f"{base}.d" in listing[folder]:
            for file in _listed(f"{folder}/{base}.d"):
                if file.endswith(".conf"):
                    unit.files[f"{folder}/{base}.d/{file}"] = DROP_IN
    texts = [(path, _read(path)) for path in unit.files]
    for path, text in texts:
        _collect(unit, text, path)
    unit.named = {path: role for path, role in unit.named.items() if path not in unit.files}
    if links:
        _find_links(unit, listing)
    return unit


def drop_in_folders(unit: Unit) -> list[str]:
    """Folders in which a drop-in of the unit may have been, whether or not they exist."""
    places = (
        "/etc/systemd/system",
        "/run/systemd/system",
        "/etc/systemd/system.control",
        "/usr/lib/systemd/system",
    )
    return [f"{place}/{alias}.d" for place in places for alias in sorted(unit.aliases)]


def _drop_in_bases(unit: Unit, listing: dict[str, frozenset[str]]) -> list[tuple[str, str]]:
    bases = sorted({base for alias in unit.aliases for base in _bases(alias)})
    return [(folder, base) for folder in listing for base in bases if listing[folder]]


def _find_fragment(unit: Unit, listing: dict[str, frozenset[str]]) -> None:
    """The file, through the links that make it known by other names."""
    template = _template(unit.name)
    for wanted in (unit.name, template):
        if wanted is None:
            continue
        for folder in FOLDERS:
            if wanted not in listing[folder]:
                continue
            path = f"{folder}/{wanted}"
            unit.files[path] = FRAGMENT
            unit.fragment = path
            for _ in range(8):
                try:
                    target = os.readlink(paths.host(path))
                except OSError:
                    return
                path = os.path.normpath(os.path.join(os.path.dirname(path), target))
                if path == "/dev/null":
                    return
                unit.files[path] = FRAGMENT
                unit.fragment = path
                if is_name(os.path.basename(path)):
                    unit.aliases.add(os.path.basename(path))
            return


def _template(name: str) -> str | None:
    stem, at, rest = name.partition("@")
    return f"{stem}@.{rest.rpartition('.')[2]}" if at and not rest.startswith(".") else None


def _bases(name: str) -> Iterator[str]:
    """Names whose drop-in folders count for a unit: its own, its template's, `a-.service`, its type's."""
    stem, _, kind = name.rpartition(".")
    yield name
    template = _template(name)
    if template is not None:
        yield template
        stem = stem.partition("@")[0]
    at = stem.rfind("-")
    while at > 0:
        yield f"{stem[: at + 1]}.{kind}"
        at = stem.rfind("-", 0, at)
    yield kind


def _listed(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(paths.host(folder)))
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return []


def _read(path: str) -> str:
    """The text of a unit's file; none for what is no regular file: a FIFO would hold us up, a device act."""
    try:
        return plainfile.read(paths.host(path), _FILE_MAX).decode("utf-8", "replace")
    except OSError:
        return ""


def _find_links(unit: Unit, listing: dict[str, frozenset[str]]) -> None:
    for folder in ("/etc/systemd/system", "/run/systemd/system"):
        for entry in listing[folder]:
            if entry.endswith((".wants", ".requires")):
                path = f"{folder}/{entry}/{unit.name}"
                if os.path.lexists(paths.host(path)):
                    unit.files[path] = LINK


def settings(text: str) -> Iterator[tuple[str, str, str]]:
    """Section, name and value of every assignment of a unit file."""
    section = ""
    pending: list[str] = []
    for raw in text.split("\n"):
        line = raw.strip()
        if line.startswith(("#", ";")) or (not line and not pending):
            continue
        if line.endswith("\\"):
            pending.append(line[:-1])
            continue
        if pending:
            line = " ".join([*pending, line])
            pending = []
        if line.startswith("[") and line.endswith("]"):
            section = line[1:-1]
            continue
        name, equals, value = line.partition("=")
        if equals:
            yield section, name.strip(), value.strip()


def _collect(unit: Unit, text: str, path: str) -> None:
    for _, name, value in settings(text):
        value = _expand(value, unit.name)
        relation = _DEPENDENCIES.get(name)
        if relation is not None:
            for other in value.split():
                if is_name(other):
                    strong = relation not in ("starts after", "runs in")
                    if strong or other not in unit.dependencies:
                        unit.dependencies[other] = relation
        elif name == "EnvironmentFile":
            _name(unit, value.lstrip("-"), ENVIRONMENT)
        elif name.startswith("Exec"):
            _collect_command(unit, value)
        elif name in _PATH_SETTINGS:
            for word in value.split():
                for found in _IN_WORD.findall(word.lstrip("-+!|")):
                    _name(unit, found, CONFIGURATION)
                    if name in _READ_SETTINGS:
                        _name_files_in(unit, os.path.normpath(found))


def _name_files_in(unit: Unit, folder: str) -> None:
    """The files of a folder that a unit names to read from; not those below it, and not any number of them."""
    if not _SHARED.fullmatch(folder) and os.path.isdir(paths.host(folder)):
        for entry in _listed(folder)[:_IN_FOLDER_MAX]:
            _name(unit, join(folder, entry), CONFIGURATION)


def _collect_command(unit: Unit, value: str) -> None:
    words = [word.strip("\"'") for word in _WORD.findall(value)]
    if not words:
        return
    program = words[0].lstrip("@-:+!|")
    if program.startswith("/"):
        _name(unit, program, PROGRAM)
    for word in words[1:]:
        for found in _IN_WORD.findall(word):
            _name(unit, found, CONFIGURATION)


def _name(unit: Unit, path: str, role: str) -> None:
    if (
        path.startswith("/")
        and not path.startswith(("/dev/", "/proc/", "/sys/", "/tmp/"))
        and path not in ("/", "/dev")
    ):
        unit.named.setdefault(os.path.normpath(path), role)


def _expand(value: str, name: str) -> str:
    """The specifiers that paths and dependencies commonly have."""
    if "%" not in value:
        return value
    stem, _, _ = name.rpartition(".")
    prefix, _, instance = stem.partition("@")
    known = {
        "%": "%", "n": name, "N": stem, "p": prefix, "P": prefix, "i": instance, "I": instance.replace("-", "/"),
        "j": prefix.rpartition("-")[2], "t": "/run", "S": "/var/lib", "C": "/var/cache", "L": "/var/log",
        "E": "/etc", "f": "/" + (instance or prefix).replace("-", "/"),
    }  # fmt: skip
    return re.sub(r"%(.)", lambda match: known.get(match[1], match[0]), value)


def all_names(index: Index) -> Iterator[str]:
    """Names of all units that have a file of their own."""
    seen: set[str] = set()
    for folder in FOLDERS:
        for entry in sorted(index.names(folder)):
            if entry not in seen and is_name(entry):
                seen.add(entry)
                yield entry
