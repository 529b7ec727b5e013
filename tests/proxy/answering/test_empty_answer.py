"""An answer is never empty while the model can write one token: random limits, budgets, tools, loops."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import httpx
import pytest

from desist.proxy import Settings, create_app
from desist.proxy.settings import UpstreamSettings
from tests.fakes.server import live_server
from tests.fakes.upstream import FakeUpstream

CASES, GROUP, AT_ONCE = 2000, 125, 16
EMBEDDED = 300
LOOP = ("Wait, ", "let me ", "check ", "the sum ", "again: ", "4+9=13. ")
TOOL = {"name": "lookup", "arguments": '{"city": "Oslo"}'}
BUDGET_NAMES = ("desist", "thinking_token_budget", "thinking_budget", "reasoning", "thinking")


@dataclass(frozen=True)
class Case:
    """One request, and how long the model that gets it thinks."""

    number: int
    max_tokens: int | None
    limit_name: str
    budget: int | None
    budget_name: str
    thinking: int
    tools: bool
    loop: bool
    stream: bool

    @classmethod
    def draw(cls, number: int) -> Case:
        rng = random.Random(number)
        few = lambda top: int(top ** rng.random())  # noqa: E731  from 1, small ones often
        return cls(
            number,
            rng.choice([None, 1, 2, 3, few(40), few(400), few(400)]),
            rng.choice(["max_tokens", "max_completion_tokens"]),
            rng.choice([None, None, -1, 0, 1, few(30), few(300), few(3000)]),
            rng.choice(BUDGET_NAMES),
            rng.choice([0, 1, few(20), few(150), few(150), few(400)]),
            rng.random() < 0.25,
            rng.random() < 0.25,
            rng.random() < 0.5,
        )

    @property
    def thoughts(self) -> Sequence[str]:
        if self.loop:
            return [LOOP[n % len(LOOP)] for n in range(self.thinking)]
        return [f"step{n} " if n % 9 else f"step{n}.\n\n" for n in range(self.thinking)]

    @property
    def body(self) -> dict[str, Any]:
        body: dict[str, Any] = {
            "messages": [{"role": "user", "content": "?"}],
            "user": f"case {self.number}",
            "stream": self.stream,
        }
        if self.max_tokens is not None:
            body[self.limit_name] = self.max_tokens
        if self.budget is not None:
            inner = {"desist": "budget", "reasoning": "max_tokens", "thinking": "budget_tokens"}
            within = inner.get(self.budget_name)
            body[self.budget_name] = self.budget if within is None else {within: self.budget}
            if self.budget_name == "thinking":
                body["thinking"]["type"] = "enabled"
        if self.tools:
            body["tools"] = [{"type": "function", "function": {"name": "lookup", "parameters": {}}}]
        return body


def thoughts_of(body: Mapping[str, Any]) -> Sequence[str]:
    """What the fake's model thinks, which the case in the body decides."""
    return Case.draw(int(body["user"].removeprefix("case "))).thoughts


def wrong(case: Case, reply: httpx.Response) -> str | None:
    """What is wrong with the answer to `case`, or None."""
    if reply.status_code != 200:
        return f"status {reply.status_code}: {reply.text[:200]}"
    content, calls, finishes = "", 0, []
    for choice, message in choices(reply, case.stream):
        content += message.get("content") or ""
        calls += len(message.get("tool_calls") or ())
        finishes += [choice["finish_reason"]] if choice.get("finish_reason") else []
    if len(finishes) != 1:
        return f"finish reasons {finishes}: {reply.text[-300:]}"
    if (content.strip() or calls) and finishes[0] in ("stop", "length", "tool_calls"):
        return None
    if case.max_tokens == 1 and finishes == ["length"]:
        return None
    return f"an empty answer, finish_reason {finishes[0]!r}"


Check = Callable[[Case, httpx.Response], str | None]


