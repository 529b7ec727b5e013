"""Model profiles: the ones brought along, and what a profile refuses."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from benchmarks.profiles_table import main as profiles_table
from desist.controller import PROFILES, ModelProfile, builtin_profile, get_profile, profile_for
from desist.controller.fingerprints import profile_fingerprints
from desist.controller.model_names import NAME_RULES
from desist.data.errors import ControlError
from desist.data.reasoner import handoff


@pytest.mark.parametrize("name", sorted(PROFILES))
def test_brought_along(name: str) -> None:
    profile = get_profile(name)
    assert profile.name == name
    assert profile.assistant_header
    assert profile.answer_opening("extract").endswith("\\boxed{")
    assert profile.answer_opening("write") == ""


def test_the_built_in_reasoner_uses_the_hand_offs_it_was_trained_with() -> None:
    profile = builtin_profile()
    assert (profile.handoff("write"), profile.handoff("extract")) == (
        handoff.HANDOFF_WRITE,
        handoff.HANDOFF_EXTRACT,
    )


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("Qwen/Qwen3-8B", "qwen3"),
        ("qwen3-coder:30b", "qwen3"),
        ("Qwen/QwQ-32B", "qwen3-thinking"),
        ("Qwen/Qwen3-235B-A22B-Thinking-2507-FP8", "qwen3-thinking"),
        ("Qwen3.5-27B", "qwen3-thinking"),
        ("deepseek-ai/DeepSeek-R1-Distill-Qwen-7B", "deepseek-r1"),
        ("deepseek-ai/DeepSeek-R1-0528-Qwen3-8B", "deepseek-r1"),
        ("deepseek-ai/DeepSeek-V3.1", "deepseek-v3.1"),
        ("openai/gpt-oss-120b", "gpt-oss"),
        ("google/gemma-4-31b-it", "gemma-4"),
        ("zai-org/GLM-4.5-Air", "glm-4.5"),
        ("zai-org/GLM-4.7", "glm-4.7"),
        ("zai-org/GLM-5", "glm-4.7"),
        ("moonshotai/Kimi-K2-Thinking", "kimi-k2"),
        ("moonshotai/Kimi-VL-A3B-Thinking-2506", "kimi-vl"),
        ("nvidia/NVIDIA-Nemotron-Nano-9B-v2", "nemotron-nano-v2"),
        ("nvidia/Nemotron-3-Nano-30B-A3B", "nemotron-3"),
        ("nvidia/Llama-3_3-Nemotron-Super-49B-v1_5", "llama-nemotron"),
        ("MiniMaxAI/MiniMax-M2", "minimax-m2"),
        ("mistralai/Magistral-Small-2509", "mistral"),
        ("ibm-granite/granite-3.2-8b-instruct", "granite-3.2"),
        ("ByteDance-Seed/Seed-OSS-36B-Instruct", "seed-oss"),
        ("desist-reasoner", "desist-reasoner"),
    ],
)
def test_the_name_of_a_model_chooses(model: str, name: str) -> None:
    chosen = profile_for(model)
    assert (chosen.profile.name, chosen.guessed) == (name, False)


def test_a_setting_wins_and_an_unknown_model_is_said_to_be_one() -> None:
    chosen = profile_for("Qwen/Qwen3-8B", "mistral")
    assert chosen.profile is get_profile("mistral")
    assert "setting" in chosen.why
    unknown = profile_for("acme/brain-1")
    assert (unknown.profile.name, unknown.guessed) == ("qwen3", True)
    assert "no rule knows the model 'acme/brain-1'" in unknown.why
    tagged = profile_for("acme/brain-1", think_open="<r>", think_close="</r>")
    assert (tagged.profile.think_open, tagged.profile.think_close, tagged.guessed) == ("<r>", "</r>", False)
    assert "</think>" not in tagged.profile.handoff_write + tagged.profile.handoff_extract
    with pytest.raises(ControlError, match="no model profile is called 'x'"):
        profile_for("Qwen/Qwen3-8B", "x")


def test_every_profile_has_a_rule() -> None:
    assert {name for _, name in NAME_RULES} == set(PROFILES)


@pytest.mark.parametrize("name", sorted(PROFILES))
def test_a_hand_off_closes_and_what_the_reader_sees_of_it_is_no_markup(name: str) -> None:
    profile = get_profile(name)
    for answer in ("write", "extract"):
        state, spans = profile.rules().advance(
            profile.after_prompt(profile.think_open), profile.handoff(answer)
        )
        assert state.closed
        assert not state.thinking
        shown = "".join(span.text for span in spans if span.kind == 1)
        assert shown + state.held == profile.answer_opening(answer)


def test_fingerprints_are_those_of_profiles_made_before_fields_were_added() -> None:
    """The certificates that come along name this fingerprint."""
    prints = profile_fingerprints(builtin_profile())
    assert prints["profile"] == "e2309443b3111f35"
    changed = profile_fingerprints(replace(builtin_profile(), template_opens=True))
    assert changed["profile"] != prints["profile"]
    qwen = get_profile("qwen3")
    other = replace(qwen, tool_call_form="any")
    assert profile_fingerprints(other)["tags"] != profile_fingerprints(qwen)["tags"]


def test_the_page_is_current() -> None:
    """docs/profiles.md: `python -m benchmarks.profiles_table --write` makes its tables."""
    assert profiles_table(["--check"]) == 0


def test_an_unknown_name_is_answered_with_the_known_ones() -> None:
    with pytest.raises(ControlError, match="Known profiles: " + ", ".join(sorted(PROFILES))):
        get_profile("gpt")


@pytest.mark.parametrize(
    ("bad", "match"),
    [
        ({"think_close": ""}, "empty think tag"),
        ({"kinds": ()}, "boundary kinds"),
        ({"kinds": ("line",)}, "boundary kinds"),
        ({"cues": ()}, "at least one"),
        ({"cues": ("wait", " hmm")}, "white space"),
        ({"kinds": ("every_n",)}, "every_n >= 1"),
        ({"style": "harmony"}, "harmony's are"),
        ({"handoff_write": "\n\n"}, "exactly once"),
        ({"handoff_extract": "</think></think>"}, "exactly once"),
    ],
)
def test_profiles_that_cannot_work_are_refused(bad: dict[str, Any], match: str) -> None:
    with pytest.raises(ControlError, match=match):
        ModelProfile("x", **bad)
