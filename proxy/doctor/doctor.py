"""`desist doctor`: what an engine can do, found out by doing it.

Says first what a vLLM's arguments rule out, before anything is loaded. Then it starts the engine that the
settings name (or reaches it), asks it to stop by a budget, to score, to be watched only, to forget a client
that has left, and tells what is on, what is not, and what that means. Knows engines through their protocol,
of vLLM's what its plugin tells, and of a plain server what its self-test saw.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any

from desist.controller import Control, Policy, StopReason
from desist.controller.model_names import profile_for
from desist.data.errors import DesistError
from desist.data.schema import Sampling
from desist.proxy.control import OperatingPoint, check_offered
from desist.proxy.controls.values import parse_alpha
from desist.proxy.doctor.findings import Diagnosis, Finding
from desist.proxy.engines.base import Engine, Finished, GenerationRequest
from desist.proxy.engines.build import build_engine
from desist.proxy.engines.upstream.bodies import profile_of
from desist.proxy.engines.upstream.capabilities import Capabilities
from desist.proxy.engines.upstream.client import UpstreamClient
from desist.proxy.engines.upstream.engine import UpstreamEngine
from desist.proxy.engines.upstream.selftest import examine
from desist.proxy.engines.upstream.told import TOPICS, told_by_upstream
from desist.proxy.live.certificates import certificate_paths, load_points
from desist.proxy.settings import Settings, UpstreamSettings

__all__ = ["REQUIRABLE", "Diagnosis", "Finding", "diagnose"]

#: Findings that can be asked for by name.
REQUIRABLE = ("budget", "certificates", "scores", "kill switch", "commands", "taps", "stream", *TOPICS)

_PROBLEM = "Ana has 3 bags with 4 nuts each and gets 5 more. How many nuts has Ana?"
_BUDGET = 8


async def diagnose(settings: Settings, engine: Engine | None = None) -> Diagnosis:
    """Try everything out. What cannot even start is a finding too, not an exception."""
    findings = [*_foreseen(settings), *_unread(settings)]
    if any(each.what == "plan" and each.state == "fails" for each in findings):
        return Diagnosis(tuple(findings))  # before any model is loaded
    capabilities: dict[str, Any] = {}
    try:
        engine = engine or build_engine(settings)
    except DesistError as error:
        return Diagnosis((*findings, Finding("start", "fails", str(error))))
    try:
        try:
            await engine.start()
            models = await engine.models()
        except DesistError as error:
            return Diagnosis((*findings, Finding("start", "fails", str(error))))
        if not models:
            return Diagnosis((*findings, Finding("start", "fails", "no model is served")))
        findings.append(Finding("start", "on", f"serves {', '.join(card.model_id for card in models)}"))
        findings += _told_by_plugin(engine)
        points, told = _certificates(settings, engine)
        findings.append(told)
        names = [card.model_id for card in models]
        model = settings.model if settings.model in names else names[0]
        if settings.engine == "upstream" and settings.upstream is not None:
            findings.append(_profile(settings.upstream, model))
            seen = await _examined(engine, settings.upstream, model)
            capabilities = seen.as_json()
            findings += told_by_upstream(seen)
        for what, attempt in _attempts(settings, points):
            findings.append(await _tried(what, attempt, engine, model))
    finally:
        await engine.close()
    return Diagnosis(tuple(findings), capabilities)


def _attempts(
    settings: Settings, points: Sequence[OperatingPoint]
) -> list[tuple[str, Callable[[Engine, str], Awaitable[Finding]]]]:
    """What is tried through the engine. That an upstream ends a left request is seen at the server itself."""
    upstream = settings.engine == "upstream"
    cancel = [] if upstream else [("cancel", _cancel)]
    return [
        ("budget", partial(_budget, asked=_names_budget(settings) or not upstream)),
        ("scores", partial(_scores, points=points)),
        *cancel,
        ("kill switch", _kill_switch),
    ]


async def _examined(engine: Engine, upstream: UpstreamSettings, model: str) -> Capabilities:
    """The engine's own self-test where it makes one, so that two do not disturb each other."""
    seen = await engine.capabilities(model) if isinstance(engine, UpstreamEngine) else None
    if seen is not None:
        return seen
    client = UpstreamClient(upstream)
    await client.start()
    try:
        return await examine(client, upstream, profile_of(upstream, model), model)
    finally:
        await client.close()


def _profile(upstream: UpstreamSettings, model: str) -> Finding:
    chosen = profile_for(model, upstream.profile)
    means = "its tags and hand-off are a guess: set upstream.profile" if chosen.guessed else ""
    told = f"{chosen.profile.name}: {chosen.why}"
    return Finding("profile", "off" if chosen.guessed else "on", told, means)


def _names_budget(settings: Settings) -> bool:
    return settings.control.budget is not None or any(
        each.control.budget is not None for each in settings.models.values()
    )


