"""Who may see and do what: the guard before every request, sessions, and the decorators of handlers.

Without tokens everybody on this computer reads, and with `operate_locally` also operates. See docs/security.md.
"""

from __future__ import annotations

import hashlib
import hmac
import inspect
import re
import secrets
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import wraps
from typing import Any, cast
from urllib.parse import parse_qsl, urlsplit

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from penstock.errors import PenstockError, UserError
from penstock.serving import is_loopback

SESSION_SECONDS = 12 * 3600
BODY_BYTES_MAX = 64 * 1024
"""Of a form."""
FAILED_LOGINS_MAX = 10
"""In a minute; then no login succeeds until it has passed."""
TOKEN_CHARACTERS_MIN = 16
PASSWORD_CHARACTERS_MIN = 8
"""With TLS."""
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[0-9A-Za-z.-]+)(:[0-9]{1,5})?")

Handler = Callable[[Request], Any]


class Role(StrEnum):
    READ = "read"
    OPERATE = "operate"


@dataclass(frozen=True, slots=True)
class Session:
    """One browser, with what it may do."""

    role: Role
    who: str
    """A name and an address, for the list of actions."""
    csrf: str
    """Every form carries it."""

    @property
    def operates(self) -> bool:
        """Whether it may act, and see what is in records."""
        return self.role is Role.OPERATE


@dataclass(slots=True)
class Access:
    """Tokens by role, each with the name of its owner; and where the console listens."""

    host: str = "127.0.0.1"
    port: int = 0
    read_tokens: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Token to name."""
    operate_tokens: Mapping[str, str] = field(default_factory=dict, repr=False)
    operate_locally: bool = False
    tls: bool = False
    _secret: bytes = field(default_factory=lambda: secrets.token_bytes(32), repr=False)
    """Signs sessions: they end with the process."""
    _failed: deque[float] = field(default_factory=lambda: deque(maxlen=FAILED_LOGINS_MAX), repr=False)

    def __post_init__(self) -> None:
        tokens = [*self.read_tokens, *self.operate_tokens]
        least = PASSWORD_CHARACTERS_MIN if self.tls else TOKEN_CHARACTERS_MIN
        if any(len(token) < least for token in tokens):
            raise UserError(
                f"a token of the console has fewer than {least} characters",
                hint="write a longer one, for example with: openssl rand -hex 16",
            )
        if not tokens and not self.is_loopback:
            raise UserError(
                f"--listen: every computer that reaches {self.host} could see the jobs",
                hint="give --token-file, with --tls-certificate and --tls-key for passwords, or listen on 127.0.0.1",
            )
        if self.operate_locally and not self.is_loopback:
            raise UserError(f"--operate is for this computer only, not {self.host}", hint="give --operate-token-file")

    @property
    def is_loopback(self) -> bool:
        return is_loopback(self.host)

    @property
    def needs_login(self) -> bool:
        return bool(self.read_tokens or self.operate_tokens)

    @property
    def cookie(self) -> str:
        """Browsers share cookies between the ports of a host."""
        return f"{'__Host-' if self.tls else ''}penstock_{self.port}"

    def role_of(self, token: str) -> tuple[Role, str] | None:
        """The role and the owner of a token; every token is compared, and each in constant time."""
        result: tuple[Role, str] | None = None
        for role, tokens in ((Role.READ, self.read_tokens), (Role.OPERATE, self.operate_tokens)):
            for candidate, name in tokens.items():
                if hmac.compare_digest(candidate.encode(), token.encode("utf-8", "replace")):
                    result = (role, name)
        return result

    def login(self, token: str) -> tuple[Role, str]:
        """The role of a token that was typed; after many wrong ones all are refused for a while."""
        now = time.monotonic()
        if len(self._failed) == FAILED_LOGINS_MAX and now - self._failed[0] < 60:
            raise HTTPException(429, "too many wrong tokens: wait a minute")
        result = self.role_of(token)
        if result is None:
            self._failed.append(now)
            raise HTTPException(401, "wrong token")
        return result

    def new_cookie(self, role: Role, name: str) -> str:
        content = f"{role}.{name.encode().hex()}.{int(time.time()) + SESSION_SECONDS}.{secrets.token_hex(8)}"
        return f"{content}.{self._signature(content)}"

    def session(self, cookie: str, address: str) -> Session | None:
        """The session of a cookie; None if it is not one of this process, or has ended."""
        content, _, signature = cookie.rpartition(".")
        if not hmac.compare_digest(signature.encode("utf-8", "replace"), self._signature(content).encode()):
            return None
        role, name, until, _ = content.split(".")
        if int(until) < time.time():
            return None
        return Session(Role(role), f"{bytes.fromhex(name).decode()} from {address}", self._signature(f"csrf {cookie}"))

    def _signature(self, content: str) -> str:
        return hmac.new(self._secret, content.encode("utf-8", "replace"), hashlib.sha256).hexdigest()


class Guard:
    """Checks host, origin and length of every request, finds its session, and adds headers to every answer."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self.app = app
        self.access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        new_cookie = ""
        refusal = self._refusal(headers, scope["method"])
        if refusal is None:
            session, new_cookie = self._session(scope, headers)
            scope.setdefault("state", {})["session"] = session

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                answer = MutableHeaders(scope=message)
                answer.update(HEADERS)
                answer.setdefault("Cache-Control", "no-store")
                if self.access.tls:
                    answer["Strict-Transport-Security"] = "max-age=31536000"
                if new_cookie:
                    set_cookie(self.access, answer, new_cookie)
            await send(message)

        await (refusal or self.app)(scope, receive, send_guarded)

    def _refusal(self, headers: Headers, method: str) -> Response | None:
        host = headers.get("host", "")
        match = _HOST.fullmatch(host)
        # A page of another site reaches the loopback address under its own name (DNS rebinding).
        if match is None or (self.access.is_loopback and not is_loopback(match[1].strip("[]"))):
            return PlainTextResponse("the console has another name: use its address", 403)
        origin = headers.get("origin")
        if method not in ("GET", "HEAD") and origin is not None and urlsplit(origin).netloc != host:
            return PlainTextResponse("pages of other sites may not use the console", 403)
        length = headers.get("content-length", "0")
        if not length.isdecimal() or int(length) > BODY_BYTES_MAX or "transfer-encoding" in headers:
            return PlainTextResponse("the request is too large", 413)
        return None

    def _session(self, scope: Scope, headers: Headers) -> tuple[Session | None, str]:
        """The session of a request, and a cookie if it needs a new one."""
        address = (scope.get("client") or ("?",))[0]
        cookie = Request(scope).cookies.get(self.access.cookie, "")
        session = self.access.session(cookie, address)
        if session is not None:
            return session, ""
        kind, _, token = headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer" and (owner := self.access.role_of(token.strip())) is not None:
            # No form can be sent with it: its session has a token of its own.
            return self.access.session(self.access.new_cookie(*owner), address), ""
        if self.access.needs_login:
            return None, ""
        role = Role.OPERATE if self.access.operate_locally else Role.READ
        cookie = self.access.new_cookie(role, "this computer")
        return self.access.session(cookie, address), cookie