def choices(reply: httpx.Response, stream: bool) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Every choice object of the reply with its message or delta."""
    if not stream:
        yield from ((choice, choice["message"]) for choice in reply.json()["choices"])
        return
    for event in reply.text.split("\n\n"):
        data = event.removeprefix("data: ")
        if event.startswith("data: {"):
            yield from ((choice, choice["delta"]) for choice in json.loads(data).get("choices", ()))


async def run(base: str, cases: Sequence[Case], check: Check = wrong) -> list[str]:
    """The failures among `cases`, some of them at once."""
    places = asyncio.Semaphore(AT_ONCE)
    found: list[str] = []
    async with httpx.AsyncClient(timeout=60) as client:

        async def one(case: Case) -> None:
            async with places:
                reply = await client.post(f"{base}/v1/chat/completions", json=case.body)
            if (why := check(case, reply)) is not None:
                found.append(f"{case}: {why}")

        await asyncio.gather(*(one(case) for case in cases))
    return found


@pytest.fixture(scope="module")
def world() -> Iterator[tuple[FakeUpstream, dict[bool, str]]]:
    """The fake upstream and two proxies before it: thinking opened by the template, or not."""
    fake = FakeUpstream()
    with ExitStack() as servers:
        url = servers.enter_context(live_server(fake.app()))
        made = {
            opened: Settings(
                engine="upstream",
                upstream=UpstreamSettings(url=url, self_test=False, thinking_opened_by_template=opened),
            )
            for opened in (False, True)
        }
        yield (
            fake,
            {opened: servers.enter_context(live_server(create_app(each))) for opened, each in made.items()},
        )


@pytest.mark.slow
@pytest.mark.parametrize("group", range(CASES // GROUP))
def test_an_answer_is_never_empty(world: tuple[FakeUpstream, dict[bool, str]], group: int) -> None:
    fake, bases = world
    rng = random.Random(-group)
    fake.__init__(  # type: ignore[misc]
        thinks=thoughts_of,
        dialect=("reasoning", "tags", "reasoning_content", "opened_tags")[group % 4],
        token_ids=group % 8 < 4,
        tool=TOOL if group % 3 == 0 else None,
        per_chunk=rng.choice([1, 1, 3]),
        running_usage=rng.random() < 0.7,
        tag_cut=rng.choice([None, 1, 4, 7]),
    )
    cases = [Case.draw(group * GROUP + n) for n in range(GROUP)]
    failures = asyncio.run(run(bases[fake.dialect == "opened_tags"], cases))
    assert not failures, f"{len(failures)} of {GROUP}, the first: {failures[0]}"
    for body in fake.bodies:  # never more than the client allowed
        case = Case.draw(int(body["user"].removeprefix("case ")))
        assert body.get(case.limit_name) is None or body[case.limit_name] <= (case.max_tokens or 0)


@pytest.fixture(scope="module")
def embedded() -> Iterator[str]:
    """A proxy over the embedded engine, whose model is random: no sense, but real tokens and stop machine."""
    pytest.importorskip("torch")
    from desist.proxy.engines.embedded import EmbeddedEngine
    from tests.fakes.tiny_model import PROFILE, tiny_folder

    engine = EmbeddedEngine(tiny_folder(), profile=PROFILE, device="cpu", threads=1)
    with live_server(create_app(Settings(), engine=engine, certificates=[])) as base:
        yield base


def test_an_embedded_engine_answers_too(embedded: str) -> None:
    """A random model's first answer tokens may be no text (white space, half a character): tokens count."""
    drawn = [Case.draw(n) for n in range(100_000, 100_000 + EMBEDDED)]
    cases = [
        replace(case, tools=False, stream=False, max_tokens=min(case.max_tokens or 60, 60)) for case in drawn
    ]
    failures = asyncio.run(run(embedded, cases, unanswered))
    assert not failures, f"{len(failures)} of {EMBEDDED}, the first: {failures[0]}"


def unanswered(case: Case, reply: httpx.Response) -> str | None:
    """What is wrong with a complete answer of which not the text is judged but whether tokens were left."""
    if reply.status_code != 200 or case.max_tokens == 1:
        return wrong(case, reply)
    body = reply.json()
    usage, told = body["usage"], body["desist"]
    reasoning = usage["completion_tokens_details"]["reasoning_tokens"]
    answered = usage["completion_tokens"] - reasoning - told.get("forced_tokens", 0)
    finish = body["choices"][0]["finish_reason"]
    return None if answered > 0 else f"no answer token, finish_reason {finish!r}: {usage}, {told}"


def test_the_check_finds_empty_answers() -> None:
    case = Case(0, 2, "max_tokens", None, "desist", 9, False, False, False)
    empty = {"choices": [{"message": {"content": "", "reasoning": "hm"}, "finish_reason": "length"}]}
    assert "an empty answer" in (wrong(case, httpx.Response(200, json=empty)) or "")
    cut = {"choices": [{"message": {"content": "It"}, "finish_reason": "length"}]}
    assert wrong(case, httpx.Response(200, json=cut)) is None
