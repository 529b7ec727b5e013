"""Small charts as inline SVG: step lines over a threshold axis, and a histogram of two classes.

Knows numbers and labels; colours come from the page's style sheet, so that light and dark work. Each chart
carries a title and a description for screen readers; the same numbers stand in a table beside it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

__all__ = ["Line", "Mark", "bar_chart", "histogram", "reliability_chart", "threshold_chart"]

_WIDTH, _HEIGHT = 560, 250
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 26, 16, 42
_TICKS = (0.001, 0.01, 0.1, 0.5, 0.9, 0.99, 0.999, 0.9999)
_EDGE = 1e-4


@dataclass(frozen=True, slots=True)
class Line:
    """A named curve; `style` is the CSS class that colours it."""

    name: str
    values: Sequence[float]
    style: str


@dataclass(frozen=True, slots=True)
class Mark:
    """The chosen threshold, marked on the first line with a label."""

    threshold: float
    value: float
    label: str


def threshold_chart(
    title: str,
    thresholds: Sequence[float],
    lines: Sequence[Line],
    *,
    level: tuple[float, str] | None = None,
    mark: Mark | None = None,
) -> str:
    """Curves over thresholds, the axis stretched towards 0 and 1 (log-odds). Values are shares."""
    shown = [value for line in lines for value in line.values] + [level[0] * 1.6 if level else 0.0]
    top = _nice(max(shown, default=0.1))
    low = min(0.0, -_nice(-min(shown, default=0.0)) if min(shown, default=0.0) < 0 else 0.0)
    x, y = _axis_x(thresholds), _axis_y(low, top)
    parts = [*_grid(low, top, y), *_x_ticks(thresholds, x)]
    for line in lines:
        points = " ".join(f"{x(t):.1f},{y(v):.1f}" for t, v in zip(thresholds, line.values, strict=True))
        parts.append(f'<polyline class="line {line.style}" points="{points}"/>')
    if level is not None:
        height = y(level[0])
        parts.append(
            f'<line class="level" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{height:.1f}" y2="{height:.1f}"/>'
        )
        parts.append(
            f'<text class="note" text-anchor="end" x="{_WIDTH - _RIGHT}" y="{height - 5:.1f}">'
            f"{escape(level[1])}</text>"
        )
    if mark is not None:
        across, up = x(mark.threshold), y(mark.value)
        parts.append(
            f'<line class="mark" x1="{across:.1f}" x2="{across:.1f}" y1="{_TOP}" y2="{_HEIGHT - _BOTTOM}"/>'
            f'<circle class="dot" cx="{across:.1f}" cy="{up:.1f}" r="5">'
            f"<title>{escape(mark.label)}</title></circle>"
        )
        anchor = "end" if across > _WIDTH / 2 else "start"
        shift = -8 if anchor == "end" else 8
        parts.append(
            f'<text class="note strong" text-anchor="{anchor}" x="{across + shift:.1f}" y="{_TOP + 10}">'
            f"{escape(mark.label)}</text>"
        )
    parts.append(_axis_name("threshold (higher = stops later)"))
    return _figure(title, parts, [(line.name, line.style) for line in lines], _WIDTH)


def histogram(title: str, good: Sequence[int], bad: Sequence[int], mark: float | None) -> str:
    """Shares of each class per score bin, side by side: classes of different size stay readable."""
    totals = max(1, sum(good)), max(1, sum(bad))
    shares = [[count / total for count in counts] for counts, total in zip((good, bad), totals, strict=True)]
    top = _nice(max((share for row in shares for share in row), default=0.1))
    y, plain = _axis_y(0.0, top), _WIDTH - _LEFT - _RIGHT
    step = plain / max(1, len(good))
    parts = list(_grid(0.0, top, y))
    for row, style in zip(shares, ("good", "bad"), strict=True):
        for place, share in enumerate(row):
            left = _LEFT + place * step + (1 if style == "good" else step / 2)
            height = max(0.0, y(0.0) - y(share))
            count = (good if style == "good" else bad)[place]
            parts.append(
                f'<rect class="bar {style}" x="{left:.1f}" y="{y(share):.1f}" width="{step / 2 - 1:.1f}" '
                f'height="{height:.1f}" rx="1.5"><title>{count} {style} stops, score '
                f"{place / len(good):.2f} to {(place + 1) / len(good):.2f}</title></rect>"
            )
    for tick in (0, 0.25, 0.5, 0.75, 1):
        parts.append(_x_label(_LEFT + tick * plain, f"{tick:g}"))
    if mark is not None:
        across = _LEFT + mark * plain
        parts.append(
            f'<line class="mark" x1="{across:.1f}" x2="{across:.1f}" y1="{_TOP}" y2="{_HEIGHT - _BOTTOM}"/>'
        )
    parts.append(_axis_name("score at a boundary (share of each class per bin)"))
    names = [(f"good stops ({sum(good)})", "good"), (f"bad stops ({sum(bad)})", "bad")]
    return _figure(title, parts, names, _WIDTH)


def bar_chart(
    title: str,
    counts: Sequence[int],
    axis: str,
    ticks: Sequence[tuple[float, str]],
    *,
    mark: tuple[float, str] | None = None,
    name: str = "traces",
) -> str:
    """Bars of equal width over [0, 1] of the axis; `ticks` and `mark`: a place there and its text."""
    total, top = max(1, sum(counts)), max(1, *counts) if counts else 1
    y, plain = _axis_y(0.0, _nice(top / total)), _WIDTH - _LEFT - _RIGHT
    step = plain / max(1, len(counts))
    parts = list(_grid(0.0, _nice(top / total), y))
    for place, count in enumerate(counts):
        up = y(count / total)
        parts.append(
            f'<rect class="bar good" x="{_LEFT + place * step + 1:.1f}" y="{up:.1f}" width="{step - 2:.1f}" '
            f'height="{max(0.0, y(0.0) - up):.1f}" rx="1.5"><title>{count} {escape(name)}</title></rect>'
        )
    parts += [_x_label(_LEFT + at * plain, text) for at, text in ticks]
    if mark is not None:
        across = _LEFT + min(1.0, mark[0]) * plain
        parts.append(
            f'<line class="level" x1="{across:.1f}" x2="{across:.1f}" y1="{_TOP}" y2="{_HEIGHT - _BOTTOM}"/>'
            f'<text class="note" x="{across + 5:.1f}" y="{_TOP + 10}">{escape(mark[1])}</text>'
        )
    parts.append(_axis_name(axis))
    return _figure(title, parts, [(f"{name} ({sum(counts)})", "good")], _WIDTH)


def reliability_chart(title: str, scores: Sequence[float], shares: Sequence[float]) -> str:
    """Points of score against share of good stops, beside the diagonal on which a score is a probability."""
    y, plain = _axis_y(0.0, 1.0), _WIDTH - _LEFT - _RIGHT
    parts = list(_grid(0.0, 1.0, y))
    parts.append(
        f'<line class="level" x1="{_LEFT}" x2="{_LEFT + plain}" y1="{y(0.0):.1f}" y2="{y(1.0):.1f}"/>'
    )
    points = [(_LEFT + score * plain, y(share)) for score, share in zip(scores, shares, strict=True)]
    joined = " ".join(f"{across:.1f},{up:.1f}" for across, up in points)
    parts.append(f'<polyline class="line main" points="{joined}"/>')
    for (across, up), score, share in zip(points, scores, shares, strict=True):
        parts.append(
            f'<circle class="dot" cx="{across:.1f}" cy="{up:.1f}" r="4">'
            f"<title>score {score:.3f}: {share * 100:.1f} % good</title></circle>"
        )
    parts += [_x_label(_LEFT + tick * plain, f"{tick:g}") for tick in (0, 0.25, 0.5, 0.75, 1)]
    parts.append(_axis_name("score (equally many boundaries a point)"))
    return _figure(title, parts, [("share of good stops", "main")], _WIDTH)


def _logit(value: float) -> float:
    inside = min(max(value, _EDGE), 1 - _EDGE)
    return math.log(inside / (1 - inside))


def _axis_x(thresholds: Sequence[float]) -> Callable[[float], float]:
    low, high = _logit(min(thresholds, default=0.0)), _logit(max(thresholds, default=1.0))
    span = (high - low) or 1.0
    return lambda t: _LEFT + (min(max(_logit(t), low), high) - low) / span * (_WIDTH - _LEFT - _RIGHT)


def _axis_y(low: float, top: float) -> Callable[[float], float]:
    return lambda v: _HEIGHT - _BOTTOM - (v - low) / (top - low) * (_HEIGHT - _TOP - _BOTTOM)


def _nice(value: float) -> float:
    """The smallest of 1, 2, 4, 6, 8 times a power of ten that is not below `value`: quarters stay round."""
    if value <= 0:
        return 0.1
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 2, 4, 6, 8, 10) if step * power >= value - 1e-12)


def _grid(low: float, top: float, y: Callable[[float], float]) -> Sequence[str]:
    parts, right = [], _WIDTH - _RIGHT
    for place in range(5):
        value = low + (top - low) * place / 4
        parts.append(
            f'<line class="grid" x1="{_LEFT}" x2="{right}" y1="{y(value):.1f}" y2="{y(value):.1f}"/>'
            f'<text class="tick" text-anchor="end" x="{_LEFT - 7}" y="{y(value) + 4:.1f}">'
            f"{value * 100:.3g} %</text>"
        )
    return parts


def _x_ticks(thresholds: Sequence[float], x: Callable[[float], float]) -> Sequence[str]:
    low, high = min(thresholds, default=0.0), max(thresholds, default=1.0)
    return [_x_label(x(tick), f"{tick:g}") for tick in _TICKS if low <= tick <= high]


def _x_label(across: float, text: str) -> str:
    return (
        f'<text class="tick" text-anchor="middle" x="{across:.1f}" y="{_HEIGHT - _BOTTOM + 17}">{text}</text>'
    )


def _axis_name(text: str) -> str:
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    return f'<text class="tick" text-anchor="middle" x="{middle:.0f}" y="{_HEIGHT - 6}">{escape(text)}</text>'


def _figure(title: str, parts: Sequence[str], names: Sequence[tuple[str, str]], width: int) -> str:
    legend = "".join(f'<li><span class="key {style}"></span>{escape(name)}</li>' for name, style in names)
    return (
        f"<figure><figcaption>{escape(title)}</figcaption>"
        f'<ul class="legend">{legend}</ul>'
        f'<svg viewBox="0 0 {width} {_HEIGHT}" role="img" aria-label="{escape(title)}">'
        f"{''.join(parts)}</svg></figure>"
    )
