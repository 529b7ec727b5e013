"""The house itself: package list, links, import direction, no bare imports, doors that load no torch."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("data", "controller", "kernels", "probes", "calibration", "proxy")
ALLOWED = {
    "data": set(),
    "kernels": set(),
    "controller": {"data"},
    "probes": {"data", "kernels", "controller"},
    "calibration": {"data", "controller"},
    "proxy": {"data", "kernels", "controller", "probes", "calibration"},
}


def modules() -> Iterator[Path]:
    for folder in FOLDERS:
        yield from (ROOT / folder).rglob("*.py")


def imported_names(path: Path) -> set[str]:
    """Every absolute module name that a file imports, at any depth of the file."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names.add(node.module)
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def test_package_list_equals_the_tree() -> None:
    listed = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"])
    found = {"desist", "desist.commands"}
    for init in (p for f in FOLDERS for p in (ROOT / f).rglob("__init__.py")):
        found.add("desist." + ".".join(init.parent.relative_to(ROOT).parts))
    assert listed == found


@pytest.mark.parametrize("folder", FOLDERS)
def test_links_point_at_the_folders(folder: str) -> None:
    link = ROOT / "src" / "desist" / folder
    assert link.is_symlink()
    assert link.readlink() == Path(f"../../{folder}")


@pytest.mark.parametrize("folder", FOLDERS)
def test_import_direction(folder: str) -> None:
    wrong = []
    for path in (ROOT / folder).rglob("*.py"):
        for name in imported_names(path):
            parts = name.split(".")
            inner = parts[1] if parts[0] == "desist" and len(parts) > 1 else folder
            if inner == "cli" or (inner in FOLDERS and inner not in {folder, *ALLOWED[folder]}):
                wrong.append(f"{path.relative_to(ROOT)} imports {name}")
    assert wrong == []


def test_no_import_by_bare_folder_name() -> None:
    files = [*modules(), *(ROOT / "tests").rglob("*.py"), *(ROOT / "benchmarks").rglob("*.py")]
    bare = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in files
        for name in imported_names(path)
        if name.split(".")[0] in FOLDERS
    ]
    assert bare == []


def test_no_relative_imports() -> None:
    relative = [
        str(path.relative_to(ROOT))
        for path in modules()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and node.level > 0
    ]
    assert relative == []


@pytest.mark.parametrize(
    "door",
    [
        "desist",
        "desist.cli",
        "desist.data",
        "desist.controller",
        "desist.calibration",
        "desist.proxy",
        "desist.probes",
    ],
)
def test_doors_open_without_torch(door: str) -> None:
    """A proxy-only install has no torch: importing the doors must not ask for it."""
    code = (
        "import sys\n"
        "for name in ('torch', 'transformers', 'vllm', 'triton'): sys.modules[name] = None\n"
        f"import {door}\n"
        "module = sys.modules[" + repr(door) + "]\n"
        "assert isinstance(module.__all__, list) or isinstance(module.__all__, tuple)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("folder", ["controller", "calibration"])
def test_no_torch_anywhere_in(folder: str) -> None:
    wrong = [
        str(path.relative_to(ROOT))
        for path in (ROOT / folder).rglob("*.py")
        if {n.split(".")[0] for n in imported_names(path)} & {"torch", "transformers", "fastapi"}
    ]
    assert wrong == []


def test_modules_stay_small() -> None:
    large = {str(p.relative_to(ROOT)): n for p in modules() if (n := len(p.read_text().splitlines())) > 400}
    assert large == {}


def test_modules_say_what_they_are() -> None:
    silent = [str(p.relative_to(ROOT)) for p in modules() if not ast.get_docstring(ast.parse(p.read_text()))]
    assert silent == []
