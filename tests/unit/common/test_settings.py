# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from syntrop import __version__
from syntrop.common import settings
from syntrop.common.settings import COMMON, Setting, SettingsError, resolve

TABLE = (
    Setting("models_max", int, 4, "How many models.", minimum=1, maximum=64),
    Setting("share", float, 0.5, "A share.", section="memory", minimum=0.0, maximum=1.0),
    Setting("mode", str, "fast", "A mode.", choices=("fast", "exact")),
    Setting("strict", bool, False, "Whether."),
    Setting("banner", str, None, "A text that may be unset."),
    Setting("folders", list, ["a", "b"], "Folders."),
)


@pytest.fixture(autouse=True)
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for row in COMMON:
        if row.environment:
            monkeypatch.delenv(row.environment, raising=False)
    monkeypatch.setenv("SYNTROP_CONFIG_ROOT", str(tmp_path))
    return tmp_path


@pytest.fixture
def warnings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    seen: list[str] = []
    monkeypatch.setattr("syntrop.common.journal.warning", lambda text, **_fields: seen.append(text))
    return seen


def put(folder: Path, name: str, text: str | bytes) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def refused(*argv: str) -> SettingsError:
    with pytest.raises(SettingsError) as caught:
        resolve("modeld", TABLE, argv)
    return caught.value


def test_defaults_are_those_of_the_table() -> None:
    found = resolve("modeld", TABLE, [])
    assert (found.models_max, found.share, found.mode, found.strict) == (4, 0.5, "fast", False)
    assert found.banner is None
    assert found.idle_exit_sec == 30.0
    assert found.source("models_max") == "default"
    assert {name for name, _, _ in found} == {row.name for row in (*TABLE, *COMMON)}


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no_such"):
        _ = resolve("modeld", TABLE, []).no_such


def test_precedence_from_file_to_command_line(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = put(config, "modeld.toml", "[daemon]\nidle_exit_sec = 7\nmodels_max = 9\n")
    found = resolve("modeld", TABLE, [])
    assert (found.idle_exit_sec, found.source("idle_exit_sec")) == (7.0, f"{path}:2")
    assert isinstance(found.idle_exit_sec, float)
    monkeypatch.setenv("SYNTROP_IDLE_EXIT_SEC", "2.5")
    found = resolve("modeld", TABLE, [])
    assert (found.idle_exit_sec, found.source("idle_exit_sec")) == (2.5, "environment SYNTROP_IDLE_EXIT_SEC")
    found = resolve("modeld", TABLE, ["--idle-exit-sec=1"])
    assert (found.idle_exit_sec, found.source("idle_exit_sec")) == (1.0, "command line")
    assert found.models_max == 9


def test_drop_ins_are_read_by_name_after_the_main_file(config: Path) -> None:
    put(config, "modeld.toml", "[daemon]\nmodels_max = 2\nmode = 'exact'\n")
    put(config, "modeld.toml.d/20-b.toml", "[daemon]\nmodels_max = 20\n")
    put(config, "modeld.toml.d/10-a.toml", "[daemon]\nmodels_max = 10\nstrict = true\n")
    put(config, "modeld.toml.d/30-c.toml.bak", "this is no TOML")
    put(config, "modeld.toml.d/.hidden.toml", "this is no TOML")
    found = resolve("modeld", TABLE, [])
    assert (found.models_max, found.strict, found.mode) == (20, True, "exact")


def test_a_stronger_folder_masks_files_of_the_same_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folders = [tmp_path / name for name in ("etc", "run", "usr")]
    monkeypatch.setattr("syntrop.common.paths.config_dirs", lambda: tuple(map(str, folders)))
    put(folders[2], "modeld.toml", "[daemon]\nmodels_max = 2\n[memory]\nshare = 0.2\n")
    put(folders[1], "modeld.toml", "[daemon]\nmodels_max = 3\n")
    put(folders[2], "modeld.toml.d/50-site.toml", "[daemon]\nmode = 'exact'\n")
    put(folders[2], "modeld.toml.d/60-more.toml", "[daemon]\nstrict = true\n")
    (folders[0] / "modeld.toml.d").mkdir(parents=True)
    os.symlink("/dev/null", folders[0] / "modeld.toml.d" / "50-site.toml")
    found = resolve("modeld", TABLE, [])
    assert (found.models_max, found.share, found.mode, found.strict) == (3, 0.5, "fast", True)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[daemon]\n\nmodels_max = '9'\n", "modeld.toml:3: models_max must be an integer, not '9'"),
        ("[daemon]\nmodels_max = true\n", "modeld.toml:2: models_max must be an integer, not True"),
        ("[daemon]\nmodels_max = 9.0\n", "models_max must be an integer"),
        ("[daemon]\nmodels_max = 0\n", "models_max must be at least 1"),
        ("[daemon]\nmodels_max = 65\n", "models_max must be at most 64"),
        ("[daemon]\nstrict = 1\n", "strict must be true or false"),
        ("[daemon]\nmode = 'slow'\n", "mode must be one of fast, exact"),
        ("[daemon]\nfolders = 'a'\n", "folders must be a list of strings"),
        ("[daemon]\nfolders = ['a', 1]\n", "folders must be a list of strings"),
        ("[daemon]\nbanner = 5\n", "banner must be a string"),
        ("[memory]\nshare = nan\n", "modeld.toml:2: share must be finite"),
        ("[memory]\nshare = inf\n", "share must be finite"),
        ("[memory]\nshare = true\n", "share must be a number"),
        ("memory.share = 2\n", "modeld.toml:1: share must be at most 1"),
    ],
)
def test_a_wrong_value_refuses_everything_with_its_place(config: Path, text: str, reason: str) -> None:
    put(config, "modeld.toml", text)
    error = refused()
    assert reason in error.message
    assert error.status == 78
    assert "\n" not in error.message


