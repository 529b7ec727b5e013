"""A model's profile: its tags, cues and hand-off texts. What controller and parser must know of a model.

Texts only; token ids are derived from them by `boundaries` with the model's tokenizer. What the texts mean
is in `thinking`, `tag_rules` and `channels`, and is the same for both.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from desist.controller.channels import ANALYSIS, END, ChannelRules
from desist.controller.core import AnswerMode
from desist.controller.tag_rules import CallForm, TagRules
from desist.controller.thinking import BLANK, Rules, Spell, ThinkState, Where
from desist.data.errors import ControlError
from desist.data.schema import BOUNDARY_KINDS, BoundaryKind

__all__ = ["DEFAULT_CUES", "ModelProfile", "Start", "Style"]

#: "tags": a block between two tags. "harmony": channels, as gpt-oss writes them.
Style = Literal["tags", "harmony"]
#: How a generation begins: nothing was opened yet; thinking is open; thinking was closed.
Start = Literal["before", "opened", "closed"]
DEFAULT_CUES: tuple[str, ...] = ("wait", "hmm", "alternatively", "let me double-check")


@dataclass(frozen=True, slots=True)
class ModelProfile:
    """Tags, cues and hand-off of one model family.

    `cues` are matched without case and with word boundaries (`wait` never matches in "waiting").
    `kinds` are the boundary kinds at which decisions are taken; `every_n` is the distance in tokens
    for kind "every_n". `handoff_write` closes thinking; `handoff_extract` also opens the answer form,
    which the model completes with `extract_suffix`: an engine may end the generation there.
    `assistant_header` is what the chat template writes before the model's turn: only what follows its
    last occurrence in a prompt tells whether thinking is open. `answer_open` is markup that the hand-off
    holds between the close tag and the answer. `tool_call_open` in thinking ends it where a call follows
    (`tool_call_form`, see `TagRules`); `tool_call_close` ends the call. Where the prompt is not seen:
    `template_opens` tells whether the chat template opens thinking, `thinking_switch` names the
    chat_template_kwargs that turn it on and off (the first that is given counts), and `thinks_by_default`
    what holds without them.
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
    # Fields added since have the value that the fields above imply; see `fingerprints`.
    tool_call_close: str | None = "</tool_call>"
    tool_call_form: CallForm = "markup"
    style: Style = "tags"
    answer_open: str = ""
    template_opens: bool = False
    thinking_switch: tuple[str, ...] = ("enable_thinking",)
    thinks_by_default: bool = True

    def __post_init__(self) -> None:
        if not self.think_open or not self.think_close:
            raise ControlError(f"profile '{self.name}' has an empty think tag; give both tags.")
        if self.style == "harmony" and (self.think_open, self.think_close) != (ANALYSIS, END):
            raise ControlError(
                f"profile '{self.name}' has the style 'harmony' and the tags {self.think_open!r} and "
                f"{self.think_close!r}; harmony's are {ANALYSIS!r} and {END!r}."
            )
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
        after = self.handoff(answer).partition(self.think_close)[2].lstrip("\n")
        return after.removeprefix(self.answer_open)

    def rules(self, spell: Spell = str, mark: str = "") -> Rules:
        """What opens and ends this model's thinking.

        `spell`: how the caller writes tags, `mark`: what it writes before those that are added tokens.
        """
        if self.style == "harmony":
            return ChannelRules.of(spell)
        tool, end = self.tool_call_open, self.tool_call_close
        return TagRules(
            spell(self.think_open),
            spell(self.think_close),
            spell(tool) if tool else None,
            spell(end) if tool and end else None,
            self.tool_call_form,
            mark,
        )

    def start(self, template: Mapping[str, object]) -> Start:
        """How a chat's generation begins under these chat_template_kwargs, as far as the profile knows."""
        given = (template.get(name) for name in self.thinking_switch)
        thinks = next((bool(value) for value in given if value is not None), self.thinks_by_default)
        if not thinks:
            return "closed"
        return "opened" if self.template_opens else "before"

    def after_prompt(self, prompt: str) -> ThinkState:
        """Where a generation begins after a rendered prompt.

        Only what follows the last assistant header counts. Where the profile has no header, or the prompt
        does not show it, the tag at the very end of the prompt decides.
        """
        header = self.assistant_header
        at = prompt.rfind(header) if header else -1
        if header and at >= 0:
            return self.rules().advance(ThinkState(), prompt[at + len(header) :])[0]
        end = prompt.rstrip(BLANK)
        if end.endswith(self.think_open.rstrip()):
            return ThinkState(Where.OPENED)
        closed = end.endswith(self.think_close.rstrip())
        return ThinkState(Where.CLOSED, closed=True) if closed else ThinkState()

    def with_tags(self, think_open: str | None, think_close: str | None) -> ModelProfile:
        """This profile with other tags, in its hand-offs as well; None keeps a tag."""
        opening, closing = think_open or self.think_open, think_close or self.think_close
        if (opening, closing) == (self.think_open, self.think_close):
            return self
        return replace(
            self,
            style="tags",
            answer_open="",
            think_open=opening,
            think_close=closing,
            handoff_write=self._with_close(self.handoff_write, closing),
            handoff_extract=self._with_close(self.handoff_extract, closing),
        )

    def _with_close(self, handoff: str, closing: str) -> str:
        return handoff.replace(self.answer_open, "").replace(self.think_close, closing)
