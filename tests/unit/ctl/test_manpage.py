# SPDX-License-Identifier: Apache-2.0
"""What is generated from the settings tables is whole, valid, and up to date in the repository."""

from __future__ import annotations

import importlib.util
import subprocess
from pathlib import Path
from types import ModuleType

import pytest

from syntrop.common.settings import COMMON, Setting
from syntrop.ctl import manpage
from syntrop.ctl.commandpage import command_page
from syntrop.ctl.commands import parser

DOCS = Path(__file__).parents[3] / "docs"
TABLE = (
    Setting("mode", str, "fast", "A mode. With a 'quote', a \\ and [brackets]: all.", choices=("fast", "exact")),
    Setting("strict", bool, False, ".Starts with a dot - and has a hyphen"),
    Setting("share", float, 0.5, "A share.", section="memory", minimum=0.0, maximum=1.0),
    Setting("size_max", int, 1, "A size.", unit="bytes", minimum=1),
    Setting("folders", list, ["a", "b"], "Folders…"),
)


@pytest.fixture(scope="module")
def generate() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_generate", DOCS / "generate.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def formatted(text: str) -> str:
    """As `man` would show it; any warning of the formatter fails."""
    done = subprocess.run(
        ["groff", "-man", "-Tutf8", "-ww", "-P-cbou", "-Kutf8", "-rLL=100n"],
        input=text,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
    return done.stdout


def test_pages_show_every_setting() -> None:
    daemon = formatted(manpage.daemon_page("exampled", "an example", TABLE, "1.0"))
    config = formatted(manpage.config_page("exampled", TABLE, "1.0"))
    for row in (*TABLE, *COMMON):
        assert row.option in daemon.replace("\u2010", "-")
        assert row.name in config
    assert ".Starts with a dot - and has a hyphen" in daemon.replace("\u2212", "-")
    assert "A mode. With a 'quote', a \\ and [brackets]: all." in daemon.replace("\u2019", "'")
    assert "[memory]" in config
    assert "number, 0 to 1." in config
    assert "Default: 1 byte." in config
    assert "exampled - an example" in daemon.replace("\u2212", "-")


def completed(daemon: str, script: str, *words: str) -> list[str]:
    """What bash would offer for a command line, split as readline splits it."""
    line = " ".join(f"'{word}'" for word in (daemon, *words))
    function = script.split("complete -o default -F ")[1].split()[0]
    program = (
        f"compopt() {{ :; }}\n{script}\nCOMP_WORDS=({line}); COMP_CWORD={len(words)}\n"
        f'{function}; printf "%s\\n" "${{COMPREPLY[@]}}"\n'
    )
    done = subprocess.run(["bash", "-euc", program], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return done.stdout.split()


def test_bash_completes_options_and_values() -> None:
    script = manpage.bash_completion("systemd-exampled", TABLE)
    offered = completed("systemd-exampled", script, "--")
    expected = {row.option + ("" if row.type is bool else "=") for row in (*TABLE, *COMMON)}
    assert set(offered) == expected | {"--help", "--version"}
    assert completed("systemd-exampled", script, "--mo") == ["--mode="]
    assert completed("systemd-exampled", script, "--mode", "=") == ["fast", "exact"]
    assert completed("systemd-exampled", script, "--mode", "=", "ex") == ["exact"]
    assert completed("systemd-exampled", script, "--strict", "y") == ["yes"]
    assert completed("systemd-exampled", script, "--mode", "=", "zzz") == []


def test_zsh_gets_one_specification_an_option() -> None:
    lines = manpage.zsh_completion("exampled", TABLE).splitlines()
    assert lines[0] == "#compdef exampled"
    assert sum(line.startswith("    '") for line in lines) == len(TABLE) + len(COMMON) + 2
    assert "    '--mode=[A mode]:mode:(fast exact)' \\" in lines
    assert "    '*--folders=[Folders…]:folders: ' \\" in lines
    assert all(line.count("'") == 2 for line in lines[3:])
    assert all(line.endswith(" \\") for line in lines[2:-1])


def test_every_daemon_has_its_documents(generate: ModuleType) -> None:
    documents = manpage.documents(generate.tables(), "1.0")
    assert len(documents) == 4 * len(generate.DAEMONS)
    for path, text in documents.items():
        if path.startswith("man/"):
            formatted(text)
        elif path.startswith("bash"):
            subprocess.run(["bash", "-n"], input=text, text=True, check=True)


def test_every_verb_is_in_the_manual_page() -> None:
    shown = formatted(command_page(parser(), "1.0")).replace("\u2010", "-").replace("\u2212", "-")
    for words in ("syntropctl explain UNIT", "syntropctl models import PATH", "-n, --dry-run", "--reason TEXT"):
        assert words in shown


def test_the_operator_s_page_is_up_to_date(generate: ModuleType) -> None:
    text = (DOCS / "operator.md").read_text()
    assert generate.operator_page(text) == text, "run docs/generate.py"


def test_every_daemon_of_the_package_is_documented(generate: ModuleType) -> None:
    package = DOCS.parent / "src" / "syntrop"
    assert {".".join(path.parent.relative_to(package).parts) for path in package.rglob("settings.py")} - {
        "common"
    } == {module for module, _ in generate.DAEMONS.values()}
