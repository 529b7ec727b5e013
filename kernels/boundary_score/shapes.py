"""Block sizes of the three kernels, and the configurations that the compile check must accept.

Chosen by arithmetic, which stands beside each number: nothing was timed on a GPU. No choice depends on how
many rows are scored, because the order of the sums depends on it.
"""

from __future__ import annotations

from dataclasses import dataclass

from desist.kernels.lanes import LANES, Lanes, lanes_for, power_of_two
from desist.kernels.shipped import Shipped

__all__ = ["Finish", "FirstLayer", "find", "finish", "first_layer", "shipped"]

# The smallest tile that matrix units take; rows at a boundary are few (3 % of 256 are 8).
_ROW_TILE = 16


@dataclass(frozen=True, slots=True)
class FirstLayer:
    """A program takes `block_n` outputs by one split: `chunks` blocks of `block_k` inputs of one tap."""

    block_n: int
    block_k: int
    chunks: int
    splits_per_tap: int
    block_m: int = _ROW_TILE
    num_warps: int = 4
    num_stages: int = 2


@dataclass(frozen=True, slots=True)
class Finish:
    """A program takes one row: `block_s` splits by `block_1` outputs of layer 1, by `block_2` of layer 2."""

    block_1: int
    block_2: int
    block_s: int = 16
    num_warps: int = 8
    num_stages: int = 1


def find(rows: int) -> Lanes:
    """For a step of `rows` rows, up to MAX_ROWS."""
    # 8 warps hold 4 of 1,024 lanes a thread, a dozen numbers each: about 50 registers, and addresses.
    return lanes_for(rows, most_warps=8)


