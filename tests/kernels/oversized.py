"""Kernels that must not pass the compile check, and one that must; prints what the check says, as JSON.

A program of its own, because it must run without Triton's interpreter.
"""
# mypy: disable-error-code="import-untyped, no-untyped-def, untyped-decorator"
# Triton ships no type information, and its functions' arguments have no Python types.

from __future__ import annotations

import json
import sys

import triton
import triton.language as tl

from desist.kernels.compiling import check
from desist.kernels.resources import TARGETS
from desist.kernels.shipped import Shipped


@triton.jit
def tile(a, b, out, width, TILE: tl.constexpr, BLOCK_K: tl.constexpr):
    """`out` [TILE, TILE] = `a` [TILE, K] @ `b` [K, TILE], with K = `width`."""
    row = tl.arange(0, TILE)
    k = tl.arange(0, BLOCK_K)
    total = tl.zeros([TILE, TILE], tl.float32)
    for start in range(0, width, BLOCK_K):
        x = tl.load(a + row[:, None] * width + start + k[None, :])
        y = tl.load(b + (start + k[:, None]) * TILE + row[None, :])
        total = tl.dot(x, y, total)
    tl.store(out + row[:, None] * TILE + row[None, :], total)


def configuration(name: str, size: int, block_k: int, stages: int = 2) -> Shipped:
    signature = {"a": "*bf16", "b": "*bf16", "out": "*fp32", "width": "i32"}
    constexprs = {"TILE": size, "BLOCK_K": block_k}
    return Shipped(name, "tests.kernels.oversized", "tile", signature, constexprs, 4, stages)


CONFIGURATIONS = [
    configuration("fits", 64, 32),
    # 256 x 256 sums in float32 are 512 registers for each of 128 threads, which have 255. And the operands,
    # 256 x 128 of two bytes each, wait in four stages: 512 KiB of shared memory; no target has more than 227.
    configuration("oversized", 256, 128, stages=5),
    configuration("no power of two", 48, 32),
]


if __name__ == "__main__":
    for each in CONFIGURATIONS:
        for target in TARGETS:
            found = check(each, target)
            sys.stdout.write(json.dumps([found.name, found.target, found.faults]) + "\n")