@pytest.mark.parametrize("text", ["[daemon", "x = ", "[daemon]\na = 1\na = 2\n", b"\xff\xfe", "a = " + "[" * 5000])
def test_a_file_that_is_no_toml_is_refused(config: Path, text: str | bytes) -> None:
    path = put(config, "modeld.toml", text)
    assert refused().message.startswith(f"{path}: no valid TOML: ")


def test_a_file_that_cannot_be_read_is_refused(config: Path) -> None:
    (config / "modeld.toml").mkdir()
    assert "cannot be read" in refused().message


def test_unknown_keys_and_sections_warn_with_their_place(config: Path, warnings: list[str]) -> None:
    path = put(config, "modeld.toml", "top = 1\n[daemon]\nmodel_max = 3\n[new]\nx = 1\n[memory]\nshare = 0.25\n")
    assert resolve("modeld", TABLE, []).share == 0.25
    assert len(warnings) == 3
    assert warnings[0].startswith(f"{path}:1: unknown key outside of a section 'top'")
    assert f"{path}:3: unknown key 'model_max' in section 'daemon'" in warnings[1]
    assert "models_max" in warnings[1]
    assert warnings[2].startswith(f"{path}:4: unknown section 'new'")


def test_command_line_forms() -> None:
    found = resolve(
        "modeld",
        TABLE,
        ["--models-max", "7", "--share=1", "--strict", "--folders=x,y", "--folders", "z", "--banner=a=b"],
    )
    assert (found.models_max, found.share, found.strict, found.banner) == (7, 1.0, True, "a=b")
    assert found.folders == ["x", "y", "z"]
    assert resolve("modeld", TABLE, ["--strict", "--no-strict"]).strict is False
    assert resolve("modeld", TABLE, ["--strict=no"]).strict is False


