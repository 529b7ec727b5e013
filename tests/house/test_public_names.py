"""The public names that the design promises are there, and `__all__` lists nothing that is not."""

from __future__ import annotations

import importlib

import pytest

PROMISED = {
    "desist": {"__version__"},
    "desist.data": {"read_traces", "write_traces", "extract_answer", "answers_equal"},
    "desist.controller": {"StopMachine"},
    "desist.probes": {"load_probe", "train_probe"},
    "desist.calibration": {"calibrate", "load_certificate"},
    "desist.proxy": {"create_app"},
}


@pytest.mark.parametrize("door", sorted(PROMISED))
def test_promised_names(door: str) -> None:
    module = importlib.import_module(door)
    assert PROMISED[door] <= set(module.__all__)
    missing = [name for name in module.__all__ if not hasattr(module, name)]
    assert missing == []
