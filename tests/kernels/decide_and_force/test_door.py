"""The door: imports without Triton, refusals with a remedy, settings, states, and what is shipped."""

from __future__ import annotations

import math
import os
import subprocess
import sys

import pytest
import torch

from desist.kernels import decide_and_force as op
from desist.kernels.decide_and_force import DecideState, Entry, SlotControl, SlotSettings, shapes
from desist.kernels.decide_and_force.settings import EMA, LAM, Line
from tests.kernels.decide_and_force.cases import Step, Token, kept, step_of


def test_importing_needs_no_triton() -> None:
    code = (
        "import sys; sys.modules['triton'] = None\n"
        "import torch, desist.kernels.decide_and_force as op\n"
        "from desist.kernels.rows import Rows\n"
        "from desist.kernels.decide_and_force import shapes\n"
        "shapes.shipped()\n"
        "row = torch.zeros(1, dtype=torch.int32)\n"
        "state = op.DecideState(1, 2)\n"
        "op.decide(Rows(row, row, row, row), row.to(torch.uint8), row, row, row.float(),\n"
        "    op.SlotSettings(1), state, op.Ring())\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_refusals() -> None:
    world = kept(1, 2)
    step = step_of(*((-1, 5, [Token()]) for _ in range(op.MAX_ROWS + 1)))
    with pytest.raises(ValueError, match="at most 1024"):
        op.decide(*step, *world)
    rows, flags, count, zone, score = step_of((0, 5, [Token()]))
    with pytest.raises(ValueError, match=r"scores are .*torch\.float64\. Give torch\.uint8"):
        op.decide(*Step(rows, flags, count, zone, score.double()), *world)
    with pytest.raises(ValueError, match="hold nothing"):
        DecideState(1, 1)
    with pytest.raises(ValueError, match="hold nothing"):
        SlotSettings(0)
    with pytest.raises(ValueError, match="0 or more"):
        world.state.enter(0, -1)
    with pytest.raises(ValueError, match="handoff has 6 ids, a slot holds 5"):
        world.settings.enter(0, SlotControl(handoff=range(6)))


def test_a_slot_takes_its_rules_and_forgets_what_the_last_request_was_asked() -> None:
    settings = SlotSettings(3, handoff=4)
    settings.enter(1, SlotControl("shadow", 0.7, 0.3, 2, 5, 100, 110, (4, 5), (6,)), hold=True, known=8)
    settings.ask(1, 12)
    assert settings.words[1].tolist()[:6] == [2, 5, 100, 110, 1, 2]
    assert settings.doubles[1, [LAM, EMA]].tolist() == [0.7, 0.3]
    assert settings.words[1, Line.ASKED_AT :].tolist()[:3] == [12, 1, 8]
    assert settings.handoff[1].tolist() == [4, 5, -1, -1]
    assert settings.locked[1].tolist() == [6, -1, -1, -1]
    settings.change(1, SlotControl("off"))
    assert settings.words[1, Line.MODE] == 0
    assert settings.doubles[1, LAM] == math.inf
    assert settings.words[1, Line.ASKED_AT :].tolist()[:3] == [12, 1, 8]
    settings.enter(1, SlotControl())
    assert settings.words[1, Line.ASKED_AT :].tolist()[:3] == [-1, 0, -1]
    assert torch.equal(settings.words[0], settings.words[2])


def test_entries_are_kept_by_position() -> None:
    state = DecideState(2, 3)
    entry = Entry(0.1, 2, 5, 4, True)
    state.enter(1, 7, entry)
    assert state.kept(1, 7) == entry
    assert state.kept(1, 4) is None
    assert state.kept(1, -1) is None
    assert state.kept(0, 7) is None
    state.leave(1)
    assert state.kept(1, 7) is None


def test_names_of_shipped_configurations_are_their_own() -> None:
    names = [entry.name for entry in shapes.shipped()]
    assert len(names) == len(set(names))


def test_no_shipped_kernel_multiplies_and_adds_in_one_rounding() -> None:
    """On either maker's GPUs, read from the compiled kernels: the flag that forbids it is heeded."""
    code = """
import sys, triton
from importlib import import_module
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from desist.kernels.decide_and_force.shapes import shipped
one = next(each for each in shipped() if each.kernel == "_decide")
assert not one.fp_fusion
kernel = getattr(import_module(one.module), one.kernel)
signature = {name: one.signature.get(name, "constexpr") for name in kernel.arg_names}
for target, kind in ((GPUTarget("cuda", 90, 32), "ptx"), (GPUTarget("hip", "gfx942", 64), "amdgcn")):
    for fused in (False, True):
        options = {"num_warps": one.num_warps, "enable_fp_fusion": fused}
        source = ASTSource(kernel, signature, one.constexprs)
        text = triton.compile(source, target, options).asm[kind]
        found = any(name in text for name in ("fma.rn.f64", "v_fma_f64", "v_fmac_f64"))
        print(kind, fused, found)
"""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-c", code]
    told = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    assert told.splitlines() == [
        "ptx False False",
        "ptx True True",
        "amdgcn False False",
        "amdgcn True True",
    ]
