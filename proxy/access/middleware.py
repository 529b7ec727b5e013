"""Who may ask: client keys on every route, operator keys for what operators do, and names of an open proxy.

Knows requests' paths and three headers. Stands before all routes, so that a new one is never open by
oversight; only what tells of health and counts is free.
"""

from __future__ import annotations

from typing import Any, Protocol
from urllib.parse import urlsplit

from fastapi import Request
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from desist.data.errors import ControlError
from desist.proxy.access.keys import Keyring
from desist.proxy.access.tenants import EVERYONE, Tenant
from desist.proxy.errors import ApiError, error_response, shorten
from desist.proxy.settings import Settings, is_loopback

__all__ = ["Access", "AccessMiddleware", "is_operator", "refuse_open", "require_operator", "tenant_of"]

_FREE = ("/healthz", "/readyz", "/health", "/ping", "/metrics")
_OPERATORS = "/desist/"


def refuse_open(settings: Settings) -> None:
    """Refuse to listen where others can reach a proxy that asks for no key. Raises `ControlError`."""
    if not settings.client_keys and not settings.allow_public and not is_loopback(settings.host):
        raise ControlError(
            f"host is {settings.host!r}, which others can reach, and no client key is asked for. Set "
            "api_keys or api_key_file, listen on 127.0.0.1, or set allow_public: true (--allow-public)."
        )


class Access:
    """The keys of one app and what they open. Replaced as a whole when settings change."""

    def __init__(self, settings: Settings) -> None:
        self._clients, self._operators = Keyring(settings.client_keys), Keyring(settings.operators)
        self._tenants = {name: each.tenant(name) for name, each in settings.tenants.items()}
        self._names = frozenset(name.lower().rstrip(".") for name in settings.allowed_hosts)
        self._guarded = not self._clients and is_loopback(settings.host)

    @property
    def asks_for_keys(self) -> bool:
        return bool(self._clients)

    def enter(self, scope: Scope) -> None:
        """Note whose an HTTP request is in its scope. Raises `ApiError` 401 or 403."""
        headers, path = Headers(scope=scope), scope["path"]
        scope["desist.tenant"], scope["desist.operator"] = EVERYONE, False
        if self._guarded:
            self._check_names(headers, scope)
        shown = headers.get("authorization", "")
        if path.startswith(_OPERATORS) and self._operators.find(shown) is not None:
            scope["desist.operator"] = True
            return
        if not self._clients or path in _FREE:
            return
        key = self._clients.find(shown)
        if key is None:
            raise _unknown_key()
        if key.tenant is not None:
            scope["desist.tenant"] = self._tenants[key.tenant]

    def require_operator(self, scope: Scope) -> None:
        """Raises `ApiError` 403 where no operator key is set, 401 where none was shown."""
        if not self._operators:
            raise ApiError(
                403,
                "this needs an operator key, and none is set here. Set operator_keys or operator_key_file.",
                code="no_operator_keys",
            )
        if not scope.get("desist.operator"):
            raise _unknown_key("an operator key")

    def _check_names(self, headers: Headers, scope: Scope) -> None:
        """A page in a browser may reach a loopback port under a name of its own: it is told by that name."""
        server = scope.get("server")
        if scope["path"] == "/healthz" or (server and server[0] and not is_loopback(server[0])):
            return
        host, origin = headers.get("host"), headers.get("origin")
        if host is not None and not self._is_ours(f"//{host}"):
            raise _foreign("Host", host)
        if origin is not None and not self._is_ours(origin):
            raise _foreign("Origin", origin)

    def _is_ours(self, address: str) -> bool:
        try:
            name = (urlsplit(address).hostname or "").rstrip(".")
        except ValueError:
            return False
        return name in self._names or is_loopback(name)


def _unknown_key(what: str = "an API key") -> ApiError:
    return ApiError(
        401,
        f"this server asks for {what} and the one given is missing or unknown. Send the header "
        "'Authorization: Bearer KEY'.",
        code="invalid_api_key",
        headers={"WWW-Authenticate": "Bearer"},
    )


def _foreign(header: str, value: str) -> ApiError:
    return ApiError(
        403,
        f"the header {header} is {shorten(value)}, no name of this machine, and no key is asked for. "
        "Call 127.0.0.1 or localhost, add the name to allowed_hosts, or set api_keys.",
        code="foreign_host",
    )


class _Holder(Protocol):
    """What holds the access that is in force now."""

    access: Access


class AccessMiddleware:
    """Lets in who may ask; the others get their error in OpenAI's shape."""

    def __init__(self, app: ASGIApp, state: _Holder) -> None:
        self._app, self._state = app, state

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            try:
                self._state.access.enter(scope)
            except ApiError as error:
                await error_response(error)(scope, receive, send)
                return
        await self._app(scope, receive, send)


def tenant_of(request: Request) -> Tenant:
    """Whose the request is."""
    tenant: Any = request.scope.get("desist.tenant", EVERYONE)
    assert isinstance(tenant, Tenant)
    return tenant


def is_operator(request: Request) -> bool:
    """Whether an operator key was shown (under /desist/ only)."""
    return bool(request.scope.get("desist.operator"))


def require_operator(request: Request) -> None:
    """Raises `ApiError` where no operator key was shown."""
    request.app.state.desist.access.require_operator(request.scope)
