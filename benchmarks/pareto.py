"""Accuracy against net tokens for every policy, as one SVG. Numbers come from the rows of a demonstration."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

import numpy as np

from desist.calibration.accounting import policy_row
from desist.calibration.outcomes import path_outcomes
from desist.calibration.paths import build_paths
from desist.calibration.scorers import TraceScorer
from desist.controller import Policy
from desist.data.schema import Trace

__all__ = ["Curve", "Point", "curve", "draw"]

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 760, 420, 64, 24, 44, 56


@dataclass(frozen=True, slots=True)
class Point:
    """A policy's share of the full runs' tokens, and its accuracy."""

    tokens: float
    accuracy: float
    name: str = ""


@dataclass(frozen=True, slots=True)
class Curve:
    """A policy swept over its threshold."""

    name: str
    points: tuple[Point, ...]
    colour: str
    dashed: bool = False


def curve(
    name: str,
    traces: Sequence[Trace],
    scorer: TraceScorer,
    colour: str,
    *,
    dashed: bool = False,
    steps: int = 40,
) -> Curve:
    """Sweep `scorer` over its own quantiles on `traces`."""
    scores = sorted({s for trace in traces for s in scorer(trace) if s is not None})
    grid = sorted({scores[int(q)] for q in np.linspace(0, len(scores) - 1, steps)}, reverse=True)
    paths = build_paths(traces, Policy(), scorer, "harm", "no_answer")
    points = []
    for lam in (*grid, -1.0):
        row = policy_row(name, path_outcomes(traces, paths, float(lam)))
        points.append(Point(1 - row.saved_fraction, row.accuracy_stopped or 0.0))
    return Curve(name, tuple(points), colour, dashed)


def draw(curves: Sequence[Curve], points: Sequence[Point], title: str) -> str:
    """The SVG text."""
    every = [*points, *(p for one in curves for p in one.points)]
    low = np.floor(min(p.accuracy for p in every) * 20) / 20
    high = np.ceil(max(p.accuracy for p in every) * 20) / 20
    right = max(1.05, max(p.tokens for p in every))

    def x(tokens: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * tokens / right

    def y(accuracy: float) -> float:
        return TOP + (HEIGHT - TOP - BOTTOM) * (high - accuracy) / (high - low)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        'font-family="system-ui, sans-serif" font-size="12">',
        f"<title>{escape(title)}</title>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" rx="10" fill="#ffffff"/>',
        f'<text x="{LEFT}" y="26" font-size="14" font-weight="600" fill="#0f172a">{escape(title)}</text>',
    ]
    for tick in np.arange(low, high + 1e-9, 0.05):
        parts.append(
            f'<path d="M{LEFT} {y(tick):.1f}H{WIDTH - RIGHT}" stroke="#e2e8f0"/>'
            f'<text x="{LEFT - 8}" y="{y(tick) + 4:.1f}" text-anchor="end" fill="#475569">{tick:.2f}</text>'
        )
    for tick in np.arange(0, right + 1e-9, 0.2):
        parts.append(
            f'<text x="{x(tick):.1f}" y="{HEIGHT - BOTTOM + 20}" text-anchor="middle" fill="#475569">{tick:.1f}</text>'
        )
    parts.append(
        f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 14}" text-anchor="middle" fill="#0f172a">'
        "tokens generated / tokens of the full runs</text>"
        f'<text transform="translate(16 {(TOP + HEIGHT - BOTTOM) / 2}) rotate(-90)" text-anchor="middle" '
        'fill="#0f172a">accuracy</text>'
    )
    for number, one in enumerate(curves):
        path = " ".join(f"{x(p.tokens):.1f},{y(p.accuracy):.1f}" for p in one.points)
        dash = ' stroke-dasharray="5 4"' if one.dashed else ""
        parts.append(f'<polyline points="{path}" fill="none" stroke="{one.colour}" stroke-width="2"{dash}/>')
        height = HEIGHT - BOTTOM - 16 - 18 * (len(curves) - 1 - number)
        parts.append(
            f'<path d="M{WIDTH - 262} {height - 4}h24" stroke="{one.colour}" stroke-width="2"{dash}/>'
            f'<text x="{WIDTH - 230}" y="{height}" fill="#0f172a">{escape(one.name)}</text>'
        )
    for point in points:
        parts.append(
            f'<circle cx="{x(point.tokens):.1f}" cy="{y(point.accuracy):.1f}" r="4.5" fill="#0f172a"/>'
            f'<text x="{x(point.tokens) + 7:.1f}" y="{y(point.accuracy) - 7:.1f}" fill="#0f172a">'
            f"{escape(point.name)}</text>"
        )
    return "\n".join([*parts, "</svg>"]) + "\n"
