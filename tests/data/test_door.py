"""The door of the folder: its names, and that opening it costs nothing."""

from __future__ import annotations

import subprocess
import sys

import desist.data


def test_the_door_gives_what_it_names() -> None:
    assert sorted(desist.data.__all__) == desist.data.__all__
    assert all(hasattr(desist.data, name) for name in desist.data.__all__)


def test_the_door_imports_nothing_heavy() -> None:
    heavy = ("torch", "sympy", "math_verify", "pyarrow", "numpy")
    code = f"import sys, desist.data; print([name for name in {heavy} if name in sys.modules])"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert shown.strip() == "[]"
