"""One generation in the batch: what was asked, what has been read, and what came of it.

Knows the session (controller), the channels and the counts of one request; nothing of tensors but the
state of a streaming probe that it keeps. `Row.accept` is the only place where a token becomes text.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch

from desist.controller import Boundary, Control, Decision, Scored, Session, StopReason
from desist.controller.vocabulary import Vocabulary
from desist.proxy.answering.answer_form import AnswerForm
from desist.proxy.engines.base import FinishReason, Usage
from desist.proxy.engines.embedded.channels import Channel
from desist.proxy.engines.embedded.sampler import Draw, Uniforms
from desist.proxy.engines.embedded.slots import Snapshot

__all__ = ["Done", "Emitted", "Event", "Failed", "Job", "Prefix", "Reached", "Row", "beside_key"]

Rows = npt.NDArray[np.float32]
#: What a generation has read: keys and values, or (where the engine finds those again) its ids.
Prefix = Snapshot | tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Job:
    """One generation. `session` is its own, fresh from the prompt.

    `max_tokens` counts all generated tokens, forced ones included. `stream`: tell each new piece of text.
    `capture`: tell each boundary with its hidden state and what the row has read, and keep the hidden
    states of all reasoning tokens at the runner's token tap. `prefix`: what was read already (a fork of
    another job at a boundary): the job begins with the hand-off.

    `audit`: where a score stops this job, it also runs on as it would have unstopped, in a job of its own
    with the key `beside_key(key)`. That one has `generated`: the ids it goes on from, the last of them not
    yet read; it begins with thinking, not with the hand-off, and runs at the lowest priority.
    """

    key: Hashable
    prompt_ids: tuple[int, ...]
    session: Session
    draw: Draw
    seed: int
    max_tokens: int
    stop: tuple[str, ...] = ()
    stream: bool = True
    capture: bool = False
    prefix: Prefix | None = None
    audit: bool = False
    generated: tuple[int, ...] = ()


def beside_key(key: Hashable) -> Hashable:
    """The key under which an audited job runs on."""
    return ("beside", key)


@dataclass(frozen=True, slots=True)
class Emitted:
    """New text of one channel, and the sampled tokens behind it."""

    key: Hashable
    channel: Literal["reasoning", "content"]
    text: str
    token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Reached:
    """A boundary of a job with `capture`: its hidden state [K*D] and what the row has read."""

    key: Hashable
    boundary: Boundary
    char: int
    hidden: Rows
    prefix: Prefix


@dataclass(frozen=True, slots=True)
class Failed:
    """A job that cannot go on. The others do."""

    key: Hashable
    error: Exception


@dataclass(frozen=True, slots=True)
class Done:
    """A finished job.

    `token_ids`: everything generated, in order. `decision`: the stop, if thinking was stopped.
    `confidence`: geometric mean probability (temperature 1, nothing cut off) of the sampled answer tokens,
    the end-of-turn token left out; None where there are none. `token_hidden` [n_reasoning, D]: see `Job`.
    `runs_on`: another job goes on from its stop (see `Job.audit`).
    """

    key: Hashable
    finish_reason: FinishReason
    stop_reason: StopReason
    reasoning: str
    content: str
    token_ids: tuple[int, ...]
    usage: Usage
    decision: Decision | None = None
    shadow: Decision | None = None
    boundaries: tuple[Scored, ...] = ()
    confidence: float | None = None
    token_hidden: Rows | None = field(default=None, repr=False)
    runs_on: bool = False


Event = Emitted | Reached | Done | Failed


class Row:
    """A job that runs. The token in `pending` was chosen and will be read by the next step."""

    def __init__(self, job: Job, vocabulary: Vocabulary, hidden_ids: frozenset[int]) -> None:
        self.job, self.session = job, job.session
        self._vocabulary, self._hidden_ids = vocabulary, hidden_ids
        self.pending = job.prompt_ids[-1]
        self.boundary: Boundary | None = None
        # Decide after the pending token was read: it is reasoning, or nothing may be thought at all.
        self.judged = self.session.thinking and self.session.machine.hard_limit == 0
        self.counted = False  # ... and counts as a reasoning token
        self.forced: deque[int] = deque()
        self.token_ids: list[int] = []
        self.n_handoff = 0
        self.n_reasoning = 0
        self.stopped = self.runs_on = False
        self.decision: Decision | None = None
        self.finished: FinishReason | None = None
        self.reasoning = Channel()
        self.content = Channel(job.stop, trim=True)
        self.uniforms = Uniforms(job.seed)
        self.rom_state: torch.Tensor | None = None
        self.token_hidden: list[Rows] = []
        self.log_probability, self.n_measured = 0.0, 0
        self._form: AnswerForm | None = None
        self._form_start = 0
        if job.prefix is not None and not job.generated:
            self.hand_off(None)
            self.pending = self.take_forced()

    def resume(self, ends: frozenset[int]) -> None:
        """Take again what another job has generated up to here (`Job.generated`)."""
        for token in self.job.generated:
            self.accept(token, ends)

    def run_on(self, prefix: Prefix, token: int) -> Job:
        """The job that goes on from here with `token`, sampled as if nothing could stop it."""
        self.runs_on = True
        job, control = self.job, Control("off", answer=self.control.answer)
        session = Session(self.session.profile, self._vocabulary, control, job.prompt_ids, job.max_tokens)
        ids = (*self.token_ids, token)
        key = beside_key(job.key)
        return replace(
            job,
            key=key,
            session=session,
            stream=False,
            capture=False,
            audit=False,
            prefix=prefix,
            generated=ids,
        )

    @property
    def control(self) -> Control:
        """As it is now: the kill switch may lower its mode."""
        return self.session.control

    @property
    def thinking(self) -> bool:
        """Whether the next sampled token would be reasoning."""
        return not self.stopped and self.session.thinking

    @property
    def answering(self) -> bool:
        """Whether thinking is over, by a stop or by itself."""
        return self.stopped or (self.session.detector.closed and not self.session.detector.thinking)

    def hand_off(self, decision: Decision | None) -> str:
        """Stop thinking: queue the hand-off. Returns the text that opens the visible answer."""
        self.stopped, self.decision = True, decision
        self.forced.extend(self.session.handoff_ids())
        profile = self.session.profile
        opening = self.content.write(profile.answer_opening(self.control.answer))
        if self.control.answer == "extract":
            self._form = AnswerForm(profile.extract_suffix)
            self._form_start = self.content.n_chars
        return opening

    def take_forced(self) -> int:
        """The next forced token, taken as generated."""
        token = self.forced.popleft()
        self.token_ids.append(token)
        self.n_handoff += 1
        self._next(token)
        return token

    def accept(self, token: int, ends: frozenset[int]) -> tuple[Literal["reasoning", "content"], str]:
        """Take a sampled token. Returns the channel and the text to be shown now."""
        self.token_ids.append(token)
        self._next(token)
        if token in ends:
            self.finished = "stop"
            return "content", ""
        if self.answering:
            return "content", self._answer(token)
        detector = self.session.detector
        before = detector.position
        self.boundary = self.session.push(token)
        if detector.thinking:
            self.judged, self.counted = True, detector.position > before
            return "reasoning", self._read(self.reasoning, token) if self.counted else ""
        if detector.closed and not detector.tool_call:
            return "content", ""  # the close tag
        return "content", self._show(token)

    def measured(self, log_probability: float) -> None:
        """Take the log-probability of a sampled answer token."""
        self.log_probability += log_probability
        self.n_measured += 1

    def flush(self) -> list[tuple[Literal["reasoning", "content"], str]]:
        """The text still held back, at the end."""
        rest = "".join(self._show(token) for token in self.session.flush()) if self.answering else ""
        return [("reasoning", self.reasoning.finish()), ("content", rest + self.content.finish())]

    def done(self, prompt_tokens: int) -> Done:
        """The result. Call after `flush`."""
        reason = self.decision.reason if self.decision else self.session.stop_reason
        if self.finished == "length" and not self.answering:
            reason = StopReason.LENGTH
        reasoning = self.session.detector.position
        kept = np.stack(self.token_hidden) if self.token_hidden else None
        return Done(
            self.job.key,
            self.finished or "stop",
            reason,
            self.reasoning.text,
            self.content.text,
            tuple(self.token_ids),
            Usage(prompt_tokens, reasoning, len(self.token_ids) - reasoning - self.n_handoff, self.n_handoff),
            self.decision,
            self.session.machine.shadow,
            tuple(self.session.scored),
            math.exp(self.log_probability / self.n_measured) if self.n_measured else None,
            kept,
            self.runs_on,
        )

    def _next(self, token: int) -> None:
        self.pending, self.boundary, self.judged, self.counted = token, None, False, False
        if len(self.token_ids) >= self.job.max_tokens:
            self.finished = "length"

    def _read(self, channel: Channel, token: int) -> str:
        if token in self._hidden_ids:
            return channel.skip()
        return channel.feed(self._vocabulary.token_bytes(token))

    def _show(self, token: int) -> str:
        text = self._read(self.content, token)
        if self.content.ended:
            self.finished = "stop"
        return text

    def _answer(self, token: int) -> str:
        before = self.content.n_chars
        shown = "".join(self._show(released) for released in self.session.deliver(token))
        closing = self.session.closing_ids
        if self.stopped:
            self.forced.extend(closing)
        if self._form is not None and self.finished != "stop":
            end = self._form.end(self.content.text[self._form_start :])
            if end is not None:
                self.finished = "stop"
                self.content.cut(self._form_start + end)
                shown = shown[: self.content.n_chars - before]
        return shown
