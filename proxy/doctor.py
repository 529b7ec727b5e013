"""`desist doctor`: what an engine can do, found out by doing it.

Starts the engine that the settings name (or reaches it), asks it to stop by a budget, to score, to be watched
only, to forget a client that has left, and tells what is on, what is not, and what that means. Knows engines
through their protocol, and of vLLM's what its plugin tells.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Literal

from desist.controller import Control, Policy, StopReason
from desist.data.errors import DesistError
from desist.data.schema import Sampling
from desist.proxy.certificates import certificate_paths, load_points
from desist.proxy.control import check_offered
from desist.proxy.engines.base import Engine, Finished, GenerationRequest
from desist.proxy.engines.build import build_engine
from desist.proxy.settings import Settings

__all__ = ["Diagnosis", "Finding", "diagnose"]

State = Literal["on", "off", "fails"]
_PROBLEM = "Ana has 3 bags with 4 nuts each and gets 5 more. How many nuts has Ana?"
_BUDGET = 8


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was tried. `fails`: it was asked for, and cannot work; `off`: nobody asked for it."""

    what: str
    state: State
    detail: str


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """All findings, in the order in which they were made."""

    findings: tuple[Finding, ...]

    @property
    def healthy(self) -> bool:
        """Whether everything that was asked for works."""
        return all(finding.state != "fails" for finding in self.findings)

    def as_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "healthy": self.healthy,
            "findings": [
                {"what": each.what, "state": each.state, "detail": each.detail} for each in self.findings
            ],
        }

    def words(self) -> str:
        """A line for each finding."""
        marks = {"on": "+", "off": "-", "fails": "!"}
        return "\n".join(f"{marks[each.state]} {each.what}: {each.detail}" for each in self.findings)


async def diagnose(settings: Settings, engine: Engine | None = None) -> Diagnosis:
    """Try everything out. What cannot even start is a finding too, not an exception."""
    engine = engine or build_engine(settings)
    findings: list[Finding] = []
    try:
        try:
            await engine.start()
        except DesistError as error:
            return Diagnosis((Finding("start", "fails", str(error)),))
        models = await engine.models()
        findings.append(Finding("start", "on", f"serves {', '.join(card.model_id for card in models)}"))
        findings += _told_by_plugin(engine)
        findings += _certificates(settings, engine)
        model = models[0].model_id
        for what, attempt in (
            ("budget", _budget),
            ("scores", _scores),
            ("cancel", _cancel),
            ("kill switch", _kill_switch),
        ):
            findings.append(await _tried(what, attempt, engine, model))
    finally:
        await engine.close()
    return Diagnosis(tuple(findings))


async def _tried(
    what: str, attempt: Callable[[Engine, str], Awaitable[Finding]], engine: Engine, model: str
) -> Finding:
    try:
        return await attempt(engine, model)
    except (DesistError, TimeoutError) as error:
        return Finding(what, "fails", f"{type(error).__name__}: {error}")


def _told_by_plugin(engine: Engine) -> list[Finding]:
    """What vLLM's plugin says of itself."""
    hello = getattr(engine, "hello", None)
    if hello is None:
        return []
    from desist.proxy.engines.vllm.config import TESTED

    known = hello.vllm in TESTED
    prints = ", ".join(f"{key} {value[:16]}" for key, value in sorted(hello.fingerprints.items()))
    return [
        Finding(
            "vLLM",
            "on",
            f"{hello.vllm}, {hello.runner} model runner"
            + ("" if known else f" (not among the tested: {', '.join(TESTED)})"),
        ),
        Finding("decide", "on", f"{hello.decide}; scorers {', '.join(hello.scorers) or 'none'}"),
        Finding("taps", "on" if hello.taps else "off", ", ".join(map(str, hello.taps)) or "none is read"),
        Finding(
            "stream",
            "on" if hello.stream else "off",
            f"hidden states as {hello.stream}" if hello.stream else "hidden states stay in the engine",
        ),
        Finding(
            "commands",
            "on" if hello.outside else "off",
            "stop-now, kill switch and reload are obeyed"
            if hello.outside
            else "tensor parallelism: commands are refused",
        ),
        Finding("fingerprints", "on", prints),
    ]


