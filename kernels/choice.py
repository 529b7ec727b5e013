"""Which implementation runs: chosen once for a kind of device, logged once, overridable by argument.

Triton runs on GPUs, and on CPU tensors under its interpreter (TRITON_INTERPRET=1, for correctness only:
"auto" never takes that one). Importing this needs neither Triton nor a GPU.
"""

from __future__ import annotations

import importlib.util
import logging
import os
from functools import cache
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import torch

__all__ = ["Impl", "chosen", "interpreting", "triton_found"]

logger = logging.getLogger(__name__)

Impl = Literal["auto", "torch", "triton"]
Chosen = Literal["torch", "triton"]


def interpreting() -> bool:
    """Whether Triton's interpreter is asked for; it must be, before Triton is first imported."""
    return os.environ.get("TRITON_INTERPRET", "0").lower() in ("1", "true", "on", "yes")


@cache
def triton_found() -> bool:
    """Whether Triton is installed."""
    return importlib.util.find_spec("triton") is not None


def chosen(impl: Impl, device: torch.device) -> Chosen:
    """What runs for tensors on `device`.

    Raises `ValueError` for an unknown `impl`, `RuntimeError` where "triton" is asked for and cannot run.
    """
    if impl == "torch":
        return "torch"
    if impl == "auto":
        return _automatic(device.type)
    if impl != "triton":
        raise ValueError(f"impl={impl!r} is unknown. Use 'auto', 'torch' or 'triton'.")
    if not triton_found():
        raise RuntimeError("impl='triton', but Triton is not installed. Install it, or use impl='torch'.")
    if device.type != "cuda" and not interpreting():
        raise RuntimeError(
            f"impl='triton', but the tensors are on {device}. Move them to a GPU, use impl='torch', or set "
            "TRITON_INTERPRET=1 before starting Python to interpret the kernels (slow, for tests)."
        )
    return "triton"


@cache
def _automatic(kind: str) -> Chosen:
    taken: Chosen = "triton" if kind == "cuda" and triton_found() and not interpreting() else "torch"
    logger.info("desist: probe kernels on %s run in %s", kind, taken)
    return taken
