"""Objects that no server should send: told as the upstream's fault, or read if they can be, never a 500."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from desist.data.errors import UpstreamError
from desist.proxy import Settings, create_app
from desist.proxy.engines.upstream.content_parts import as_texts
from desist.proxy.settings import UpstreamSettings
from tests.fakes.server import HTTP, live_server

SENT: list[Any] = []
END = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}


@pytest.fixture(scope="module")
def base() -> Iterator[str]:
    async def told(request: Request) -> Response:
        events = b"".join(b"data: " + json.dumps(each).encode() + b"\n\n" for each in SENT)
        return Response(events + b"data: [DONE]\n\n", media_type="text/event-stream")

    app = Starlette(routes=[Route("/v1/{path:path}", told, methods=["POST", "GET"])])
    with live_server(app) as upstream:
        behind = UpstreamSettings(url=upstream, self_test=False, retries=0)
        with live_server(create_app(Settings(engine="upstream", upstream=behind))) as address:
            yield address


def ask(base: str, *, stream: bool, path: str = "chat/completions") -> httpx.Response:
    asked: dict[str, Any] = {"messages": [{"role": "user", "content": "2 + 2?"}]}
    body = (
        asked
        if path == "chat/completions"
        else {"prompt": "2 + 2"}
        if path == "completions"
        else {"input": "x"}
    )
    return HTTP.post(f"{base}/v1/{path}", json={"model": "up", "stream": stream, "n": 1, **body})


@pytest.mark.parametrize("stream", [True, False])
def test_parts_of_mistrals_kind_are_read(base: str, stream: bool) -> None:
    thought = {
        "type": "thinking",
        "thinking": [{"type": "text", "text": "plan"}, {"type": "text", "text": " it"}],
    }
    deltas = [{"content": [thought]}, {"content": [{"type": "text", "text": "It is"}]}, {"content": " 4."}]
    SENT[:] = [{"choices": [{"index": 0, "delta": each}]} for each in deltas] + [END]
    reply = ask(base, stream=stream)
    if not stream:
        message = reply.json()["choices"][0]["message"]
        assert (message["reasoning"], message["content"]) == ("plan it", "It is 4.")
        return
    told = [json.loads(line[6:]) for line in reply.text.splitlines() if line.startswith("data: {")]
    seen = [choice["delta"] for each in told for choice in each["choices"]]
    assert "".join(each.get("reasoning") or "" for each in seen) == "plan it"
    assert "".join(each.get("content") or "" for each in seen) == "It is 4."
    assert not any(each.get("reasoning") and each.get("content") for each in seen)


@pytest.mark.parametrize("content", [5, True, {"a": 1}, [5], [{"type": "text", "text": 5}], [["x"]]])
def test_what_is_no_text_is_told(content: Any) -> None:
    with pytest.raises(UpstreamError, match="whose text is of type"):
        as_texts("", content)


ERROR = {"message": "boom", "code": 503}


@pytest.mark.parametrize("path", ["chat/completions", "completions", "responses"])
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("event", "status", "words"),
    [
        ({"choices": [{"index": 0, "delta": {}, "finish_reason": "error", "error": ERROR}]}, 503, "boom"),
        ({"choices": [{"index": 0, "delta": {}, "finish_reason": "error"}]}, 502, "finish_reason is 'error'"),
        ({"choices": [{"index": 0, "text": "", "finish_reason": "abort"}]}, 502, "finish_reason is 'abort'"),
        ({"error": {"message": "slow down", "code": "429"}}, 429, "slow down"),
        ({"message": "worker died", "code": 500}, 500, "worker died"),
        ({"detail": "no such adapter"}, 502, "no such adapter"),
    ],
)
def test_R69_whatever_an_error_looks_like_it_is_no_clean_end(
    base: str, path: str, stream: bool, event: dict[str, Any], status: int, words: str
) -> None:
    text = {"choices": [{"index": 0, "text": "It", "delta": {"content": "It"}}]}
    SENT[:] = [text, event]
    reply = ask(base, stream=stream, path=path)
    assert words in reply.text
    assert "stop_reason" not in reply.text
    if not stream:
        assert reply.status_code == status
        return
    told = [json.loads(line[6:]) for line in reply.text.splitlines() if line.startswith("data: {")]
    assert told[-1]["error"]["status"] == status
    finishes = [choice["finish_reason"] for each in told for choice in each.get("choices", ())]
    assert finishes.count(None) == len(finishes)
    assert "response.completed" not in reply.text


@pytest.mark.parametrize("first", [0, 1])
def test_R45_a_choice_that_nobody_asked_for_is_not_mixed_in(base: str, first: int) -> None:
    """One choice is asked for in each call; a server that sends two gets none of the other's text in."""
    pairs = [[("<think>a", "<think>b")], [("</think>A", "b2")], [("", "</think>B")]]
    SENT[:] = [
        {"choices": [{"index": n, "delta": {"content": both[n]}} for n in sorted((0, 1), key=first.__ne__)]}
        for ((both),) in pairs
    ] + [
        {"choices": [{"index": 1, "delta": {"content": " alone"}}]},
        {"choices": [{"index": 1, "delta": {}, "finish_reason": "length"}]},
        END,
    ]
    (choice,) = ask(base, stream=False).json()["choices"]
    assert (choice["message"]["reasoning"], choice["message"]["content"]) == ("a", "A")
    assert choice["finish_reason"] == "stop"


scalars = (
    st.none()
    | st.booleans()
    | st.integers(-5, 2**40)
    | st.floats(-9, 9)
    | st.sampled_from(["", "x", "<think>", "stop"])
)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(st.sampled_from(["index", "id", "a"]), inner, max_size=2)
    ),
    max_leaves=5,
)
calls = st.lists(
    st.fixed_dictionaries({}, optional={"index": values, "id": values, "type": values, "function": values})
    | values,
    max_size=2,
)
deltas = st.fixed_dictionaries(
    {},
    optional={
        "role": values, "content": values, "reasoning": values, "reasoning_content": values,
        "tool_calls": calls | values, "function_call": values, "refusal": values, "more": values,
    },
)  # fmt: skip
choices = st.fixed_dictionaries(
    {"delta": deltas},
    optional={
        "index": values, "text": values, "finish_reason": values, "logprobs": values, "message": deltas,
        "token_ids": values, "prompt_token_ids": values, "stop_reason": values,
    },
)  # fmt: skip
usages = st.fixed_dictionaries(
    {}, optional={"prompt_tokens": values, "completion_tokens": values, "completion_tokens_details": values}
)
events = st.fixed_dictionaries(
    {"choices": st.lists(choices, min_size=1, max_size=2)},
    optional={
        "id": values, "usage": usages | values, "object": values, "prompt_token_ids": values, "model": values,
    },
)  # fmt: skip


@pytest.mark.parametrize("path", ["chat/completions", "completions", "responses"])
@pytest.mark.parametrize(
    "examples", [120, pytest.param(1000, marks=pytest.mark.extended)], ids=["some", "many"]
)
def test_no_object_of_a_server_breaks_the_proxy(path: str, examples: int, base: str) -> None:
    @given(st.lists(events | values, max_size=3), st.booleans(), st.booleans())
    @settings(max_examples=examples, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
    def check(sent: list[Any], ends: bool, stream: bool) -> None:
        SENT[:] = [*sent, END] if ends else sent
        reply = ask(base, stream=stream, path=path)
        assert "internal_error" not in reply.text, json.dumps(SENT)
        assert reply.status_code != 500 or '"error"' in json.dumps(SENT)  # a server may say 500 itself

    check()