def _certificates(settings: Settings, engine: Engine) -> list[Finding]:
    if not certificate_paths(settings):
        return [
            Finding("certificates", "off", "none is named: only budgets stop (desist calibrate makes one)")
        ]
    try:
        points = load_points(settings, getattr(engine, "fingerprints", {}))
        check_offered(settings.engine, engine.offers, points)
    except DesistError as error:
        return [Finding("certificates", "fails", str(error))]
    scorers = getattr(engine, "scorers", None)
    missing = sorted(
        {point.policy.scorer for point in points if point.policy.lam is not None} - set(scorers or ())
    )
    if scorers is not None and missing:
        return [Finding("certificates", "fails", f"nothing computes the scores {', '.join(missing)}")]
    told = ", ".join(f"{point.loss} {float(point.alpha):.6g}" for point in points)
    return [Finding("certificates", "on", told)]


async def _budget(engine: Engine, model: str) -> Finding:
    """A budget that binds: the hand-off comes, and an answer after it."""
    finished = await _run(engine, model, Control("off", Policy(), budget=_BUDGET))
    usage = finished.usage
    if finished.stop_reason is not StopReason.BUDGET:
        return Finding(
            "budget", "fails", f"a budget of {_BUDGET} did not bind: thinking ended by {finished.stop_reason}"
        )
    if not usage.answer_tokens:
        return Finding("budget", "fails", "thinking was stopped, but no answer came")
    detail = f"stopped after {usage.reasoning_tokens} tokens, {usage.handoff_tokens} forced, an answer came"
    return Finding("budget", "on", detail)


async def _scores(engine: Engine, model: str) -> Finding:
    """Boundaries are scored, and nothing is stopped in shadow."""
    if "hidden" not in engine.offers:
        return Finding("scores", "off", "no probe is named")
    finished = await _run(engine, model, Control("shadow", Policy(lam=2.0)))
    if finished.uncontrolled:
        return Finding("scores", "fails", finished.uncontrolled)
    scored = [each for each in finished.boundaries if each.scores]
    if not finished.boundaries:
        return Finding("scores", "off", "the trial wrote no boundary: nothing was there to be scored")
    if not scored:
        return Finding("scores", "fails", f"{len(finished.boundaries)} boundaries came without a score")
    return Finding("scores", "on", f"{len(scored)} boundaries scored, {', '.join(sorted(scored[0].scores))}")


async def _cancel(engine: Engine, model: str) -> Finding:
    """A client that leaves early leaves nothing behind."""
    async with aclosing(engine.generate(_request(model, Control("active", Policy(lam=None))))) as events:
        async for _ in events:
            break
    finished = await _run(engine, model, Control("off"))
    return Finding("cancel", "on", f"left early; the next request answered ({finished.finish_reason})")


async def _kill_switch(engine: Engine, model: str) -> Finding:
    set_cap = getattr(engine, "set_cap", None)
    if set_cap is None:
        return Finding("kill switch", "off", "this engine has none; start the proxy with --mode shadow")
    await set_cap("shadow")
    await set_cap("active")
    return Finding("kill switch", "on", "set to shadow and back")


async def _run(engine: Engine, model: str, control: Control) -> Finished:
    async def last() -> Finished:
        async with aclosing(engine.generate(_request(model, control))) as events:
            async for event in events:
                if isinstance(event, Finished):
                    return event
        raise DesistError("the engine ended a generation without its last event")

    return await asyncio.wait_for(last(), timeout=300)


def _request(model: str, control: Control) -> GenerationRequest:
    return GenerationRequest(
        request_id="doctor",
        model=model,
        sampling=Sampling(temperature=0.0, max_tokens=256),
        control=control,
        messages=({"role": "user", "content": _PROBLEM},),
    )
