"""Which tiles the kernels of `stream_score` run with, and the set of them that is shipped.

Knows sizes and types; needs no Triton. Every number here was chosen by arithmetic: nothing was timed on a
GPU yet. None of them depends on how many rows a step has, so that a row's sums are the same in any batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from desist.kernels.lanes import power_of_two
from desist.kernels.shipped import Shipped

__all__ = [
    "NUM_STAGES",
    "NUM_WARPS",
    "ROW_TILE",
    "GateTiles",
    "ProjectTiles",
    "gate_tiles",
    "padded",
    "parts",
    "project_tiles",
    "reduce_block",
    "row_groups",
    "shipped",
]

#: Rows of one tile: the smallest that tensor cores take, since most steps have few rows.
ROW_TILE = 16
#: One warp for each processor partition of a multiprocessor; a tile is too small for more.
NUM_WARPS = 4
#: The next tile is on its way while one is worked on. A third would not fit gfx942's 64 KiB of shared memory.
NUM_STAGES = 2
#: Programs that keep a large GPU busy: an H100 or H200 has 132 multiprocessors, an MI300X 304.
_PROGRAMS = 128
#: Bytes of the weights that one program reads again for every row tile: they shall stay in the first-level
#: cache, of which a multiprocessor of an A100 or newer has 192 KiB or more, shared with a second program.
_SHARE = 64 * 1024
#: Elements a program of an elementwise kernel works on: 8 for each thread of 4 warps.
_LANES = 1024


@dataclass(frozen=True, slots=True)
class ProjectTiles:
    """A program multiplies `steps` chunks of `block_k` columns of D by `block_n` rows of the weights."""

    block_n: int
    block_k: int
    steps: int

    @property
    def held(self) -> bool:
        """Whether a program's tile of the weights stays in registers or shared memory."""
        return self.steps == 1

    def splits(self, width: int) -> int:
        """Partial sums that `width` columns make."""
        return parts(width, self.block_k * self.steps)


@dataclass(frozen=True, slots=True)
class GateTiles:
    """A program makes `block_h` gates and candidates, reading the projection `block_p` columns at a time."""

    block_h: int
    block_p: int


