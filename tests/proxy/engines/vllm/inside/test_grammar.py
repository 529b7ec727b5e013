"""Structured output: the hand-off ends at the end tag, and the grammar writes the answer."""

from __future__ import annotations

from typing import Any

import pytest

from desist.proxy.engines.model import read_model
from desist.proxy.engines.vllm.wire import Stopped
from desist.proxy.studies.builtin import builtin_problems
from tests.fakes.vllm_engine import MODEL, OfflineEngine, plugin_config, prompts_of, require_vllm, xargs


def test_with_a_grammar_the_hand_off_ends_at_the_end_tag() -> None:
    require_vllm()
    from vllm import SamplingParams
    from vllm.exceptions import VLLMValidationError
    from vllm.sampling_params import StructuredOutputsParams

    def params(key: str, **control: Any) -> Any:
        return SamplingParams(
            temperature=0.0,
            max_tokens=256,
            structured_outputs=StructuredOutputsParams(regex="[0-9]{1,4}"),
            extra_args=xargs(key, mode="active", lam=0.8, **control),
        )

    facts = read_model(MODEL, dtype="float32")
    prompts = prompts_of(builtin_problems("test", 5, 6))
    engine = OfflineEngine.start(plugin_config(), reasoning_parser="deepseek_r1")
    try:
        generated = engine.run(prompts, [params(f"k{n}") for n in range(6)])
        stops = {event.identity.key: event for event in engine.told(Stopped)}
        assert len(stops) >= 4
        for number, tokens in enumerate(generated):
            if (stop := stops.get(f"k{number}")) is None:
                continue
            end = stop.tokens + len(stop.handoff)
            assert stop.handoff[-1] == facts.vocabulary.special_id("</think>")
            assert tokens[stop.tokens : end] == stop.handoff
            assert facts.tokenizer.decode(tokens[end:], skip_special_tokens=True).isdigit()
        with pytest.raises(VLLMValidationError, match="desist_answer"):
            engine.run(prompts[:1], [params("k", answer="extract")])
    finally:
        engine.close()
