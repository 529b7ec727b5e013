"""Matrix products of tiles that keep float32's accuracy, on tensor cores where the types allow.

Knows tiles only; no rows and no heads.
"""
# mypy: disable-error-code="import-untyped, no-untyped-def, untyped-decorator"
# Triton ships no type information, and its functions' arguments have no Python types.

from __future__ import annotations

import triton
import triton.language as tl

from desist.kernels.choice import interpreting

_INTERPRETED = tl.constexpr(interpreting())


@triton.jit
def dot(a, b, total):
    """`total` [M, N] float32 + `a` [M, K] @ `b` [K, N]; in float32, not tf32, unless both are of one
    16-bit type."""
    if _INTERPRETED:
        # The interpreter would multiply the bits of a bfloat16 as integers, and it asks the machine's BLAS,
        # which rounds by where in the tile a row stands. Tensor cores do neither; nor does float64 here.
        product = tl.dot(a.to(tl.float64), b.to(tl.float64), out_dtype=tl.float64)
        return total + product.to(tl.float32)
    if a.dtype != b.dtype:
        a = a.to(tl.float32)
        b = b.to(tl.float32)
    return tl.dot(a, b, total, input_precision="ieee")


@triton.jit
def dot_float32(a, b, total):
    """`total` [M, N] + `a` [M, K] float32 @ `b` [K, N] of any type, with every bit of `a`.

    A float32 is the sum of three bfloat16 of 8 significant bits each, and their products with a bfloat16 are
    exact in float32: three passes over the tensor cores, where plain float32 would have none. An infinite `a`
    becomes NaN on the way, which scores nothing.
    """
    if b.dtype == tl.bfloat16:
        for _ in tl.static_range(3):
            part = a.to(tl.bfloat16)
            total = dot(part, b, total)
            a = a - part.to(tl.float32)
        return total
    else:
        return dot(a, b, total)
