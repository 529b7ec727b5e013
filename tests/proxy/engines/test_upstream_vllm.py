"""The upstream engine before the real vLLM on the CPU, without the plugin: cuts and continuations."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import pytest

from desist.controller import builtin_profile
from desist.controller.core import StopReason
from desist.data.reasoner import handoff
from desist.proxy.engines.upstream.capabilities import Capabilities
from desist.proxy.engines.upstream.engine import UpstreamEngine
from tests.fakes.plain_vllm import NAME
from tests.fakes.server import HTTP
from tests.fakes.upstream import FakeUpstream
from tests.proxy.engines.upstream_bench import Bench, Told, request

pytestmark = pytest.mark.slow
PROBLEM = "Ana has 3 bags with 4 nuts each and gets 5 more. How many nuts has Ana?"
IDS = Capabilities(token_ids=True, prompt_continuation=True, parses_reasoning=True)
NATIVE = Capabilities(
    token_ids=True, prompt_continuation=True, parses_reasoning=True, native_budget="thinking_token_budget",
    native_offset=-1,
)  # fmt: skip
SENTENCE = handoff.HANDOFF_WRITE.partition(handoff.THINK_CLOSE)[0].strip()


@pytest.fixture
def at(plain: str) -> Bench:
    return Bench(FakeUpstream(), plain)


def ask(at: Bench, known: Capabilities | None = IDS, during: Any = None, **body: Any) -> Told:
    asked = request(
        **({"temperature": 0, "messages": [{"role": "user", "content": PROBLEM}], "max_tokens": 400} | body)
    )
    asked = asked.__class__(**{name: getattr(asked, name) for name in asked.__slots__} | {"model": NAME})
    return at.ask(asked, known=known, during=during, model=NAME)[0]


def generated(url: str) -> float:
    found = re.search(
        r"^vllm:generation_tokens_total\{[^}]*\} (\S+)", HTTP.get(f"{url}/metrics").text, re.MULTILINE
    )
    assert found is not None
    return float(found[1])


def test_a_cut_goes_on_from_ids_and_saves_what_it_says(at: Bench) -> None:
    whole = ask(at, mode="shadow")
    assert whole.end.stop_reason is StopReason.NATURAL
    assert whole.end.usage.reasoning_tokens > 30
    before = generated(at.url)
    told = ask(at, budget=16)
    usage = told.end.usage
    assert told.end.stop_reason is StopReason.BUDGET
    assert usage.reasoning_tokens <= 17
    assert told.reasoning.endswith(SENTENCE)
    assert whole.reasoning.startswith(told.reasoning.removesuffix(SENTENCE).rstrip())
    assert told.content.strip()
    assert "<" not in told.content
    assert not usage.estimated
    assert usage.prompt_tokens == whole.end.usage.prompt_tokens
    spent = generated(at.url) - before
    assert spent <= usage.completion_tokens - usage.handoff_tokens + 16  # those on the way when we left
    assert spent < whole.end.usage.completion_tokens


def test_the_answer_is_that_of_the_spliced_prompt(at: Bench) -> None:
    """The second call alone, made by hand from the model's own tokenizer, gives the same answer."""
    told = ask(at, budget=16)
    kept = told.reasoning.removesuffix(SENTENCE)
    profile = builtin_profile()
    prompt = HTTP.post(
        f"{at.url}/tokenize", json={"model": NAME, "messages": [{"role": "user", "content": PROBLEM}]}
    ).json()["tokens"]
    text = kept + (profile.handoff_write.lstrip(" ") if kept[-1:].isspace() else profile.handoff_write)
    rest = HTTP.post(
        f"{at.url}/tokenize", json={"model": NAME, "prompt": text, "add_special_tokens": False}
    ).json()["tokens"]
    body = {"model": NAME, "prompt": prompt + rest, "temperature": 0, "max_tokens": 300, "min_tokens": 1}
    alone = HTTP.post(f"{at.url}/v1/completions", json=body).json()
    assert told.content.strip() == alone["choices"][0]["text"].strip()
    assert told.end.usage.reprefill_tokens == alone["usage"]["prompt_tokens"]


@pytest.mark.parametrize("known", [None, IDS])
@pytest.mark.parametrize("budget", [0, 1, 5])
def test_small_budgets(at: Bench, known: Capabilities | None, budget: int) -> None:
    told = ask(at, known, budget=budget)
    assert told.end.stop_reason is StopReason.BUDGET
    assert told.end.usage.reasoning_tokens <= budget
    assert told.content.strip()


@pytest.mark.parametrize("max_tokens", [1, 2, 9, 40])
def test_small_limits_end_with_an_answer(at: Bench, max_tokens: int) -> None:
    told = ask(at, max_tokens=max_tokens)
    assert told.content.strip()


def test_r77_vllms_own_budget_is_used_and_told(at: Bench) -> None:
    told = ask(at, NATIVE, budget=16)
    assert (told.end.stop_reason, told.end.budget_by) == (StopReason.BUDGET, "upstream"), told.end.usage
    assert SENTENCE not in told.reasoning
    assert told.content.strip()
    smaller = ask(at, None, budget=60, thinking_token_budget=12)
    # Without a self-test it is not always told who closed it (vLLM counts tokens that are no reasoning here).
    assert SENTENCE not in smaller.reasoning
    assert smaller.content.strip()
    assert smaller.end.usage.reasoning_tokens <= 12


def test_r34_a_schema_binds_after_the_cut(at: Bench) -> None:
    schema = {"type": "object", "properties": {"nuts": {"type": "integer"}}, "required": ["nuts"]}
    told = ask(
        at, budget=12, response_format={"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    )
    assert told.end.stop_reason is StopReason.BUDGET
    if told.end.finish_reason == "stop":
        assert isinstance(json.loads(told.content)["nuts"], int)
    else:
        assert told.content.lstrip().startswith("{")


def test_log_probabilities_on_both_sides_of_the_cut(at: Bench) -> None:
    told = ask(at, budget=12, logprobs=True, top_logprobs=2)
    content = told.buffer.choice_extra["logprobs"]["content"]
    assert all(entry["logprob"] <= 0 and len(entry["top_logprobs"]) >= 2 for entry in content)
    assert told.content.strip() in "".join(entry["token"] for entry in content)


def test_stop_by_hand(at: Bench) -> None:
    async def stop(engine: UpstreamEngine) -> None:
        for _ in range(300):
            await asyncio.sleep(0.01)
            if await engine.stop("r1"):
                return

    told = ask(at, during=stop, mode="active")
    assert told.end.stop_reason is StopReason.MANUAL
    assert told.content.strip()
