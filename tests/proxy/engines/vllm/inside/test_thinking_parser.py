"""The reasoning parser that the plugin offers: where a grammar binds, and how vLLM's own text is split."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from desist.controller.profiles import PROFILES, get_profile
from desist.proxy.engines.model import ModelFacts
from desist.proxy.engines.vllm.config import PARSER
from desist.proxy.reasoning import ThinkSplitter
from tests.fakes.vllm_engine import require_vllm
from tests.fakes.vllm_server import PROFILE, reasoner

NAME = PARSER + PROFILE.name
THOUGHT, ANSWER = "5 + 7 = 12. Wait, é 12.", '{"n": 12}'
TOOL = {"type": "function", "function": {"name": "total", "parameters": {"type": "object"}}}


@pytest.fixture(scope="module")
def facts() -> ModelFacts:
    require_vllm()
    from desist.proxy.engines.vllm.inside.plugin import register

    register()
    return reasoner()


def parser_of(facts: ModelFacts, *, tools: bool = False) -> Any:
    """vLLM's own composition of a reasoning parser and a tool parser."""
    from vllm.parser import ParserManager

    made = ParserManager.get_parser(
        tool_parser_name="hermes" if tools else None, reasoning_parser_name=NAME, enable_auto_tools=tools,
        tokenizer=facts.tokenizer,
    )  # fmt: skip
    assert made is not None
    return made(facts.tokenizer, [TOOL] if tools else None)


def request_of(**more: Any) -> Any:
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest

    return ChatCompletionRequest(messages=[{"role": "user", "content": "5 + 7?"}], **more)


def prompt_of(facts: ModelFacts, **template: Any) -> list[int]:
    return list(facts.chat_ids(({"role": "user", "content": "5 + 7?"},), template))


def streamed(facts: ModelFacts, text: str, prompt: list[int], seed: int, **more: Any) -> dict[str, str]:
    """What vLLM's frontend makes of a text that comes in pieces, special tokens shown."""
    parser, request = parser_of(facts, tools="tools" in more), request_of(**more)
    ids, draw, told = list(facts.vocabulary.encode(text)), random.Random(seed), ""
    said = {"reasoning": "", "content": "", "tool": "", "arguments": ""}
    at, data = 0, b""
    while at < len(ids):
        part = ids[at : at + draw.randint(1, 5)]
        at += len(part)
        data += b"".join(map(facts.vocabulary.token_bytes, part))
        shown = data.decode(errors="ignore")
        delta = parser.parse_delta(shown[len(told) :], part, request, prompt, finished=at >= len(ids))
        told = shown
        if delta is None:
            continue
        said["reasoning"] += delta.reasoning or ""
        said["content"] += delta.content or ""
        for call in delta.tool_calls or ():
            said["tool"] += (call.function and call.function.name) or ""
            said["arguments"] += (call.function and call.function.arguments) or ""
    return said


def test_there_is_one_for_each_profile_with_tags(facts: ModelFacts) -> None:
    from vllm.reasoning import ReasoningParserManager

    listed = set(ReasoningParserManager.list_registered())
    for name, profile in PROFILES.items():
        assert (PARSER + name in listed) == (profile.style == "tags")
    made = ReasoningParserManager.get_reasoning_parser(NAME)(facts.tokenizer)
    assert (made.reasoning_start_str, made.reasoning_end_str) == (PROFILE.think_open, PROFILE.think_close)
    other = next(
        name for name in PROFILES if facts.vocabulary.special_id(get_profile(name).think_close) is None
        and get_profile(name).style == "tags"
    )  # fmt: skip
    with pytest.raises(ValueError, match=f"profile '{other}'"):
        ReasoningParserManager.get_reasoning_parser(PARSER + other)(facts.tokenizer)


