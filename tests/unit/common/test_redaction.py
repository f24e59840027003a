# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from syntrop.common import redaction
from syntrop.common.redaction import digest, redact, secret_content

KEY = b"k" * 32
SECRET = "correct-horse-battery"


@pytest.mark.parametrize(
    "text",
    [
        f"password = {SECRET}\n",
        f"DB_PASSWORD={SECRET}\n",
        f'export API_KEY="{SECRET}"\n',
        f"  api-key: '{SECRET}'\n",
        f'{{"client_secret": "{SECRET}", "name": "x"}}',
        f"requirepass_token: {SECRET}\n",
        f"url = postgres://user:{SECRET}@host/db\n",
        f"Authorization: Bearer {SECRET}\n",
        f"password {SECRET}\n",
        f"wpa-psk={SECRET}\n",
    ],
)
def test_values_of_secrets_are_replaced(text: str) -> None:
    found = redact(text, KEY)
    assert SECRET not in found
    assert f"<secret:{digest(KEY, SECRET.encode())[:16]}>" in found
    assert found.count("\n") == text.count("\n")


@pytest.mark.parametrize(
    "value",
    ["ghp_" + "a1B2" * 9, "AKIA" + "ABCD1234" * 2, "eyJhbGciOiJI.eyJzdWIiOiIx.sig", "$6$salt$" + "abc/." * 8,
     "xoxb-1234567890-abc", "hf_" + "abcDEF12" * 4],
)  # fmt: skip
def test_what_has_the_shape_of_a_secret_is_replaced(value: str) -> None:
    assert value not in redact(f"something {value} here", KEY)


@pytest.mark.parametrize(
    "text",
    [
        "PasswordAuthentication no\n",
        "password required pam_unix.so\n",
        "password_file = /etc/app/pass\n",
        "listen 80;\nserver_tokens off;\n",
        "token_ttl = 60\n",
        "Environment=PATH=/usr/bin\n",
    ],
)
def test_what_is_no_secret_stays(text: str) -> None:
    assert redact(text, KEY) == text


def test_the_same_secret_looks_the_same_and_another_key_another_way() -> None:
    one = redact("password=abcdefgh", KEY)
    assert one == redact("password=abcdefgh", KEY)
    assert one != redact("password=abcdefgi", KEY)
    assert one != redact("password=abcdefgh", b"other" * 6)


@given(st.text(max_size=300))
def test_redacting_twice_changes_nothing_more(text: str) -> None:
    once = redact(text, KEY)
    assert redact(once, KEY) == once


@given(
    st.lists(
        st.sampled_from(
            ["password", "PASSWD", " pwd ", "Secret", "tok\u212aen", "to\u212aen", "a\u017fecret", "pa\u017fs ",
             "api-key", "psk",
             "Bearer ", "Authorization: basic ", "http://u:", "@h", "=", ": ", " ", "\n", "hunter2x",
             "sk-" + "a" * 24, "AKIA" + "A" * 16, "ghp_" + "b" * 36,
             "eyJhbGciOi.eyJzdWIi.x", "$6$salt$abcdefghij", "\u0130", "é"]
        ),
        max_size=8,
    ).map("".join)
)  # fmt: skip
def test_no_secret_is_passed_over_for_lack_of_a_hint(text: str) -> None:
    """What the patterns alone would replace is replaced."""
    hasty = redaction._SHAPED.search(text) or redaction._NAMED.search(text)
    if hasty is None:
        assert redact(text, KEY) == text
        return
    small = text.lower().replace("\u017f", "s")
    hints = (*redaction._NAMED_HINTS, *redaction._SHAPED_HINTS)
    assert any(hint in small for hint in hints)
    if redaction._SHAPED.search(text):
        assert any(hint in small for hint in redaction._SHAPED_HINTS)
    if redaction._NAMED.search(text):
        assert any(hint in small for hint in redaction._NAMED_HINTS)


def test_a_long_line_takes_no_more_than_its_length() -> None:
    # Quadratic behaviour would take hours here.
    for text in (
        "a" * 250_000,
        "token" * 50_000,
        "password" * 30_000,
        "://a:" * 50_000,
        "eyJ" * 80_000,
        "eyJaaaaaa-" * 25_000,
        " " * 250_000,
        "\n" * 250_000,
        " \t\n" * 80_000,
    ):
        redact(text, KEY)
        secret_content(text.encode())


@pytest.mark.parametrize(
    "data",
    [
        b"-----BEGIN OPENSSH PRIVATE KEY-----\nabc",
        b"[Interface]\nPrivateKey = abc=\n",
        b"-----BEGIN PRIVATE KEY-----",
    ],
)
def test_private_keys_are_known_by_their_content(data: bytes) -> None:
    assert secret_content(data)
    assert not secret_content(b"-----BEGIN CERTIFICATE-----")
