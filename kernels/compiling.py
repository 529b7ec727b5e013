"""Compiles shipped configurations for GPUs that need not be there, and says which may not be shipped.

Knows configurations and targets; `resources` reads what comes out. A configuration passes if it compiles,
spills nothing and fits into shared memory. `python -m desist.kernels.compiling` prints the table that
docs/kernels.md holds.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable
from importlib import import_module
from typing import Any, NamedTuple

from desist.kernels.choice import interpreting
from desist.kernels.resources import TARGETS, Taken, Target, faults, taken
from desist.kernels.shipped import Shipped, all_shipped

__all__ = ["Checked", "check", "table"]


class Checked(NamedTuple):
    """One configuration on one target. `faults`: why it may not be shipped. `taken`: None if that is an
    error of the compiler."""

    name: str
    kernel: str
    target: str
    taken: Taken | None
    faults: tuple[str, ...]


def check(shipped: Shipped, target: Target, *, aligned: bool = True) -> Checked:
    """Compile `shipped` for `target`.

    `aligned`: sizes and strides are multiples of 16, as they mostly are. Then loads are wide, go through
    shared memory ahead of time, and need few registers; other sizes need more of them. Pointers are aligned
    either way, as torch's are. Raises `RuntimeError` under the interpreter, which compiles nothing.
    """
    if interpreting():
        raise RuntimeError(
            "TRITON_INTERPRET is set, so nothing would be compiled. Unset it before Python starts."
        )
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    kernel = getattr(import_module(shipped.module), shipped.kernel)
    source = ASTSource(kernel, *_specialised(kernel, shipped, aligned=aligned))
    options = {
        "num_warps": shipped.num_warps,
        "num_stages": shipped.num_stages,
        "enable_fp_fusion": shipped.fp_fusion,
    }
    try:
        built = triton.compile(source, GPUTarget(target.backend, target.arch, target.warp), options)
    except Exception as error:  # of whatever kind: a compiler's refusal is a finding, and is told as one
        told = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        return Checked(shipped.name, shipped.title, target.name, None, (told,))
    found = taken(built.asm, int(built.metadata.shared))
    return Checked(shipped.name, shipped.title, target.name, found, faults(found, target))


def _specialised(
    kernel: Any, shipped: Shipped, *, aligned: bool
) -> tuple[dict[str, str], dict[str, Any], dict[tuple[int], list[list[Any]]]]:
    """Signature, constants and alignments of the arguments, as a launch would make them out."""
    wrong = {*shipped.signature, *shipped.constexprs}.symmetric_difference(kernel.arg_names)
    if wrong:
        raise ValueError(
            f"{shipped.name}: {', '.join(sorted(wrong))} must be an argument of {shipped.kernel}, and in the "
            "signature or the constants."
        )
    signature: dict[str, str] = {}
    alignments: dict[tuple[int], list[list[Any]]] = {}
    for place, parameter in enumerate(kernel.params):
        if parameter.name in shipped.constexprs:
            signature[parameter.name] = "constexpr"
            continue
        kind = signature[parameter.name] = shipped.signature[parameter.name]
        special = not (parameter.do_not_specialize or parameter.do_not_specialize_on_alignment)
        if special and (kind.startswith("*") or (aligned and kind.startswith("i"))):
            alignments[(place,)] = [["tt.divisibility", 16]]
    return signature, shipped.constexprs, alignments


def table(found: Iterable[Checked]) -> str:
    """A Markdown table, one row a kernel: the least and most that its configurations take on each target."""
    rows: dict[str, dict[str, list[Checked]]] = {}
    for each in found:
        rows.setdefault(each.kernel, {}).setdefault(each.target, []).append(each)
    targets = [target.name for target in TARGETS if any(target.name in row for row in rows.values())]
    lines = [f"| kernel | configurations | {' | '.join(targets)} |", "|---" * (len(targets) + 2) + "|"]
    for kernel, row in rows.items():
        count = max(len(each) for each in row.values())
        cells = " | ".join(_cell(row.get(target, [])) for target in targets)
        lines.append(f"| `{kernel}` | {count} | {cells} |")
    return "\n".join(lines)


def _cell(found: list[Checked]) -> str:
    faulty = sum(bool(each.faults) for each in found)
    if faulty:
        return f"**{faulty} of {len(found)} may not be shipped**"
    registers = sorted(each.taken.registers for each in found if each.taken)
    shared = max((each.taken.shared for each in found if each.taken), default=0) / 1024
    return f"{registers[0]} to {registers[-1]}, {shared:.1f} KiB" if registers else "not compiled"


def main() -> int:
    """Check what is asked for. Exit code 1 if something may not be shipped."""
    parser = argparse.ArgumentParser(description="Compile every shipped kernel for every target.")
    parser.add_argument("--json", action="store_true", help="a JSON object for each configuration and target")
    parser.add_argument("--target", choices=[target.name for target in TARGETS], help="only this one")
    parser.add_argument("--only", default="", help="only configurations whose name holds this")
    parser.add_argument(
        "--unaligned", action="store_true", help="sizes and strides that are multiples of nothing"
    )
    asked = parser.parse_args()
    found = []
    for shipped in all_shipped():
        for target in TARGETS:
            if asked.only not in shipped.name or asked.target not in (None, target.name):
                continue
            found.append(check(shipped, target, aligned=not asked.unaligned))
            if found[-1].faults:
                sys.stderr.write(f"{shipped.name}, {target.name}: {'; '.join(found[-1].faults)}\n")
    if asked.json:
        sys.stdout.writelines(json.dumps(_plain(each)) + "\n" for each in found)
    else:
        sys.stdout.write(table(found) + "\n")
    return int(any(each.faults for each in found))


def _plain(checked: Checked) -> dict[str, Any]:
    return {**checked._asdict(), "taken": checked.taken and checked.taken._asdict()}


if __name__ == "__main__":
    raise SystemExit(main())
