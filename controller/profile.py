"""A model's profile: its tags, cues and hand-off texts. What the controller must know of a model.

Texts only; token ids are derived from them by `boundaries` with the model's tokenizer.
"""

from __future__ import annotations

from dataclasses import dataclass

from desist.controller.core import AnswerMode
from desist.data.errors import ControlError
from desist.data.schema import BOUNDARY_KINDS, BoundaryKind

__all__ = ["DEFAULT_CUES", "ModelProfile"]

DEFAULT_CUES: tuple[str, ...] = ("wait", "hmm", "alternatively", "let me double-check")


@dataclass(frozen=True, slots=True)
class ModelProfile:
    """Tags, cues and hand-off of one model family.

    `cues` are matched without case and with word boundaries (`wait` never matches in "waiting").
    `kinds` are the boundary kinds at which decisions are taken; `every_n` is the distance in tokens
    for kind "every_n". `handoff_write` closes thinking; `handoff_extract` also opens the answer form,
    which the model completes with `extract_suffix`: an engine may end the generation there.
    `assistant_header` is what the chat template writes before the model's turn: only what follows its
    last occurrence in a prompt tells whether thinking is open.
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
    extract_suffix: str = "}"
    assistant_header: str | None = None

    def __post_init__(self) -> None:
        if not self.think_open or not self.think_close:
            raise ControlError(f"profile '{self.name}' has an empty think tag; give both tags.")
        unknown = [kind for kind in self.kinds if kind not in BOUNDARY_KINDS]
        if unknown or not self.kinds:
            raise ControlError(
                f"profile '{self.name}' has the boundary kinds {self.kinds!r}; "
                f"choose one or more of {', '.join(BOUNDARY_KINDS)}."
            )
        if "cue" in self.kinds and (not self.cues or not all(cue.strip() == cue != "" for cue in self.cues)):
            raise ControlError(
                f"profile '{self.name}' has the cues {self.cues!r}; give at least one, none empty and "
                "none with white space at its ends, or leave out the kind 'cue'."
            )
        if "every_n" in self.kinds and not (self.every_n and self.every_n > 0):
            raise ControlError(
                f"profile '{self.name}' wants a boundary every {self.every_n} tokens; set every_n >= 1."
            )
        for answer, text in (("write", self.handoff_write), ("extract", self.handoff_extract)):
            if text.count(self.think_close) != 1:
                raise ControlError(
                    f"the {answer} hand-off of profile '{self.name}' is {text!r}; "
                    f"it must hold {self.think_close!r} exactly once."
                )

    def handoff(self, answer: AnswerMode) -> str:
        """The text that is forced when thinking is stopped."""
        return self.handoff_write if answer == "write" else self.handoff_extract

    def answer_opening(self, answer: AnswerMode) -> str:
        """The part of the hand-off that stands after the close tag and so begins the visible answer."""
        return self.handoff(answer).partition(self.think_close)[2].lstrip("\n")
