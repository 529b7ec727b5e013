"""What is shipped: every kernel configuration that the ahead-of-time compile check must accept.

Knows that each op lists its own, in its `shapes`. Needs no Triton.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, NamedTuple

__all__ = ["Shipped", "all_shipped"]

_OPS = ("boundary_score", "decide_and_force", "stream_score")


class Shipped(NamedTuple):
    """One configuration. `module` and `kernel` name a `@triton.jit` function, `signature` the types of its
    arguments.

    `fp_fusion`: whether the launch lets a * b + c round once; a kernel that must equal Python does not.
    """

    name: str
    module: str
    kernel: str
    signature: dict[str, str]
    constexprs: dict[str, Any]
    num_warps: int
    num_stages: int
    fp_fusion: bool = True

    @property
    def title(self) -> str:
        """The kernel with its op: what tables call it."""
        return f"{self.module.split('.')[-2]}.{self.kernel.lstrip('_')}"


def all_shipped() -> list[Shipped]:
    """The configurations of all ops, in order. Raises `ValueError` where two share a name."""
    found = [each for op in _OPS for each in import_module(f"desist.kernels.{op}.shapes").shipped()]
    names = [each.name for each in found]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"configurations share a name: {', '.join(twice)}. Name each one apart.")
    return found
