"""One tiny request to a server, bounded in time and tokens, and never an exception: what a trial needs.

Knows how to ask, and how to ask again without a field that a strict server refuses. Judges nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from desist.controller.profile import ModelProfile
from desist.data.errors import DesistError
from desist.proxy.engines.upstream.client import UpstreamClient
from desist.proxy.engines.upstream.seen import Seen
from desist.proxy.errors import shorten
from desist.proxy.settings import UpstreamSettings

__all__ = ["PROBLEM", "Trials", "nested"]

#: Makes a reasoning model think for more than a few tokens, and has a short answer.
PROBLEM = "Ana has 3 bags with 4 nuts each and gets 5 more. How many nuts has Ana?"
_PLAIN_S = 15.0


@dataclass
class Trials:
    """Asks one model of one server. `optional`: fields beside the request that it did not refuse.

    `limit_name`: what the server calls max_tokens. `template`: chat_template_kwargs that switch thinking on.
    `chars_per_token`: a guess, until an answer was counted.
    """

    client: UpstreamClient
    settings: UpstreamSettings
    profile: ModelProfile
    model: str
    trial_s: float = 60.0
    headers: Mapping[str, str] = field(default_factory=dict)
    optional: dict[str, Any] = field(default_factory=dict)
    limit_name: str = "max_tokens"
    template: dict[str, Any] = field(default_factory=dict)
    chars_per_token: float = 4.0

    @property
    def root(self) -> str:
        """The server's address without /v1."""
        return self.settings.url.removesuffix("/v1")

    def body(self, limit: int, *, problem: str = PROBLEM, **more: Any) -> dict[str, Any]:
        """A chat request of at most `limit` tokens."""
        made: dict[str, Any] = {
            "model": self.model,
            "messages": [{"role": "user", "content": problem}],
            self.limit_name: limit,
            "stream": True,
            **self.optional,
        }
        template = {**self.template, **more.pop("chat_template_kwargs", {})}
        return made | ({"chat_template_kwargs": template} if template else {}) | more

    async def ask(
        self, body: Mapping[str, Any], path: str = "/chat/completions", *,
        enough: Callable[[Seen], bool] = lambda seen: False,
    ) -> Seen:  # fmt: skip
        """What came; the server is left as soon as that is `enough`."""
        seen = Seen(self.chars_per_token)
        try:
            async with (
                asyncio.timeout(self.trial_s),
                self.client.post(path, body, self.headers) as stream,
            ):
                seen.streams = stream.streams
                if not stream.streams:
                    seen.read(await stream.whole(), whole=True)
                    return seen
                async for data in stream.events():
                    seen.read(data)
                    if enough(seen):
                        return seen
        except TimeoutError:
            seen.failure = f"did not come to its end within {self.trial_s:g} s"
        except (DesistError, msgspec.DecodeError, TypeError, AttributeError) as error:
            seen.failure, seen.status = shorten(str(error), 300), getattr(error, "status", None)
        return seen

    async def post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any] | str:
        """The object that a path beside /v1 answers with; a text: why there is none."""
        try:
            async with asyncio.timeout(_PLAIN_S):
                told = msgspec.json.decode(await self.client.post_whole(self.root + path, body, self.headers))
        except TimeoutError:
            return f"{path} did not answer within {_PLAIN_S:g} s"
        except (DesistError, msgspec.DecodeError) as error:
            return shorten(str(error), 200)
        return told if isinstance(told, dict) else f"{path} answers with something that is no object"

    async def get(self, path: str) -> str | None:
        """The text that a path beside /v1 answers with; None where there is none."""
        try:
            return (await self.client.get(self.root + path, _PLAIN_S)).decode(errors="replace")
        except (DesistError, TimeoutError):
            return None

    async def tokens(self, body: Mapping[str, Any]) -> list[int] | str:
        """Ids by the server's /tokenize; a text: why there are none."""
        told = await self.post("/tokenize", {"model": self.model, **body})
        if isinstance(told, str):
            return told
        ids = told.get("tokens")
        whole = isinstance(ids, list) and all(isinstance(each, int) for each in ids)
        return ids if isinstance(ids, list) and whole else "/tokenize answers without a list of ids"

    def prompt(self) -> dict[str, Any]:
        """What the chat template is given for a trial's prompt."""
        body = self.body(1)
        return {key: body[key] for key in ("messages", "chat_template_kwargs") if key in body}

    async def text_of(self, ids: Sequence[int]) -> str | None:
        """The text of ids by the server's /detokenize; None where it has none."""
        told = await self.post("/detokenize", {"model": self.model, "tokens": list(ids)})
        found = (told.get("prompt") or told.get("content")) if isinstance(told, dict) else None
        return found if isinstance(found, str) else None


def nested(name: str, value: Any) -> dict[str, Any]:
    """`{"a": {"b": value}}` for the dotted name "a.b"."""
    *outer, last = name.split(".")
    made: dict[str, Any] = {last: value}
    for part in reversed(outer):
        made = {part: made}
    return made
