"""POST /v1/responses with the real `openai` client: items, events, tools, state, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from openai.types.responses import ResponseStreamEvent
from pydantic import BaseModel, TypeAdapter

from desist.controller.core import StopReason
from desist.data.errors import EngineError
from desist.proxy import Settings, create_app
from desist.proxy.engines.base import Delta, Finished, Usage
from desist.proxy.responses.items import chat_messages
from desist.proxy.responses.store import ResponseStore
from desist.proxy.settings import ControlSettings, ResponsesSettings
from tests.fakes.engine import FakeEngine, plain_script
from tests.fakes.raw_upstream import FrontEngine, RawUpstream, front
from tests.fakes.server import HTTP, live_server, wait_for

EVENTS: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
TOOL: Any = {"type": "function", "name": "add", "parameters": {"type": "object"}, "strict": True}
CALLS: list[Any] = [
    Delta("reasoning", "call it"),
    Delta("content", "", extra={"tool_calls": [{"index": 0, "id": "c1", "type": "function",
                                                "function": {"name": "add", "arguments": ""}}]}),
    Delta("content", "", extra={"tool_calls": [{"index": 0, "function": {"arguments": '{"a"'}}]}),
    Delta("content", "", extra={"tool_calls": [{"index": 0, "function": {"arguments": ": 1}"}}]}),
    Delta("content", "", extra={"tool_calls": [{"index": 1, "id": "c2", "type": "function",
                                                "function": {"name": "add", "arguments": "{}"}}]}),
    Finished("tool_calls", StopReason.NATURAL, Usage(7, 5, 4)),
]  # fmt: skip


@pytest.fixture(scope="module")
def engine() -> FrontEngine:
    return FrontEngine()


@pytest.fixture(scope="module")
def base(engine: FrontEngine) -> Iterator[str]:
    with live_server(create_app(Settings(), engine=engine, certificates=[])) as address:
        yield address


@pytest.fixture(autouse=True)
def fresh(engine: FrontEngine) -> None:
    engine.__init__()  # type: ignore[misc]


@pytest.fixture(scope="module")
def client(base: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{base}/v1", api_key="none", max_retries=0) as made:
        yield made


def stream(base: str, **body: Any) -> list[dict[str, Any]]:
    """The events of a stream, each in the form that OpenAI's types demand, numbered without a gap."""
    reply = HTTP.post(f"{base}/v1/responses", json={"input": "2+2?", "stream": True, **body})
    assert reply.headers["content-type"].startswith("text/event-stream")
    events = []
    for block in reply.text.split("\n\n")[:-1]:
        if block.startswith(":"):
            continue
        name, data = block.split("\n", 1)
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        EVENTS.validate_python(event)
        events.append(event)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    return events


def test_a_response_has_thinking_answer_and_usage(client: openai.OpenAI, engine: FrontEngine) -> None:
    reply = client.responses.create(
        model="fake", input="2+2?", instructions="Be brief.", max_output_tokens=99, metadata={"k": "v"},
        reasoning={"effort": "low", "summary": "auto"}, temperature=0.5, user="u",
    )  # fmt: skip
    thinking, message = reply.output
    assert thinking.type == "reasoning"
    assert thinking.content is not None
    assert (thinking.content[0].text, thinking.summary) == ("2 and 2 make 4.", [])
    assert message.type == "message"
    assert reply.output_text == "The answer is 4."
    assert (reply.status, reply.object, reply.model, reply.error) == ("completed", "response", "fake", None)
    assert reply.usage is not None
    assert (reply.usage.input_tokens, reply.usage.output_tokens, reply.usage.total_tokens) == (7, 9, 16)
    assert reply.usage.output_tokens_details.reasoning_tokens == 5
    assert (reply.metadata, reply.instructions, reply.max_output_tokens) == ({"k": "v"}, "Be brief.", 99)
    assert reply.reasoning is not None
    assert (reply.reasoning.effort, reply.reasoning.summary) == ("low", "auto")
    request = engine.requests[-1]
    assert request.messages == (
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "2+2?"},
    )
    assert (request.sampling.max_tokens, request.sampling.temperature) == (99, 0.5)
    assert request.control.budget is not None  # the effort's, as on every route
    assert request.body["reasoning_effort"] == "low"
    assert not {"input", "instructions", "reasoning", "metadata", "store"} & set(request.body)


