"""Paired runs on fresh problems: full against stopped, with every figure recomputable from the rows.

The operating point is certified on the built-in calibration traces before a test problem is drawn. Each
problem is then run in full, run again under control with the same seed, and collected with a forced exit
at every boundary (for oracles and rivals). Knows the order of these steps; the arithmetic is
`calibration.accounting`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from desist.calibration.accounting import PolicyRow, oracle_rows, policy_row
from desist.calibration.calibrate import calibrate
from desist.calibration.certificate import CannotCertify, Certificate
from desist.calibration.losses import Loss
from desist.calibration.outcomes import Outcomes
from desist.calibration.rival_rows import RivalTable
from desist.calibration.rivals import compare_rivals
from desist.controller import Control, Policy, replay_trace
from desist.data.judging import answers_equal
from desist.data.records import write_traces
from desist.data.schema import Problem, Trace
from desist.probes.artifact import probe_fingerprint
from desist.proxy.collection.batch_runs import BatchRun, RunResult, run_batch
from desist.proxy.studies.builtin import Builtin, builtin_problems, calibration_traces, refuse_seen
from desist.proxy.studies.scored import full_traces

__all__ = ["Paired", "certify_builtin", "figures", "paired_runs", "run_demo"]

Progress = Callable[[str, int, int], None]
JUDGE = "math"


@dataclass(frozen=True)
class Paired:
    """The paired runs of one operating point.

    `traces`: full runs with scored boundaries; `provenance["stopped"]` of each is the stopped run's row.
    `row`: what the LIVE stopped runs did. `wall_clock_ratio`: stopped / full, same engine and batch.
    `replay_differs`: problems where the replay of the full trace stops elsewhere than the live run;
    `prefix_differs`: where the live run read other tokens than the full run before its stop.
    """

    certificate: Certificate
    traces: tuple[Trace, ...]
    row: PolicyRow
    rivals: RivalTable | None
    wall_clock_ratio: float
    full_wall_s: float
    stopped_wall_s: float
    replay_differs: int
    prefix_differs: int


def certify_builtin(
    builtin: Builtin, *, alpha: object, delta: object, loss: Loss, scorer: str = "probe"
) -> tuple[Certificate | CannotCertify, list[Trace]]:
    """Certify one operating point of the built-in probe on its calibration traces."""
    traces = list(calibration_traces())
    probe = builtin.required_probe() if scorer == "probe" else builtin.rom
    prints = dict(traces[0].provenance.get("fingerprints", {})) if traces else {}
    if probe is not None:
        prints[scorer] = probe_fingerprint(probe)
    found = calibrate(
        traces,
        alpha=alpha,
        delta=delta,
        loss=loss,
        scorer=scorer,
        judge=JUDGE,
        fingerprints=prints,
        forbidden_problems=probe.card.problems if probe is not None else (),
    )
    return found, traces


def run_demo(
    builtin: Builtin,
    *,
    seed: int,
    n: int,
    loss: Loss,
    alpha: object,
    delta: object = "0.05",
    out: str | os.PathLike[str] | None = None,
    rivals: bool = True,
    batch: int = 64,
    progress: Progress | None = None,
) -> Paired | CannotCertify:
    """Certify, draw `n` test problems from `seed`, run them in pairs; write the rows to `out`."""
    certified, calibration = certify_builtin(builtin, alpha=alpha, delta=delta, loss=loss)
    if isinstance(certified, CannotCertify):
        return certified
    problems = builtin_problems("test", seed, n)
    refuse_seen(problems, frozenset(certified.problems), builtin.required_probe().card.problems)
    paired = paired_runs(builtin, certified, problems, seed=seed, batch=batch, progress=progress)
    if rivals:
        table = compare_rivals(certified, calibration, paired.traces)
        paired = replace(paired, rivals=table)
    if out is not None:
        write_traces(out, paired.traces)
    return paired


def paired_runs(
    builtin: Builtin,
    certificate: Certificate,
    problems: Sequence[Problem],
    *,
    seed: int,
    batch: int = 64,
    progress: Progress | None = None,
) -> Paired:
    """Run each problem in full and stopped, and collect the full trace with its forced exits."""

    def run(what: str, control: Control) -> BatchRun:
        return run_batch(
            problems,
            control,
            model=builtin.model,
            profile=builtin.profile,
            sampling=builtin.sampling,
            seed=seed,
            batch=batch,
            probe=builtin.required_probe() if control.mode == "active" else None,
            progress=_named(progress, what),
        )

    policy = certificate.policy()
    full = run("full runs", Control(mode="off", policy=Policy(lam=None)))
    stopped = run("stopped runs", Control(mode="active", policy=policy, answer=certificate.answer_mode))
    collected = full_traces(
        builtin,
        problems,
        sampling=builtin.sampling,
        seed=seed,
        batch=batch,
        answer=certificate.answer_mode,
        judge=certificate.judge,
        progress=_named(progress, "forced exits"),
    )
    traces, differs, prefixes = [], 0, 0
    for trace, whole, cut in zip(collected, full.results, stopped.results, strict=True):
        replayed = replay_trace(
            trace,
            Control(mode="active", policy=policy),
            max_tokens=builtin.sampling.max_tokens,
            handoff_tokens=builtin.handoff_tokens(certificate.answer_mode),
        )
        differs += replayed.stop_index != cut.stop_index
        prefixes += not whole.reasoning.startswith(cut.reasoning) or whole.reasoning != trace.reasoning
        traces.append(_with_stop(trace, whole, cut, replayed.stop_index))
    row = policy_row(
        "probe",
        _live_outcomes(traces),
        oracles=oracle_rows(traces),
        loss=certificate.loss,
        alpha=certificate.alpha,
        threshold=certificate.lam,
    )
    ratio = stopped.wall_s / full.wall_s
    return Paired(
        certificate, tuple(traces), row, None, ratio, full.wall_s, stopped.wall_s, differs, prefixes
    )


def figures(paired: Paired, *, seed: int) -> dict[str, Any]:
    """The figures of a demonstration under the names that the command line prints."""
    row, certificate = paired.row, paired.certificate
    found: dict[str, Any] = row.as_json()
    for name in ("consistency_risk", "harm_risk"):
        share = found[name]
        found[name] = share["value"] if share else None
        found[f"{name}_interval"] = [share["low"], share["high"]] if share else None
    found |= {
        "alpha": float(certificate.alpha),
        "delta": float(certificate.delta),
        "loss": certificate.loss,
        "method": certificate.method,
        "threshold": certificate.lam,
        "certified": True,
        "n_calibration": certificate.n,
        "wall_clock_ratio": paired.wall_clock_ratio,
        "full_wall_s": paired.full_wall_s,
        "stopped_wall_s": paired.stopped_wall_s,
        "replay_differs": paired.replay_differs,
        "prefix_differs": paired.prefix_differs,
        "seed": seed,
    }
    if paired.rivals is not None:
        found["rivals"] = paired.rivals.as_json()
    return found


def _named(progress: Progress | None, what: str) -> Callable[[int, int], None] | None:
    if progress is None:
        return None
    tell = progress
    return lambda done, total: tell(what, done, total)


def _with_stop(trace: Trace, full: RunResult, stopped: RunResult, replay_index: int | None) -> Trace:
    right = None if trace.gold is None else answers_equal(stopped.answer, trace.gold, JUDGE)
    row: Mapping[str, Any] = {
        "content": stopped.content,
        "answer": stopped.answer,
        "full_answer": full.answer,
        "n_tokens": stopped.n_tokens,
        "full_n_tokens": full.n_tokens,
        "reasoning_tokens": stopped.usage.reasoning_tokens,
        "handoff_tokens": stopped.usage.handoff_tokens,
        "answer_tokens": stopped.usage.answer_tokens,
        "stop_index": stopped.stop_index,
        "replay_stop_index": replay_index,
        "stop_reason": str(stopped.stop_reason),
        "stopped": stopped.decision is not None,
        "consistent": answers_equal(stopped.answer, full.answer, JUDGE),
        "correct": right,
        "full_correct": None if trace.gold is None else answers_equal(full.answer, trace.gold, JUDGE),
    }
    return replace(trace, provenance={**trace.provenance, "stopped": dict(row)})


def _live_outcomes(traces: Sequence[Trace]) -> Outcomes:
    """What the live stopped runs did, from the rows that were written."""
    rows = [trace.provenance["stopped"] for trace in traces]

    def column(name: str, kind: Any) -> Any:
        return np.asarray([-1 if row[name] is None else row[name] for row in rows], dtype=kind)

    return Outcomes(
        stop=column("stop_index", np.int64),
        stopped=np.asarray([row["stopped"] for row in rows], dtype=np.bool_),
        kept=np.asarray([row["reasoning_tokens"] if row["stopped"] else -1 for row in rows], dtype=np.int64),
        tokens=column("n_tokens", np.int64),
        run_tokens=column("full_n_tokens", np.int64),
        consistent=column("consistent", np.int8),
        full_correct=column("full_correct", np.int8),
        stopped_correct=column("correct", np.int8),
        given_up=np.zeros(len(rows), dtype=np.bool_),
    )
