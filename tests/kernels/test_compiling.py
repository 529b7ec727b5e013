"""Every shipped configuration compiles for every target, spills nothing and fits; what does not fit fails.

In processes of their own, because the tests' own process interprets its kernels.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from desist.kernels.choice import interpreting, triton_found
from desist.kernels.compiling import Checked, check, table
from desist.kernels.resources import TARGETS, Taken, Target, faults, taken
from desist.kernels.shipped import Shipped, all_shipped

ROOT = Path(__file__).resolve().parents[2]
NAMES = [target.name for target in TARGETS]

compiles = pytest.mark.skipif(not triton_found(), reason="Triton is not installed")


def run(*arguments: str) -> tuple[int, list[Any]]:
    """Exit code of `python -m arguments`, and the lines of JSON that it prints."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    environment.pop("TRITON_INTERPRET", None)
    done = subprocess.run(
        [sys.executable, "-m", *arguments],
        cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=580,
    )  # fmt: skip
    assert done.returncode in (0, 1), done.stderr[-4000:]
    assert "Traceback" not in done.stderr, done.stderr[-4000:]
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()]


def expect_clean(target: str, *arguments: str) -> None:
    code, found = run("desist.kernels.compiling", "--json", "--target", target, *arguments)
    assert [each["name"] for each in found] == [each.name for each in all_shipped()]
    assert {each["target"] for each in found} == {target}
    assert {each["name"]: each["faults"] for each in found if each["faults"]} == {}
    assert all(each["taken"]["registers"] > 0 for each in found)
    assert code == 0


@compiles
@pytest.mark.slow
@pytest.mark.parametrize("target", NAMES)
def test_every_configuration_compiles_and_fits(target: str) -> None:
    expect_clean(target)


@compiles
@pytest.mark.extended
@pytest.mark.parametrize("target", NAMES)
def test_and_with_sizes_that_are_multiples_of_nothing(target: str) -> None:
    expect_clean(target, "--unaligned")


@compiles
def test_what_is_too_large_or_cannot_be_compiled_fails() -> None:
    _, lines = run("tests.kernels.oversized")
    found = {(name, target): " ".join(words) for name, target, words in lines}
    assert [target for name, target in found if name == "fits"] == NAMES
    for target in NAMES:
        assert found["fits", target] == ""
        assert "spills" in found["oversized", target]
        assert "of shared memory" in found["oversized", target]
        assert "power of 2" in found["no power of two", target]


def test_a_limit_is_a_limit() -> None:
    small = Target("small", "cuda", 80, 32, shared=1024)
    assert faults(Taken(255, 0, 1024), small) == ()
    assert faults(Taken(32, 0, 1025), small) == ("1025 bytes of shared memory, 1024 are there",)
    assert "it spills (8)" in faults(Taken(255, 8, 0), small)[0]


def assembly(vectors: int, private: int, vector_spills: int, scalar_spills: int) -> dict[str, str]:
    return {
        "amdgcn": f"    .private_segment_fixed_size: {private}\n    .sgpr_count:     22\n"
        f"    .sgpr_spill_count: {scalar_spills}\n    .vgpr_count:     {vectors}\n"
        f"    .vgpr_spill_count: {vector_spills}\n"
    }


@pytest.mark.parametrize(
    ("numbers", "spilled"),
    [((64, 0, 0, 0), 0), ((512, 24, 6, 0), 24), ((96, 0, 0, 3), 3), ((512, 0, 6, 1), 7)],
)
def test_amd_tells_private_memory_and_spills(numbers: tuple[int, int, int, int], spilled: int) -> None:
    assert taken(assembly(*numbers), 4096) == Taken(numbers[0], spilled, 4096)


def test_words_that_are_not_understood_are_an_error() -> None:
    with pytest.raises(RuntimeError, match="vgpr_spill_count"):
        taken({"amdgcn": ".vgpr_count: 12"}, 0)


@pytest.mark.skipif(not interpreting(), reason="there is a GPU: kernels are not interpreted")
def test_the_interpreter_is_refused() -> None:
    with pytest.raises(RuntimeError, match="Unset it"):
        check(Shipped("x", "nowhere", "none", {}, {}, 4, 2), TARGETS[0])


def test_the_table_has_a_row_a_kernel_and_shows_what_fails() -> None:
    found = [
        Checked(f"{kernel} {size}", kernel, target, Taken(size, 0, 512 * size), ())
        for kernel in ("op.a", "op.b")
        for size in (32, 64)
        for target in NAMES
    ]
    found[0] = Checked("op.a 32", "op.a", "sm_80", None, ("CompilationError",))
    lines = table(found).splitlines()
    assert lines[0] == "| kernel | configurations | sm_80 | sm_90 | sm_100 | gfx942 |"
    assert lines[2].startswith("| `op.a` | 2 | **1 of 2 may not be shipped** | 32 to 64, 32.0 KiB |")
    assert lines[3] == "| `op.b` | 2 |" + " 32 to 64, 32.0 KiB |" * 4
    assert len(lines) == 4


def test_names_are_the_ops_own_and_unique() -> None:
    names = [each.name for each in all_shipped()]
    assert len(set(names)) == len(names)
    for op in ("boundary_score", "decide_and_force", "stream_score"):
        assert any(name.startswith(f"{op}.") for name in names), op


def test_the_page_has_a_row_for_every_kernel() -> None:
    page = (ROOT / "docs" / "kernels.md").read_text()
    for kernel in {each.title for each in all_shipped()}:
        assert f"| `{kernel}` | " in page, f"make the table of docs/kernels.md anew: {kernel} is missing"