@pytest.mark.parametrize(
    ("body", "by", "words"),
    [
        ({"reasoning": {"effort": "low"}}, "reasoning.effort", ""),
        ({"reasoning_effort": "low"}, "reasoning_effort", ""),
        ({"reasoning": {"effort": "low"}, "max_output_tokens": 100}, "max_output_tokens",
         "(reasoning.effort)"),
        ({"reasoning": {"max_tokens": 90}, "max_output_tokens": 100}, "max_output_tokens",
         "(reasoning.max_tokens)"),
    ],
)  # fmt: skip
def test_R77_a_budget_is_named_in_the_words_of_the_request(
    base: str, body: dict[str, Any], by: str, words: str
) -> None:
    told = HTTP.post(f"{base}/v1/responses", json={"input": "x", **body}).json()["desist"]
    assert told["budget_by"] == by
    assert words in "".join(told["notices"])


@pytest.mark.parametrize("body", [{"reasoning_effort": "ultra"}, {"reasoning": {"effort": "ultra"}}])
def test_R44_a_refusal_names_the_field_that_was_sent(base: str, body: dict[str, Any]) -> None:
    error = HTTP.post(f"{base}/v1/responses", json={"input": "x", **body}).json()["error"]
    assert error["param"] == ("reasoning_effort" if "reasoning_effort" in body else "reasoning.effort")


def test_headers_and_the_desist_object(base: str) -> None:
    reply = HTTP.post(f"{base}/v1/responses", json={"input": "x", "desist": {"budget": 500}})
    assert reply.json()["desist"]["budget"] == 500
    assert reply.headers["x-desist-stop-reason"] == "natural"
    hidden = HTTP.post(f"{base}/v1/responses", json={"input": "x", "desist": {"object": False}})
    assert "desist" not in hidden.json()


