"""What the plugin costs and saves in vLLM, as ratios of interleaved runs in one process.

Four arms serve the same problems in a closed loop: no plugin; shadow (scored, nothing stopped); active (the
built-in certificate at alpha 0.05); vLLM's own thinking_token_budget, set so that it generates as many tokens
as active. Events are published as in a server, with nobody listening. Knows arms and ratios; the loop is
`closed_loop`, the collections are compared by `bench_collect`.
"""

from __future__ import annotations

import gc
import json
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import desist.calibration
from desist.calibration import load_certificate
from desist.calibration.intervals import median_interval
from desist.controller import Control, ModelProfile
from desist.data.judging import answers_equal
from desist.data.schema import Problem
from desist.proxy.collection.batch_runs import JobMaker, request_seed
from desist.proxy.engines.embedded.artefacts import builtin_model, builtin_probes
from desist.proxy.engines.embedded.sampler import Draw
from desist.proxy.engines.vllm.config import PluginConfig
from desist.proxy.engines.vllm.offline.engine import Ask, OfflineEngine, start_offline
from desist.proxy.engines.vllm.params import to_xargs
from desist.proxy.studies.bench_collect import collection_speeds
from desist.proxy.studies.builtin import Builtin, builtin_problems, refuse_seen
from desist.proxy.studies.closed_loop import Served, answer_of, closed_loop, reasoning_of

__all__ = ["Arm", "Ratio", "VllmBench", "bench_vllm"]

Progress = Callable[[str, int, int], None]
ARMS = ("no_plugin", "shadow", "active", "native_budget")
_PROBLEM_SEEDS = 7919  # each round draws problems of its own


@dataclass(frozen=True, slots=True)
class Ratio:
    """The median over pairs of runs, with its 95 % bootstrap interval. `each`: the pairs, in order."""

    median: float
    low: float
    high: float
    pairs: int
    each: tuple[float, ...]

    @classmethod
    def of(cls, values: Sequence[float], seed: int) -> Ratio:
        low, high = median_interval(values, seed)
        return cls(statistics.median(values), low, high, len(values), tuple(values))


@dataclass(frozen=True, slots=True)
class Arm:
    """One arm over all its rounds. `accuracy` against gold; `closed`: share of requests with an answer."""

    rounds: int
    requests: int
    tokens_per_request: float
    tokens_per_s: float
    wall_s: float
    accuracy: float
    closed: float


@dataclass(frozen=True, slots=True)
class VllmBench:
    """`throughput_ratio_shadow`: tokens per second, shadow / no plugin. `saved_*`: 1 - active / no plugin.

    `native_*`: vLLM's own budget of `native_budget` thinking tokens instead of active, against no plugin.
    `collection_ratio`: traces per second, vLLM / embedded, full runs and forced exits alike.
    """

    n: int
    clients: int
    rounds: int
    seed: int
    vllm: str
    device: str
    throughput_ratio_shadow: Ratio
    saved_tokens_fraction: Ratio
    saved_wall_clock_fraction: Ratio
    native_budget: int
    native_saved_tokens_fraction: Ratio
    native_saved_wall_clock_fraction: Ratio
    arms: dict[str, Arm]
    collection_ratio: Ratio
    collected_traces_per_s: dict[str, float]


@dataclass(slots=True)
class _Bench:
    """Both engines and what each arm asks of them."""

    builtin: Builtin
    seed: int
    clients: int
    plain: OfflineEngine
    plugged: OfflineEngine
    active: Control
    budget: int = 0
    runs: dict[str, dict[int, Served]] = field(default_factory=lambda: {arm: {} for arm in ARMS})

    @property
    def profile(self) -> ModelProfile:
        return self.builtin.profile

    def run(self, arm: str, turn: int, problems: Sequence[Problem]) -> Served:
        """Serve the problems of a round once."""
        engine = self.plain if arm in ("no_plugin", "native_budget") else self.plugged
        asks = [self._ask(arm, problem) for problem in problems]
        gc.collect()
        served = self.runs[arm][turn] = closed_loop(engine, asks, self.clients)
        return served

    def _ask(self, arm: str, problem: Problem) -> Ask:
        maker = JobMaker(self.plain.facts, self.profile, self.builtin.sampling)
        prompt = maker.prompt(problem.text)
        ask = Ask(
            prompt,
            Draw(maker.sampling.temperature, maker.sampling.top_p),
            request_seed(self.seed, problem.problem_id),
            maker.limit(prompt),
            self.plain.facts.end_ids,
            budget=self.budget if arm == "native_budget" else None,
        )
        if arm in ("shadow", "active"):
            control = self.active if arm == "active" else replace(self.active, mode="shadow")
            ask = replace(ask, xargs=to_xargs(problem.problem_id, control))
        return ask

    def fit_budget(self, problems: Sequence[Problem], tries: int = 4) -> None:
        """Set the native budget so that its runs make as many tokens as active's: guessed, run, mended."""
        want = self.runs["active"][0].tokens
        full = self.runs["no_plugin"][0]
        lengths = [reasoning_of(self.plain.facts, self.profile, ids)[0] for ids in full.token_ids]
        spared = full.tokens - want
        self.budget = next(
            (b for b in range(max(lengths), 0, -1) if sum(max(0, n - b) for n in lengths) >= spared), 1
        )
        for _ in range(tries):
            made = self.run("native_budget", 0, problems).tokens
            cut = sum(n > self.budget for n in lengths)
            step = round((want - made) / max(1, cut))
            if step == 0:
                return
            self.budget = max(1, self.budget + step)

    def ratio(self, arm: str, value: Callable[[Served, Served], float]) -> Ratio:
        """`value(arm's run, run without the plugin)` over the rounds that count."""
        base = self.runs["no_plugin"]
        turns = [turn for turn in sorted(self.runs[arm]) if turn]
        return Ratio.of([value(self.runs[arm][turn], base[turn]) for turn in turns], self.seed)

    def arm(self, name: str, problems: Callable[[int], Sequence[Problem]]) -> Arm:
        """One arm's column."""
        runs = {turn: served for turn, served in self.runs[name].items() if turn}
        right, closed, requests = 0, 0, 0
        for turn, served in runs.items():
            for problem, ids in zip(problems(turn), served.token_ids, strict=True):
                answer = answer_of(self.plain.facts, self.profile, ids)
                requests += 1
                closed += answer is not None
                right += answer is not None and answers_equal(answer, problem.gold)
        return Arm(
            len(runs),
            requests,
            sum(served.tokens for served in runs.values()) / requests,
            statistics.median(served.tokens / served.wall_s for served in runs.values()),
            statistics.median(served.wall_s for served in runs.values()),
            right / requests,
            closed / requests,
        )


