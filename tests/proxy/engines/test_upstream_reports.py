"""Public reports that bear on the engine before a plain server, each against the fake upstream."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from desist.controller.core import StopReason
from desist.data.errors import UpstreamError
from desist.proxy.engines.upstream.capabilities import Capabilities
from desist.proxy.engines.upstream.engine import UpstreamEngine
from tests.fakes.server import wait_for
from tests.fakes.upstream import FakeUpstream, Fault
from tests.proxy.engines.upstream_bench import SENTENCE, Bench, bench, request

IDS = Capabilities(token_ids=True, prompt_continuation=True, parses_reasoning=True)
NATIVE = Capabilities(
    token_ids=True, prompt_continuation=True, parses_reasoning=True, native_budget="thinking_token_budget"
)
MESSAGE = Capabilities(final_message=True, parses_reasoning=True)
NOTHING = Capabilities(parses_reasoning=True)
WORDS = tuple(f"step{n} " for n in range(300))
LOOP = ("Wait, ", "let me ", "check ", "the sum ", "again: ", "4+9=13. ") * 200
TOOL = {"name": "lookup", "arguments": '{"city": "Oslo"}'}
TOOLS = [{"type": "function", "function": {"name": "lookup", "parameters": {"type": "object"}}}]
SCHEMA = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}}


@pytest.fixture(scope="module")
def at() -> Iterator[Bench]:
    with bench() as made:
        yield made


@pytest.fixture(autouse=True)
def fresh(at: Bench) -> FakeUpstream:
    at.fake.__init__()  # type: ignore[misc]
    return at.fake


def prompt_of(fake: FakeUpstream, call: int = 1) -> str:
    prompt = fake.bodies[call]["prompt"]
    return prompt if isinstance(prompt, str) else fake.vocabulary.decode(prompt)


def left_early(fake: FakeUpstream, call: int = 0) -> bool:
    """Whether the server noticed that its reader was gone."""
    end = time.monotonic() + 3
    while time.monotonic() < end and fake.sent[call] > 250:
        time.sleep(0.01)
    return not fake.ended[call]


@pytest.mark.parametrize("honoured", [True, False])
def test_r01_r02_a_budget_holds_whether_or_not_the_server_honours_it(at: Bench, honoured: bool) -> None:
    at.fake.__init__(  # type: ignore[misc]
        thoughts=WORDS,
        token_ids=True,
        native_budgets=frozenset({"thinking_token_budget"} if honoured else ()),
    )
    told = at.one(request(budget=16, max_tokens=400), known=NATIVE if honoured else IDS)
    assert told.end.stop_reason is StopReason.BUDGET
    assert told.end.usage.reasoning_tokens <= 17
    assert told.content
    assert len(at.fake.bodies) == (1 if honoured else 2)
    assert told.end.budget_by == ("upstream" if honoured else None)
    assert at.fake.bodies[0].get("thinking_token_budget") == (16 if honoured else None)


def test_r01_a_native_budget_that_fails_once_is_made_good_here(at: Bench) -> None:
    at.fake.__init__(thoughts=WORDS, token_ids=True, pause_s=0.001)  # type: ignore[misc]
    told = at.one(request(budget=16, max_tokens=400), known=NATIVE)
    assert told.end.stop_reason is StopReason.BUDGET
    assert told.end.budget_by == "proxy"
    assert told.end.usage.reasoning_tokens <= 16 + 8 + 2
    assert told.content == "So it is 4."


def test_r05_a_budget_in_template_kwargs_is_left_to_the_template_and_holds_here(at: Bench) -> None:
    at.fake.__init__(thoughts=WORDS, token_ids=True)  # type: ignore[misc]
    kwargs = {"enable_thinking": True, "thinking_budget": 10}
    told = at.one(request(chat_template_kwargs=kwargs, max_tokens=300), known=IDS)
    assert at.fake.bodies[0]["chat_template_kwargs"] == kwargs
    assert told.end.stop_reason is StopReason.BUDGET
    assert told.end.usage.reasoning_tokens <= 11


def test_r11_thinking_that_ends_inside_a_chunk_beyond_the_budget(at: Bench) -> None:
    at.fake.__init__(dialect="tags", tag_cut=None, token_ids=True, per_chunk=9)  # type: ignore[misc]
    asked = [request(budget=4, number=0), request(number=1)]
    first, second = at.ask(*asked, known=Capabilities(token_ids=True, prompt_continuation=True))
    assert first.end.stop_reason is StopReason.BUDGET
    assert first.end.usage.reasoning_tokens <= 4
    assert "</think>" not in first.reasoning + first.content
    assert (second.reasoning.strip(), second.content) == (
        "First add. Then check. Wait, again. Done.",
        "It is 4.",
    )


@pytest.mark.parametrize("ids", [True, False])
def test_r16_a_cut_waits_for_a_sentence_end_and_splits_no_character(at: Bench, ids: bool) -> None:
    known = IDS if ids else MESSAGE
    prose = (
        "so ",
        "x ",
        "= ",
        "12 ",
        "and ",
        "there",
        "fore ",
        "🤖",
        "👩‍👩‍👧",
        " it ",
        "is ",
        "12.",
        " Next ",
        *WORDS,
    )
    for budget in range(20, 33):
        at.fake.__init__(thoughts=(*WORDS[:20], *prose), token_ids=ids, pause_s=0.0005)  # type: ignore[misc]
        told = at.one(request(budget=budget, max_tokens=4000), known=known)
        assert told.end.usage.reasoning_tokens <= budget + budget // 10
        kept = told.reasoning.removesuffix(SENTENCE).removesuffix(SENTENCE.lstrip())
        assert "".join((*WORDS[:20], *prose)).startswith(kept)
        kept.encode("utf-8")
        assert "\ufffd" not in told.reasoning
        if budget in (30, 31):  # "12." is token 32: within the grace
            assert kept.endswith("is 12.")


def test_r16_no_line_end_for_long_is_cut_at_the_grace(at: Bench) -> None:
    at.fake.__init__(thoughts=WORDS, token_ids=True)  # type: ignore[misc]
    told = at.one(request(budget=100, max_tokens=4000), known=IDS)
    assert 100 <= told.end.usage.reasoning_tokens <= 110


@pytest.mark.parametrize("opening", ["\n```python\n", "$$", '{"a": "', "\\["])
def test_hold_off_zones_hold_on_text(at: Bench, opening: str) -> None:
    at.fake.__init__(  # type: ignore[misc]
        thoughts=(*WORDS[:98], opening, "x = 1. ", "y = 2. ", "z", *WORDS), token_ids=True
    )
    told = at.one(request(budget=100, max_tokens=4000), known=IDS)
    assert told.end.usage.reasoning_tokens >= 109  # the grace in full, no sentence end inside


@pytest.mark.parametrize("known", [None, IDS, MESSAGE])
def test_r18_a_loop_is_closed_and_answered(at: Bench, known: Capabilities | None) -> None:
    at.fake.__init__(thoughts=LOOP, token_ids=known is not MESSAGE, pause_s=0.001)  # type: ignore[misc]
    told = at.one(request(), known=known)
    assert told.end.stop_reason is StopReason.LOOP
    assert told.end.finish_reason == "stop"
    assert told.content == "So it is 4."
    assert told.end.usage.reasoning_tokens < 80
    assert told.reasoning.endswith("4+9=13." + SENTENCE)
    assert left_early(at.fake)


def test_r44_counting_is_not_closed_and_loops_can_be_let_be(at: Bench) -> None:
    at.fake.__init__(thoughts=tuple(f"{n}, " for n in range(1, 400)))  # type: ignore[misc]
    assert at.one(request()).end.stop_reason is StopReason.NATURAL
    at.fake.__init__(thoughts=LOOP)  # type: ignore[misc]
    assert at.one(request(), loops=False).end.stop_reason is StopReason.NATURAL
    watched = at.one(request(mode="shadow"))
    assert watched.end.stop_reason is StopReason.NATURAL
    assert watched.end.shadow is not None
    assert watched.end.shadow.reason is StopReason.LOOP


def test_r44_a_budget_above_max_tokens_leaves_room(at: Bench) -> None:
    at.fake.__init__(thoughts=WORDS, token_ids=True)  # type: ignore[misc]
    told = at.one(request(budget=500, max_tokens=100), known=IDS)
    assert told.content == "So it is 4."
    assert at.fake.bodies[0]["max_tokens"] == 100
    assert 2 <= at.fake.bodies[1]["max_tokens"] <= 30


def test_r26_thinking_into_max_tokens_is_told_when_nothing_may_be_done(at: Bench) -> None:
    at.fake.__init__(thoughts=WORDS, dialect="tags")  # type: ignore[misc]
    told = at.one(request(mode="off", max_tokens=5))
    assert (told.content, told.end.finish_reason, told.end.stop_reason) == ("", "length", StopReason.LENGTH)
    assert told.reasoning.startswith("step0 ")


@pytest.mark.parametrize("max_tokens", [1, 2, 3, 7, 20, 60])
@pytest.mark.parametrize("dialect", ["reasoning", "tags", "opened_tags"])
@pytest.mark.parametrize("ids", [True, False])
def test_r26_an_answer_comes_however_small_the_limit(
    at: Bench, max_tokens: int, dialect: Any, ids: bool
) -> None:
    at.fake.__init__(thoughts=WORDS, dialect=dialect, token_ids=ids)  # type: ignore[misc]
    told = at.one(request(max_tokens=max_tokens), thinking_opened_by_template=dialect == "opened_tags")
    assert told.content.startswith("So it ")
    assert "<" not in told.content
    assert all(body["max_tokens"] <= max_tokens for body in at.fake.bodies)
    assert min(body["max_tokens"] for body in at.fake.bodies) >= 1


def test_thinking_alone_is_answered(at: Bench) -> None:
    at.fake.__init__(answer=(), token_ids=True)  # type: ignore[misc]
    told = at.one(request(), known=IDS)
    assert (told.content, told.end.stop_reason) == ("So it is 4.", StopReason.NATURAL)
    assert "Done." in prompt_of(at.fake)
    stopped = at.one(request(stop=["add"]), known=IDS)  # the client's own word ended it
    assert stopped.content == ""


def test_r26_half_a_tag_at_the_limit_is_text_where_nothing_can_be_done(at: Bench) -> None:
    at.fake.__init__(deltas=({"content": "<thi"},), finish="length")  # type: ignore[misc]
    told = at.one(request())
    assert (told.reasoning, told.content, told.end.finish_reason) == ("", "<thi", "length")


@pytest.mark.parametrize("what", [{}, {"tool_choice": "required"}])
def test_r36_calls_of_a_server_that_does_not_stream_are_numbered(at: Bench, what: dict[str, Any]) -> None:
    """A client that streams puts calls together by their number, and fails without one."""
    at.fake.__init__(streams=False, tool=TOOL)  # type: ignore[misc]
    told = at.one(request(tools=TOOLS, **what))
    calls = [call for each in told.deltas for call in (each.extra or {}).get("tool_calls", ())]
    assert [call["index"] for call in calls] == [0]
    assert told.buffer.extra["tool_calls"][0]["function"]["arguments"] == TOOL["arguments"]


def test_r29_chunks_with_reasoning_alone_are_forwarded(at: Bench) -> None:
    at.fake.__init__(deltas=({"role": "assistant"}, {"reasoning": "a"}, {}, {"content": "b"}))  # type: ignore[misc]
    told = at.one(request())
    assert (told.reasoning, told.content, told.end.finish_reason) == ("a", "b", "stop")


@pytest.mark.parametrize("known", [None, IDS, MESSAGE])
def test_r34_a_schema_still_binds_on_the_continuation(at: Bench, known: Capabilities | None) -> None:
    at.fake.__init__(thoughts=WORDS, token_ids=known is not MESSAGE)  # type: ignore[misc]
    told = at.one(request(budget=5, response_format=SCHEMA), known=known)
    assert told.end.stop_reason is StopReason.BUDGET
    assert json.loads(told.content) == {"cents": 4}
    assert at.fake.bodies[1]["response_format"] == SCHEMA


@pytest.mark.parametrize("what", [{"tools": TOOLS}, {"response_format": SCHEMA}])
def test_r34_what_cannot_be_carried_over_is_not_cut(at: Bench, what: dict[str, Any]) -> None:
    told = at.one(request(budget=3, **what), known=NOTHING)
    assert len(at.fake.bodies) == 1
    assert told.end.stop_reason is StopReason.NATURAL
    assert "would be lost" in (told.end.uncontrolled or "")


def test_images_and_unknown_markup_go_on_by_message_only(at: Bench) -> None:
    at.fake.__init__(thoughts=WORDS, token_ids=True)  # type: ignore[misc]
    image = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}]
    told = at.one(request(budget=3, messages=image), known=IDS)
    assert "a message part of type 'image_url'" in (told.end.uncontrolled or "")
    told = at.one(request(budget=3, tools=TOOLS), known=IDS, profile="glm-4.5")
    assert "'tools'" in (told.end.uncontrolled or "")
    told = at.one(request(budget=3, tools=TOOLS, tool_choice="required"), known=IDS)
    assert "tool_choice" in (told.end.uncontrolled or "")
    at.fake.bodies.clear()
    both = Capabilities(token_ids=True, prompt_continuation=True, final_message=True)
    told = at.one(request(budget=3, messages=image), known=both)
    assert (told.content, told.end.uncontrolled) == ("So it is 4.", None)
    assert at.fake.bodies[1]["continue_final_message"] is True


@pytest.mark.parametrize("known", [None, IDS, MESSAGE])
def test_r36_tool_calls_after_a_cut(at: Bench, known: Capabilities | None) -> None:
    at.fake.__init__(thoughts=WORDS, token_ids=known is not MESSAGE, tool=TOOL)  # type: ignore[misc]
    told = at.one(request(budget=5, tools=TOOLS), known=known)
    (call,) = told.buffer.extra["tool_calls"]
    assert call["function"] == {"name": "lookup", "arguments": '{"city": "Oslo"}'}
    assert call["id"]
    assert told.end.finish_reason == "tool_calls"
    assert told.content == "So it is 4."
    at.fake.__init__(thoughts=WORDS, token_ids=known is not MESSAGE)  # type: ignore[misc]
    told = at.one(request(budget=5, tools=TOOLS), known=known)
    assert told.end.finish_reason == "stop"  # no calls: never the reason without them


def test_r36_a_contradiction_of_the_server_passes_unchanged(at: Bench) -> None:
    at.fake.__init__(finish="tool_calls", extra_delta={"tool_calls": []})  # type: ignore[misc]
    told = at.one(request(tools=TOOLS))
    assert told.end.finish_reason == "tool_calls"
    assert not told.buffer.extra.get("tool_calls")


def test_r37_usage_over_two_calls_is_counted_once(at: Bench) -> None:
    at.fake.__init__(thoughts=WORDS, token_ids=True, pause_s=0.001)  # type: ignore[misc]
    told = at.one(request(budget=6, max_tokens=900), known=IDS)
    usage, first, second = told.end.usage, at.fake.bodies[0], at.fake.bodies[1]
    prompt = len(at.fake.vocabulary.encode(at.fake.vocabulary.prompt(first, opened=False, strips=False)))
    assert usage.prompt_tokens == prompt
    assert usage.reprefill_tokens == len(second["prompt"])
    assert usage.reasoning_tokens == 6
    assert usage.handoff_tokens == len(at.fake.vocabulary.encode(f"{SENTENCE.lstrip()}\n</think>\n\n"))
    kept = len(second["prompt"]) - prompt - usage.handoff_tokens
    assert kept == usage.reasoning_tokens + 2  # the tag and its line end
    assert usage.completion_tokens == kept + usage.rewound_tokens + usage.handoff_tokens + 2
    assert not usage.estimated
    assert second["max_tokens"] == 900 - kept - usage.rewound_tokens - 10


def test_r37_unknown_counts_are_estimates_and_no_zeros(at: Bench) -> None:
    at.fake.__init__(running_usage=False, final_usage=False)  # type: ignore[misc]
    usage = at.one(request()).end.usage
    assert usage.estimated
    assert min(usage.prompt_tokens, usage.reasoning_tokens, usage.answer_tokens) > 0


def test_r45_choices_are_stopped_each_for_itself(at: Bench) -> None:
    at.fake.__init__(  # type: ignore[misc]
        thinks=lambda body: WORDS if body["seed"] == 7 else WORDS[:3], token_ids=True, pause_s=0.001
    )
    asked = [request(budget=20, seed=7 + n, number=n) for n in range(2)]
    first, second = at.ask(*asked, known=IDS)
    assert (first.end.stop_reason, first.content) == (StopReason.BUDGET, "So it is 4.")
    assert (second.end.stop_reason, second.content) == (StopReason.NATURAL, "It is 4.")
    assert second.reasoning == "step0 step1 step2 "
    assert sorted({headers["x-request-id"] for headers in at.fake.headers}) == ["r1", "r1-1", "r1-answer"]
    assert [body["seed"] for body in at.fake.bodies if "prompt" in body] == [7]


@pytest.mark.parametrize("stage", ["first", "answer"])
@pytest.mark.parametrize(
    ("kind", "status"),
    [("error_event", 400), ("old_error_event", 400), ("plain_error_event", 502), ("half_event", 502),
     ("half_character", 502), ("bad_utf8", 502), ("cut_gzip", 502), ("reset", 502), ("end", 502),
     ("done", 502)],
)  # fmt: skip
def test_r69_what_breaks_is_told_and_never_a_clean_end(at: Bench, stage: str, kind: Any, status: int) -> None:
    call, after = (0, 3) if stage == "first" else ("continuation", 1)
    at.fake.__init__(  # type: ignore[misc]
        thoughts=WORDS[:9], token_ids=True, continued=("So ", "it ", "is ", "4."),
        faults=[Fault(kind, call, after)],  # type: ignore[arg-type]
    )  # fmt: skip
    told = at.one(request(budget=5 if stage == "answer" else 50), known=IDS)
    assert isinstance(told.error, UpstreamError)
    assert told.error.status == status
    assert "".join(WORDS[:9]).startswith(
        told.reasoning.removesuffix(SENTENCE).removesuffix(SENTENCE.lstrip())
    )


@pytest.mark.parametrize("kind", ["reset", "kill", "status", "half_event", "end", "empty"])
def test_a_failed_continuation_is_made_again_alone(at: Bench, kind: Any) -> None:
    after = 0 if kind in ("half_event", "end") else None
    at.fake.__init__(thoughts=WORDS, token_ids=True, faults=[Fault(kind, 1, after)])  # type: ignore[misc]
    told = at.one(request(budget=5), known=IDS)
    assert told.content == "So it is 4."
    assert at.fake.paths == ["/v1/chat/completions", "/v1/completions", "/v1/completions"]
    assert at.fake.bodies[1] == at.fake.bodies[2]
    assert told.reasoning.count(SENTENCE.strip()) == 1


@pytest.mark.parametrize(
    ("fault", "calls"),
    [(Fault("status", "continuation", status=400), 2), (Fault("status", "continuation", status=429), 4),
     (Fault("status", "continuation", status=503, headers={"retry-after": "60"}), 2),
     (Fault("reset", "continuation", 1), 2)],
)  # fmt: skip
def test_tries_are_bounded_and_end_with_the_first_answer_byte(at: Bench, fault: Fault, calls: int) -> None:
    at.fake.__init__(thoughts=WORDS, token_ids=True, faults=[fault])  # type: ignore[misc]
    told = at.one(request(budget=5), known=IDS)
    assert isinstance(told.error, UpstreamError)
    assert len(at.fake.bodies) == calls


def test_the_first_call_is_made_again_before_its_first_byte_only(at: Bench) -> None:
    at.fake.__init__(faults=[Fault("kill", 0)])  # type: ignore[misc]
    assert at.one(request()).content == "It is 4."
    at.fake.__init__(faults=[Fault("kill", 0, 2)])  # type: ignore[misc]
    told = at.one(request())
    assert told.error is not None
    assert len(at.fake.bodies) == 1
    at.fake.__init__(faults=[Fault("status", 0, status=500)])  # type: ignore[misc]
    assert at.one(request(), retries=0).error is not None


def test_r77_the_smaller_budget_wins_and_is_told(at: Bench) -> None:
    for honoured in (True, False):
        names = frozenset({"thinking_token_budget"} if honoured else ())
        at.fake.__init__(thoughts=WORDS, token_ids=True, native_budgets=names)  # type: ignore[misc]
        told = at.one(request(budget=100, thinking_token_budget=60))
        assert told.end.stop_reason is StopReason.BUDGET
        assert told.end.budget_by == ("upstream" if honoured else "proxy")
        assert 60 <= told.end.usage.reasoning_tokens <= 66
        assert len(at.fake.bodies) == (1 if honoured else 2)
        assert told.reasoning.count(SENTENCE.strip()) == (0 if honoured else 1)
        assert "</think>" not in told.content
        assert "thinking_token_budget" not in at.fake.bodies[-1] or honoured


def test_r79_a_chunk_of_five_tokens_is_five_tokens(at: Bench) -> None:
    at.fake.__init__(thoughts=WORDS, token_ids=True, per_chunk=5)  # type: ignore[misc]
    told = at.one(request(budget=50, max_tokens=900), known=IDS)
    assert 50 <= told.end.usage.reasoning_tokens <= 55
    assert at.fake.vocabulary.decode(at.fake.bodies[1]["prompt"]).count("step") == told.reasoning.count(
        "step"
    )


def test_b3_tokens_are_really_saved_and_nothing_else_is_changed(at: Bench) -> None:
    at.fake.__init__(thoughts=WORDS, token_ids=True, pause_s=0.005)  # type: ignore[misc]
    body = {
        "max_tokens": 100, "temperature": 0.7, "user": "u", "stop": ["\n\nQ:"], "seed": 3, "top_p": 0.9,
        "vendor": {"deep": [1]}, "logit_bias": {"5": 1}, "repetition_penalty": 1.1,
    }  # fmt: skip
    told = at.one(request(budget=8, **body), known=IDS)
    assert left_early(at.fake)
    assert at.fake.sent[0] < 40
    first, second = at.fake.bodies
    sent = {"messages": [{"role": "user", "content": "2+2?"}], "model": "up", "stream": True, **body}
    assert first == sent | {
        "return_token_ids": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    }
    same = {name: value for name, value in body.items() if name != "max_tokens"}
    assert {name: second[name] for name in same} == same
    assert second["max_tokens"] < 100
    assert "</think>" not in told.reasoning + told.content
    assert prompt_of(at.fake).count("</think>") == 1


def test_a_template_that_strips_thinking_does_no_harm_where_ids_are_given(at: Bench) -> None:
    at.fake.__init__(thoughts=WORDS, token_ids=True, strips=True)  # type: ignore[misc]
    told = at.one(request(budget=8))  # nothing is known of the server
    assert told.content == "So it is 4."
    assert prompt_of(at.fake).endswith("I have enough to answer now.\n</think>\n\n")
    at.fake.__init__(thoughts=WORDS[:30], strips=True)  # type: ignore[misc]
    told = at.one(request(budget=8))  # the message is lost: what comes is thinking again, and not the answer
    assert told.content == "It is 4."
    assert "thought again" in (told.end.uncontrolled or "")


def test_ids_without_tokenize_and_a_server_that_refuses_the_field(at: Bench) -> None:
    at.fake.__init__(thoughts=WORDS, token_ids=True, tokenizes=False)  # type: ignore[misc]
    told = at.one(request(budget=8), known=IDS)
    assert told.content == "So it is 4."
    tries = [body for body in at.fake.bodies if body.get("max_tokens") == 1]
    assert len(tries) == 2  # asked only for how it reads the hand-off, with and without its space
    assert at.fake.paths[-1] == "/v1/completions"
    refusal = b'{"error": {"message": "Unrecognized request argument supplied: return_token_ids"}}'
    at.fake.__init__(thoughts=WORDS, faults=[Fault("status", 0, status=400, body=refusal)])  # type: ignore[misc]
    told = at.one(request(budget=8))
    assert told.content == "So it is 4."
    assert "return_token_ids" not in at.fake.bodies[1]


@pytest.mark.parametrize(("mode", "ids"), [("shadow", True), ("active", True), ("off", False)])
def test_stop_by_hand(at: Bench, mode: Any, ids: bool) -> None:
    at.fake.__init__(thoughts=WORDS, token_ids=ids, pause_s=0.01)  # type: ignore[misc]

    async def stop(engine: UpstreamEngine) -> None:
        await asyncio.to_thread(wait_for, lambda: bool(at.fake.sent) and at.fake.sent[0] >= 5)
        assert await engine.stop("nobody") is False
        assert await engine.stop("r1") is True

    told = at.ask(request(mode=mode), during=stop)[0]
    assert (told.end.stop_reason, told.content) == (StopReason.MANUAL, "So it is 4.")
    assert at.fake.sent[0] < 60

    async def late(engine: UpstreamEngine) -> None:
        await asyncio.to_thread(wait_for, lambda: len(at.fake.sent) == 4 and at.fake.sent[3] > 5)
        assert await engine.stop("r1") is False  # the answer is being written

    at.fake.continued = tuple("It is so. " for _ in range(60))
    told = at.ask(request(mode=mode, budget=0), during=late)[0]
    assert told.end.stop_reason is StopReason.BUDGET


def test_log_probabilities_are_those_of_what_is_shown(at: Bench) -> None:
    at.fake.__init__(thoughts=WORDS, token_ids=True, dialect="reasoning")  # type: ignore[misc]
    told = at.one(request(budget=6, logprobs=True, top_logprobs=2), known=IDS)
    assert at.fake.bodies[1]["logprobs"] == 2
    tokens = [entry["token"] for entry in told.buffer.choice_extra["logprobs"]["content"]]
    assert tokens == ["<think>", "\n", *WORDS[: told.end.usage.reasoning_tokens], "So it ", "is 4."]


def test_a_text_prompt_and_a_prompt_of_ids_are_continued(at: Bench) -> None:
    at.fake.__init__(thoughts=WORDS, token_ids=True, dialect="opened_tags")  # type: ignore[misc]
    text = at.one(request(budget=6, prompt="<|im_start|>assistant\n<think>\n", max_tokens=90))
    ids = at.fake.vocabulary.encode("<|im_start|>assistant\n<think>\n")
    number = at.one(request(budget=6, prompt=ids, max_tokens=90))
    for told in (text, number):
        assert told.end.stop_reason is StopReason.BUDGET
        assert told.content == "So it is 4."
    assert at.fake.bodies[3]["prompt"][: len(ids)] == ids
