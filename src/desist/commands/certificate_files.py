"""Which certificates a path names: a file itself, or a folder that `desist calibrate` has written."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from desist.commands.certifying_groups import INDEX

if TYPE_CHECKING:
    from desist.calibration import Certificate

__all__ = ["certificate_files", "paired_by_group"]


def certificate_files(paths: Iterable[Path]) -> list[Path]:
    """The files in the order given; of a folder its groups' certificates, else its `certificate.json`.

    Files of an earlier calibration that still lie there are left out. Raises BadParameter where a folder has
    none.
    """
    return [file for path in paths for file in (_inside(path) if path.is_dir() else [path])]


def _inside(folder: Path) -> list[Path]:
    index, alone = folder / INDEX, folder / "certificate.json"
    if index.exists():
        try:
            names = [row["certificate"] for row in json.loads(index.read_text(encoding="utf-8"))["groups"]]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise typer.BadParameter(f"{index} cannot be read: {error!r}. Calibrate again.") from error
        found = [folder / Path(name).name for name in names if name]
    else:
        found = [alone] if alone.exists() else []
    if not found:
        raise typer.BadParameter(f"{folder} holds no certificate. Name a file, or calibrate into it.")
    return found


def paired_by_group(
    old: Iterable[Certificate], new: Iterable[Certificate]
) -> list[tuple[str | None, Certificate | None, Certificate | None]]:
    """Certificates of the same group beside each other, in order of names; None: there is none of that group.

    Raises BadParameter where two of one side speak of the same group.
    """
    sides = []
    for side in (old, new):
        table: dict[str | None, Certificate] = {}
        for each in side:
            if each.group in table:
                raise typer.BadParameter(
                    f"two certificates speak of the group {each.group!r}. Compare one with one."
                )
            table[each.group] = each
        sides.append(table)
    first, second = sides
    return [(name, first.get(name), second.get(name)) for name in sorted({*first, *second}, key=str)]