def bench_vllm(
    builtin: Builtin,
    *,
    seed: int,
    n: int = 400,
    clients: int = 16,
    rounds: int = 30,
    arguments: Sequence[str] = (),
    progress: Progress | None = None,
) -> VllmBench:
    """Run `rounds` interleaved rounds of all arms, `n` requests each, and compare the two collections.

    Each round has problems of its own, the same for every arm, and an order of its own; round 0 warms up and
    fits the native budget, whose arm runs in every third round. Raises `EngineError` where vLLM is missing.
    """
    certificate = load_certificate(
        Path(desist.calibration.__file__).parent / "builtin" / "consistency-0.05.json"
    )
    tell = progress or (lambda what, done, total: None)

    def problems(turn: int) -> list[Problem]:
        drawn = builtin_problems("test", seed + turn * _PROBLEM_SEEDS, n)
        refuse_seen(drawn, frozenset(certificate.problems))
        return drawn

    control = Control("active", certificate.policy(), answer=certificate.answer_mode)
    plain, plugged = _start_both(builtin, clients, arguments)
    bench = _Bench(builtin, seed, clients, plain, plugged, control)
    try:
        for turn in range(rounds + 1):
            drawn = problems(turn)
            arms = [arm for arm in ARMS if arm != "native_budget" or turn % 3 == 1]
            shift = turn // 2 % len(arms)
            order = [*arms[shift:], *arms[:shift]]
            for arm in order if turn % 2 else reversed(order):
                bench.run(arm, turn, drawn)
            if turn == 0:
                bench.fit_budget(drawn)
            tell("rounds", turn, rounds)
    finally:
        plain.close()
        plugged.close()
    speeds = collection_speeds(
        builtin,
        problems(0)[:100],
        seed=seed,
        arguments=arguments,
        tell=lambda done, total: tell("collections", done, total),
    )
    import torch
    import vllm

    return VllmBench(
        n,
        clients,
        rounds,
        seed,
        vllm.__version__,
        torch.cuda.get_device_name()
        if torch.cuda.is_available()
        else f"cpu, {torch.get_num_threads()} threads",
        bench.ratio("shadow", lambda arm, base: (arm.tokens / arm.wall_s) / (base.tokens / base.wall_s)),
        bench.ratio("active", lambda arm, base: 1.0 - arm.tokens / base.tokens),
        bench.ratio("active", lambda arm, base: 1.0 - arm.wall_s / base.wall_s),
        bench.budget,
        bench.ratio("native_budget", lambda arm, base: 1.0 - arm.tokens / base.tokens),
        bench.ratio("native_budget", lambda arm, base: 1.0 - arm.wall_s / base.wall_s),
        {name: bench.arm(name, problems) for name in ARMS},
        Ratio.of([v / e for v, e in zip(speeds["vllm"], speeds["embedded"], strict=True)], seed),
        {engine: statistics.median(found) for engine, found in speeds.items()},
    )


def _start_both(
    builtin: Builtin, clients: int, arguments: Sequence[str]
) -> tuple[OfflineEngine, OfflineEngine]:
    """The engine without the plugin, which knows vLLM's own budget, and the one with it."""
    profile, (probe, _) = builtin.profile, builtin_probes()
    native = {
        "reasoning_parser": "deepseek_r1",  # whose tags these are
        "reasoning_end_str": profile.handoff("write"),
    }
    config = PluginConfig(profile=profile.name, probe=probe, events="tcp://127.0.0.1:0", commands=None)
    shared = ("--gpu-memory-utilization=0.4", *arguments)
    plain = start_offline(
        builtin_model(), max_rows=clients, arguments=(f"--reasoning-config={json.dumps(native)}", *shared)
    )
    try:
        return plain, start_offline(builtin_model(), config=config, max_rows=clients, arguments=shared)
    except BaseException:
        plain.close()
        raise