@pytest.mark.parametrize(
    ("argv", "message", "hint"),
    [
        (["--models-mx=3"], "unknown option --models-mx", "did you mean --models-max?"),
        (["--zzz"], "unknown option --zzz", "see modeld --help"),
        (["stray"], "unexpected argument 'stray'", "see modeld --help"),
        (["--models-max"], "option --models-max needs a value", "write --models-max=N"),
        (["--models-max=x"], "option --models-max=x: must be an integer", "write --models-max=N"),
        (["--models-max=0"], "option --models-max=0: must be at least 1", "write --models-max=N"),
        (["--share=nan"], "option --share=nan: must be finite", "write --share=NUMBER"),
        (["--strict=maybe"], "option --strict=maybe: must be yes or no", "write --strict[=yes|no]"),
        (["--mode=slow"], "option --mode=slow: must be one of fast, exact", "write --mode=fast|exact"),
        (["--no-models-max"], "unknown option --no-models-max", ""),
        (["--idle-exit-sec=-1"], "option --idle-exit-sec=-1: must be at least 0 seconds", ""),
    ],
)
def test_command_line_errors(argv: list[str], message: str, hint: str) -> None:
    error = refused(*argv)
    assert (error.message, error.status) == (message, 2)
    assert hint in error.hint


def test_load_prints_one_line_and_a_hint_and_exits_2(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        settings.load("modeld", TABLE, ["--models-mx=3"])
    assert caught.value.code == 2
    assert capsys.readouterr().err == ("modeld: unknown option --models-mx\nhint: did you mean --models-max?\n")


def test_load_exits_78_for_a_bad_file(config: Path) -> None:
    put(config, "modeld.toml", "[daemon]\nmodels_max = 'x'\n")
    with pytest.raises(SystemExit) as caught:
        settings.load("modeld", TABLE, [])
    assert caught.value.code == 78


def test_help_names_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        settings.load("modeld", TABLE, ["--help"])
    assert caught.value.code == 0
    text = capsys.readouterr().out
    for row in (*TABLE, *COMMON):
        assert row.option in text
    assert "Default: 30 seconds." in text
    assert max(map(len, text.splitlines())) <= 80


def test_version_is_the_package_s(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        settings.load("modeld", TABLE, ["--version"])
    assert capsys.readouterr().out == f"modeld (syntrop) {__version__}\n"


def test_a_bad_environment_override_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SYNTROP_IDLE_EXIT_SEC", "soon")
    assert refused().message == "environment variable SYNTROP_IDLE_EXIT_SEC=soon: must be a number"


@pytest.mark.parametrize(
    ("text", "level"), [("debug", "debug"), ("3", "err"), ("console:info", "info"), ("?", "info")]
)
def test_systemd_log_level_is_read_as_systemd_does(text: str, level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SYSTEMD_LOG_LEVEL", text)
    assert resolve("modeld", TABLE, []).log_level == level


def test_a_daemon_s_row_replaces_the_common_one() -> None:
    own = Setting("idle_exit_sec", float, 300.0, "Longer.")
    assert resolve("runtimed", [own], []).idle_exit_sec == 300.0


def test_a_table_with_a_name_twice_is_a_bug() -> None:
    with pytest.raises(ValueError, match="twice"):
        settings.whole_table([Setting("a", int, 1, ""), Setting("a", int, 2, "", section="x")])


@given(st.lists(st.text(max_size=12), max_size=5))
def test_any_command_line_gives_settings_or_one_clear_error(argv: list[str]) -> None:
    try:
        given = settings.parse_arguments("modeld", settings.whole_table(TABLE), argv)
    except SettingsError as error:
        assert error.status == 2 and error.message and error.hint
    else:
        assert set(given) <= {row.name for row in (*TABLE, *COMMON)}


@given(
    st.sampled_from([*TABLE, *COMMON]),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inner: st.lists(inner, max_size=3),
    ),
)
def test_a_checked_value_has_the_type_of_its_setting(row: Setting, value: object) -> None:
    try:
        checked = row.check(value)
    except ValueError:
        return
    assert type(checked) is row.type
    assert checked == value


def test_sections_that_a_daemon_reads_itself(config: Path, warnings: list[str]) -> None:
    put(config, "modeld.toml", '[[providers]]\nid = "x"\n[tiers.fast]\ny = 1\n')
    resolve("modeld", TABLE, [], foreign=("providers", "tiers"))
    assert warnings == []
    resolve("modeld", TABLE, [], foreign=("tiers",))
    assert "'providers'" in warnings[0]
