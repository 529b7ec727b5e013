"""The model profiles that desist brings along. Knows names and texts only.

A hand-off must read well after a cue that has just been written ("Wait"), and after a paragraph end.
"""

from __future__ import annotations

from desist.controller.profile import ModelProfile
from desist.data.errors import ControlError
from desist.data.reasoner import handoff

__all__ = ["PROFILES", "builtin_profile", "get_profile"]


def builtin_profile() -> ModelProfile:
    """The profile of the built-in reasoner; its hand-offs are those it was trained with."""
    return ModelProfile(
        name="desist-reasoner",
        think_open=handoff.THINK_OPEN,
        think_close=handoff.THINK_CLOSE,
        handoff_write=handoff.HANDOFF_WRITE,
        handoff_extract=handoff.HANDOFF_EXTRACT,
        tool_call_open=None,
        extract_suffix=handoff.ANSWER_CLOSING,
        assistant_header=f"{handoff.TURN_START}assistant\n",
    )


_HANDOFF = " I have enough to answer now.\n</think>\n\n"
_FORM = f"{_HANDOFF}The final answer is \\boxed{{"

PROFILES: dict[str, ModelProfile] = {
    profile.name: profile
    for profile in (
        builtin_profile(),
        ModelProfile(
            name="qwen3",
            handoff_write=_HANDOFF,
            handoff_extract=_FORM,
            assistant_header="<|im_start|>assistant\n",
        ),
        ModelProfile(
            name="deepseek-r1",
            handoff_write=_HANDOFF,
            handoff_extract=_FORM,
            tool_call_open=None,
            assistant_header="<\uff5cAssistant\uff5c>",
        ),
    )
}


def get_profile(name: str) -> ModelProfile:
    """The profile of that name. Raises `ControlError` naming the known ones."""
    try:
        return PROFILES[name]
    except KeyError:
        raise ControlError(
            f"no model profile is called {name!r}. Known profiles: {', '.join(sorted(PROFILES))}. "
            "For another model, build a desist.controller.ModelProfile."
        ) from None
