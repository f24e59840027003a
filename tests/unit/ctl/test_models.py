# SPDX-License-Identifier: Apache-2.0
"""How `syntropctl models` reads sizes, and what it says when something cannot be."""

from __future__ import annotations

import pytest

from syntrop.common.varlink import idl
from syntrop.common.varlink.errors import VarlinkError
from syntrop.ctl import models


@pytest.mark.parametrize(
    ("text", "number"),
    [("0", 0), ("123", 123), ("1K", 1024), ("1.5m", 3 << 19), ("20G", 20 << 30), ("2T", 2 << 40)],
)
def test_sizes(text: str, number: int) -> None:
    assert models.parse_size(text) == number


@pytest.mark.parametrize("text", ["", "G", "1X", "-1", "nan", "inf", "1e99", "1 000", "20GB", "ten"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(ValueError, match="is no size"):
        models.parse_size(text)


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (98_362_432, "93.8 MiB"), (5 << 40, "5120.0 GiB")],
)
def test_sizes_as_they_are_shown(number: int, text: str) -> None:
    assert models.size(number) == text


@pytest.mark.parametrize(
    ("name", "parameters", "says"),
    [
        ("NoSuchModel", {"id": "x"}, ["'x'", "syntropctl models"]),
        ("InvalidIdentifier", {"id": "a/b"}, ["'a/b'", "NAME:TAG"]),
        ("PullFailed", {"reference": "smol", "reason": "404"}, ["smol", "404"]),
        ("InvalidParameter", {"parameter": "fd", "reason": "not a model"}, ["not a model"]),
        ("InvalidParameter", {"parameter": "digest", "reason": "odd"}, ["digest: odd"]),
        ("DigestMismatch", {"expected": "sha256:1", "actual": "sha256:2"}, ["sha256:1", "sha256:2", "nothing"]),
        (
            "OutOfSpace",
            dict.fromkeys(models.OUT_OF_SPACE, 1 << 20) | {"pinned_bytes": 3 << 30},
            ["1.0 MiB", "3.0 GiB are pinned"],
        ),
        (
            "OutOfSpace",
            dict.fromkeys(models.OUT_OF_SPACE, 1 << 20) | {"promised_bytes": 5 << 30},
            ["5.0 GiB are kept for what is on its way now", "try again"],
        ),
        ("OperationFailed", {"reason": "Input/output error"}, ["Input/output error"]),
    ],
)
def test_every_fault_is_a_sentence(name: str, parameters: dict[str, object], says: list[str]) -> None:
    text = models.explain(VarlinkError(f"io.syntrop.Model1.{name}", **parameters))
    assert all(word in text for word in says)
    assert "io.syntrop" not in text
    assert "fd" not in text


def test_no_fault_of_the_interface_is_forgotten() -> None:
    told = {"NoSuchModel", "InvalidIdentifier", "PullFailed", "InvalidParameter", "DigestMismatch", "OutOfSpace"}
    assert set(idl.load("io.syntrop.Model1").errors) == told | {"OperationFailed"}
    assert "group syntrop" in models.explain(VarlinkError("org.varlink.service.PermissionDenied"))
    assert models.explain(VarlinkError("x.y.Z", a=1)) == str(VarlinkError("x.y.Z", a=1))
