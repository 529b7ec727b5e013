"""Which implementation runs: by argument, by device, and with a reason where it cannot."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from desist.kernels.choice import chosen, interpreting

CPU = torch.device("cpu")


def test_auto_takes_the_specification_on_a_cpu() -> None:
    assert chosen("auto", CPU) == chosen("torch", CPU) == "torch"


def test_an_unknown_one_is_named() -> None:
    with pytest.raises(ValueError, match=r"'jax'.*'auto'"):
        chosen("jax", CPU)  # type: ignore[arg-type]


@pytest.mark.skipif(not interpreting(), reason="this machine has a GPU, so that nothing is interpreted")
def test_the_interpreter_runs_where_it_is_asked_for() -> None:
    assert chosen("triton", CPU) == "triton"


def test_triton_on_a_cpu_is_refused_with_a_remedy() -> None:
    code = (
        "import torch\n"
        "from desist.kernels.choice import chosen\n"
        "try: chosen('triton', torch.device('cpu'))\n"
        "except RuntimeError as error: print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={"PATH": ""}
    )
    assert "TRITON_INTERPRET=1" in done.stdout or "not installed" in done.stdout


def test_the_door_opens_without_triton() -> None:
    code = (
        "import sys\n"
        "sys.modules['triton'] = None\n"
        "import desist.kernels as kernels\n"
        "print(all(hasattr(kernels, name) for name in kernels.__all__))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout.strip(), done.returncode) == ("True", 0), done.stderr