def first_layer(hidden: int, taps: int, width: int, *, single: bool) -> FirstLayer:
    """For `width` outputs over `taps` taps of `hidden` inputs. `single`: multiplied in float32.

    With 12,288 inputs and 256 outputs in bfloat16: 48 splits x 8 tiles = 384 programs of 16 KiB of weights,
    about three for each multiprocessor of a large GPU, all under way at once.
    """
    block_n = 32 if width > 16 else 16
    # The partial sums of one row take splits * width * 4 bytes, written and read again: 64 KiB at most, and
    # no more than 128 splits, which the last kernel adds up in one program.
    most = max(1, min(128, 2**14 // width) // taps)
    split = 128
    while -(-hidden // split) > most:
        split *= 2
    # 16-bit, in 4 warps, two by two: a [32, 256] tile of weights is 64 registers a thread and a [256, 16]
    # tile of rows 32, as two warps hold the same. A split that is longer goes in halves of that, because two
    # steps are under way at once. Float32 has no matrix units to go to: a thread may hold a whole line of
    # either tile, so the tiles are short and the threads many.
    longest = 32 if single else 256 if split <= 256 else 128
    block_k = min(longest, split, max(16, power_of_two(hidden)))
    chunks = -(-min(split, hidden) // block_k)
    splits = -(-hidden // (block_k * chunks))
    return FirstLayer(block_n, block_k, chunks, splits, num_warps=8 if single else 4)


def finish(padded1: int, width2: int) -> Finish:
    """For `padded1` outputs of layer 1, a multiple of 16, and `width2` of layer 2 (1 if there is none)."""
    block_2 = power_of_two(width2)
    # The tile of layer 2's weights: at most 8,192 float32, 32 registers a thread in 8 warps. The tile of
    # partial sums: 16 by at most 128, 8 registers.
    return Finish(min(128, power_of_two(padded1), 2**13 // block_2), block_2)


def shipped() -> list[Shipped]:
    """Every kind of configuration: all hidden sizes and types, and the narrowest and widest of the rest."""
    found = [_shipped_find(rows, window) for rows in LANES for window in (2, 6)]
    for dtype in ("bf16", "fp16", "fp32"):
        found += [
            _shipped_first(hidden, taps, width, dtype, dtype)
            for hidden in (512, 1536, 4096, 5120, 16384)
            for taps, width in ((3, 256),)
        ]
        found += [_shipped_first(4096, 1, 1, dtype, dtype), _shipped_first(16384, 8, 1024, dtype, dtype)]
    found += [_shipped_first(4096, 3, 256, "bf16", "fp32"), _shipped_first(4096, 3, 256, "fp32", "bf16")]
    widths = ((1, 16, 1), (2, 256, 1), (3, 256, 64), (3, 1024, 256))
    found += [_shipped_finish(*kind, 48) for kind in widths]
    return found


_MODULE = "desist.kernels.boundary_score"


def _shipped_find(rows: int, window: int) -> Shipped:
    shape = find(rows)
    numbers = dict.fromkeys(("n_rows", "vocabulary", "classes", "every_n"), "i32")
    tensors = ("slot", "position", "token", "local", "tag", "automaton", "count", "periods", "zone")
    return Shipped(
        f"boundary_score.find rows<={rows} window={window}",
        f"{_MODULE}.triton_find",
        "_find",
        {
            **dict.fromkeys((f"{name}_ptr" for name in tensors), "*i32"),
            **dict.fromkeys(("token_class_ptr", "next_ptr"), "*i16"),
            "bits_ptr": "*u8",
            "flags_out": "*u8",
            **dict.fromkeys(("count_out", "zone_out", "compact_out", "n_out"), "*i32"),
            "score_out": "*fp32",
            **numbers,
        },
        {"WINDOW": window, "WITH_SCORE": True, "BLOCK": shape.block},
        shape.num_warps,
        shape.num_stages,
    )


def _shipped_first(hidden: int, taps: int, width: int, rows: str, weights: str) -> Shipped:
    single = rows != weights or rows == "fp32"
    shape = first_layer(hidden, taps, width, single=single)
    integers = (*(f"row{tap}" for tap in range(8)), "n_places", "hidden", "width", "sixteens")
    return Shipped(
        f"boundary_score.first_layer {taps}x{hidden} to {width}, {rows} by {weights}",
        f"{_MODULE}.triton_mlp",
        "_first_layer",
        {
            **{f"x{tap}": f"*{rows}" for tap in range(8)},
            **dict.fromkeys(("at_ptr", "chosen_ptr", "n_ptr"), "*i32"),
            "weight_ptr": f"*{weights}",
            "partial_ptr": "*fp32",
            **dict.fromkeys(integers, "i32"),
        },
        {
            **{f"column{tap}": 1 for tap in range(8)},
            "TAPS": taps,
            "SPLITS_PER_TAP": shape.splits_per_tap,
            "CHUNKS": shape.chunks,
            "SINGLE": single,
            "BLOCK_M": shape.block_m,
            "BLOCK_N": shape.block_n,
            "BLOCK_K": shape.block_k,
        },
        shape.num_warps,
        shape.num_stages,
    )


def _shipped_finish(layers: int, padded1: int, width2: int, splits: int) -> Shipped:
    shape = finish(padded1, width2)
    floats = ("partial", "bias1", "weight2", "bias2", "weight3", "bias3", "score")
    return Shipped(
        f"boundary_score.finish {layers} layers {padded1}-{width2}",
        f"{_MODULE}.triton_mlp",
        "_finish",
        {
            **dict.fromkeys((f"{name}_ptr" for name in floats), "*fp32"),
            **dict.fromkeys(("chosen_ptr", "n_ptr"), "*i32"),
            **dict.fromkeys(("n_places", "sixteens", "width2"), "i32"),
        },
        {
            "LAYERS": layers,
            "SPLITS": splits,
            "SCATTER": True,
            "BLOCK_S": shape.block_s,
            "BLOCK_1": shape.block_1,
            "BLOCK_2": shape.block_2,
        },
        shape.num_warps,
        shape.num_stages,
    )
