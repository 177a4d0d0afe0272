"""Who may send requests: names of this machine, tokens, origins. No web framework is imported for it."""

from __future__ import annotations

import ipaddress
import re
from pathlib import Path

from ..errors import InputError

LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})

SHORTEST_TOKEN = 16

_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[^\[\]:@/\s]+)(?::\d{1,5})?")
_ORIGIN = re.compile(rf"https?://{_HOST.pattern}")


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach a host name or address.

    >>> is_loopback("localhost"), is_loopback("127.0.0.1"), is_loopback("0.0.0.0"), is_loopback("")
    (True, True, False, False)
    """
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def host_name(header: bytes) -> str:
    """Return the name in a Host header, in lower case; empty if it is not one.

    >>> host_name(b"LocalHost:80"), host_name(b"[::1]:80"), host_name(b"[::1]evil.com"), host_name(b"localhost:x")
    ('localhost', '[::1]', '', '')
    """
    found = _HOST.fullmatch(header.decode("latin-1").lower())
    return found[1] if found else ""


def checked_origin(text: str) -> str:
    """Return an origin as browsers send it.

    >>> checked_origin("https://Birds.example/")
    'https://birds.example'

    Raises:
        InputError: if it is none.
    """
    origin = text.lower().removesuffix("/")
    if _ORIGIN.fullmatch(origin) is None:
        raise InputError(
            f"--allow-origin {text!r} is not an origin. Write it as https://birds.example or http://host:8080."
        )
    return origin


def read_token(path: str | Path) -> str:
    """Read the token that clients must know.

    Raises:
        InputError: if there is none, or it can be guessed.
    """
    try:
        token = Path(path).read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"the token file {path} cannot be read: {error}.") from None
    if len(token) < SHORTEST_TOKEN or not token.isprintable() or " " in token:
        raise InputError(
            f"the token in {path} must be one word of at least {SHORTEST_TOKEN} characters, got {len(token)}. "
            f"Make one: python -c 'import secrets; print(secrets.token_urlsafe(32))' > {path}"
        )
    return token
