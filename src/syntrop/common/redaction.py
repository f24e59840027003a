# SPDX-License-Identifier: Apache-2.0
"""What is secret, and what is kept in its place: a digest under a key of this machine's own.

A file that is a secret (by its name or by what it holds) is never kept. In other texts each secret value is
replaced by its digest before the text is kept or compared, so that a diff says *that* a password changed and not
to what. The key makes digests useless to whoever has only them: short secrets cannot be tried out.
"""

from __future__ import annotations

import fnmatch
import os
import re

from syntrop.common.patterns import late

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hashlib import blake2b as Hasher

KEY_BYTES = 32
_DIGEST_BYTES = 20

_SECRET_NAMES = late(
    "|".join(
        fnmatch.translate(pattern)
        for pattern in (
            "shadow*", "gshadow*", "opasswd", "*.key", "*_key", "*-key.pem", "*.keytab", "*.p12", "*.pfx", "*.jks",
            "*.keystore", "*.kdbx", "*.gpg", "*.cred", "*.token", "id_rsa*", "id_dsa*", "id_ecdsa*",
            "id_ed25519*",
            ".netrc", "netrc", ".pgpass", ".my.cnf", "*.psk", "*secret*", "*passwd-*", "credentials",
            "credentials.*", "*.credentials", "*password*",
            "chap-secrets", "pap-secrets", "random-seed", "smbpasswd*", "*.htpasswd",
            ".htpasswd", "htpasswd", "auth.conf", "sasldb*", "rndc.key",
        )
    ),
    re.IGNORECASE,
)  # fmt: skip
_PUBLIC = late(r".*\.pub\Z", re.IGNORECASE)
_SECRET_FOLDERS = late(
    r"/(?:credstore(?:\.encrypted)?|ssl/private|pki/tls/private|private-keys-v1\.d|system-connections|secrets?"
    r"|credentials|auth\.conf\.d)/"
)
_SECRET_CONTENT = late(
    rb"-----BEGIN [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----|^PuTTY-User-Key-File-|^AGE-SECRET-KEY-1"
    rb"|^[ \t]{0,64}PrivateKey[ \t]{0,8}=[ \t]{0,8}\S",
    re.MULTILINE,
)
# Every repetition is bounded or cannot overlap itself: a text of any shape takes time in proportion to its length.
_NAMED = late(
    r"""(?P<head>
        (?:password|passwd|passphrase|secret|token|api[_-]?key|access[_-]?key|private[_-]?key|psk|credential)
        [\w.\-]{0,64}["']?\s{0,8}[=:]\s{0,8}
        | ^[\ \t]{0,64}(?:password|passwd|secret|pass|pwd)\s{1,8}
        | \bauthorization\s{0,8}:\s{0,8}(?:bearer|basic|token)\s{1,8}
        | \bBearer\s{1,8}
        | ://[^\s:/@]{1,128}:(?=[^\s@/]{1,256}@)
    )(?P<value>"[^"\n]*"|'[^'\n]*'|[^\s"'\#;,@]+)""",
    re.IGNORECASE | re.MULTILINE | re.VERBOSE,
)
_SHAPED = late(
    r"\b(?:gh[pousr]_[A-Za-z0-9]{30,}|github_pat_\w{30,}|glpat-[\w-]{18,}|xox[abprs]-[\w-]{10,}|sk-[\w-]{20,}"
    r"|hf_[A-Za-z0-9]{20,}|AKIA[0-9A-Z]{16}|AIza[\w-]{30,}|eyJ[\w-]{6,1024}\.[\w-]{6,8192}\.[\w-]*)"
    r"|\$(?:1|2[aby]|5|6|7|y|gy|apr1|argon2id?)\$[^\s:\"']{8,}"
)
# What a text must have (in small letters) to hold what the two above look for: most have none of it.
_NAMED_HINTS = (
    "pass", "secret", "token", "key", "psk", "credential", "pwd", "authorization", "bearer", "://",
)  # fmt: skip
_SHAPED_HINTS = (
    "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_", "glpat-", "xox", "sk-", "hf_", "akia", "aiza", "eyj",
    "$",
)  # fmt: skip
_HARMLESS = late(r"(?:yes|no|true|false|on|off|none|null|required|sufficient|optional|\d{1,3}|/[^\s]*|%\w|)\Z")


def secret_path(path: str) -> bool:
    """Whether a file is a secret by its name or its folder."""
    name = os.path.basename(path)
    return bool((_SECRET_NAMES.match(name) and not _PUBLIC.match(name)) or _SECRET_FOLDERS.search(path))


def secret_content(data: bytes) -> bool:
    """Whether a file is a secret by what it holds."""
    return _SECRET_CONTENT.search(data) is not None


def redact(text: str, key: bytes) -> str:
    """A text without the secrets in it."""

    def replace(match: re.Match[str]) -> str:
        value = match["value"]
        quote = value[0] if value[0] in "\"'" else ""
        value = value.strip(quote) if quote else value
        if _HARMLESS.match(value):
            return match[0]
        return f"{match['head']}{quote}{masked(value, key)}{quote}"

    # A long s and the Kelvin sign are the only letters beyond ASCII that the patterns take for others.
    small = text.lower() if text.isascii() else text.lower().replace("\u017f", "s")
    if any(hint in small for hint in _NAMED_HINTS):
        text = _NAMED.sub(replace, text)
    if any(hint in small for hint in _SHAPED_HINTS):
        text = _SHAPED.sub(lambda match: masked(match[0], key), text)
    return text


def masked(value: str, key: bytes) -> str:
    """What stands for a secret: its digest. What stands for one already stays as it is."""
    if value.startswith("<secret:"):
        return value
    return f"<secret:{digest(key, value.encode('utf-8', 'surrogateescape'))[:16]}>"


def hasher(key: bytes) -> Hasher:
    from syntrop.common.digests import blake2b

    return blake2b(key=key, digest_size=_DIGEST_BYTES)


def digest(key: bytes, data: bytes) -> str:
    """The keyed digest of a content, in hexadecimal."""
    state = hasher(key)
    state.update(data)
    return state.hexdigest()


def load_key(path: str) -> tuple[bytes, bool]:
    """The machine's key, made at first use with mode 0600; and whether it was made just now."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        pass
    else:
        try:
            key = os.read(handle, KEY_BYTES + 1)
        finally:
            os.close(handle)
        if len(key) == KEY_BYTES:
            return key, False
    from syntrop.common import atomic

    key = os.urandom(KEY_BYTES)
    atomic.write(path, key, mode=0o600)
    return key, True