def test_where_a_grammar_binds(facts: ModelFacts) -> None:
    """After the close tag; at once where the prompt leaves no thinking to come."""
    parser = parser_of(facts).reasoning_parser
    opened, closed = prompt_of(facts), prompt_of(facts, enable_thinking=False)
    assert not parser.is_reasoning_end(opened)
    assert parser.is_reasoning_end(closed)
    assert parser.is_reasoning_end(list(facts.text_ids("2 + 2 =")))  # a text to be continued
    handoff = list(facts.vocabulary.encode(PROFILE.handoff("write")))
    thought = list(facts.vocabulary.encode(THOUGHT))
    assert not parser.is_reasoning_end_streaming(opened + thought, thought[-3:])
    close = handoff.index(facts.vocabulary.special_id(PROFILE.think_close))  # type: ignore[arg-type]
    for n in range(1, len(handoff) + 1):
        at = n - 1
        ended = parser.is_reasoning_end_streaming(opened + thought + handoff[:n], handoff[at:n])
        assert ended == (at == close)
    assert parser.extract_content_ids([*thought, handoff[close], *thought]) == thought


@pytest.mark.parametrize("tail", ["", "</think>\n", "<think>\nb.</think>"])
def test_a_stream_is_split_as_the_proxy_splits_it(facts: ModelFacts, tail: str) -> None:
    text = f"{THOUGHT}</think>\n\n{tail}{ANSWER} <think> </think>"
    splitter = ThinkSplitter.of(PROFILE, opened=True)
    pieces = [*splitter.feed(text), *splitter.finish()]
    wanted = {
        side: "".join(piece.text for piece in pieces if piece.channel == side)
        for side in ("reasoning", "content")
    }
    assert wanted["content"].startswith(ANSWER)
    for seed in range(25):
        said = streamed(facts, text, prompt_of(facts), seed)
        assert {side: said[side] for side in wanted} == wanted, seed
    parser = parser_of(facts)
    parser.is_reasoning_end(prompt_of(facts))
    assert parser.parse(text, request_of())[:2] == (wanted["reasoning"], wanted["content"])


def test_thinking_that_is_cut_short_is_no_answer(facts: ModelFacts) -> None:
    for seed in range(10):
        said = streamed(facts, f"{THOUGHT} </thi", prompt_of(facts), seed)
        assert (said["reasoning"], said["content"]) == (f"{THOUGHT} </thi", "")


def test_without_thinking_all_is_answer(facts: ModelFacts) -> None:
    said = streamed(facts, ANSWER, prompt_of(facts, enable_thinking=False), 1)
    assert (said["reasoning"], said["content"]) == ("", ANSWER)


@pytest.mark.parametrize("choice", ["named", "required", "auto"])
def test_calls_come_out_as_calls(facts: ModelFacts, choice: str) -> None:
    answer = f'<tool_call>\n{{"name": "total", "arguments": {ANSWER}}}\n</tool_call>'
    named = {"type": "function", "function": {"name": "total"}}
    for seed in range(10):
        said = streamed(
            facts, f"{THOUGHT}\n</think>\n\n{answer}", prompt_of(facts), seed,
            tools=[TOOL], tool_choice=named if choice == "named" else choice,
        )  # fmt: skip
        assert said["reasoning"] == f"{THOUGHT}\n"
        assert (said["tool"], json.loads(said["arguments"])) == ("total", {"n": 12}), seed
        assert not said["content"].strip()


def test_tags_that_are_special_tokens_are_written_into_the_text(facts: ModelFacts) -> None:
    request = request_of()
    assert request.skip_special_tokens
    assert not parser_of(facts).adjust_request(request).skip_special_tokens


def test_reasoning_tokens_are_counted_without_tags(facts: ModelFacts) -> None:
    parser = parser_of(facts)
    parser.is_reasoning_end(prompt_of(facts))
    ids = facts.vocabulary.encode(f"{THOUGHT}</think>\n\n{ANSWER}")
    assert parser.count_reasoning_tokens(ids) == len(facts.vocabulary.encode(THOUGHT))
    parser.is_reasoning_end(prompt_of(facts, enable_thinking=False))
    assert parser.count_reasoning_tokens(ids) == 0
