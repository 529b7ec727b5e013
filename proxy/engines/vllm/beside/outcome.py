"""The end of one generation: what vLLM streamed and what the plugin told, as one `Finished`.

Knows both sides' counts and which to trust. Where events are missing, vLLM's own counts stand in, and the
result says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from desist.controller import Action, Control, Decision, StopReason
from desist.proxy.engines.base import Finished, ScoredBoundary, Usage
from desist.proxy.engines.vllm.beside.bodies import is_controlled
from desist.proxy.engines.vllm.beside.run import VllmRun
from desist.proxy.engines.vllm.wire import Blocked, Closed, Opened, Scored, Stopped, Told

__all__ = ["Heard", "outcome"]

_SWITCHED = "the kill switch allows mode '{}' at most"


@dataclass(frozen=True, slots=True)
class Heard:
    """What came of one followed request: its events, and what the proxy's own probes made of them.

    `stopped`: the stop that was carried out. `lost`: events known to be missing. `waited_s`: how long the
    last one was waited for. `failure`: why the proxy's probes decided nothing (more).
    """

    opened: Opened | None
    scored: tuple[Scored, ...]
    stopped: Stopped | None
    blocked: tuple[Blocked, ...]
    closed: Closed | None
    lost: int
    waited_s: float
    scores: Mapping[int, Mapping[str, float]] = field(default_factory=dict)
    decisions: Mapping[int, Decision] = field(default_factory=dict)
    shadow: Decision | None = None
    failure: str | None = None

    @property
    def complete(self) -> bool:
        """Whether every event came."""
        return self.opened is not None and self.closed is not None and not self.lost


def outcome(run: VllmRun, control: Control, heard: Heard | None) -> Finished:
    """The end event. `control` is what was asked for. `heard` None: the plugin was not told of it."""
    if heard is None:
        generated, reasoning = run.generated, run.reasoning
        usage = Usage(run.prompt_tokens or 0, reasoning, max(0, generated - reasoning))
        why = _SWITCHED.format("off") if is_controlled(control) else None
        return Finished(run.finish_reason, run.stop_reason, usage, uncontrolled=why, extra=run.extra or None)
    closed, stopped = heard.closed, heard.stopped
    told = closed.decision if closed is not None else stopped.decision if stopped is not None else None
    decision = _decision(told)
    shadow = _decision(closed.shadow if closed else None) or heard.shadow
    return Finished(
        run.finish_reason,
        _stop_reason(run, closed, decision),
        _usage(run, heard, decision),
        decision,
        shadow,
        tuple(_boundary(event, heard) for event in heard.scored),
        _uncontrolled(control, heard, decision),
        run.extra or None,
    )


def _usage(run: VllmRun, heard: Heard, decision: Decision | None) -> Usage:
    closed, stopped, opened = heard.closed, heard.stopped, heard.opened
    if closed is not None:
        reasoning, handoff = closed.reasoning_tokens, closed.handoff_tokens
        if decision is None and closed.stop_reason == "none" and run.generated > closed.tokens:
            reasoning = max(reasoning, min(run.reasoning, reasoning + 1))  # the last one was never read
        # A stream that was left early: vLLM may have gone on for some tokens that nobody saw.
        generated = max(run.generated, closed.tokens if run.answered else 0)
    else:
        generated, reasoning, handoff = run.generated, run.reasoning, 0
        if stopped is not None and decision is not None:
            reasoning, handoff = decision.position, len(stopped.handoff)
    prompt = run.prompt_tokens
    if prompt is None:
        prompt = opened.prompt_tokens if opened is not None else 0
    return Usage(prompt, reasoning, max(0, generated - reasoning - handoff), handoff)


def _stop_reason(run: VllmRun, closed: Closed | None, decision: Decision | None) -> StopReason:
    if decision is not None:
        return decision.reason
    if closed is None:
        return run.stop_reason
    try:
        reason = StopReason(closed.stop_reason)
    except ValueError:  # of a later release
        return run.stop_reason
    return StopReason.LENGTH if reason is StopReason.NONE and run.finish_reason == "length" else reason


def _boundary(event: Scored, heard: Heard) -> ScoredBoundary:
    position, index = event.position, event.index
    decision = heard.decisions.get(index) or _decision(event.decision)
    decision = decision or Decision(Action.CONTINUE, StopReason.NONE, position, index)
    scores = {**event.scores, **heard.scores.get(event.index, {})}
    return ScoredBoundary(index, position, event.kind, event.text, scores, decision)


def _uncontrolled(control: Control, heard: Heard, decision: Decision | None) -> str | None:
    """Why the request was not controlled as it asked, or not in full; None if it was."""
    opened, closed = heard.opened, heard.closed
    told = (closed.uncontrolled if closed else None) or (opened.uncontrolled if opened else None)
    if told is not None:
        return told
    if opened is not None and opened.mode != control.mode:
        return _SWITCHED.format(opened.mode)
    if closed is None:
        return f"the plugin's last event did not come within {heard.waited_s:g} s: the counts are vLLM's own"
    if heard.lost or opened is None:
        number = heard.lost + (opened is None and not heard.lost)
        return f"{number} of the plugin's events were lost: the list of boundaries has gaps"
    if heard.failure is not None:
        return heard.failure
    if heard.blocked and decision is None:
        return f"a stop at position {heard.blocked[-1].position} was not carried out: {heard.blocked[-1].why}"
    return None


def _decision(told: Told | None) -> Decision | None:
    try:
        return None if told is None else told.decision()
    except ValueError:  # an action or reason of a later release
        return None
