"""Controls and shapes over real HTTP: what a client sends, what the engine gets, what comes back and how."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from desist.controller.core import Action, Decision, StopReason
from desist.proxy import Settings, create_app
from desist.proxy.answering.choice import ChoiceBuffer
from desist.proxy.engines.base import Delta, Event, Finished, Usage
from desist.proxy.intake.history import translated
from desist.proxy.routes.chat import ChatShape
from desist.proxy.routes.completions import CompletionShape
from desist.proxy.settings import ControlSettings, StreamSettings
from tests.fakes.engine import FakeEngine, plain_script
from tests.fakes.server import HTTP, live_server

MESSAGES: Any = [{"role": "user", "content": "2+2?"}]
REASONED, SAID = "2 and 2 make 4.", "The answer is 4."
INLINE = f"<think>\n{REASONED}\n</think>\n\n{SAID}"
THOUGHT_OUT: list[Any] = [Delta("reasoning", "one"), Delta("reasoning", " two"),
               Finished("length", StopReason.LENGTH, Usage(7, 5, 0))]  # fmt: skip


class Behind(FakeEngine):
    """An engine that hands requests on; `field`: where its server reads earlier thinking."""

    passes_through = True
    field: Any = None

    def history_field(self, model: str) -> Any:
        return self.field


@pytest.fixture(scope="module")
def own() -> FakeEngine:
    return FakeEngine()


@pytest.fixture(scope="module")
def behind() -> Behind:
    return Behind(passes_through=True)


@pytest.fixture(scope="module")
def base(own: FakeEngine) -> Iterator[str]:
    with live_server(create_app(Settings(), engine=own, certificates=[])) as address:
        yield address


@pytest.fixture(scope="module")
def relaying(behind: Behind) -> Iterator[str]:
    control = ControlSettings(forward_efforts={"xhigh": "high", "minimal": None})
    with live_server(create_app(Settings(control=control), engine=behind, certificates=[])) as address:
        yield address


@pytest.fixture(autouse=True)
def fresh(own: FakeEngine, behind: Behind) -> None:
    for engine in (own, behind):
        engine.requests.clear()
        engine.script = plain_script()
        engine.scripts = {}
    behind.field = None


def post(base: str, body: dict[str, Any], path: str = "chat/completions", **headers: str) -> httpx.Response:
    if path == "chat/completions":
        body = {"messages": MESSAGES, **body}
    return HTTP.post(f"{base}/v1/{path}", json=body, headers=headers)


def events(reply: httpx.Response) -> list[dict[str, Any]]:
    lines = [line for line in reply.text.split("\n\n") if line and not line.startswith(":")]
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


def deltas(reply: httpx.Response) -> list[dict[str, Any]]:
    return [choice["delta"] for event in events(reply) for choice in event["choices"]]


def test_R40_one_plain_field_or_one_header(base: str, own: FakeEngine) -> None:
    for made in (post(base, {"desist": {"budget": 9}}), post(base, {}, **{"x-desist-budget": "9"})):
        assert made.status_code == 200
        assert own.requests.pop().control.budget == 9
        assert made.json()["desist"]["budget"] == 9
        assert made.headers["x-desist-budget"] == "9"


@pytest.mark.parametrize(
    "off",
    [
        {"chat_template_kwargs": {"enable_thinking": False}},
        {"chat_template_kwargs": {"thinking": False}},
        {"enable_thinking": False},
        {"think": False},
        {"thinking": {"type": "disabled"}},
        {"reasoning": {"enabled": False}},
        {"reasoning": {"effort": "none"}},
        {"reasoning_effort": "none"},
    ],
)
def test_R25_thinking_off_through_every_switch(base: str, own: FakeEngine, off: dict[str, Any]) -> None:
    own.script = [Delta("content", "0.2"), Delta("content", " is bigger."),
                  Finished("stop", StopReason.NONE, Usage(7, 0, 5))]  # fmt: skip
    reply = post(base, off).json()
    assert reply["choices"][0]["message"]["content"] == "0.2 is bigger."
    assert reply["choices"][0]["message"]["reasoning"] is None
    assert reply["desist"]["boundaries_scored"] == 0
    assert reply["desist"]["stop_reason"] == "none"
    told = own.requests[0].template
    assert any(told.get(name) is False for name in ("enable_thinking", "thinking"))
    assert "".join(delta.get("content") or "" for delta in deltas(post(base, off | {"stream": True}))) == (
        "0.2 is bigger."
    )


def test_R25_a_template_that_is_told_itself_leaves_the_controller_nothing(
    behind: Behind, relaying: str
) -> None:
    post(relaying, {"chat_template_kwargs": {"enable_thinking": False}})
    request = behind.requests[0]
    assert (request.control.budget, dict(request.template)) == (None, {"enable_thinking": False})
    assert request.body["chat_template_kwargs"] == {"enable_thinking": False}


def test_R25_an_effort_of_none_is_what_servers_make_of_it(behind: Behind, relaying: str) -> None:
    post(relaying, {"reasoning_effort": "none"})
    request = behind.requests[0]
    assert request.template["enable_thinking"] is False
    assert "chat_template_kwargs" not in request.body
    assert (request.body["reasoning_effort"], request.control.budget) == ("none", 0)
    post(relaying, {"reasoning_effort": "none", "chat_template_kwargs": {"enable_thinking": True}})
    assert dict(behind.requests[1].template) == {"enable_thinking": True}


@pytest.mark.parametrize("stream", [False, True])
def test_R26_thinking_that_used_all_tokens_says_so(base: str, own: FakeEngine, stream: bool) -> None:
    own.script = list(THOUGHT_OUT)
    reply = post(base, {"max_tokens": 5, "stream": stream})
    if stream:
        got = events(reply)
        told = next(event["desist"] for event in got if "desist" in event)
        finishes = [choice["finish_reason"] for event in got for choice in event["choices"]]
        assert "".join(delta.get("reasoning") or "" for delta in deltas(reply)) == "one two"
        assert not any(delta.get("content") for delta in deltas(reply))
        assert finishes[-1] == "length"
    else:
        body = reply.json()
        told = body["desist"]
        assert body["choices"][0]["message"]["content"] == ""
        assert body["choices"][0]["message"]["reasoning"] == "one two"
        assert body["choices"][0]["finish_reason"] == "length"
        assert reply.headers["x-desist-budget-exhausted-in-thinking"] == "true"
    assert told["budget_exhausted_in_thinking"] is True
    own.script = plain_script()
    assert post(base, {}).json()["desist"]["budget_exhausted_in_thinking"] is False


@pytest.mark.parametrize(
    ("given", "wanted", "sent"),
    [
        ({"reasoning": "r"}, None, {"reasoning": "r"}),
        ({"reasoning_content": "r"}, None, {"reasoning_content": "r"}),
        ({"reasoning": "r", "reasoning_content": "r"}, None, {"reasoning": "r"}),
        ({"reasoning": "new", "reasoning_content": "old"}, None, {"reasoning": "new"}),
        ({"reasoning": None, "reasoning_content": "r"}, None, {"reasoning_content": "r"}),
        ({"reasoning_content": "r"}, "reasoning", {"reasoning": "r"}),
        ({"reasoning": "r"}, "reasoning_content", {"reasoning_content": "r"}),
        ({"reasoning": "r", "reasoning_content": "r"}, "reasoning_content", {"reasoning_content": "r"}),
        ({}, "reasoning_content", {}),
    ],
)
def test_R28_earlier_thinking_goes_on_once_under_the_name_that_is_read(
    relaying: str, behind: Behind, given: dict[str, Any], wanted: Any, sent: dict[str, Any]
) -> None:
    behind.field = wanted
    turn = {"role": "assistant", "content": "c"}
    history = [*MESSAGES, turn | given, {"role": "user", "content": "again", "reasoning": "mine"}]
    assert post(relaying, {"messages": history}).status_code == 200
    request = behind.requests[0]
    assert request.body["messages"] == [*MESSAGES, turn | sent, history[2]]
    assert list(request.messages or ()) == request.body["messages"]


def test_R28_a_template_of_our_own_engine_finds_either_name(base: str, own: FakeEngine) -> None:
    for name in ("reasoning", "reasoning_content"):
        post(base, {"messages": [*MESSAGES, {"role": "assistant", "content": "c", name: "r"}, *MESSAGES]})
        turn = (own.requests.pop().messages or ())[1]
        assert (turn["reasoning"], turn["reasoning_content"], turn["content"]) == ("r", "r", "c")


@given(
    st.lists(
        st.dictionaries(
            st.sampled_from(["role", "content", "reasoning", "reasoning_content", "tool_calls"]),
            st.sampled_from(["assistant", "a", "b", None]),
        ),
        max_size=4,
    ),
    st.sampled_from([None, "reasoning", "reasoning_content"]),
)
def test_R28_no_message_of_the_assistant_leaves_with_both_names(messages: list[Any], wanted: Any) -> None:
    for before, after in zip(messages, translated(messages, wanted), strict=True):
        if before.get("role") == "assistant":
            assert not {"reasoning", "reasoning_content"} <= set(after)
            texts = {before.get("reasoning"), before.get("reasoning_content")} - {None}
            kept = {after.get("reasoning"), after.get("reasoning_content")} - {None}
            assert kept <= texts
            assert bool(kept) == bool(texts)
        assert {k: v for k, v in before.items() if "reasoning" not in k} == {
            k: v for k, v in after.items() if "reasoning" not in k
        }


def test_R29_all_kinds_of_chunks_are_sent(base: str, own: FakeEngine) -> None:
    own.script = [Delta("reasoning", "a"), Finished("stop", StopReason.NATURAL, Usage(7, 1, 0))]
    got = events(post(base, {"stream": True, "stream_options": {"include_usage": True}}))
    role, thought, end, usage = got
    assert role["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert thought["choices"][0]["delta"] == {"reasoning": "a", "reasoning_content": "a"}
    assert (end["choices"][0]["delta"], end["choices"][0]["finish_reason"]) == ({}, "stop")
    assert (usage["choices"], usage["usage"]["completion_tokens"]) == ([], 1)


@pytest.mark.parametrize(
    "asked",
    [
        {"desist": {"reasoning_format": "inline"}},
        {"separate_reasoning": False},
        {"reasoning_format": "raw"},
    ],
)
def test_R30_a_client_that_reads_content_alone_gets_all(base: str, asked: dict[str, Any]) -> None:
    reply = post(base, asked)
    message = reply.json()["choices"][0]["message"]
    assert message == {"role": "assistant", "content": INLINE}
    streamed = deltas(post(base, asked | {"stream": True}))
    assert "".join(delta.get("content") or "" for delta in streamed) == INLINE
    assert not any("reasoning" in name for delta in streamed for name in delta)
    assert reply.headers["x-desist-stop-reason"] == "natural"
    assert reply.json()["usage"]["completion_tokens_details"]["reasoning_tokens"] == 5


@pytest.mark.parametrize(
    "asked",
    [
        {"desist": {"reasoning_format": "none"}},
        {"include_reasoning": False},
        {"reasoning": {"exclude": True}},
        {"reasoning_format": "hidden"},
    ],
)
def test_R30_thinking_can_be_left_out_and_is_counted_all_the_same(base: str, asked: dict[str, Any]) -> None:
    reply = post(base, asked).json()
    assert reply["choices"][0]["message"] == {"role": "assistant", "content": SAID}
    assert reply["usage"]["completion_tokens_details"]["reasoning_tokens"] == 5
    streamed = post(base, asked | {"stream": True})
    assert [delta for delta in deltas(streamed) if delta] == [
        {"role": "assistant", "content": ""}, {"content": "The answer"}, {"content": " is 4."}
    ]  # fmt: skip
    text = post(base, {"prompt": "x", **asked}, "completions").json()["choices"][0]
    assert text["text"] == SAID
    assert "reasoning" not in text


def test_R30_the_setting_and_the_header_say_the_same() -> None:
    settings = Settings(stream=StreamSettings(reasoning_format="inline"))
    with live_server(create_app(settings, engine=FakeEngine(), certificates=[])) as base:
        assert post(base, {}).json()["choices"][0]["message"]["content"] == INLINE
        reply = post(base, {}, **{"x-desist-reasoning-format": "field"}).json()
        assert reply["choices"][0]["message"]["reasoning"] == REASONED
        assert post(base, {"prompt": "x"}, "completions").json()["choices"][0]["text"] == INLINE


def test_what_would_hide_thinking_from_the_proxy_is_not_sent_on(relaying: str, behind: Behind) -> None:
    body = {"include_reasoning": False, "reasoning": {"exclude": True, "effort": "low"}, "user": "u"}
    reply = post(relaying, body).json()
    assert reply["choices"][0]["message"] == {"role": "assistant", "content": SAID}
    sent = behind.requests[0].body
    assert "include_reasoning" not in sent
    assert (sent["reasoning"], sent["user"]) == ({"effort": "low"}, "u")
    assert behind.requests[0].control.budget == 1024


def test_an_effort_goes_on_unchanged_unless_a_setting_names_it(relaying: str, behind: Behind) -> None:
    for said, sent in (("low", "low"), ("high", "high"), ("xhigh", "high"), ("minimal", None)):
        assert post(relaying, {"reasoning_effort": said}).status_code == 200
        assert behind.requests.pop().body.get("reasoning_effort") == sent


def test_R44_an_effort_is_a_budget_and_an_explicit_one_wins(base: str, own: FakeEngine) -> None:
    for body, budget, by in (
        ({"reasoning_effort": "low"}, 1024, "reasoning_effort"),
        ({"reasoning_effort": "low", "thinking_token_budget": 50}, 50, "thinking_token_budget"),
        ({"thinking_token_budget": 500, "max_tokens": 100}, 75, "max_tokens"),
        ({"thinking_token_budget": 500, "max_tokens": 1000, "max_completion_tokens": 100}, 75, "max_tokens"),
    ):
        reply = post(base, body)
        told = reply.json()["desist"]
        assert (told["budget"], told["budget_by"]) == (budget, by)
        assert bool(told["notices"]) == (by == "max_tokens")
        assert ("x-desist-notice" in reply.headers) == (by == "max_tokens")
        assert own.requests.pop().control.budget == budget
    assert post(base, {"reasoning_effort": "ultra"}).status_code == 400


@pytest.mark.parametrize("stream", [False, True])
def test_R77_the_smaller_budget_holds_and_is_the_one_that_is_named(
    relaying: str, behind: Behind, stream: bool
) -> None:
    decision = Decision(Action.STOP, StopReason.BUDGET, 60)
    behind.script = [Delta("reasoning", "x"), Delta("content", "4"),
                     Finished("stop", StopReason.BUDGET, Usage(7, 60, 1), decision)]  # fmt: skip
    reply = post(relaying, {"desist": {"budget": 100}, "thinking_token_budget": 60, "stream": stream})
    told = next(e["desist"] for e in events(reply) if "desist" in e) if stream else reply.json()["desist"]
    assert behind.requests[0].control.budget == 60
    assert (told["stop_reason"], told["budget"], told["budget_by"]) == ("budget", 60, "thinking_token_budget")
    assert reply.headers["x-desist-budget"] == "60"
    assert "desist.budget 100" in reply.headers["x-desist-notice"]


def test_R75_a_stream_opens_with_a_role_and_no_field_of_ours_is_forced_on_anyone(
    base: str, own: FakeEngine
) -> None:
    own.script = [*[Delta("reasoning", "r")] * 400, *plain_script()[2:]]
    for asked, header in (({"desist": {"object": False}}, {}), ({}, {"x-desist-object": "off"})):
        reply = post(base, asked | {"stream": True, "stream_options": {"include_usage": True}}, **header)
        got = events(reply)
        assert got[0]["choices"][0]["delta"]["role"] == "assistant"
        assert sum(bool(delta.get("reasoning")) for delta in deltas(reply)) == 400
        for event in got:
            assert set(event) == {"id", "object", "created", "model", "choices", "usage"}
            for choice in event["choices"]:
                assert set(choice) == {"index", "delta", "logprobs", "finish_reason"}
        whole = post(base, asked, **header)
        assert set(whole.json()) == {"id", "object", "created", "model", "choices", "usage"}
        assert whole.headers["x-desist-stop-reason"] == "natural"
    assert "desist" in post(base, {}).json()


@pytest.mark.parametrize("how", ["field", "inline", "none"])
def test_R37_reasoning_tokens_are_told_for_all_choices_and_only_when_asked(
    base: str, own: FakeEngine, how: str
) -> None:
    own.scripts = {
        0: [Delta("reasoning", "a b c"), Delta("content", "d"),
            Finished("stop", StopReason.NATURAL, Usage(7, 3, 1))],
        1: [Delta("reasoning", "e"), Delta("content", "f"),
            Finished("stop", StopReason.BUDGET, Usage(7, 2, 1, handoff_tokens=4, rewound_tokens=2))],
    }  # fmt: skip
    body = {"n": 2, "desist": {"reasoning_format": how}}
    expected = {
        "prompt_tokens": 7,
        "completion_tokens": 13,
        "total_tokens": 20,
        "completion_tokens_details": {"reasoning_tokens": 5},
    }
    usage = post(base, body).json()["usage"]
    assert {name: usage[name] for name in expected} == expected
    got = events(post(base, body | {"stream": True, "stream_options": {"include_usage": True}}))
    assert [event["usage"] is None for event in got] == [True] * (len(got) - 1) + [False]
    assert got[-1]["usage"] == usage
    assert all("usage" not in event for event in events(post(base, body | {"stream": True})))


PIECES = st.lists(
    st.one_of(
        st.tuples(
            st.sampled_from(["reasoning", "content"]), st.text("ab<>/think\n", max_size=6), st.just(None)
        ),
        st.tuples(
            st.just("content"), st.just(""), st.sampled_from([{"refusal": "no"}, {"reasoning_details": [1]}])
        ),
    ),
    max_size=8,
)


@given(PIECES, st.sampled_from(["field", "inline", "none"]), st.sampled_from([ChatShape, CompletionShape]))
def test_a_stream_put_together_is_the_whole(script: list[Any], how: Any, kind: Any) -> None:
    """Thinking before the answer, in any pieces: both ways of asking give the same, one text a delta."""
    script = sorted(script, key=lambda piece: piece[0] == "content")
    made: list[Event] = [Delta(channel, text, extra=extra) for channel, text, extra in script]
    finished = Finished("stop", StopReason.NATURAL, Usage(1, 1, 1))
    shape, buffer = kind("i", 0, "m", "reasoning", how), ChoiceBuffer()
    pieces = []
    for event in made:
        buffer.add(event)
        if (piece := shape.piece(0, event)) is not None:
            pieces.append(piece.get("delta", piece))
    buffer.add(finished)
    last = shape.closing(0, "stop")
    pieces.append(last.get("delta", last))
    text = "content" if kind is ChatShape else "text"
    for piece in pieces:
        assert not (piece.get("reasoning") and piece.get(text))
    whole = kind("i", 0, "m", "reasoning", how).whole(0, buffer)
    whole = whole.get("message", whole)
    assert "".join(piece.get(text) or "" for piece in pieces) == (whole[text] or "")
    assert "".join(piece.get("reasoning") or "" for piece in pieces) == (whole.get("reasoning") or "")
    if how != "field":
        assert not any("reasoning" in name for piece in [*pieces, whole] for name in piece)
