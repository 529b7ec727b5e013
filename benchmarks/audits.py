"""Audits end to end on the built-in reasoner: do they measure the loss that a policy really has?

    python -m benchmarks.audits --requests 3000 --folder DIR      in parts of --seconds each: run it again to go on
    python -m benchmarks.audits --latency 60                      the same requests with and without audits

Truth: for each audited problem the trace's rest is simulated apart, by an unaudited stopped run and an unaudited
full run with the same seed; the share that differs is the loss of exactly these requests. The policy's loss on the
population is estimated from other problems with `--truth`. A deliberately loose threshold is served, so that there
is a loss to find.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from desist.calibration.audits import AuditTable, summarise
from desist.calibration.intervals import clopper_pearson
from desist.calibration.monitor_folder import MonitorFolder
from desist.controller.core import Control, Policy
from desist.data.judging import answers_equal
from desist.data.schema import Problem
from desist.proxy.collection.batch_runs import request_seed, run_batch
from desist.proxy.engines.base import Audited, Finished, GenerationRequest
from desist.proxy.engines.builtin import builtin_probes
from desist.proxy.engines.embedded import EmbeddedEngine
from desist.proxy.monitor.audits import judged
from desist.proxy.studies.builtin import builtin_problems, load_builtin

SEED = 77
SLOTS = 16


def policy(lam: float) -> Policy:
    return Policy("probe", lam=lam, certified=True)


def engine(threads: int | None) -> EmbeddedEngine:
    probe, rom = builtin_probes()
    return EmbeddedEngine(probe=probe, rom=rom, max_slots=SLOTS, threads=threads, device="cpu")


async def serve(
    running: EmbeddedEngine,
    problems: Sequence[Problem],
    lam: float,
    *,
    audit: bool,
    until: float = float("inf"),
) -> tuple[dict[str, Finished], dict[str, Audited], float]:
    """Sixteen clients; each problem once. No new request after `until` (monotonic seconds)."""
    told: dict[str, Audited] = {}
    ends: dict[str, Finished] = {}
    news = asyncio.Event()

    def note(one: Audited) -> None:
        told[one.request_id] = one
        news.set()

    running.tell_audits(note)
    waiting = iter(problems)
    began = time.perf_counter()

    async def client() -> None:
        for problem in waiting:
            if time.monotonic() > until:
                return
            sampling = replace(running.sampling, seed=request_seed(SEED, problem.problem_id))
            asked = GenerationRequest(
                problem.problem_id, "builtin", sampling, Control("active", policy(lam)),
                ({"role": "user", "content": problem.text},), audit=audit,
            )  # fmt: skip
            async for event in running.generate(asked):
                if isinstance(event, Finished):
                    ends[problem.problem_id] = event

    await asyncio.gather(*(client() for _ in range(SLOTS)))
    spent = time.perf_counter() - began
    while audit and len(told) < len(ends):
        news.clear()
        await news.wait()
    return ends, told, spent


async def audit_part(folder: Path, n: int, lam: float, seconds: float, threads: int | None) -> None:
    """Audit problems that are not in the folder yet, for about `seconds`."""
    problems = builtin_problems("test", SEED, n)
    running = engine(threads)
    await running.start()
    with MonitorFolder(folder) as opened:
        table = AuditTable(opened)
        done = {record.problem.decode() for record in table.records() if record.verdict != "open"}
        todo = [problem for problem in problems if problem.problem_id[:16] not in done]
        until = time.monotonic() + seconds
        while todo and time.monotonic() < until:
            part, todo = todo[:200], todo[200:]
            _, told, _ = await serve(running, part, lam, audit=True, until=until)
            for name, one in told.items():
                number = table.open(f"loose-{lam}", name[:16].encode())
                table.close(
                    number, judged(one, "math"), stopped=one.decision is not None, client_tokens=one.client_tokens,
                    full_tokens=one.full_tokens, extra_tokens=one.extra_tokens,
                )  # fmt: skip
    await running.close()


def truth(n: int, lam: float, seed: int, skip: int = 0) -> dict[str, Any]:
    """The policy's loss by simulation of the remaining traces: stopped and full runs, neither audited."""
    builtin = load_builtin()
    problems = builtin_problems("test", seed, skip + n)[skip:]
    common: dict[str, Any] = {
        "model": builtin.model, "profile": builtin.profile, "sampling": builtin.sampling, "seed": seed, "batch": 64,
    }  # fmt: skip
    full = run_batch(problems, Control("off"), **common)
    stopped = run_batch(problems, Control("active", policy(lam)), probe=builtin.required_probe(), **common)
    lost = {
        problem.problem_id: not answers_equal(mine.answer, whole.answer)
        for problem, mine, whole in zip(problems, stopped.results, full.results, strict=True)
    }
    return {"n": n, "lost": sum(lost.values()), "by_problem": lost}