def test_the_stream_holds_the_same_items_as_the_whole(base: str, client: openai.OpenAI) -> None:
    events = stream(base)
    assert [event["type"].removeprefix("response.") for event in events] == [
        "created", "in_progress",
        "output_item.added", "content_part.added", "reasoning_text.delta", "reasoning_text.delta",
        "reasoning_text.done", "content_part.done", "output_item.done",
        "output_item.added", "content_part.added", "output_text.delta", "output_text.delta",
        "output_text.done", "content_part.done", "output_item.done",
        "completed",
    ]  # fmt: skip
    whole = HTTP.post(f"{base}/v1/responses", json={"input": "2+2?"}).json()
    last = events[-1]["response"]

    def bare(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [{name: value for name, value in item.items() if name != "id"} for item in items]

    assert bare(last["output"]) == bare(whole["output"])
    assert last["usage"] == whole["usage"]
    ids = {event["response"]["id"] for event in events if "response" in event}
    assert len(ids) == 1
    with client.responses.stream(model="fake", input="2+2?") as streamed:
        texts = [event.delta for event in streamed if event.type == "response.output_text.delta"]
        assert texts == ["The answer", " is 4."]
        assert streamed.get_final_response().output_text == "The answer is 4."


def test_calls_of_functions(base: str, client: openai.OpenAI, engine: FrontEngine) -> None:
    engine.script = CALLS
    reply = client.responses.create(model="fake", input="1+?", tools=[TOOL], tool_choice="required")
    calls = [item for item in reply.output if item.type == "function_call"]
    assert [(c.call_id, c.name, c.arguments) for c in calls] == [
        ("c1", "add", '{"a": 1}'),
        ("c2", "add", "{}"),
    ]
    body = engine.requests[-1].body
    function = {"name": "add", "parameters": {"type": "object"}, "strict": True}
    assert (body["tools"], body["tool_choice"]) == ([{"type": "function", "function": function}], "required")
    events = stream(base, tools=[TOOL])
    pieces = [e for e in events if e["type"] == "response.function_call_arguments.delta"]
    assert "".join(e["delta"] for e in pieces if e["output_index"] == 1) == '{"a": 1}'
    done = [e["item"] for e in events if e["type"] == "response.output_item.done"]
    assert [item["type"] for item in done] == ["reasoning", "function_call", "function_call"]
    assert done == events[-1]["response"]["output"]
    answered: Any = [
        {"role": "user", "content": "1+?"},
        *(item.to_dict() for item in reply.output),
        {"type": "function_call_output", "call_id": "c1", "output": "3"},
    ]
    engine.script = plain_script()
    client.responses.create(model="fake", input=answered, tools=[TOOL])
    messages = engine.requests[-1].messages
    assert messages is not None
    assert [message["role"] for message in messages] == ["user", "assistant", "tool"]
    assert [call["id"] for call in messages[1]["tool_calls"]] == ["c1", "c2"]
    assert "call it" in json.dumps(messages[1])
    assert messages[2] == {"role": "tool", "tool_call_id": "c1", "content": "3"}


@pytest.mark.parametrize(
    ("choice", "sent", "names"),
    [
        ({"type": "function", "name": "add"}, {"type": "function", "function": {"name": "add"}}, ["add",
        "b"]),
        ({"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "b"}]},
        "required", ["b"]),
        ("none", "none", ["add", "b"]),
    ],
)  # fmt: skip
def test_tool_choices(choice: Any, sent: Any, names: list[str], base: str, engine: FrontEngine) -> None:
    tools = [TOOL, {"type": "function", "name": "b"}]
    assert HTTP.post(
        f"{base}/v1/responses", json={"input": "x", "tools": tools, "tool_choice": choice}
    ).is_success
    body = engine.requests[-1].body
    assert body["tool_choice"] == sent
    assert [tool["function"]["name"] for tool in body["tools"]] == names


def test_structured_output(client: openai.OpenAI, engine: FrontEngine) -> None:
    class Sum(BaseModel):
        total: int

    engine.script = [Delta("content", '{"total": 4}'), Finished("stop", StopReason.NONE, Usage(7, 0, 4))]
    reply = client.responses.parse(model="fake", input="2+2?", text_format=Sum)
    assert reply.output_parsed == Sum(total=4)
    form = engine.requests[-1].body["response_format"]
    assert form["type"] == "json_schema"
    assert form["json_schema"]["schema"]["properties"]["total"]["type"] == "integer"


def test_an_answer_cut_by_the_limit_is_incomplete(base: str, engine: FrontEngine) -> None:
    engine.script = [
        Delta("reasoning", "hm"), Delta("content", "The"), Finished("length", StopReason.NATURAL, Usage(7, 5,
        1)),
    ]  # fmt: skip
    whole = HTTP.post(f"{base}/v1/responses", json={"input": "x", "max_output_tokens": 6}).json()
    assert (whole["status"], whole["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert [item["status"] for item in whole["output"]] == ["completed", "incomplete"]
    assert stream(base)[-1]["type"] == "response.incomplete"


def test_r69_a_failure_in_the_stream_is_told_and_raised(
    base: str, client: openai.OpenAI, engine: FrontEngine
) -> None:
    engine.script = [Delta("reasoning", "hm"), Delta("content", "The"), EngineError("the card is gone")]
    events = stream(base)
    assert [event["type"] for event in events[-2:]] == ["response.failed", "error"]
    failed = events[-2]["response"]
    assert (failed["status"], failed["output"][-1]["status"]) == ("failed", "incomplete")
    assert "the card is gone" in failed["error"]["message"]
    with pytest.raises(openai.APIError, match="the card is gone"):
        list(client.responses.create(model="fake", input="x", stream=True))
    engine.script = [EngineError("the card is gone")]
    early = HTTP.post(f"{base}/v1/responses", json={"input": "x", "stream": True})
    assert early.status_code == 503


def test_r75_a_reply_of_thinking_alone_is_no_empty_stream(base: str, engine: FrontEngine) -> None:
    engine.script = [Delta("reasoning", f"{n} ") for n in range(400)]
    engine.script += [Finished("length", StopReason.LENGTH, Usage(7, 400, 0))]
    events = stream(base)
    assert events[0]["type"] == "response.created"
    assert sum(event["type"] == "response.reasoning_text.delta" for event in events) == 400
    assert [item["type"] for item in events[-1]["response"]["output"]] == ["reasoning"]


def test_log_probabilities(base: str, engine: FrontEngine) -> None:
    told = {"token": "4", "logprob": -0.5, "bytes": [52], "top_logprobs": []}
    engine.script = [
        Delta("content", "4", choice_extra={"logprobs": {"content": [told]}}),
        Finished("stop", StopReason.NONE, Usage(7, 0, 1)),
    ]
    body = {"input": "x", "include": ["message.output_text.logprobs"], "top_logprobs": 2}
    whole = HTTP.post(f"{base}/v1/responses", json=body).json()
    assert whole["output"][0]["content"][0]["logprobs"] == [told]
    assert (engine.requests[-1].body["logprobs"], engine.requests[-1].body["top_logprobs"]) == (True, 2)
    done = [e for e in stream(base, **body) if e["type"] == "response.output_text.done"]
    assert done[0]["logprobs"] == [told]


@pytest.mark.parametrize(("how", "kinds", "text"), [
    ("none", ["message"], "The answer is 4."),
    ("inline", ["message"], "<think>\n2 and 2 make 4.\n</think>\n\nThe answer is 4."),
    ("field", ["reasoning", "message"], "The answer is 4."),
])  # fmt: skip
def test_how_thinking_is_shown(how: str, kinds: list[str], text: str, base: str) -> None:
    body = {"input": "x", "desist": {"reasoning_format": how}}
    whole = HTTP.post(f"{base}/v1/responses", json=body).json()
    for output in (whole["output"], stream(base, **body)[-1]["response"]["output"]):
        assert [item["type"] for item in output] == kinds
        assert output[-1]["content"][0]["text"] == text


def test_a_conversation_goes_on_from_a_kept_response(client: openai.OpenAI, engine: FrontEngine) -> None:
    first = client.responses.create(model="fake", input="2+2?", instructions="One.")
    assert first.store
    second = client.responses.create(
        model="fake",
        input=[{"role": "user", "content": "and 3?"}],
        previous_response_id=first.id,
        stream=False,
    )
    messages = engine.requests[-1].messages
    assert messages is not None
    assert [message["role"] for message in messages] == [
        "user",
        "assistant",
        "user",
    ]  # old instructions are not kept
    assert messages[1]["content"] == "The answer is 4."
    assert second.previous_response_id == first.id
    read = client.responses.retrieve(second.id)
    assert read.output_text == second.output_text
    items = client.responses.input_items.list(second.id, order="asc").data
    assert [item.type for item in items] == ["message", "reasoning", "message", "message"]
    client.responses.delete(second.id)
    with pytest.raises(openai.NotFoundError, match="no such response is kept"):
        client.responses.retrieve(second.id)
    with pytest.raises(openai.NotFoundError, match="previous_response_id"):
        client.responses.create(model="fake", input="x", previous_response_id=second.id)
    with pytest.raises(openai.BadRequestError, match="complete"):
        client.responses.cancel(first.id)


def test_a_streamed_response_is_kept_too_unless_it_says_no(base: str) -> None:
    kept = stream(base)[-1]["response"]
    assert HTTP.get(f"{base}/v1/responses/{kept['id']}").json() == kept
    not_kept = stream(base, store=False)[-1]["response"]
    assert not_kept["store"] is False
    assert HTTP.get(f"{base}/v1/responses/{not_kept['id']}").status_code == 404


def test_no_key_reads_what_another_has_made() -> None:
    app = create_app(Settings(api_keys=("one", "two")), engine=FakeEngine(), certificates=[])
    with live_server(app) as base:
        one, two = ({"authorization": f"Bearer {key}"} for key in ("one", "two"))
        made = HTTP.post(f"{base}/v1/responses", json={"input": "x"}, headers=one).json()
        path = f"{base}/v1/responses/{made['id']}"
        assert HTTP.get(path).status_code == 401
        assert HTTP.get(path, headers=two).status_code == 404
        assert HTTP.delete(path, headers=two).status_code == 404
        body = {"input": "x", "previous_response_id": made["id"]}
        assert HTTP.post(f"{base}/v1/responses", json=body, headers=two).status_code == 404
        assert HTTP.get(path, headers=one).status_code == 200


def test_a_server_that_keeps_nothing_says_so() -> None:
    settings = Settings(responses=ResponsesSettings(keep=0))
    with live_server(create_app(settings, engine=FakeEngine(), certificates=[])) as base:
        made = HTTP.post(f"{base}/v1/responses", json={"input": "x", "store": True}).json()
        assert made["store"] is False
        refused = HTTP.post(f"{base}/v1/responses", json={"input": "x", "previous_response_id": made["id"]})
        assert refused.status_code == 400
        assert "responses.keep is 0" in refused.json()["error"]["message"]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "input"), ({"input": 5}, "input"), ({"input": []}, "input"), ({"input": None}, "input"),
        ({"input": "x", "background": True}, "background"), ({"input": "x", "truncation": "auto"},
        "truncation"),
        ({"input": "x", "conversation": "c"}, "conversation"), ({"input": "x", "prompt": {"id": "p"}},
        "prompt"),
        ({"input": "x", "include": ["secrets"]}, "include"), ({"input": "x", "n": 2}, "n"),
        ({"input": "x", "max_output_tokens": 0}, "max_output_tokens"),
        ({"input": "x", "tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"input": "x", "tools": [{"type": "function"}]}, "tools[0].name"),
        ({"input": "x", "tool_choice": "required"}, "tool_choice"),
        ({"input": "x", "tools": [{"type": "function", "name": "f"}], "tool_choice": {"type": "mcp"}},
        "tool_choice"),
        ({"input": "x", "text": {"format": {"type": "json_schema"}}}, "text.format"),
        ({"input": "x", "text": {"format": {"type": "grammar"}}}, "text.format.type"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type"), ({"input": [{}]},
        "input[0].type"),
        ({"input": [{"role": "robot", "content": "x"}]}, "input[0].role"),
        ({"input": [{"role": "user", "content": 5}]}, "input[0].content"),
        ({"input": [{"role": "user", "content": [{"type": "input_file", "file_id": "f"}]}]},
        "input[0].content[0]"),
        ({"input": [{"type": "function_call_output", "output": "x"}]}, "input[0].call_id"),
        ({"input": "x", "reasoning": {"effort": "extreme"}}, "reasoning.effort"),
        ({"input": "x", "temperature": 9}, "temperature"), ({"input": "x", "desist": {"modus": 1}},
        "desist.modus"),
        ({"input": "x", "model": 5}, "model"), ({"input": "x", "stream": "yes"}, "stream"),
    ],
)  # fmt: skip
def test_what_cannot_be_done_is_refused_by_name(
    body: Any, param: str, base: str, engine: FrontEngine
) -> None:
    reply = HTTP.post(f"{base}/v1/responses", json=body)
    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == param
    assert param.partition("[")[0] in reply.json()["error"]["message"]
    assert engine.requests == []


def test_an_engine_that_cannot_refuses_in_the_words_of_responses() -> None:
    with live_server(create_app(Settings(), engine=FakeEngine(), certificates=[])) as base:
        for more, param in (
            ({"tools": [TOOL]}, "tools"),
            ({"text": {"format": {"type": "json_object"}}}, "text.format"),
        ):
            reply = HTTP.post(f"{base}/v1/responses", json={"input": "x", **more})
            assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)


def test_mode_off_passes_responses_on_untouched() -> None:
    upstream = RawUpstream()
    with live_server(upstream) as direct:
        settings, engine = front(direct, control=ControlSettings(mode="off"))
        with live_server(create_app(settings, engine=engine, certificates=[])) as base:
            body = b'{ "input" : "x", "background":true }'
            assert HTTP.post(f"{base}/v1/responses?a=b", content=body).status_code == 200
            assert (upstream.arrived[-1].body, upstream.arrived[-1].target) == (body, b"/v1/responses?a=b")
            for method, path in (("GET", "resp_1"), ("DELETE", "resp_1"), ("POST", "resp_1/cancel")):
                assert HTTP.request(method, f"{base}/v1/responses/{path}").status_code == 200
                came = upstream.arrived[-1]
                assert (came.method, came.target) == (method, f"/v1/responses/{path}".encode())


def test_messages_of_one_turn_are_joined_again() -> None:
    items: list[Any] = [
        {"role": "developer", "content": "Rules."},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "a"},
                                                        {"type": "input_image", "image_url": "data:x"}]},
        {"type": "reasoning", "id": "rs", "summary": [], "content": [{"type": "reasoning_text",
        "text": "think"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I call",
        "annotations": []}]},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "ok"}]},
        {"type": "reasoning", "id": "r2", "summary": [{"type": "summary_text", "text": "short"}]},
        {"type": "message", "role": "assistant", "content": "Done."},
        {"type": "message", "role": "assistant", "content": "Again."},
    ]  # fmt: skip
    assert chat_messages(items, "First.") == [
        {"role": "system", "content": "First.\n\nRules."},
        {"role": "user", "content": [{"type": "text", "text": "a"},
                                     {"type": "image_url", "image_url": {"url": "data:x"}}]},
        {"role": "assistant", "content": "I call", "reasoning": "think",
         "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
        {"role": "tool", "tool_call_id": "c", "content": "ok"},
        {"role": "assistant", "content": "Done.", "reasoning": "short"},
        {"role": "assistant", "content": "Again."},
    ]  # fmt: skip


def test_the_store_is_bounded_in_number_size_and_time() -> None:
    now = [0.0]
    store = ResponseStore(2, 400, 10, clock=lambda: now[0])
    for name in "abc":
        store.put(b"o", name, name.encode())
    assert store.get(b"o", "a") is None
    assert store.get(b"o", "b") == b"b"
    assert store.get(b"p", "b") is None
    assert not store.delete(b"p", "b")
    store.put(b"o", "big", bytes(1000))
    assert len(store) == 2
    store.put(b"o", "d", bytes(400))
    assert (store.get(b"o", "c"), len(store)) == (None, 1)
    now[0] = 11.0
    assert store.get(b"o", "d") is None
    assert len(store) == 0
    assert not ResponseStore(0, 400, 10).keeps


def test_the_client_that_leaves_ends_the_generation(base: str, engine: FrontEngine) -> None:
    engine.pause_s = 0.05
    with httpx.Client() as http:
        body = {"input": "x", "stream": True}
        with http.stream("POST", f"{base}/v1/responses", json=body) as reply:
            parts = reply.iter_raw()
            next(parts)
    wait_for(lambda: len(engine.stopped_early) == 1, 2)
