"""The self-test against fake servers of every dialect: it believes what it sees, and nothing else.

Report ids in names: a budget that is taken and ignored (R02, R71), a parser that contradicts its tags (R04),
a tag of several tokens (R39).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from desist.controller.profiles import get_profile
from desist.proxy.engines.upstream.capabilities import Capabilities
from desist.proxy.engines.upstream.client import UpstreamClient
from desist.proxy.engines.upstream.selftest import examine
from desist.proxy.engines.upstream.trial_budget import BUDGET_FIELDS
from desist.proxy.settings import UpstreamSettings
from tests.fakes.upstream import FakeUpstream, Fault, served
from tests.fakes.upstream.script import Token
from tests.fakes.upstream.shapes import Shape

#: Long enough that a budget of 8 binds.
LONG = tuple(f"step {n} " for n in range(60))


def seen(
    url: str, profile: str = "qwen3", trial_s: float = 20, total_s: float = 60, **settings: Any
) -> Capabilities:
    async def body() -> Capabilities:
        upstream = UpstreamSettings(url=url, **settings)
        client = UpstreamClient(upstream)
        await client.start()
        try:
            return await examine(
                client, upstream, get_profile(profile), "up", trial_s=trial_s, total_s=total_s
            )
        finally:
            await client.close()

    return asyncio.run(body())


def of(fake: FakeUpstream, **more: Any) -> Capabilities:
    with served(fake) as url:
        return seen(url, **more)


def notes(found: Capabilities, topic: str) -> str:
    return "\n".join(note for note in found.notes if note.startswith(topic))


def test_a_server_that_does_everything() -> None:
    found = of(FakeUpstream(
        thoughts=("<", *(f" step{n}" for n in range(60))), token_ids=True, reasoning_details=True,
        native_budgets=frozenset({"thinking_token_budget"}),
    ))  # fmt: skip
    assert found == Capabilities(
        token_ids=True, prompt_continuation=True, final_message=True, native_budget="thinking_token_budget",
        running_usage=True, usage_details=True, reasoning_field="reasoning", parses_reasoning=True,
        cancels=None, choices=True, tools=True, thinks=True, template_opens=False, close_tag_tokens=1,
        notes=found.notes,
    )  # fmt: skip
    assert found.way == "prompt_ids"
    assert found.conflicts == ()
    assert json.loads(json.dumps(found.as_json()))["way"] == "prompt_ids"


@pytest.mark.parametrize(
    ("dialect", "name", "parses", "opens"),
    [
        ("reasoning", "reasoning", True, False),
        ("reasoning_content", "reasoning_content", True, False),
        ("both", "reasoning", True, False),
        ("tags", None, False, False),
        ("opened_tags", None, False, True),
    ],
)
def test_where_thinking_comes_in(dialect: Any, name: str | None, parses: bool, opens: bool) -> None:
    found = of(FakeUpstream(thoughts=LONG, dialect=dialect, tag_cut=3))
    assert (found.thinks, found.reasoning_field, found.parses_reasoning) == (True, name, parses)
    assert found.template_opens is opens


def test_a_template_that_strips_thinking_is_never_trusted_with_a_continued_message() -> None:
    thoughts = ("<", *(f" step{n}" for n in range(60)))
    kept = of(FakeUpstream(thoughts=thoughts, token_ids=True))
    stripped = of(FakeUpstream(thoughts=thoughts, token_ids=True, strips=True))
    assert kept.final_message
    assert not stripped.final_message
    assert "the chat template changes a continued message" in notes(stripped, "final message")


def test_without_ids_the_way_is_text() -> None:
    found = of(FakeUpstream(thoughts=LONG, tokenizes=False))
    assert found.way == "text"
    assert (found.token_ids, found.final_message, found.close_tag_tokens) == (False, False, None)


@pytest.mark.parametrize("name", BUDGET_FIELDS)
def test_each_budget_field_is_found_where_it_binds(name: str) -> None:
    assert of(FakeUpstream(thoughts=LONG, native_budgets=frozenset({name}))).native_budget == name


@pytest.mark.parametrize("counts", [{"token_ids": True}, {"running_usage": False}, {"per_chunk": 3}])
def test_a_budget_is_found_however_tokens_are_counted(counts: Any) -> None:
    for name in (BUDGET_FIELDS[0], BUDGET_FIELDS[-1]):
        fake = FakeUpstream(thoughts=LONG, native_budgets=frozenset({name}), **counts)
        assert of(fake).native_budget == name


@pytest.mark.parametrize("dialect", ["tags", "opened_tags", "reasoning_content"])
def test_a_budget_is_found_in_every_dialect(dialect: Any) -> None:
    found = of(FakeUpstream(thoughts=LONG, native_budgets=frozenset({"thinking_budget"}), dialect=dialect))
    assert found.native_budget == "thinking_budget"


def test_R02_a_budget_that_is_taken_and_ignored_is_never_believed() -> None:
    found = of(FakeUpstream(thoughts=LONG))
    assert found.native_budget is None
    assert all(name in notes(found, "native budget") for name in BUDGET_FIELDS)


def test_R71_thinking_shorter_than_the_budget_proves_nothing() -> None:
    short = of(FakeUpstream(native_budgets=frozenset({"thinking_budget"})))
    assert short.native_budget is None
    assert "proves nothing" in notes(short, "native budget")


def test_R71_a_model_that_thinks_little_about_an_easy_problem_is_given_a_harder_one() -> None:
    def by_length(body: Mapping[str, Any]) -> Sequence[str]:
        return LONG if len(str(body["messages"])) > 150 else LONG[:5]

    found = of(FakeUpstream(thinks=by_length, native_budgets=frozenset({"thinking_budget"})))
    assert found.native_budget == "thinking_budget"


def test_R71_a_hint_that_only_shortens_thinking_is_no_budget() -> None:
    def hinted(body: Mapping[str, Any]) -> Sequence[str]:
        return LONG[:15] if "thinking_budget" in body.get("chat_template_kwargs", {}) else LONG

    found = of(FakeUpstream(thinks=hinted))
    assert found.native_budget is None
    assert "a hint" in notes(found, "native budget: chat_template_kwargs.thinking_budget")


def test_a_sentence_before_the_close_tag_hides_no_budget() -> None:
    """vLLM's end text may hold one, which comes on top of the budget."""

    def with_sentence(body: Mapping[str, Any]) -> Sequence[str]:
        budget = body.get("thinking_token_budget", -1)
        return LONG if budget < 0 else (*LONG[:budget], *("I ", "have ", "thought ", "enough. "))

    assert of(FakeUpstream(thinks=with_sentence)).native_budget == "thinking_token_budget"


