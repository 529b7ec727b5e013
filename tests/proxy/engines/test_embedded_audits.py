"""Audits in the embedded engine: what runs on is the run that would have been, the client sees nothing."""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import replace
from typing import Any

import pytest

from desist.controller import Control, Policy, StopReason
from desist.proxy.engines.base import Audited, Auditing, Delta, Event, Finished
from desist.proxy.engines.embedded import Done, EmbeddedEngine, Failed, Runner
from desist.proxy.engines.embedded.job import beside_key
from tests.proxy.engines.test_embedded_engine import SAMPLING, request, with_engine
from tests.proxy.engines.test_embedded_runner import MODEL, LastTap, job

STOPPING = Control("active", Policy("probe", lam=0.6, patience=2))
SEEDS = range(8)


def outcome(runner: Runner, jobs: list[Any]) -> tuple[list[Any], dict[Any, Done]]:
    events = runner.run(jobs)
    assert not [event for event in events if isinstance(event, Failed)]
    done = {event.key: event for event in events if isinstance(event, Done)}
    return events, done


def runner(rows: int = 16) -> Runner:
    return Runner(MODEL, max_rows=rows, width=rows, probe=LastTap())


@pytest.mark.parametrize("rows", [2, 16])
def test_what_runs_on_is_the_full_run_and_the_client_sees_nothing_of_it(rows: int) -> None:
    """With few slots the run that goes on is parked and resumed: its tokens stay the same."""
    asked = [job(seed, STOPPING, seed=seed) for seed in SEEDS]
    plain_events, plain = outcome(runner(rows), asked)
    asked = [job(seed, STOPPING, seed=seed, audit=True) for seed in SEEDS]
    events, audited = outcome(runner(rows), asked)
    _, full = outcome(runner(rows), [job(seed, seed=seed) for seed in SEEDS])
    stopped = [
        seed for seed in SEEDS if plain[seed].decision and plain[seed].decision.reason is StopReason.PROBE
    ]
    assert len(stopped) >= 3
    for seed in SEEDS:
        assert replace(audited[seed], runs_on=False) == plain[seed]
        assert audited[seed].runs_on == (beside_key(seed) in audited) == (seed in stopped)
    for seed in stopped:
        on, whole = audited[beside_key(seed)], full[seed]
        assert (on.token_ids, on.content, on.reasoning) == (whole.token_ids, whole.content, whole.reasoning)
        assert (on.finish_reason, on.usage) == (whole.finish_reason, whole.usage)
    mine = [event for event in events if event.key in set(SEEDS) and not isinstance(event, Done)]
    assert _by_key(mine) == _by_key([event for event in plain_events if not isinstance(event, Done)])


def _by_key(events: list[Any]) -> dict[Any, list[Any]]:
    found: dict[Any, list[Any]] = {}
    for event in events:
        found.setdefault(event.key, []).append(event)
    return found


def test_clients_are_served_at_the_same_step_as_without_audits() -> None:
    """Steps are the clock that no load disturbs: each client's last token comes at the same one."""
    rows = 3

    def steps(audit: bool) -> dict[Any, int]:
        one = runner(rows)
        for seed in SEEDS:
            one.add(job(seed, STOPPING, seed=seed, audit=audit))
        ended, count = {}, 0
        while one.busy:
            count += 1
            ended |= {event.key: count for event in one.step() if isinstance(event, Done)}
        return {key: at for key, at in ended.items() if key in set(SEEDS)}

    assert steps(True) == steps(False)


def test_a_late_client_takes_the_slot_of_a_run_that_goes_on() -> None:
    one = runner(1)
    seed = next(s for s in SEEDS if outcome(runner(1), [job(s, STOPPING, seed=s)])[1][s].decision)
    one.add(job("first", STOPPING, seed=seed, audit=True))
    done: list[Any] = []
    while "first" not in done:
        done += [event.key for event in one.step() if isinstance(event, Done)]
    one.step()
    assert (one.n_running, one.n_beside) == (1, 1)
    one.add(job("late", seed=3))
    one.step()
    assert (one.n_running, one.n_waiting, one.n_beside) == (1, 0, 1)
    assert one.abort(beside_key("first"))
    assert one.n_beside == 0
    while one.busy:
        done += [event.key for event in one.step() if isinstance(event, Done)]
    assert done == ["first", "late"]
    one.add(job("x", STOPPING, seed=seed, audit=True))
    while not one.n_beside:
        one.step()
    assert {event.key for event in one.fail_all(RuntimeError())} == {"x", beside_key("x")}
    assert not one.busy


def test_the_engine_tells_of_both_ends() -> None:
    async def use(engine: EmbeddedEngine) -> None:
        assert engine._runner is not None
        engine._runner.__init__(MODEL, max_rows=4, width=4, probe=LastTap())  # type: ignore[misc]
        typed: Auditing = engine
        told: list[Audited] = []
        typed.tell_audits(told.append)
        plain: dict[int, list[Event]] = {}
        for seed in SEEDS:
            asked = request(
                control=STOPPING, request_id=str(seed), sampling=replace(SAMPLING, seed=seed, max_tokens=120)
            )
            plain[seed] = [event async for event in engine.generate(asked)]
            assert plain[seed] == [event async for event in engine.generate(replace(asked, audit=True))]
        while len(told) < len(SEEDS):
            await _end(engine, request())  # the copies run beside
        assert sorted(int(each.request_id) for each in told) == list(SEEDS)
        for each in told:
            events = plain[int(each.request_id)]
            end = events[-1]
            assert isinstance(end, Finished)
            content = "".join(e.text for e in events if isinstance(e, Delta) and e.channel == "content")
            assert each.client_answer == content
            assert each.client_tokens == end.usage.completion_tokens
            assert each.decision == (end.decision if end.stop_reason is StopReason.PROBE else None)
            assert (each.extra_tokens > 0) == (each.decision is not None)
        assert any(each.decision for each in told)
        told.clear()
        left = request(control=STOPPING, request_id="gone", sampling=replace(SAMPLING, max_tokens=400))
        async with aclosing(engine.generate(replace(left, audit=True))) as stream:
            async for _ in stream:
                break
        assert (await _end(engine, request())).finish_reason
        assert told == []
        assert typed.audits_running == 0

    with_engine(use)


async def _end(engine: EmbeddedEngine, asked: Any) -> Finished:
    events = [event async for event in engine.generate(asked)]
    assert isinstance(events[-1], Finished)
    return events[-1]
