"""The measurements that the README reports: `make study`.

Two operating points, declared here before any test problem is drawn, on problems never used in training or
calibration; rivals certified or matched the same way; one plot. Writes docs/results.json, docs/results.md
and docs/pareto.svg, each with its command and date.
"""

from __future__ import annotations

import argparse
import datetime
import json
import logging
from pathlib import Path
from typing import Any

from benchmarks.pareto import Point, curve, draw
from desist.calibration import CannotCertify, oracle_outcomes, policy_row
from desist.calibration.losses import Loss
from desist.calibration.scorers import agreement, position, stated_agreement, stored
from desist.data.schema import Trace
from desist.proxy.studies.builtin import load_builtin
from desist.proxy.studies.demo import Paired, figures, run_demo
from desist.proxy.studies.reasoner import study_reasoner

log = logging.getLogger("headline")
ROOT = Path(__file__).resolve().parents[1]
#: (name, loss, alpha, seed), declared before the test problems are drawn.
POINTS: tuple[tuple[str, Loss, str, int], ...] = (
    ("a", "consistency", "0.05", 101),
    ("b", "harm", "0.02", 102),
)


def share(value: float | None, digits: int = 1) -> str:
    return "-" if value is None else f"{100 * value:.{digits}f} %"


def main_table(found: dict[str, dict[str, Any]]) -> str:
    """The two operating points, one row each."""
    head = (
        "| point | accuracy full → stopped | tokens saved | oracle settled / first | inconsistent | lost / gained "
        "| wall clock | p(risk ≤ alpha) |\n|---|---|---|---|---|---|---|---|"
    )
    rows = []
    for name, one in found.items():
        if not one.get("certified"):
            rows.append(f"| ({name}) | cannot certify: {one['reason']} | | | | | | |")
            continue
        rows.append(
            f"| ({name}) {one['loss']}, alpha {one['alpha']:g} | {share(one['accuracy_full'])} → "
            f"{share(one['accuracy_stopped'])} | **{share(one['saved_fraction'])}** | "
            f"{share(one['oracle_settled_fraction'])} / {share(one['oracle_first_fraction'])} | "
            f"{one['inconsistent']} ({share(one['consistency_risk'])}) | {one['lost']} / {one['gained']} | "
            f"{one['wall_clock_ratio']:.2f} | {one['alpha_p']:.3f} |"
        )
    return "\n".join([head, *rows])


def rival_table(one: dict[str, Any]) -> str:
    """All rivals of one operating point."""
    loss = one["loss"]
    lines = [
        f"| policy | tokens saved | {loss} risk (95 %) | accuracy | saved more than ours | McNemar p | how |",
        "|---|---|---|---|---|---|---|",
    ]
    for rival in one["rivals"]["rows"]:
        row = rival["row"]
        if row is None:
            lines.append(f"| {rival['name']} | | | | | | {rival['unavailable']} |")
            continue
        risk = row[f"{loss}_risk"]
        risk_text = (
            "-" if risk is None else f"{share(risk['value'])} ({share(risk['low'])} to {share(risk['high'])})"
        )
        more = rival["saved_more"]
        p = rival["mcnemar_p"]
        lines.append(
            f"| {rival['name']} | {share(row['saved_fraction'])} | {risk_text} | {share(row['accuracy_stopped'])} | "
            f"{'' if more is None else share(more)} | {'' if p is None else f'{p:.2g}'} | {rival['how']} |"
        )
    return "\n".join(lines)


def plot(traces: tuple[Trace, ...], found: dict[str, dict[str, Any]], date: str) -> str:
    """Accuracy against net tokens on the test problems of the last operating point."""
    oracle = policy_row("oracle", oracle_outcomes(traces, settled=False))
    full = sum(trace.full_correct is True for trace in traces) / len(traces)
    points = [Point(1.0, full, "full run"), Point(1 - oracle.saved_fraction, full, "oracle (first)")]
    for name, one in found.items():
        if one.get("certified"):
            points.append(Point(1 - one["saved_fraction"], one["accuracy_stopped"], f"certified ({name})"))
    curves = [
        curve("probe (hidden states)", traces, stored("probe"), "#059669"),
        curve("streaming head (ROM)", traces, stored("rom"), "#2563eb"),
        curve("fixed budget", traces, position(), "#dc2626", dashed=True),
        curve("same answer, stated in the text", traces, stated_agreement(), "#d97706", dashed=True),
        curve("same answer, forced and paid for", traces, agreement(), "#7c3aed", dashed=True),
    ]
    return draw(curves, points, f"Built-in reasoner, {len(traces)} fresh problems ({date})")


def readme(table: str, command: str, date: str, n: int) -> None:
    """Put the table and the plot between the README's markers."""
    path = ROOT / "README.md"
    text = path.read_text(encoding="utf-8")
    block = (
        f"Built-in reasoner, {n} fresh problems a point, printed by `{command}` (`make study`) on {date}:\n\n"
        f"{table}\n\n![accuracy against net tokens](docs/pareto.svg)"
    )
    before, _, rest = text.partition("<!-- results -->")
    after = rest.partition("<!-- /results -->")[2]
    path.write_text(f"{before}<!-- results -->\n{block}\n<!-- /results -->{after}", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--n", type=int, default=2000)
    parser.add_argument("--out", type=Path, default=ROOT / "docs")
    parser.add_argument("--batch", type=int, default=64)
    given = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    date = datetime.datetime.now(datetime.UTC).date().isoformat()
    builtin = load_builtin()
    found: dict[str, dict[str, Any]] = {}
    traces: tuple[Trace, ...] = ()
    for name, loss, alpha, seed in POINTS:
        paired: Paired | CannotCertify = run_demo(
            builtin, seed=seed, n=given.n, loss=loss, alpha=alpha, batch=given.batch,
            progress=lambda what, done, total: log.info("%s %d/%d", what, done, total) if done % 500 == 0 else None,
        )  # fmt: skip
        if isinstance(paired, CannotCertify):
            found[name] = {"certified": False, **paired.model_dump(mode="json")}
            continue
        found[name] = figures(paired, seed=seed)
        traces = paired.traces
        log.info("(%s) %s", name, {k: v for k, v in found[name].items() if k != "rivals"})
    study = study_reasoner(builtin, seed=100, n=min(500, given.n)).as_json()
    command = f"python -m benchmarks.headline --n {given.n}"
    payload = {"command": command, "date": date, "points": found, "reasoner": study}
    (given.out / "results.json").write_text(json.dumps(payload, indent=1, default=str) + "\n")
    parts = [
        "# Results on the built-in reasoner",
        f"Printed by `{command}` (`make study`) on {date}: {given.n} problems a point, never used in training or "
        "calibration, at the served sampler.",
        main_table(found),
        "![accuracy against net tokens](pareto.svg)",
    ]
    for name, one in found.items():
        if one.get("rivals"):
            parts += [f"## Rivals at point ({name}): {one['loss']}, alpha {one['alpha']:g}", rival_table(one)]
    kept = {k: v for k, v in study.items() if not isinstance(v, dict)}
    parts += [
        "## The reasoner itself (`desist study reasoner --json`)",
        "```json",
        json.dumps(kept, indent=1),
        "```",
    ]
    (given.out / "results.md").write_text("\n\n".join(parts) + "\n")
    if given.n >= 2000:
        readme(main_table(found), command, date, given.n)
    if traces:
        (given.out / "pareto.svg").write_text(plot(traces, found, date))


if __name__ == "__main__":
    main()
