"""A cookie that the server behind sets for one client's request is not sent with another's."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from desist.proxy import Settings, create_app
from desist.proxy.settings import ControlSettings, UpstreamSettings
from tests.fakes.server import live_server
from tests.fakes.upstream import FakeUpstream

ASK: dict[str, Any] = {"model": "up", "messages": [{"role": "user", "content": "2 + 2?"}]}


class Baker:
    """An app every answer of which sets a cookie, as load balancers do to keep a client where it is."""

    def __init__(self, app: ASGIApp) -> None:
        self._app, self.baked = app, 0
        self.brought: list[bytes] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.brought += [value for name, value in scope.get("headers", ()) if name == b"cookie"]

        async def with_cookie(message: Message) -> None:
            if message["type"] == "http.response.start":
                self.baked += 1
                crumb = f"whose=client-{self.baked}; Path=/".encode()
                message["headers"] = [*message.get("headers", ()), (b"set-cookie", crumb)]
            await send(message)

        await self._app(scope, receive, with_cookie)


@pytest.mark.parametrize(
    ("mode", "path", "body"),
    [
        ("active", "/v1/chat/completions", ASK | {"desist": {"budget": 3}}),  # two calls
        ("off", "/v1/chat/completions", ASK),  # passed on untouched
        ("active", "/tokenize", {"model": "up", "prompt": "x"}),  # a listed path
    ],
)
def test_cookies_stay_with_whom_they_were_set_for(mode: Any, path: str, body: dict[str, Any]) -> None:
    fake = FakeUpstream(token_ids=True)
    baker = Baker(fake.app())
    with live_server(baker) as direct:
        # By a name: cookie jars take none from bare addresses, which would hide the leak.
        upstream = UpstreamSettings(url=direct.replace("127.0.0.1", "localhost"), self_test=False)
        settings = Settings(
            engine="upstream",
            upstream=upstream,
            control=ControlSettings(mode=mode),
            relay={"paths": ("/tokenize",)},  # type: ignore[arg-type]
        )
        with live_server(create_app(settings)) as base:
            for _ in range(3):
                assert httpx.post(base + path, json=body).status_code == 200
    assert baker.baked >= 3
    assert not baker.brought
