"""A model's profile: its tags, cues and hand-off texts. What the controller must know of a model.

Texts only; token ids are derived from them by `boundaries` with the model's tokenizer.
"""

from __future__ import annotations

from dataclasses import dataclass

from desist.controller.core import AnswerMode
from desist.data.schema import BoundaryKind

__all__ = ["DEFAULT_CUES", "ModelProfile"]

DEFAULT_CUES: tuple[str, ...] = ("wait", "hmm", "alternatively", "let me double-check")


@dataclass(frozen=True, slots=True)
class ModelProfile:
    """Tags, cues and hand-off of one model family.

    `cues` are matched without case and with word boundaries (`wait` never matches in "waiting").
    `kinds` are the boundary kinds at which decisions are taken; `every_n` is the distance in tokens
    for kind "every_n". `handoff_write` closes thinking; `handoff_extract` also opens the answer form,
    which `extract_suffix` completes in the delivered answer.
    """

    name: str
    think_open: str = "<think>"
    think_close: str = "</think>"
    cues: tuple[str, ...] = DEFAULT_CUES
    kinds: tuple[BoundaryKind, ...] = ("cue", "paragraph")
    every_n: int | None = None
    handoff_write: str = "\n</think>\n\n"
    handoff_extract: str = "\n</think>\n\n\\boxed{"
    tool_call_open: str | None = "<tool_call>"

    def handoff(self, answer: AnswerMode) -> str:
        return self.handoff_write if answer == "write" else self.handoff_extract