def report(folder: Path, truth_file: Path | None) -> dict[str, Any]:
    """What the audits in `folder` say, beside the simulated truth."""
    with MonitorFolder(folder, write=False) as opened:
        records = AuditTable(opened).records()
    seen = summarise(records)
    told: dict[str, Any] = {
        "audits": seen.n,
        "stopped": seen.n_stopped,
        "lost": seen.n_lost,
        "interval": list(seen.interval),
        "interval_at_all_times": list(seen.anytime),
        "client_tokens": seen.client_tokens,
        "full_tokens": seen.full_tokens,
        "extra_tokens": seen.extra_tokens,
        "needed": seen.needed,
    }
    if truth_file is not None and truth_file.is_file():
        parts = [json.loads(line) for line in truth_file.read_text().splitlines()]
        n, lost = sum(part["n"] for part in parts), sum(part["lost"] for part in parts)
        risk = lost / n
        told |= {"truth": risk, "truth_n": n, "truth_interval": list(clopper_pearson(lost, n))}
        told["covered"] = seen.interval.low <= risk <= seen.interval.high
        told["covered_at_all_times"] = seen.anytime.low <= risk <= seen.anytime.high
    return told


async def latency(n: int, lam: float, threads: int | None) -> dict[str, Any]:
    """The same requests with and without audits, in turn: usage must be equal, time is shown as a ratio."""
    problems = builtin_problems("test", SEED + 1, n)
    running = engine(threads)
    await running.start()
    await serve(running, problems[:SLOTS], lam, audit=False)  # warm
    ratios, same = [], True
    for turn in range(4):
        order = (False, True) if turn % 2 == 0 else (True, False)
        times, ends = {}, {}
        for audit in order:
            ends[audit], _, times[audit] = await serve(running, problems, lam, audit=audit)
        ratios.append(times[True] / times[False])
        same = same and all(ends[True][name] == ends[False][name] for name in ends[False])
    await running.close()
    return {"requests": n, "usage_equal": same, "time_ratio_audited_to_not": [round(x, 3) for x in ratios],
            "median_ratio": float(np.median(ratios))}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--requests", type=int, default=3000)
    parser.add_argument(
        "--lam", type=float, default=0.5, help="a loose threshold: there must be a loss to find"
    )
    parser.add_argument("--folder", type=Path, default=Path("out/audits"))
    parser.add_argument("--seconds", type=float, default=420)
    parser.add_argument("--truth", type=int, default=0, help="simulate the truth on so many other problems")
    parser.add_argument("--truth-seed", type=int, default=900, help="another one each time")
    parser.add_argument("--latency", type=int, default=0, help="paired comparison on so many requests")
    parser.add_argument("--threads", type=int, default=None)
    given = parser.parse_args()
    logging.basicConfig(level=logging.WARNING)
    given.folder.mkdir(parents=True, exist_ok=True)
    file = given.folder / "truth.lines"
    if given.latency:
        sys.stdout.write(json.dumps(asyncio.run(latency(given.latency, given.lam, given.threads))) + "\n")
        return
    if given.truth:
        found = truth(given.truth, given.lam, given.truth_seed)
        with file.open("a") as lines:
            lines.write(json.dumps({"n": found["n"], "lost": found["lost"], "seed": given.truth_seed}) + "\n")
    else:
        asyncio.run(audit_part(given.folder, given.requests, given.lam, given.seconds, given.threads))
    sys.stdout.write(json.dumps(report(given.folder, file)) + "\n")


if __name__ == "__main__":
    main()
