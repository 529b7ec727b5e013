"""What a step's rows say: scores of boundaries and streamed tokens, hidden states that leave the engine.

Knows rows, requests and probes; decides nothing. Each kind is read in one call for the whole batch, under a
guard that ends the control of the requests concerned where it fails.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import NamedTuple

from desist.proxy.engines.vllm.inside.scoring import Scoring, StreamType, TapRows, as_bytes
from desist.proxy.engines.vllm.inside.tracked import Reading, Tracked

__all__ = ["Guard", "Judged", "RowOf", "Stream", "hidden_of", "scores_of"]

Guard = Callable[[str, Iterable[Tracked]], AbstractContextManager[None]]


class RowOf(NamedTuple):
    """One row of logits of a live request: where it stands and the token that it has just read.

    `missed`: the tokens between the last row that was looked at and this one; each was plain text.
    """

    request_id: str
    row: int
    slot: int
    position: int
    token: int
    draft: bool = False
    missed: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class Stream:
    """Hidden states that leave the engine. `token_layer` is kept for every reasoning token."""

    layers: tuple[int, ...] = ()
    dtype: StreamType | None = None
    token_layer: int | None = None


class Judged(NamedTuple):
    """A row that holds reasoning at which something is to be read or decided."""

    row: RowOf
    one: Tracked
    reading: Reading


def scores_of(judged: Sequence[Judged], taps: TapRows, guard: Guard) -> dict[int, dict[str, float]]:
    """Scores by row, of boundaries whose request wants them. One set of probes, save after a reload."""
    found: dict[int, dict[str, float]] = {}
    wanted: dict[int, list[Judged]] = {}
    for each in judged:
        if each.one.mode != "off" and not each.one.failed:
            wanted.setdefault(id(each.one.scoring), []).append(each)
    for part in wanted.values():
        _scores_of(part[0].one.scoring, part, taps, found, guard)
    return found


def hidden_of(judged: Sequence[Judged], taps: TapRows, stream: Stream, guard: Guard) -> dict[int, bytes]:
    """Streamed hidden states by row; those of tokens are kept with their request."""
    found: dict[int, bytes] = {}
    at = [each.row.row for each in judged if each.reading.boundary is not None]
    if stream.dtype is not None and stream.layers and at:
        with guard("streaming hidden states", ()):
            found = dict(zip(at, as_bytes(taps.read(stream.layers, at), stream.dtype), strict=True))
    counted = [each for each in judged if each.reading.counted]
    if stream.token_layer is not None and counted:
        with guard("keeping hidden states of tokens", ()):
            rows = as_bytes(taps.read([stream.token_layer], [each.row.row for each in counted]), "float32")
            for each, kept in zip(counted, rows, strict=True):
                each.one.token_rows.append((each.one.read, kept))
    return found


def _scores_of(
    scoring: Scoring,
    wanted: Sequence[Judged],
    taps: TapRows,
    found: dict[int, dict[str, float]],
    guard: Guard,
) -> None:
    at = [each for each in wanted if each.reading.boundary is not None]
    found.update((each.row.row, {}) for each in at)
    with guard("the probe", [each.one for each in at]):
        rows = [each.row.row for each in at]
        for number, score in zip(rows, scoring.boundary_scores(taps, rows), strict=False):
            found[number]["probe"] = score
    counted = [each for each in wanted if each.reading.counted]
    if scoring.streams and counted:
        with guard("the streaming probe", [each.one for each in counted]):
            _stream_scores(scoring, counted, taps, found)


def _stream_scores(
    scoring: Scoring, counted: Sequence[Judged], taps: TapRows, found: dict[int, dict[str, float]]
) -> None:
    states = [
        each.one.rom_states[-1][1] if each.one.rom_states else scoring.initial_state() for each in counted
    ]
    fresh, scores = scoring.stream_scores(taps, [each.row.row for each in counted], states)
    for each, state, score in zip(counted, fresh, scores, strict=True):
        one = each.one
        # Older states than the last committed one are never needed again.
        kept = [entry for entry in one.rom_states if entry[0] >= one.committed]
        one.rom_states = [*(kept or one.rom_states[-1:]), (one.read, state)]
        if each.row.row in found:
            found[each.row.row]["rom"] = score
