"""Which profile a model's name asks for. Knows names only, and the profiles that there are.

The first rule whose pattern occurs in the name counts, case aside; so a distilled model goes by the family
whose template it kept (DeepSeek-R1-Distill-Qwen: DeepSeek's). A profile that a setting names wins.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from desist.controller.profile import ModelProfile
from desist.controller.profiles import get_profile

__all__ = ["DEFAULT_PROFILE", "NAME_RULES", "Chosen", "profile_for"]

DEFAULT_PROFILE = "qwen3"
#: (pattern, profile), in the order in which they are tried.
NAME_RULES: tuple[tuple[str, str], ...] = (
    (r"desist-reasoner", "desist-reasoner"),
    (r"gpt-?oss", "gpt-oss"),
    (r"deepseek-?v3\.1", "deepseek-v3.1"),
    (r"deepseek-?v3\.2", "deepseek-v3.2"),
    (r"deepseek-?v4", "deepseek-v4"),
    (r"deepseek-?(r1|reasoner)|r1-distill", "deepseek-r1"),
    (r"kimi-?(vl|dev)", "kimi-vl"),
    (r"kimi-?k2", "kimi-k2"),
    (r"nemotron-nano.*v2|nemotron-nano-2", "nemotron-nano-v2"),
    (r"nemotron-?3|nemotron-v3", "nemotron-3"),
    (r"nemotron", "llama-nemotron"),
    (r"minimax-?m3", "minimax-m3"),
    (r"minimax", "minimax-m2"),
    (r"gemma-?4", "gemma-4"),
    (r"glm-?(4\.[7-9]|[5-9])", "glm-4.7"),
    (r"glm", "glm-4.5"),
    (r"magistral|mi(ni)?stral", "mistral"),
    (r"granite-?3", "granite-3.2"),
    (r"granite", "granite-4"),
    (r"seed-?oss", "seed-oss"),
    (r"qwq|qwen-?3\.[5-9]|qwen3.*thinking", "qwen3-thinking"),
    (r"qwen", "qwen3"),
)


class Chosen(NamedTuple):
    """A profile, and what its choice rests on. `guessed`: no rule knows the model."""

    profile: ModelProfile
    why: str
    guessed: bool = False


def profile_for(
    model: str,
    setting: str | None = None,
    *,
    think_open: str | None = None,
    think_close: str | None = None,
) -> Chosen:
    """The profile for a model's name; `setting` names one and wins, and so do tags that are set.

    Raises `ControlError` for a setting that is no profile's name. An unknown model is read with the
    tags of Qwen3 and most others, and `why` says so.
    """
    chosen = Chosen(get_profile(setting), f"the setting names '{setting}'") if setting else _by_name(model)
    profile = chosen.profile.with_tags(think_open, think_close)
    if profile is chosen.profile:
        return chosen
    why = f"{chosen.why}; the tags {profile.think_open!r} and {profile.think_close!r} are set"
    return Chosen(profile, why, guessed=False)


def _by_name(model: str) -> Chosen:
    for pattern, name in NAME_RULES:
        if re.search(pattern, model, re.IGNORECASE):
            return Chosen(get_profile(name), f"the model's name holds '{pattern}'")
    profile = get_profile(DEFAULT_PROFILE)
    why = (
        f"no rule knows the model {model!r}: read as '{DEFAULT_PROFILE}', with the tags {profile.think_open} "
        f"and {profile.think_close}. Name a profile, or the tags, in the settings if the model has others"
    )
    return Chosen(profile, why, guessed=True)
