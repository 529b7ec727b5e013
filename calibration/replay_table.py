"""Policies on any saved traces, imported ones too: what is known is counted, what is not is said.

Real traces seldom hold forced answers. Then a budget's savings are known and its accuracy is not; what
the text still tells is how many right runs were cut before they first mention the right answer. Where
scores and answers are stored, a threshold is certified on some problems and shown on the others.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from desist.calibration.accounting import table_text
from desist.calibration.calibrate import calibrate, one_per_problem, problem_hash
from desist.calibration.certificate import CannotCertify, Certificate
from desist.calibration.losses import Loss
from desist.calibration.outcomes import path_outcomes, policy_outcomes
from desist.calibration.paths import build_paths
from desist.calibration.replay_rows import ReplayRow, replay_row
from desist.calibration.scorers import agreement
from desist.controller.core import Control, Policy
from desist.controller.replay import held_at
from desist.data.schema import Trace

__all__ = ["BUDGETS", "ReplayRow", "ReplayTable", "replay_table", "replay_tables"]

BUDGETS: tuple[int, ...] = (256, 512, 1024, 2048, 4096, 8192)
_NEVER = Policy(lam=None)
_COLUMNS = (
    "policy", "n", "stopped", "saved", "tok_p50", "tok_p90", "tok_max", "unknown", "graded", "acc_full",
    "acc_stopped", "inconsistent", "cut_early", "given_up", "note",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ReplayTable:
    """All policies on one set of traces (one model and data set)."""

    name: str
    n: int
    n_problems: int
    n_truncated: int
    n_estimated_tokens: int
    rows: tuple[ReplayRow, ...]
    notes: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    def text(self) -> str:
        """A plain table with its notes."""
        lines = [
            {
                "policy": row.policy,
                "n": row.n,
                "stopped": row.n_stopped,
                "saved": row.saved_fraction,
                "tok_p50": row.tokens_p50,
                "tok_p90": row.tokens_p90,
                "tok_max": row.tokens_max,
                "unknown": row.n_unknown,
                "graded": row.n_graded,
                "acc_full": row.accuracy_full,
                "acc_stopped": row.accuracy_stopped,
                "inconsistent": row.inconsistent and row.inconsistent.value,
                "cut_early": row.cut_early and f"{row.cut_early.count}/{row.cut_early.n}",
                "given_up": _given_up(row),
                "note": row.note or None,
            }
            for row in self.rows
        ]
        head = f"{self.name}: {self.n} traces of {self.n_problems} problems"
        if self.n_truncated:
            head += f", {self.n_truncated} cut at max_tokens"
        if self.n_estimated_tokens:
            head += f", token counts estimated in {self.n_estimated_tokens}"
        return "\n".join([head, table_text(lines, _COLUMNS), *self.notes])


def replay_tables(traces: Iterable[Trace], **settings: Any) -> list[ReplayTable]:
    """`replay_table` for each pair of model and data set, largest first. `settings`: as there."""
    sets: defaultdict[str, list[Trace]] = defaultdict(list)
    for trace in traces:
        sets[f"{trace.model} on {trace.dataset or 'unnamed data'}"].append(trace)
    ordered = sorted(sets.items(), key=lambda item: (-len(item[1]), item[0]))
    return [replay_table(members, name=name, **settings) for name, members in ordered]


def replay_table(
    traces: Sequence[Trace],
    *,
    name: str = "traces",
    budgets: Sequence[int] = BUDGETS,
    certificate: Certificate | None = None,
    alpha: object = "0.05",
    delta: object = "0.05",
    loss: Loss = "consistency",
    calibration_share: float = 0.7,
    seed: int = 0,
) -> ReplayTable:
    """Fixed budgets, "same answer k times", a given certificate, and every stored score certified or refused.

    A budget acts at its very token, as live (then mostly no answer is known), and where answers are stored
    also at the next boundary; like the live system it also keeps room for the answer within the max_tokens
    that a trace was sampled with. Stored scores are certified for `loss` at `alpha` and `delta` on
    `calibration_share` of the problems by hash, one trace each, and shown on all traces of the others.
    """
    held = [held_at(trace) for trace in traces]

    def row(policy: str, control: Control, **settings: Any) -> ReplayRow:
        at = settings.pop("budget_at", "token")
        found = policy_outcomes(traces, control, budget_at=at, held=held)
        return replay_row(policy, traces, found, **settings)

    answered = bool(traces) and all(b.forced_answer is not None for t in traces for b in t.boundaries)
    answered = answered and any(trace.boundaries for trace in traces)
    rows = [row("full run", Control(policy=_NEVER, mode="off"))]
    for budget in budgets:
        control = Control(policy=_NEVER, budget=budget)
        rows.append(row(f"budget {budget}", control))
        if answered:
            rows.append(row(f"budget {budget}, next boundary", control, budget_at="boundary"))
    if answered:
        rows += [_same_answer(traces, k) for k in (2, 3)]
    if certificate is not None:
        control = Control(policy=certificate.policy())
        rows.append(row(f"certificate ({certificate.scorer})", control, threshold=certificate.lam))
    notes = list(_caveats(traces))
    for scorer in sorted({name for trace in traces for b in trace.boundaries for name in b.scores}):
        plan = {"alpha": alpha, "delta": delta, "loss": loss, "scorer": scorer, "seed": seed}
        made, note = _certified(traces, plan, calibration_share)
        rows += made
        notes.append(note)
    estimated = sum(trace.provenance.get("token_count") == "estimated" for trace in traces)
    problems = len({problem_hash(trace) for trace in traces})
    truncated = sum(trace.truncated for trace in traces)
    return ReplayTable(name, len(traces), problems, truncated, estimated, tuple(rows), tuple(notes))


def _given_up(row: ReplayRow) -> str | None:
    """How many problems were given up, and of how many of them the full run is known to be right."""
    if not row.n_given_up:
        return None
    return f"{row.n_given_up} ({row.given_up_right.count if row.given_up_right else '?'} right)"


def _same_answer(traces: Sequence[Trace], k: int) -> ReplayRow:
    paths = build_paths(traces, Policy(), agreement(), lambda trace, boundary: False)
    outcomes = path_outcomes(traces, paths, 1 - 1 / (k - 0.5))
    return replay_row(f"same answer {k} times", traces, outcomes, note="every forced answer paid for")


def _caveats(traces: Sequence[Trace]) -> Iterator[str]:
    """What the saved traces cannot tell, as sentences."""
    extras = [trace.provenance.get("extra") for trace in traces]
    tenths = sum(isinstance(extra, Mapping) and "decile_probe" in extra for extra in extras)
    if tenths:
        yield (
            f"In {tenths} traces the boundaries lie at tenths of the finished run: a live policy could not "
            "know these places, so their rows are optimistic."
        )
    unmeasured = sum(any(b.forced_answer and b.forced_tokens is None for b in t.boundaries) for t in traces)
    if unmeasured:
        yield (
            f"In {unmeasured} traces the forced answers' tokens were not counted: the full answer's number "
            "stands in for each."
        )


def _certified(traces: Sequence[Trace], plan: Mapping[str, Any], share: float) -> tuple[list[ReplayRow], str]:
    """The row of a stored score on held-out problems, and a sentence on how it came about."""
    scorer, loss, seed = plan["scorer"], plan["loss"], plan["seed"]
    scored = [trace for trace in traces if any(scorer in b.scores for b in trace.boundaries)]
    usable = [trace for trace in scored if not _unlabelled(trace, loss)]
    learn = [trace for trace in usable if _place(trace, seed) < share]
    held = [trace for trace in usable if _place(trace, seed) >= share]
    without = sum(scorer not in b.scores for trace in usable for b in trace.boundaries)
    kept, _ = one_per_problem(learn, seed)
    head = (
        f"Score '{scorer}': {len(kept)} problems to calibrate, {len(held)} traces of others held out, "
        f"{without} boundaries without a score passed over, {len(scored) - len(usable)} traces left out for "
        f"want of a {loss} label"
    )
    if not learn or not held:
        return [], f"{head}; too few to split."
    others = {problem_hash(trace) for trace in held}
    found = calibrate(learn, forbidden_problems=others, missing="pass", **plan)
    outcomes = policy_outcomes(
        held, Control(policy=found.policy(), mode="active" if found.certified else "off")
    )
    if isinstance(found, CannotCertify):
        row = replay_row(f"score '{scorer}', refused", held, outcomes, note="held-out problems; never stops")
        return [row], f"{head}; {found.message}."
    row = replay_row(
        f"score '{scorer}', certified", held, outcomes, threshold=found.lam, note="held-out problems"
    )
    return [row], f"{head}. {found.text}"


def _place(trace: Trace, seed: int) -> float:
    """A number in [0, 1) from the problem's hash: all traces of a problem fall on one side of a split."""
    digest = hashlib.sha256(f"replay:{seed}:{problem_hash(trace)}".encode()).digest()
    return int.from_bytes(digest[:6]) / 2**48


def _unlabelled(trace: Trace, loss: Loss) -> bool:
    if loss == "consistency":
        return any(boundary.consistent is None for boundary in trace.boundaries)
    return trace.full_correct is None or any(b.correct is None for b in trace.boundaries)