class Strict(FakeUpstream):
    """Refuses fields that it does not know, as some hosted servers do."""

    known = frozenset({"model", "messages", "max_completion_tokens", "stream", "n", "tools", "tool_choice"})

    async def _complete(self, request: Request) -> Response:
        body = json.loads(await request.body())
        if unknown := set(body) - self.known:
            told = {"error": {"message": f"unknown field {sorted(unknown)[0]}", "code": 400}}
            return JSONResponse(told, 400)
        return await super()._complete(request)


def test_a_strict_server_is_asked_without_what_it_refuses() -> None:
    found = of(Strict(thoughts=LONG))
    assert (found.thinks, found.choices, found.tools) == (True, False, True)  # n needs a temperature
    refused = notes(found, "native budget: refused")
    assert "thinking_token_budget: the upstream server answered 400: unknown field" in refused


def test_a_server_that_refuses_everything_is_a_note() -> None:
    found = of(FakeUpstream(refuse=(401, b'{"error": {"message": "no key"}}', {})))
    assert not found.examined
    assert "no key" in notes(found, "start")


@pytest.mark.parametrize(
    "kind", ["html", "reset", "empty", "redirect", "garbage_gzip", "not_json", "half_event"]
)
def test_no_fault_of_a_server_is_an_exception(kind: Any) -> None:
    after = 0 if kind in ("not_json", "half_event") else None
    first = of(FakeUpstream(thoughts=LONG, faults=(Fault(kind, call=0, after=after),)))
    assert first.native_budget is None
    later = of(FakeUpstream(thoughts=LONG, token_ids=True, faults=(Fault(kind, call=3, after=after),)))
    assert later.token_ids


def test_a_stalling_server_ends_each_trial_in_time() -> None:
    found = of(FakeUpstream(thoughts=LONG, faults=(Fault("stall"),), stall_s=5.0), trial_s=0.3)
    assert "within 0.3 s" in notes(found, "start")


def test_all_trials_together_end_in_time() -> None:
    found = of(FakeUpstream(thoughts=LONG, header_pause_s=0.3), total_s=0.8)
    assert "not tried to its end" in notes(found, "native budget")


def test_a_server_in_one_piece_cannot_be_stopped() -> None:
    found = of(FakeUpstream(thoughts=LONG, streams=False))
    assert not found.streams
    assert "nothing can be stopped early" in notes(found, "streaming")


def test_a_false_zero_of_reasoning_tokens_is_told() -> None:
    class Zero(FakeUpstream):
        def _shape(self, body: Mapping[str, Any], path: str) -> Shape:
            shape = super()._shape(body, path)
            counted = shape.usage
            details = {"completion_tokens_details": {"reasoning_tokens": 0}}
            shape.usage = lambda count: counted(count) | details  # type: ignore[method-assign]
            return shape

    found = of(Zero(thoughts=LONG))
    assert not found.usage_details
    assert "0 reasoning tokens" in notes(found, "usage")


def delta(field_name: str, *texts: str) -> list[dict[str, str]]:
    return [{field_name: text} for text in texts]