def set_cookie(access: Access, headers: MutableHeaders, value: str) -> None:
    """Give the browser this cookie; an empty one is deleted."""
    more = ("; Secure" if access.tls else "") + ("" if value else "; Max-Age=0")
    headers.append("Set-Cookie", f"{access.cookie}={value}; Path=/; HttpOnly; SameSite=Strict{more}")


def session_of(request: Request) -> Session | None:
    return cast("Session | None", request.scope.get("state", {}).get("session"))


def reading(handler: Handler) -> Callable[[Request], Awaitable[Response]]:
    """A handler for every session; without one the browser is sent to the login."""

    @wraps(handler)
    async def guarded(request: Request) -> Response:
        if session_of(request) is None:
            if "text/html" in request.headers.get("accept", ""):
                return RedirectResponse("/login", 303)
            raise HTTPException(401, "log in first")
        return await _called(handler, request)

    return guarded


def operating(action: str) -> Callable[[Handler], Callable[[Request], Awaitable[Response]]]:
    """A handler of forms that act: for the role operate, with the session's CSRF token, confirmed and recorded.

    A form without the field `confirmed` is answered with a page that asks for it. `form_of(request)` has the fields.
    """

    def decorate(handler: Handler) -> Callable[[Request], Awaitable[Response]]:
        @wraps(handler)
        async def guarded(request: Request) -> Response:
            session = session_of(request)
            form = await _read_form(request)
            if session is None or not session.operates:
                raise HTTPException(403, f"{action} needs the role operate")
            if not hmac.compare_digest(form.pop("csrf", "").encode(), session.csrf.encode()):
                raise HTTPException(403, "the form is out of date: go back, reload the page, and send it again")
            if form.pop("confirmed", "") != "yes":
                from penstock.console.rendering import render  # noqa: PLC0415 - it imports this module

                return render(request, "confirm.html", action=action, fields=form, back=_back(request))
            request.state.form = form
            job = request.path_params.get("job", "")
            detail = ", ".join(f"{name} {value}" for name, value in form.items())
            record = request.app.state.console.record_action
            try:
                response = await _called(handler, request)
            except PenstockError as error:
                record(session.who, f"{action} failed", job, f"{detail}: {error.primary}".removeprefix(": "))
                raise
            record(session.who, action, job, detail)
            return response

        return guarded

    return decorate


def form_of(request: Request) -> dict[str, str]:
    """The fields of the form that a handler with `operating` was called for."""
    return cast("dict[str, str]", request.state.form)


def _back(request: Request) -> str:
    """The page that the form is on: nothing but a path of the console."""
    return urlsplit(request.headers.get("referer", "")).path or "/"


async def _called(handler: Handler, request: Request) -> Response:
    """Handlers that wait for files or servers are plain functions, which run in a thread."""
    if inspect.iscoroutinefunction(handler):
        return cast("Response", await handler(request))
    return cast("Response", await run_in_threadpool(handler, request))


async def _read_form(request: Request) -> dict[str, str]:
    if not request.headers.get("content-type", "").startswith("application/x-www-form-urlencoded"):
        raise HTTPException(415, "not a form")
    try:
        return dict(parse_qsl((await request.body()).decode(), keep_blank_values=True, max_num_fields=100))
    except ValueError:
        raise HTTPException(400, "not a form") from None


async def login(request: Request) -> Response:
    from penstock.console.rendering import render  # noqa: PLC0415 - it imports this module

    access: Access = request.app.state.console.access
    if request.method == "GET":
        return render(request, "login.html", fault="")
    try:
        role, name = access.login((await _read_form(request)).get("token", "").strip())
    except HTTPException as error:
        return render(request, "login.html", error.status_code, fault=error.detail)
    answer = RedirectResponse("/", 303)
    set_cookie(access, answer.headers, access.new_cookie(role, name))
    return answer


async def logout(request: Request) -> Response:
    """Forget the cookie; without a session there is nothing to protect."""
    answer = RedirectResponse("/login", 303)
    set_cookie(request.app.state.console.access, answer.headers, "")
    return answer


routes = [
    Route("/login", login, methods=["GET", "POST"], name="login"),
    Route("/logout", logout, methods=["POST"], name="logout"),
]