def _foreseen(settings: Settings) -> list[Finding]:
    """What the arguments of a vLLM that would be started say already."""
    if settings.engine != "vllm" or settings.upstream is not None:
        return []
    from desist.proxy.engines.vllm.beside.foreseen import foreseen, parallelism
    from desist.proxy.engines.vllm.beside.launch import on_cpu, profile_name
    from desist.proxy.engines.vllm.config import PluginConfig

    try:
        cpu = on_cpu(settings.device)
        config = PluginConfig(profile=profile_name(settings), decide=settings.vllm.decide or "engine")
    except (DesistError, ValueError) as error:
        return [Finding("plan", "fails", str(error))]
    means = "vLLM would refuse to start with the plugin; nothing was loaded"
    found = [Finding("plan", "fails", why, means) for why in foreseen(settings.vllm.args, config, cpu=cpu)]
    ranks = parallelism(settings.vllm.args)
    if ranks > 1 and not found:
        found.append(
            Finding(
                "plan", "on", f"tensor parallelism over {ranks} devices",
                "scores and stops work; stop-now, the kill switch and reload are refused in the engine",
            )
        )  # fmt: skip
    return found


def _unread(settings: Settings) -> list[Finding]:
    """What the settings name, and this engine never reads."""
    if settings.engine != "upstream" or settings.probe is None:
        return []
    return [
        Finding(
            "probe", "fails", f"{settings.probe} reads hidden states, which a plain server does not give",
            "use --engine vllm (the plugin reads them), or leave the probe out: budgets and stop-now work",
        )
    ]  # fmt: skip


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
            "parser",
            "on" if hello.parser else "off",
            f"{hello.parser}: thinking is free, and a grammar binds the answer"
            if hello.parser
            else "none: vLLM binds structured output and necessary tool calls from the first token",
            ""
            if hello.parser
            else "such requests think nothing and are not controlled; start vLLM with --reasoning-parser "
            "desist-PROFILE, PROFILE being the plugin's",
        ),
        Finding(
            "commands",
            "on" if hello.outside else "off",
            "stop-now, kill switch and reload are obeyed"
            if hello.outside
            else "tensor parallelism: commands are refused",
            ""
            if hello.outside
            else "a command would reach the ranks at different steps; set the mode in the proxy instead",
        ),
        Finding("fingerprints", "on", prints),
    ]


def _certificates(settings: Settings, engine: Engine) -> tuple[tuple[OperatingPoint, ...], Finding]:
    if not certificate_paths(settings):
        if settings.control.alpha is not None:
            why = (
                f"control.alpha is {settings.control.alpha}, but no certificate is named: nothing would stop"
            )
            return (), Finding("certificates", "fails", why)
        why = "none is named: only budgets stop (desist calibrate makes one)"
        return (), Finding("certificates", "off", why)
    try:
        points = load_points(settings, getattr(engine, "fingerprints", {}))
        check_offered(settings.engine, engine.offers, points)
    except DesistError as error:
        return (), Finding("certificates", "fails", str(error))
    scorers = getattr(engine, "scorers", None)
    missing = sorted(
        {point.policy.scorer for point in points if point.policy.lam is not None} - set(scorers or ())
    )
    if scorers is not None and missing:
        return points, Finding("certificates", "fails", f"nothing computes the scores {', '.join(missing)}")
    told = ", ".join(f"{point.loss} {float(point.alpha):.6g}" for point in points)
    asked = settings.control.alpha
    if asked is not None and all(point.alpha > parse_alpha(asked) for point in points):
        return points, Finding("certificates", "fails", f"control.alpha is {asked}, but there are: {told}")
    return points, Finding("certificates", "on", told)


async def _budget(engine: Engine, model: str, *, asked: bool) -> Finding:
    """A budget that binds: the hand-off comes, and an answer after it."""
    finished = await _run(engine, model, Control("off", Policy(), budget=_BUDGET))
    usage = finished.usage
    if not usage.reasoning_tokens and finished.stop_reason is StopReason.NONE and not asked:
        return Finding("budget", "off", "no reasoning was seen, so no budget could be tried")
    if finished.stop_reason is not StopReason.BUDGET:
        return Finding(
            "budget", "fails", f"a budget of {_BUDGET} did not bind: thinking ended by {finished.stop_reason}"
        )
    if not usage.answer_tokens:
        return Finding("budget", "fails", "thinking was stopped, but no answer came")
    detail = f"stopped after {usage.reasoning_tokens} tokens, {usage.handoff_tokens} forced, an answer came"
    return Finding("budget", "on", detail)


async def _scores(engine: Engine, model: str, *, points: Sequence[OperatingPoint]) -> Finding:
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
    told = f"{len(scored)} boundaries scored, {', '.join(sorted(scored[0].scores))}"
    return Finding("scores", "on", told, _compared([each.scores for each in scored], points))


def _compared(scores: Sequence[Mapping[str, float]], points: Sequence[OperatingPoint]) -> str:
    """How the trial's scores stand to the threshold of the default certificate."""
    policy = points[0].policy if points else None
    if policy is None or policy.lam is None:
        return ""
    values = [each[policy.scorer] for each in scores if policy.scorer in each]
    if not values:
        return ""
    above = sum(value > policy.lam for value in values)
    return (
        f"higher is safer to stop: {min(values):.3f} to {max(values):.3f} on this problem, {above} of "
        f"{len(values)} above the threshold {policy.lam:.3f}"
    )


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
        return Finding("kill switch", "off", "the engine has none", "the proxy's own: mode_file")
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