def parts(size: int, block: int) -> int:
    """Blocks that cover `size`."""
    return -(-size // block)


def padded(size: int, *, least: int = 16) -> int:
    """`size` rounded up to a power of two, at least `least`: what a tensor core's tile needs."""
    return max(least, power_of_two(size))


def project_tiles(width: int, projection: int, *, weight_bytes: int, tensor_cores: bool) -> ProjectTiles:
    """Tiles for [R, D] x [D, P].

    On tensor cores a tile of weights that is held is at most 64 x 256 of two bytes: 32 KiB, or 64 registers
    of each of 128 threads, which leaves room for the 16-row tile and its sums. Chunks that pass by are 64
    columns, because two of them are under way at once, each with its elements' addresses and masks. Without
    tensor cores (float32, or two types) a thread holds whole columns of its operands, so 32 is what fits.
    """
    block_n = min(64 if projection > 256 and tensor_cores else 32, padded(projection))
    tiles = parts(projection, block_n)
    held = tiles * parts(width, 256) < 2 * _PROGRAMS
    if not tensor_cores:
        block_k = 32
    elif not held:
        block_k = 64
    else:
        block_k = 256 if tiles * parts(width, 256) >= _PROGRAMS else 128
    enough = tiles * parts(width, block_k) // _PROGRAMS
    cached = _SHARE // (block_n * block_k * weight_bytes)
    return ProjectTiles(block_n, block_k, max(1, min(enough, cached)))


def row_groups(rows: int, programs: int) -> int:
    """Into how many groups the row tiles are dealt, where the weights alone make too few `programs`."""
    return max(1, min(_PROGRAMS // programs, parts(rows, ROW_TILE)))


def gate_tiles(projection: int, *, tensor_cores: bool) -> GateTiles:
    """Tiles for [R, P] x [P, H], twice. The registers that a chunk takes bound it, as above."""
    return GateTiles(32, 64 if tensor_cores and projection > 32 else 32)


def reduce_block(projection: int) -> int:
    """Columns of one 16-row tile of the reduction."""
    return min(_LANES // ROW_TILE, padded(projection))


_SIZES = tuple(product((512, 1536, 4096, 5120, 16384), (1, 16, 64, 256, 512, 1024)))
#: Types of the hidden states and of the weights. The last: a head kept in float32 beside a bfloat16 model.
_TYPES = (("bf16", "bf16"), ("fp16", "fp16"), ("fp32", "fp32"), ("bf16", "fp32"))


def shipped() -> list[Shipped]:
    """Every configuration that these sizes and types lead to, once, named by the first that leads to it."""
    found: dict[str, Shipped] = {}
    for one in _all():
        found.setdefault(repr(one[1:]), one)
    return list(found.values())


def _all() -> Iterator[Shipped]:
    for (x, weight), (width, projection) in product(_TYPES, _SIZES):
        yield _project(x, weight, width, projection)
    for x, weight in _TYPES:
        yield _project(x, weight, 4096, 512, columns_apart=True)
    for (_, weight), (_, size) in product(_TYPES, _SIZES):
        yield _gates(weight, size)
    for _, size in _SIZES:
        yield _reduce(size)
        yield _walk(size)


def _shipped(name: str, kernel: str, arguments: str, constexprs: dict[str, int]) -> Shipped:
    """`arguments`: words such as `x:*bf16`, in the kernel's order, without its compile-time constants."""
    module = "triton_project" if kernel in ("project", "reduce") else "triton_walk"
    signature = dict(word.split(":") for word in arguments.split())
    return Shipped(
        f"stream_score.{kernel} {name}",
        f"{__package__}.{module}",
        kernel,
        signature,
        constexprs,
        NUM_WARPS,
        NUM_STAGES,
    )


def _project(x: str, weight: str, width: int, projection: int, *, columns_apart: bool = False) -> Shipped:
    tiles = project_tiles(
        width, projection, weight_bytes=4 if weight == "fp32" else 2, tensor_cores=x == weight != "fp32"
    )
    constexprs = {
        "ROW_TILE": ROW_TILE,
        "BLOCK_N": tiles.block_n,
        "BLOCK_K": tiles.block_k,
        "HELD": tiles.held,
    }
    # A stride of 1 is a constant of the compiled kernel.
    return _shipped(
        f"{x} x {weight}, D {width}, P {projection}" + (", columns apart" if columns_apart else ""),
        "project",
        f"x:*{x} at:*i32 slot:*i32 flags:*u8 weight:*{weight} partial:*fp32 "
        "rows:i32 width:i32 projection:i32 steps:i32 x_row:i32" + (" x_column:i32" if columns_apart else ""),
        constexprs if columns_apart else {"x_column": 1, **constexprs},
    )


def _reduce(projection: int) -> Shipped:
    return _shipped(
        f"P {projection}",
        "reduce",
        "partial:*fp32 slot:*i32 flags:*u8 bias:*fp32 projected:*fp32 rows:i32 splits:i32 projection:i32",
        {"ROW_TILE": ROW_TILE, "BLOCK_N": reduce_block(projection)},
    )


def _gates(weight: str, size: int) -> Shipped:
    tiles = gate_tiles(size, tensor_cores=weight == "bf16")
    return _shipped(
        f"{weight}, P and H {size}",
        "gates",
        f"projected:*fp32 slot:*i32 flags:*u8 weight:*{weight} bias:*fp32 out:*fp32 "
        "rows:i32 states:i32 projection:i32",
        {"ROW_TILE": ROW_TILE, "BLOCK_H": tiles.block_h, "BLOCK_P": tiles.block_p},
    )


def _walk(size: int) -> Shipped:
    return _shipped(
        f"P and H {size}",
        "walk",
        "slot:*i32 position:*i32 local:*i32 flags:*u8 gated:*fp32 projected:*fp32 weight:*fp32 bias:*fp32 "
        "tags:*i32 kept:*fp32 score:*fp32 rows:i32 window:i32 states:i32 projection:i32",
        {"BLOCK_H": padded(size), "BLOCK_P": padded(size)},
    )
