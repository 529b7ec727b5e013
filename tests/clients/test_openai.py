"""The `openai` package, unchanged: sync, async, streaming, responses, tools, structured output."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest

MODEL = "desist-reasoner"
TOOL: Any = {
    "type": "function",
    "function": {
        "name": "total",
        "parameters": {
            "type": "object",
            "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 99}},
            "required": ["n"],
            "additionalProperties": False,
        },
    },
}
SCHEMA: Any = {
    "type": "json_schema",
    "json_schema": {"name": "n", "strict": True, "schema": TOOL["function"]["parameters"]},
}


@pytest.fixture
def client(served: Any) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=served.url, api_key="none", max_retries=0, timeout=120) as made:
        yield made


def said(problem: str) -> Any:
    return [{"role": "user", "content": problem}]


def split(usage: Any) -> tuple[int, int]:
    """(reasoning, other) tokens of a usage object."""
    reasoning = usage.completion_tokens_details.reasoning_tokens
    return reasoning, usage.completion_tokens - reasoning


def test_a_complete_answer_counts_its_reasoning(
    client: openai.OpenAI, served: Any, problems: list[str]
) -> None:
    for problem in problems[:6]:
        for mode in ("shadow", "active"):
            reply = client.chat.completions.create(
                model=MODEL, messages=said(problem), seed=3, extra_body={"desist": {"mode": mode}}
            )
            message: Any = reply.choices[0].message
            assert message.content
            assert message.reasoning == message.reasoning_content
            assert reply.usage is not None
            reasoning, rest = split(reply.usage)
            assert abs(reasoning - served.tokens(message.reasoning)) <= 2  # line ends beside the tags
            assert rest >= served.tokens(message.content)
            assert reply.usage.total_tokens == reply.usage.prompt_tokens + reply.usage.completion_tokens


def test_a_stream_is_the_complete_answer(client: openai.OpenAI, problems: list[str]) -> None:
    asked: dict[str, Any] = {"model": MODEL, "messages": said(problems[0]), "seed": 5, "temperature": 0}
    whole = client.chat.completions.create(**asked)
    reasoning = content = ""
    finishes, usage = [], None
    for chunk in client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True}):
        usage = chunk.usage or usage
        for choice in chunk.choices:
            delta: Any = choice.delta
            assert not (getattr(delta, "reasoning", None) and delta.content)
            reasoning += getattr(delta, "reasoning", None) or ""
            content += delta.content or ""
            finishes += [choice.finish_reason] if choice.finish_reason else []
    message: Any = whole.choices[0].message
    assert (reasoning, content) == (message.reasoning, message.content)
    assert finishes == [whole.choices[0].finish_reason]
    assert usage is not None
    assert whole.usage is not None
    assert split(usage) == split(whole.usage)


def test_many_at_once_with_the_async_client(served: Any, problems: list[str]) -> None:
    async def main() -> list[Any]:
        async with openai.AsyncOpenAI(base_url=served.url, api_key="none", max_retries=0) as client:
            asked = [
                client.chat.completions.create(model=MODEL, messages=said(each)) for each in problems[:8]
            ]
            streams = [
                await client.chat.completions.create(model=MODEL, messages=said(each), stream=True)
                for each in problems[8:10]
            ]
            ends = [[chunk async for chunk in stream][-1] for stream in streams]
            return [*(await asyncio.gather(*asked)), *ends]

    replies = asyncio.run(main())
    assert all(reply.choices[0].finish_reason == "stop" for reply in replies)
    assert all(reply.choices[0].message.content for reply in replies[:8])


def test_text_completions(client: openai.OpenAI) -> None:
    reply = client.completions.create(model=MODEL, prompt="2 + 2 =", max_tokens=8)
    assert reply.usage is not None
    assert 1 <= reply.usage.completion_tokens <= 8


def test_the_helper_that_streams_events(client: openai.OpenAI, problems: list[str]) -> None:
    with client.chat.completions.stream(model=MODEL, messages=said(problems[1])) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion()
    assert "content.done" in kinds
    assert final.choices[0].message.content


@pytest.mark.parametrize("stream", [False, True])
def test_responses(client: openai.OpenAI, problems: list[str], stream: bool) -> None:
    if stream:
        with client.responses.stream(model=MODEL, input=problems[2]) as events:
            kinds = [event.type for event in events]
            reply = events.get_final_response()
        assert "response.output_text.delta" in kinds
        assert kinds[-1] == "response.completed"
    else:
        reply = client.responses.create(model=MODEL, input=problems[2])
    assert reply.output_text
    assert [item.type for item in reply.output] == ["reasoning", "message"]
    assert reply.usage is not None
    assert 0 < reply.usage.output_tokens_details.reasoning_tokens < reply.usage.output_tokens


@pytest.mark.parametrize("stream", [False, True])
def test_structured_output(client: openai.OpenAI, served: Any, problems: list[str], stream: bool) -> None:
    asked: dict[str, Any] = {"model": MODEL, "messages": said(problems[3]), "response_format": SCHEMA}
    if not served.grammar:
        with pytest.raises(openai.BadRequestError, match="response_format"):
            client.chat.completions.create(**asked)
        return
    reasoning = content = ""
    if stream:
        for chunk in client.chat.completions.create(**asked, max_tokens=400, stream=True):
            for choice in chunk.choices:
                reasoning += getattr(choice.delta, "reasoning", None) or ""
                content += choice.delta.content or ""
    else:
        message: Any = client.chat.completions.create(**asked, max_tokens=400).choices[0].message
        reasoning, content = message.reasoning, message.content
    assert 0 <= json.loads(content)["n"] <= 99
    assert reasoning  # thinking is free, only the answer is bound


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("kind", ["schema", "tool"])
def test_responses_with_a_grammar(
    client: openai.OpenAI, served: Any, problems: list[str], kind: str, stream: bool
) -> None:
    function = {"type": "function", **TOOL["function"], "strict": True}
    form = {"format": {"type": "json_schema", **SCHEMA["json_schema"]}}
    choice = {"type": "function", "name": "total"}
    asked: dict[str, Any] = {"model": MODEL, "input": problems[5], "max_output_tokens": 400}
    asked |= {"text": form} if kind == "schema" else {"tools": [function], "tool_choice": choice}
    if not served.grammar:
        with pytest.raises(openai.BadRequestError):
            client.responses.create(**asked)
        return
    if stream:
        events = list(client.responses.create(**asked, stream=True))
        assert events[-1].type == "response.completed"
        reply: Any = events[-1].response
    else:
        reply = client.responses.create(**asked)
    assert reply.output[0].type == "reasoning"
    if kind == "schema":
        text = reply.output_text
    else:
        (call,) = [item for item in reply.output if item.type == "function_call"]
        assert call.name == "total"
        text = call.arguments
    assert 0 <= json.loads(text)["n"] <= 99
    assert 0 < reply.usage.output_tokens_details.reasoning_tokens < reply.usage.output_tokens


@pytest.mark.parametrize("stream", [False, True])
def test_tools(client: openai.OpenAI, served: Any, problems: list[str], stream: bool) -> None:
    asked: dict[str, Any] = {"model": MODEL, "messages": said(problems[4]), "tools": [TOOL]}
    if not served.grammar:
        with pytest.raises(openai.BadRequestError, match="tools"):
            client.chat.completions.create(**asked)
        return
    asked |= {"tool_choice": {"type": "function", "function": {"name": "total"}}, "max_tokens": 400}
    if stream:
        name = arguments = ""
        for chunk in client.chat.completions.create(**asked, stream=True):
            for choice in chunk.choices:
                for call in choice.delta.tool_calls or ():
                    name += (call.function and call.function.name) or ""
                    arguments += (call.function and call.function.arguments) or ""
    else:
        (call,) = client.chat.completions.create(**asked).choices[0].message.tool_calls
        name, arguments = call.function.name, call.function.arguments
    assert name == "total"
    assert 0 <= json.loads(arguments)["n"] <= 99