@pytest.mark.parametrize(
    ("deltas", "words"),
    [
        (delta("reasoning", "plan it", "</think>", "42"), "looks for another end tag"),
        (delta("reasoning", "plan it", " 42"), "the content is empty"),
        ([*delta("reasoning", "plan it"), *delta("content", "more</think>42")], "contradict each other"),
    ],
)
def test_R04_a_parser_that_contradicts_its_tags_is_told(deltas: Any, words: str) -> None:
    found = of(FakeUpstream(deltas=deltas))
    assert any(words in each for each in found.conflicts), found


def test_R04_a_setting_that_contradicts_the_servers_parser_is_told() -> None:
    assert of(FakeUpstream(thoughts=LONG)).conflicts == ()
    found = of(FakeUpstream(thoughts=LONG), thinking_opened_by_template=True)
    assert any("thinking_opened_by_template is set, but" in each for each in found.conflicts)


def test_R04_a_block_that_the_template_opens_and_nobody_expects_is_told() -> None:
    fake = FakeUpstream(thoughts=LONG, dialect="opened_tags")
    found = of(fake)
    assert (found.template_opens, found.conflicts) == (True, ())
    assert "chat template opens" in notes(found, "tags")
    assert "chat template opens" not in notes(of(fake, thinking_opened_by_template=True), "tags")
    assert "chat template opens" not in notes(of(fake, profile="qwen3-thinking"), "tags")


def test_R04_tags_of_another_family_are_told_with_a_profile_that_knows_them() -> None:
    fake = FakeUpstream(deltas=delta("content", "◁think▷", "plan", "◁/think▷", "42"))
    assert any("'kimi-vl'" in each for each in of(fake).conflicts)
    assert of(fake, profile="kimi-vl").conflicts == ()


def test_R39_a_tag_of_several_tokens_is_told() -> None:
    assert of(FakeUpstream(thoughts=LONG, dialect="tags")).close_tag_tokens == 1
    wide = of(Wide(thoughts=LONG))
    assert wide.close_tag_tokens == 8
    assert "'</think>' is 8 tokens" in notes(wide, "tags")


class Wide(FakeUpstream):
    """A tokenizer that knows no tags: a token a character."""

    async def _tokenize(self, request: Request) -> Response:
        body = await request.json()
        text = body.get("prompt") or self.vocabulary.prompt(body, opened=False, strips=False)
        return JSONResponse({"tokens": [ord(each) for each in text]})


@dataclass
class Metered(FakeUpstream):
    """Tells its load as vLLM does. `deaf`: goes on after its client has left. `others`: other requests."""

    deaf: bool = False
    others: int = 0
    load: str = "/metrics"
    running: int = 0
    generated: int = 0
    going: set[asyncio.Task[None]] = field(default_factory=set)

    def app(self) -> Starlette:
        made = super().app()
        made.router.routes.append(Route(self.load, self._load))
        return made

    async def _load(self, request: Request) -> Response:
        running = self.running + self.others
        if self.load == "/load":
            return JSONResponse({"server_load": running})
        return PlainTextResponse(
            f'vllm:num_requests_running{{engine="0"}} {running}\n'
            "# TYPE vllm:generation_tokens counter\n"
            f'vllm:generation_tokens_total{{engine="0"}} {self.generated}\n'
        )

    async def _stream(
        self, shape: Shape, tokens: Sequence[Token], finish: str, string: str | None
    ) -> AsyncIterator[bytes]:
        self.running += 1
        ended = False
        try:
            async for event in super()._stream(shape, tokens, finish, string):
                self.generated += 1
                yield event
            ended = True
        finally:
            if ended or not self.deaf:
                self.running -= 1
            else:
                self.going.add(asyncio.create_task(self._go_on()))

    async def _go_on(self) -> None:
        await asyncio.sleep(30)
        self.running -= 1


@pytest.mark.parametrize(
    ("fake", "cancels"),
    [
        (Metered(thoughts=LONG * 10, pause_s=0.003), True),
        (Metered(thoughts=LONG * 10, pause_s=0.003, load="/load"), True),
        (Metered(thoughts=LONG * 10, pause_s=0.003, deaf=True), False),
        (Metered(thoughts=LONG * 10, pause_s=0.003, deaf=True, others=3), None),
        (FakeUpstream(thoughts=LONG), None),
    ],
)
def test_a_left_request_that_ends_is_seen_at_the_server(fake: FakeUpstream, cancels: bool | None) -> None:
    found = of(fake, total_s=120)
    assert found.cancels is cancels, found.notes


class Speculating(Metered):
    """Speculates, and its metrics tell so."""

    async def _load(self, request: Request) -> Response:
        return PlainTextResponse("vllm:num_requests_running 0\nvllm:spec_decode_num_drafts_total 7\n")


def test_R01_speculative_decoding_is_named_where_no_budget_binds() -> None:
    assert "Speculative decoding is on" in notes(of(Speculating(thoughts=LONG)), "native budget")
    assert "Speculative" not in notes(of(FakeUpstream(thoughts=LONG)), "native budget")
