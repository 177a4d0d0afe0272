"""Host names, tokens, sizes and times: checked before anything else reads a request."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
from pathlib import Path

from fastapi.security import HTTPBearer
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..errors import InputError
from .limits import Limits

OPEN = ("/healthz", "/", "/page/", "/openapi.json")
"""Paths that need no token: they say nothing about the model. One that ends in / stands for all below it."""

SHORTEST_TOKEN = 16

HEADERS = {
    # Nothing is loaded from anywhere else, and no other page may frame or read this one.
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
}


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


class Guard:
    """Middleware that refuses requests, and ends those that take too long.

    Args:
        app: the application behind it.
        limits: how much a client may send.
        token: what a client must show as `Authorization: Bearer TOKEN`; None: nothing.
        hosts: names that a client may call this server by; None: any. Without a token a page on the web could
            otherwise point its own name at this machine and read answers (DNS rebinding).
    """

    def __init__(
        self, app: ASGIApp, limits: Limits, token: str | None = None, hosts: frozenset[str] | None = None
    ) -> None:
        self.app, self.limits, self.hosts = app, limits, hosts
        self.token = None if token is None else _digest(token)
        self.bearer = HTTPBearer(auto_error=False)
        self.in_flight = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        response = _Response(send)
        refusal = await self._refusal(scope)
        if refusal is not None:
            await refusal(scope, receive, response.send)
        elif scope["method"] == "POST":
            await self._limited(scope, receive, response)
        else:
            await self.app(scope, receive, response.send)

    async def _refusal(self, scope: Scope) -> JSONResponse | None:
        headers = dict(scope["headers"])
        # Not starlette's TrustedHostMiddleware, which answers 400 and, in the versions that we allow, not to [::1].
        if self.hosts is not None and _host_name(headers.get(b"host", b"")) not in self.hosts:
            return _refused(421, f"this server answers only to the names {', '.join(sorted(self.hosts))}.")
        if self.token is not None and not _is_open(scope["path"]):
            # Here and not as a dependency of routes: paths that do not exist are refused too.
            shown = await self.bearer(Request(scope))
            if shown is None or not hmac.compare_digest(_digest(shown.credentials), self.token):
                return _refused(
                    401, "a token is needed: Authorization: Bearer TOKEN.", {"www-authenticate": 'Bearer realm="model"'}
                )
        if scope["method"] == "POST":
            length = headers.get(b"content-length", b"0")
            if length.isdigit() and int(length) > self.limits.body:
                return _refused(413, self._too_large)
            if self.in_flight >= self.limits.in_flight:
                return _refused(
                    429, f"{self.limits.in_flight} requests are in work. Try again in a second.", {"retry-after": "1"}
                )
        return None

    @property
    def _too_large(self) -> str:
        return f"the body is larger than {self.limits.body:,} bytes. Send fewer or smaller images."

    async def _limited(self, scope: Scope, receive: Receive, response: _Response) -> None:
        got, complete = 0, False

        async def counted() -> Message:
            nonlocal got, complete
            message = await receive()
            if message["type"] == "http.request":
                got += len(message.get("body", b""))
                complete = not message.get("more_body", False)
                if got > self.limits.body:  # a body without a content-length
                    raise HTTPException(413, self._too_large)
            return message

        self.in_flight += 1
        try:
            await asyncio.wait_for(self.app(scope, counted, response.send), self.limits.seconds)
        except asyncio.TimeoutError:
            if not response.started:
                what = (504, "the answer was") if complete else (408, "the upload was")
                late = _refused(
                    what[0], f"{what[1]} not complete after {self.limits.seconds:g} s.", {"connection": "close"}
                )
                await late(scope, receive, response.send)
        except ClientDisconnect:
            pass  # nobody waits for the answer
        finally:
            self.in_flight -= 1


class _Response:
    """Sends with the headers of every response, and knows whether it has begun."""

    def __init__(self, send: Send) -> None:
        self._send, self.started = send, False

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.started = True
            own = list(message.get("headers", []))
            known = {name for name, _ in own}
            own += [(k.encode(), v.encode()) for k, v in HEADERS.items() if k.encode() not in known]
            message = {**message, "headers": own}
        await self._send(message)


def _digest(token: str) -> bytes:
    """Return a hash of fixed length: the time of a comparison does not even tell how long the token is."""
    return hashlib.sha256(token.strip().encode()).digest()


def _host_name(header: bytes) -> str:
    text = header.decode("latin-1").lower()
    return text[: text.index("]") + 1] if text.startswith("[") and "]" in text else text.partition(":")[0]


def _is_open(path: str) -> bool:
    return any(path == one or (one != "/" and one.endswith("/") and path.startswith(one)) for one in OPEN)


def _refused(status: int, detail: str, headers: dict[str, str] | None = None) -> JSONResponse:
    return JSONResponse({"detail": detail}, status, headers=headers)
