"""Host names, origins, tokens, sizes and times: checked before anything else reads a request."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import time
from collections import Counter
from collections.abc import Callable

from fastapi.security import HTTPBearer
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .access import host_name
from .limits import Limits

OPEN = ("/healthz", "/readyz", "/", "/page/", "/openapi.json")
"""Paths that need no token: they say nothing about the model. One that ends in / stands for all below it."""

WRITING = ("/teach", "/undo")
"""Paths that change the model."""

HEADERS = {
    # Nothing is loaded from anywhere else, and no other page may frame or read this one.
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
}


_LATER = {"retry-after": "1"}

Observe = Callable[[str, int, float], None]
"""Is told the path, the status and the seconds of a request."""


class Guard:
    """Middleware that refuses requests, and ends those that take too long.

    Args:
        app: the application behind it.
        limits: how much a client may send.
        token: what a client must show as `Authorization: Bearer TOKEN`; None: nothing.
        hosts: names that a client may call this server by; None: any. Without a token a page on the web could
            otherwise point its own name at this machine and read answers (DNS rebinding).
        origins: other sites whose pages may send requests, such as "https://birds.example".
        write_token: what a client must show to change the model; None: nobody can.
        observe: called after every request with its path, status and seconds.
    """

    def __init__(
        self,
        app: ASGIApp,
        limits: Limits,
        token: str | None = None,
        hosts: frozenset[str] | None = None,
        origins: frozenset[str] = frozenset(),
        write_token: str | None = None,
        observe: Observe | None = None,
    ) -> None:
        self.app, self.limits, self.hosts, self.origins = app, limits, hosts, origins
        self.token = None if token is None else _digest(token)
        self.write_token = None if write_token is None else _digest(write_token)
        self.bearer = HTTPBearer(auto_error=False)
        self.observe = observe
        self.in_flight: Counter[str] = Counter()
        self.held = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        response, began = _Response(send), time.monotonic()
        try:
            refusal = await self._refusal(scope)
            if refusal is not None:
                await refusal(scope, receive, response.send)
            else:
                await self._limited(scope, receive, response)
        finally:
            if self.observe is not None:
                self.observe(scope["path"], response.status, time.monotonic() - began)

    async def _refusal(self, scope: Scope) -> JSONResponse | None:
        headers = dict(scope["headers"])
        # Not starlette's TrustedHostMiddleware, which answers 400 and, in the versions that we allow, not to [::1].
        called = [host_name(value) for name, value in scope["headers"] if name == b"host"]
        if self.hosts is not None and (len(called) != 1 or called[0] not in self.hosts):
            return _refused(421, f"this server answers only to the names {', '.join(sorted(self.hosts))}.")
        if self._is_foreign(scope, headers):
            return _refused(403, "pages of other sites may not send requests. Allow one with --allow-origin.")
        needed = self.write_token if scope["path"] in WRITING else self.token
        if needed is not None and not _is_open(scope["path"]):
            # Here and not as a dependency of routes: paths that do not exist are refused too.
            shown = await self.bearer(Request(scope))
            if shown is None or not hmac.compare_digest(_digest(shown.credentials), needed):
                return _refused(
                    401, "a token is needed: Authorization: Bearer TOKEN.", {"www-authenticate": 'Bearer realm="model"'}
                )
        if scope["method"] == "POST":
            length = headers.get(b"content-length", b"0")
            if length.isdigit() and int(length) > self.limits.body:
                return _refused(413, self._too_large)
            if self._is_full(_client(scope)):
                return _refused(429, self._busy, _LATER)
        return None

    def _is_foreign(self, scope: Scope, headers: dict[bytes, bytes]) -> bool:
        """Return whether a page of another site sent it. Programs send neither header."""
        origin = headers.get(b"origin")
        if origin is not None:
            text = origin.decode("latin-1").lower()
            return text.partition("://")[2] != headers.get(b"host", b"").decode("latin-1").lower() and (
                text not in self.origins
            )
        if headers.get(b"sec-fetch-mode") == b"navigate" and scope["path"] == "/" and scope["method"] == "GET":
            return False  # a link to the page
        return headers.get(b"sec-fetch-site", b"none") not in (b"none", b"same-origin")

    def _is_full(self, client: str) -> bool:
        share = max(1, self.limits.in_flight * 7 // 8)
        return self.in_flight.total() >= self.limits.in_flight or self.in_flight[client] >= share

    @property
    def _busy(self) -> str:
        return f"{self.in_flight.total()} requests are in work. Try again in a second."

    @property
    def _too_large(self) -> str:
        return f"the body is larger than {self.limits.body:,} bytes. Send fewer or smaller images."

    async def _limited(self, scope: Scope, receive: Receive, response: _Response) -> None:
        got, complete, client, is_post = 0, False, _client(scope), scope["method"] == "POST"

        async def counted() -> Message:
            nonlocal got, complete
            message = await receive()
            if message["type"] == "http.request" and is_post and not complete:
                got += len(message.get("body", b""))
                self.held += len(message.get("body", b""))
                if got > self.limits.body:  # a body without a content-length
                    raise HTTPException(413, self._too_large)
                if self.held > self.limits.held:
                    raise HTTPException(429, "the server holds many uploads. Try again in a second.", _LATER)
                if not message.get("more_body", False):  # from here on it is work; an upload that crawls is none
                    if self._is_full(client):
                        raise HTTPException(429, self._busy, _LATER)
                    complete = True
                    self.in_flight[client] += 1
            return message

        try:
            await asyncio.wait_for(self.app(scope, counted, response.send), self.limits.seconds)
        except asyncio.TimeoutError:
            if not response.status:
                what = (408, "the upload was") if is_post and not complete else (504, "the answer was")
                late = _refused(
                    what[0], f"{what[1]} not complete after {self.limits.seconds:g} s.", {"connection": "close"}
                )
                await late(scope, receive, response.send)
        except ClientDisconnect:
            pass  # nobody waits for the answer
        finally:
            self.held -= got
            if complete:
                self.in_flight[client] -= 1
                self.in_flight += Counter()  # without those that are zero


class _Response:
    """Sends with the headers of every response, and knows its status; 0: it has not begun."""

    def __init__(self, send: Send) -> None:
        self._send, self.status = send, 0

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            own = list(message.get("headers", []))
            known = {name for name, _ in own}
            own += [(k.encode(), v.encode()) for k, v in HEADERS.items() if k.encode() not in known]
            message = {**message, "headers": own}
        await self._send(message)


def _client(scope: Scope) -> str:
    return scope["client"][0] if scope.get("client") else ""


def _digest(token: str) -> bytes:
    """Return a hash of fixed length: the time of a comparison does not even tell how long the token is."""
    return hashlib.sha256(token.strip().encode()).digest()


def _is_open(path: str) -> bool:
    return any(path == one or (one != "/" and one.endswith("/") and path.startswith(one)) for one in OPEN)


def _refused(status: int, detail: str, headers: dict[str, str] | None = None) -> JSONResponse:
    return JSONResponse({"detail": detail}, status, headers=headers)
