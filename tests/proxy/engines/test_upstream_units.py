"""The upstream engine's parts: tool-call markup, places of a cut, tries, plans, bodies."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from desist.controller.core import Control, StopReason
from desist.controller.machine import StopMachine
from desist.controller.profiles import get_profile
from desist.data.errors import UpstreamError
from desist.proxy.engines.upstream.bodies import Continued, ids_body, message_body
from desist.proxy.engines.upstream.calls import CallParser
from desist.proxy.engines.upstream.capabilities import Capabilities
from desist.proxy.engines.upstream.cut import TextWatch
from desist.proxy.engines.upstream.plan import make_plan
from desist.proxy.engines.upstream.probabilities import as_chat
from desist.proxy.engines.upstream.retry import Retries, may_pass, retry_after_s
from desist.proxy.errors import UpstreamReply
from tests.proxy.engines.upstream_bench import request

QWEN = get_profile("qwen3")
TOOLS = [
    {"type": "function", "function": {"name": "f", "parameters": {
        "type": "object", "properties": {"n": {"type": "integer"}, "s": {"type": "string"}}}}}
]  # fmt: skip
JSON_CALL = '<tool_call>\n{"name": "f", "arguments": {"s": "a } </x> 🤖", "n": 2}}\n</tool_call>'
CODED_CALL = (
    "<tool_call>\n<function=f>\n<parameter=n>\n2\n</parameter>\n<parameter=s>\n02\n</parameter>\n</function>\n"
    "</tool_call>"
)


def parsed(text: str, sizes: list[int], **how: Any) -> tuple[str, list[tuple[str, Any]]]:
    parser = CallParser(TOOLS, **how)
    shown, calls, at = "", [], 0
    for size in [*sizes, len(text)]:
        told, found = parser.feed(text[at : at + size])
        shown, calls, at = shown + told, calls + found, at + size
    told, found = parser.finish()
    calls += found
    assert [call["index"] for call in calls] == list(range(len(calls)))
    assert len({call["id"] for call in calls}) == len(calls)
    made = [(call["function"]["name"], json.loads(call["function"]["arguments"])) for call in calls]
    return shown + told, made


@given(st.lists(st.integers(1, 9), max_size=40))
def test_calls_are_the_same_however_the_text_is_cut(sizes: list[int]) -> None:
    text = f"Let me look.\n\n{JSON_CALL}\n{CODED_CALL}\n"
    one, two = ("f", {"s": "a } </x> 🤖", "n": 2}), ("f", {"n": 2, "s": "02"})
    assert parsed(text, sizes) == ("Let me look.", [one, two])
    assert parsed(text, sizes, parallel=False) == ("Let me look.", [one])


@pytest.mark.parametrize(
    "text",
    [
        "no call, 2 < 3 and <tool_cal",
        "<tool_call>\nnot json\n</tool_call> after",
        'x <tool_call>{"name": 3}</tool_call>',
        'a\n\n<tool_call>{"name": "f", "argu',
        "say <tool_call> in prose",
    ],
)
@given(st.lists(st.integers(1, 5), max_size=30))
def test_what_is_no_call_stays_text(text: str, sizes: list[int]) -> None:
    assert parsed(text, sizes) == (text, [])


def test_an_unclosed_call_that_can_be_read_is_one() -> None:
    assert parsed('<tool_call>\n{"name": "f", "arguments": {"n": 1}}', [3]) == ("", [("f", {"n": 1})])


def watch(budget: int | None = None, max_tokens: int | None = None) -> TextWatch:
    made = TextWatch(StopMachine(Control(budget=budget), max_tokens=max_tokens), QWEN.cues, None)
    made.begin(0)
    return made


@given(
    st.text("ab .!?\n🤖,Wait", max_size=200).filter(str.strip),
    st.lists(st.integers(1, 7), min_size=1, max_size=60),
    st.integers(0, 40),
)
def test_a_cut_keeps_a_beginning_within_its_budget(text: str, sizes: list[int], budget: int) -> None:
    made, shown, tokens, at = watch(budget), "", 0, 0
    pieces = []
    for size in sizes:
        if piece := text[at : at + size]:
            pieces.append(piece)
        at += size
    for piece in pieces:
        tokens += 1
        shown += made.push(piece, tokens, tokens)
        if made.cut is not None:
            break
    if made.cut is None:
        shown += made.flush()
        assert shown == "".join(pieces)
        assert tokens < budget + budget // 10 or tokens == 0
        return
    cut = made.cut
    assert text.startswith(shown)
    assert shown == made.kept
    assert cut.decision.position <= budget + budget // 10
    assert cut.decision.position + cut.rewound == tokens
    assert "".join(pieces[: cut.ids]) + cut.rest == shown


def test_a_cut_inside_a_large_chunk_keeps_whole_ids_and_the_rest() -> None:
    made = watch(6)
    assert made.push("one two three four. ", 4, 4) == "one two three four. "
    shown = made.push("five six. seven eight. nine ten", 12, 12)
    assert shown == "five six. seven eight."[: len(shown)]
    assert made.cut is not None
    assert (made.cut.ids, made.cut.rest) == (4, shown)


def test_a_stop_by_hand_waits_for_a_sentence_but_not_for_ever() -> None:
    made = watch()
    made.push("We add the ", 3, 3)
    made.ask(StopReason.MANUAL)
    assert made.push("numbers", 4, 4) == ""
    assert made.push(". Then", 6, 6) == "numbers."
    assert made.cut is not None
    assert made.cut.decision.reason is StopReason.MANUAL
    endless = watch()
    endless.ask(StopReason.MANUAL)
    shown = [endless.push("word ", n, n) for n in range(1, 40) if endless.cut is None]
    assert len(shown) == 16


def reply(status: int, after: str | None = None) -> UpstreamReply:
    return UpstreamReply(status, b"", after)


@pytest.mark.parametrize(
    ("error", "passes"),
    [(reply(408), True), (reply(429), True), (reply(500), True), (reply(503), True), (reply(400), False),
     (reply(404), False), (UpstreamError("late", 504), False), (UpstreamError("broke", 502), False)],
)  # fmt: skip
def test_what_may_pass(error: UpstreamError, passes: bool) -> None:
    assert may_pass(error) is passes


def test_retry_after_and_the_bounds_of_tries() -> None:
    assert retry_after_s("3", lambda: 0.0) == 3.0
    assert retry_after_s("Thu, 01 Jan 1970 00:01:00 GMT", lambda: 20.0) == 40.0
    assert retry_after_s("soon", lambda: 0.0) is None

    async def tries() -> list[bool]:
        again = Retries(2, lambda: 0.0, lambda: 0.0)
        made = [
            await again.pause(reply(503, "0.01")),
            await again.pause(reply(503)),
            await again.pause(reply(503)),
        ]
        return [*made, await Retries(2, lambda: 0.0).pause(reply(503, "60"))]

    assert asyncio.run(tries()) == [True, True, False, False]


def test_the_body_of_a_continuation_from_ids() -> None:
    asked = request(
        max_completion_tokens=50, logprobs=True, reasoning_effort="low", tools=TOOLS, min_tokens=30, vendor=1,
        thinking={"type": "enabled", "budget_tokens": 9}, chat_template_kwargs={"enable_thinking": True},
        stop="Q", response_format={"type": "json_object"}, top_k=3, truncate_prompt_tokens=5,
    )  # fmt: skip
    body = ids_body(asked, Continued("kept", 20), [1, 2])
    assert body == {
        "model": "up", "prompt": [1, 2], "max_tokens": 30, "min_tokens": 10, "logprobs": 0, "vendor": 1,
        "stop": "Q",
        "response_format": {"type": "json_object"}, "top_k": 3, "return_token_ids": True, "stream": True,
        "stream_options": {"include_usage": True},
    }  # fmt: skip
    spent = ids_body(asked, Continued("kept", 400), [1])
    assert (spent["max_tokens"], spent["min_tokens"]) == (1, 1)
    message = message_body(asked, QWEN, Continued("So.\n", 20))
    assert message["messages"][-1]["content"] == "<think>\nSo.\nI have enough to answer now.\n</think>\n\n"
    assert message["thinking"] == {"type": "enabled"}


@pytest.mark.parametrize(
    ("known", "body", "ways"),
    [
        (None, {}, (True, True, False)),
        (Capabilities(), {}, (False, True, False)),
        (Capabilities(), {"tools": TOOLS}, (False, False, False)),
        (Capabilities(), {"tools": TOOLS, "tool_choice": "none"}, (False, True, False)),
        (Capabilities(token_ids=True, prompt_continuation=True), {"functions": [{}]}, (False, False, False)),
        (
            Capabilities(token_ids=True, prompt_continuation=True),
            {"include_reasoning": False},
            (False, False, False),
        ),
        (None, {"use_beam_search": True}, (False, False, False)),
        (None, {"prompt": "x"}, (True, False, True)),
        (Capabilities(), {"prompt": "x"}, (False, False, True)),
        (Capabilities(), {"prompt": "x", "suffix": "y"}, (False, False, False)),
    ],
)
def test_plans(known: Capabilities | None, body: dict[str, Any], ways: tuple[bool, bool, bool]) -> None:
    plan = make_plan(request(**body), QWEN, known)
    assert (plan.ids, plan.message, plan.text) == ways
    assert (plan.why is None) == plan.can_cut


def test_log_probabilities_in_the_shape_of_chat() -> None:
    told = {
        "tokens": ["a", "🤖"],
        "token_logprobs": [-1.0, None],
        "top_logprobs": [{"b": -2.0, "a": -1.0}, None],
    }
    first, second = as_chat(told, 1)["content"]  # type: ignore[index]
    assert first == {
        "token": "a", "logprob": -1.0, "bytes": [97],
        "top_logprobs": [{"token": "a", "logprob": -1.0, "bytes": [97]}],
    }  # fmt: skip
    assert second["bytes"] == list("🤖".encode())
    assert as_chat(None, 1) is None
