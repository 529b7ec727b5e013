"""Validity and tightness of every calibration method on simulated populations of known risk.

    python -m benchmarks.validity [--draws 500] [--traces 200000] [--out FILE.json]

Prints each cell (population, method, n, alpha), the most violations that a valid method may show, and, at
n = 500 and alpha 0.05, each method's saving relative to the oracle threshold's.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import asdict
from fractions import Fraction
from pathlib import Path

import numpy as np

from desist.calibration.exact import exact
from desist.calibration.paths import paths_of
from desist.calibration.simulation import POPULATIONS, Truth, simulate
from desist.calibration.validity import Cell, run_cells, violation_limit
from desist.calibration.validity_rules import invalid_rules, mean_rules, pac_rules
from desist.controller.core import Policy

SIZES = (50, 200, 1000)
ALPHAS = (exact("0.01"), exact("0.05"), exact("0.1"))
DELTA = exact("0.05")
#: Rules for the same loss on the same traffic, so that one oracle threshold is a bound for all of them.
COMPARABLE = ("pac, critical", "pac, maximum", "ltt", "ltt, critical", "pareto")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--draws", type=int, default=500)
    parser.add_argument("--traces", type=int, default=200_000)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    started = time.process_time()
    cells: dict[str, list[Cell]] = {"pac": [], "mean": [], "none": [], "tightness": []}
    oracles = {}
    for kind in POPULATIONS:
        population = simulate(kind, given.traces)
        for promise, rules in (("pac", pac_rules), ("mean", mean_rules), ("none", invalid_rules)):
            cells[promise] += run_cells(
                kind, population, rules(population, DELTA), SIZES, ALPHAS, given.draws
            )
        alike = {name: rule for name, rule in pac_rules(population, DELTA).items() if name in COMPARABLE}
        cells["tightness"] += run_cells(kind, population, alike, (500,), (exact("0.05"),), given.draws // 2)
        truth = Truth.of(paths_of(population.signals, Policy()))
        oracles[kind] = float(truth.saved(np.asarray([truth.oracle(Fraction(1, 20))]))[0])
    limit = violation_limit(given.draws, DELTA, len(cells["pac"]))
    for promise, title in (
        ("pac", f"at most alpha with probability 0.95: at most {limit} of {given.draws} above"),
        ("mean", "at most alpha on average over calibrations"),
        ("none", "no such promise: must fail somewhere"),
    ):
        _say(f"\n{title}")
        _say("\n".join(cell.text() for cell in cells[promise]))
    possible = [cell for cell in cells["pac"] if cell.possible]
    worst = max(cell.broken for cell in possible)
    _say(f"\n{len(cells['pac'])} cells, {len(possible)} can certify; most violations {worst}, limit {limit}")
    _say("\nsaving at n 500, alpha 0.05, relative to the oracle threshold's")
    for cell in cells["tightness"]:
        oracle = oracles[cell.population]
        _say(
            f"{cell.population:8} {cell.method:28} {cell.saved:.4f} of {oracle:.4f}: {cell.saved / oracle:.3f}"
        )
    _say(f"\n{time.process_time() - started:.1f} s of one core")
    if given.out:
        rows = {promise: [_row(cell) for cell in found] for promise, found in cells.items()}
        given.out.write_text(json.dumps({"limit": limit, "oracles": oracles, **rows}, indent=1) + "\n")


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")


def _row(cell: Cell) -> dict[str, object]:
    return {**asdict(cell), "alpha": str(cell.alpha)}


if __name__ == "__main__":
    main()
