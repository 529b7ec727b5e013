"""What a probe costs in a decode step, beside the model it watches: bytes and operations, by arithmetic.

Knows shapes and formulas. It measures nothing: the times are the least that a device's memory and matrix
units allow, with no launches and no waiting in them. `python -m desist.kernels.cost` prints the table that
docs/kernels.md holds.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from desist.kernels.boundary_score.shapes import first_layer
from desist.kernels.stream_score.shapes import parts, project_tiles

__all__ = [
    "H200",
    "MODELS",
    "Cost",
    "Device",
    "Model",
    "Row",
    "backbone",
    "logits_copy",
    "per_cue",
    "per_token",
    "rows",
    "table",
]

_BF16, _F32 = 2, 4

# Bytes that finding and deciding move for a row, all reads and writes counted, none assumed cached.
# Finding: the row (4 int32), its token's class (2), a transition and its flags (3), an entry read and one
# written (5 int32 each), flags, count, zone and place in the compacted list (1 + 3 int32).
_FIND = 16 + 2 + 3 + 2 * 20 + 13
# Deciding: the row (16), what was found and the score (1 + 3 int32), settings (80), an entry read and one
# written (40 each), decision, smoothed score, forced token and lock (1 + 8 + 4 + 1).
_DECIDE = 16 + 13 + 80 + 2 * 40 + 14
# One record of the ring, for a row at a boundary: slot, position, count, decision, score, smoothed score.
_RECORD = 4 * 4 + 4 + 8
# The share of rows that are forced: a hand-off of 10 tokens in a trace of 2,000.
_FORCED = 10 / 2000


@dataclass(frozen=True, slots=True)
class Cost:
    """Bytes that memory moves, and floating-point operations; a multiplication with its addition is two."""

    bytes: float
    flops: float

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.bytes + other.bytes, self.flops + other.flops)


class Device(NamedTuple):
    """Bytes and operations a second at the most."""

    name: str
    bandwidth: float
    flops: float

    def seconds(self, cost: Cost) -> float:
        """The roofline: max(bytes / bandwidth, operations / rate)."""
        return max(cost.bytes / self.bandwidth, cost.flops / self.flops)


#: NVIDIA H200 by its data sheet: 4.8 TB/s, and 989 TFLOP/s in bfloat16 without sparsity.
H200 = Device("H200", 4.8e12, 989e12)


class Model(NamedTuple):
    """A decoder's shape: L layers, hidden size D, inner width F, H heads of size d, G key-value heads and V
    tokens.

    `qkv_bias`: whether queries, keys and values have one; `tied`: whether the output head is the embedding.
    """

    name: str
    layers: int
    hidden: int
    inner: int
    heads: int
    kv_heads: int
    head_size: int
    vocabulary: int
    qkv_bias: bool = False
    tied: bool = False

    def matrices(self) -> int:
        """Weights that every token is multiplied with: L (2 D H d + 2 D G d + 3 D F) + V D."""
        attention = 2 * self.hidden * self.head_size * (self.heads + self.kv_heads)
        return self.layers * (attention + 3 * self.hidden * self.inner) + self.vocabulary * self.hidden

    def parameters(self) -> int:
        """All weights: the matrices, biases (H + 2 G) d and two norms a layer, one norm, the embedding."""
        bias = (self.heads + 2 * self.kv_heads) * self.head_size if self.qkv_bias else 0
        embedding = 0 if self.tied else self.vocabulary * self.hidden
        return self.matrices() + self.layers * (bias + 2 * self.hidden) + self.hidden + embedding


MODELS = (
    Model("Qwen2.5-1.5B", 28, 1536, 8960, 12, 2, 128, 151_936, qkv_bias=True, tied=True),
    Model("Llama-3.1-8B", 32, 4096, 14_336, 32, 8, 128, 128_256),
    Model("Qwen2.5-32B", 64, 5120, 27_648, 40, 8, 128, 152_064, qkv_bias=True),
    Model("Llama-3.1-70B", 80, 8192, 28_672, 64, 8, 128, 128_256),
)


def backbone(model: Model, batch: int, context: int) -> Cost:
    """The model's own step for B = `batch` tokens that each attend to C = `context`, in bfloat16.

    Bytes: 2 x (matrices + B L 2 G d (C + 1)): weights once, the cache read, its new entry written.
    Operations: 2 B x matrices + 4 B C L H d. Left out: activations, norms, logits and sampling, which makes a
    probe's share look larger than it is.
    """
    cache = batch * model.layers * 2 * model.kv_heads * model.head_size * (context + 1)
    attention = 4 * batch * context * model.layers * model.heads * model.head_size
    return Cost(_BF16 * (model.matrices() + cache), 2 * batch * model.matrices() + attention)


def _decisions(model: Model, batch: int, at_boundary: float) -> Cost:
    """Deciding for every row, recording those at a boundary, and writing the V float32 logits of those that a
    hand-off forces. Its few operations are not counted."""
    return Cost(batch * (_DECIDE + _FORCED * _F32 * model.vocabulary) + at_boundary * _RECORD, 0)


def per_cue(
    model: Model, batch: int, share: float, *, taps: int = 3, widths: tuple[int, int] = (256, 64)
) -> Cost:
    """`boundary_score` and `decide_and_force` for B rows of which `share` are at a boundary: n = share x B.

    Weights W = K D N1 + N1 N2 + N2 are read if any row is at a boundary: with probability 1 - (1 - share)^B.
    Each such row moves 2 K D bytes of hidden states and its partial sums, 4 S N1, twice. Operations: 2 n W.
    """
    first, second = widths
    inputs = taps * model.hidden
    weights = inputs * first + first * second + second
    splits = taps * first_layer(model.hidden, taps, first, single=False).splits_per_tap
    at_boundary = share * batch
    read = _BF16 * weights * (1 - (1 - share) ** batch)
    moved = at_boundary * (_BF16 * inputs + 2 * _F32 * splits * first + _F32)
    scoring = Cost(batch * _FIND + read + moved, 2 * at_boundary * weights)
    return scoring + _decisions(model, batch, at_boundary)


def per_token(model: Model, batch: int, *, projection: int = 64, states: int = 64) -> Cost:
    """`stream_score` and `decide_and_force` for B rows that all count; every row is at a boundary.

    Weights P D + 2 H P in bfloat16 and H + P in float32. A row moves 2 D bytes of hidden states; in float32
    its S partial sums of P, twice; the projection three times (written, read for the gates, read for the
    score); 2 H gates twice; the state twice. Operations: 2 B (P D + 2 H P + H + P).
    """
    tiles = project_tiles(model.hidden, projection, weight_bytes=_BF16, tensor_cores=True)
    splits = parts(model.hidden, tiles.block_k * tiles.steps)
    matrices, vector = projection * model.hidden + 2 * states * projection, states + projection
    row = _F32 * (2 * splits * projection + 3 * projection + 2 * 2 * states + 2 * states + 1)
    moved = batch * (_FIND + _BF16 * model.hidden + row)
    scoring = Cost(_BF16 * matrices + _F32 * vector + moved, 2 * batch * (matrices + vector))
    return scoring + _decisions(model, batch, batch)


def logits_copy(model: Model, batch: int) -> Cost:
    """The float32 copy of the logits that an engine makes for active requests: B V (2 + 4) bytes."""
    return Cost(batch * model.vocabulary * (_BF16 + _F32), 0)


class Row(NamedTuple):
    """One line of the table. `of_backbone`: the part's least time as a share of the backbone's."""

    model: str
    batch: int
    part: str
    bytes: float
    flops: float
    microseconds: float
    of_backbone: float


def rows(
    *,
    context: int = 2048,
    batches: Sequence[int] = (1, 64, 256),
    shares: Sequence[float] = (0.03, 0.25, 1.0),
    device: Device = H200,
) -> list[Row]:
    """The table: for each model and batch the backbone, then what stands beside it."""
    found = []
    for model in MODELS:
        for batch in batches:
            own = backbone(model, batch, context)
            costs = {"backbone": own}
            costs |= {f"per cue, {share:.0%} at a boundary": per_cue(model, batch, share) for share in shares}
            costs["per token"] = per_token(model, batch)
            costs["float32 logits copy"] = logits_copy(model, batch)
            for part, cost in costs.items():
                seconds = device.seconds(cost)
                of_own = seconds / device.seconds(own)
                found.append(Row(model.name, batch, part, cost.bytes, cost.flops, 1e6 * seconds, of_own))
    return found


def table(found: Iterable[Row]) -> str:
    """A Markdown table of rows."""
    lines = ["| model | batch | part | MB | GFLOP | us | of backbone |", "|---|---:|---|---:|---:|---:|---:|"]
    for row in found:
        moved = f"{row.bytes / 1e6:,.3f} | {row.flops / 1e9:,.3f}"
        time = f"{row.microseconds:,.2f} | {row.of_backbone:.3%}"
        lines.append(f"| {row.model} | {row.batch} | {row.part} | {moved} | {time} |")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m desist.kernels.cost", description=__doc__)
    parser.add_argument("--context", type=int, default=2048, help="tokens that each row attends to")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    asked = parser.parse_args(argv)
    found = rows(context=asked.context)
    if asked.json:
        about = {"device": H200._asdict(), "context": asked.context}
        sys.stdout.write(json.dumps({**about, "rows": [row._asdict() for row in found]}) + "\n")
    else:
        sys.stdout.write(
            f"Bytes, operations and least time of one decode step on one {H200.name}, as though it held the "
            f"model; bfloat16, {asked.context:,} tokens of context a row. Launches are not in it.\n\n"
            f"{table(found)}\n"
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
