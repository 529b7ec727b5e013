"""Model profiles: the ones brought along, and what a profile refuses."""

from __future__ import annotations

from typing import Any

import pytest

from desist.controller import PROFILES, ModelProfile, builtin_profile, get_profile
from desist.data.errors import ControlError
from desist.data.reasoner import handoff


@pytest.mark.parametrize("name", ["qwen3", "deepseek-r1", "desist-reasoner"])
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
        ({"handoff_write": "\n\n"}, "exactly once"),
        ({"handoff_extract": "</think></think>"}, "exactly once"),
    ],
)
def test_profiles_that_cannot_work_are_refused(bad: dict[str, Any], match: str) -> None:
    with pytest.raises(ControlError, match=match):
        ModelProfile("x", **bad)
