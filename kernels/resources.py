"""What a compiled kernel takes of a GPU, read from the compiler's own words; no GPU is asked.

Knows what NVIDIA's and AMD's tools tell, and the limits of each target. No kernels, and nothing of speed.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

__all__ = ["TARGETS", "Taken", "Target", "faults", "taken"]


class Target(NamedTuple):
    """A kind of GPU, as Triton names it. `shared`: bytes of shared memory (AMD: LDS) for one block."""

    name: str
    backend: str
    arch: int | str
    warp: int
    shared: int


#: Shared memory of a block: "Technical Specifications per Compute Capability" of the CUDA C++ Programming
#: Guide (8.0: 163 KiB, 9.0 and 10.0: 227 KiB); 64 KiB for a work-group of AMD's CDNA 3.
TARGETS = (
    Target("sm_80", "cuda", 80, 32, 163 * 1024),
    Target("sm_90", "cuda", 90, 32, 227 * 1024),
    Target("sm_100", "cuda", 100, 32, 227 * 1024),
    Target("gfx942", "hip", "gfx942", 64, 64 * 1024),
)


class Taken(NamedTuple):
    """`registers` of a thread (AMD: vector registers), `spilled` (0 = none), `shared` bytes of a block."""

    registers: int
    spilled: int
    shared: int


def taken(asm: dict[str, Any], shared: int) -> Taken:
    """What the binary in `asm` takes; `shared` is in Triton's metadata."""
    return Taken(*(_nvidia(asm["cubin"]) if "cubin" in asm else _amd(asm["amdgcn"])), shared)


def faults(found: Taken, target: Target) -> tuple[str, ...]:
    """Why this may not be shipped for `target`; empty if it may."""
    words = []
    if found.spilled:
        words.append(f"{found.registers} registers are not enough: it spills ({found.spilled})")
    if found.shared > target.shared:
        words.append(f"{found.shared} bytes of shared memory, {target.shared} are there")
    return tuple(words)


def _nvidia(cubin: bytes) -> tuple[int, int]:
    """Registers, and bytes of stack: registers that do not fit, and arrays indexed at run time, go there."""
    import triton.backends.nvidia

    tool = Path(triton.backends.nvidia.__path__[0]) / "bin" / "cuobjdump"
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "kernel.cubin"
        file.write_bytes(cubin)
        command = [str(tool), "--dump-resource-usage", str(file)]
        told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return _number("REG:", told), _number("STACK:", told) + _number("LOCAL:", told)


def _amd(assembly: str) -> tuple[int, int]:
    """Vector registers, and bytes of private memory or else spilled registers (scalars into vectors too)."""
    spilled = _number(".vgpr_spill_count:", assembly) + _number(".sgpr_spill_count:", assembly)
    return _number(".vgpr_count:", assembly), _number(".private_segment_fixed_size:", assembly) or spilled


def _number(name: str, text: str) -> int:
    found = re.search(re.escape(name) + r"\s*(\d+)", text)
    if found is None:
        raise RuntimeError(
            f"the compiler's words have no {name!r}. Another Triton than 3.9 may tell it otherwise."
        )
    return int(found.group(1))
