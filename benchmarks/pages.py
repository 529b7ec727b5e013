"""Pages of the docs whose tables come from the code: made, printed, written, or checked.

Knows the marks around a table (`<!-- table: NAME -->` ... `<!-- end -->`); no contents.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from desist.data.jsonl import atomic_file

__all__ = ["page_command"]


def page_command(
    doc: str | None, page: Path, tables: Mapping[str, Callable[[], str]], arguments: Sequence[str] | None
) -> int:
    """The command of one page: prints it as it should be; `--write` writes it, `--check` exits with 1 where it
    is not current. Raises `ValueError` where the page has no place for a table."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write the page")
    parser.add_argument("--check", action="store_true", help="exit 1 where the page is not current")
    asked = parser.parse_args(arguments)
    now = page.read_text(encoding="utf-8")
    made = _renewed(now, page.name, tables)
    if asked.check:
        return int(made != now)
    if asked.write:
        with atomic_file(page) as file:
            file.write(made.encode())
    else:
        sys.stdout.write(made)
    return 0


def _renewed(text: str, name: str, tables: Mapping[str, Callable[[], str]]) -> str:
    for mark, make in tables.items():
        place = re.compile(rf"<!-- table: {mark} -->\n(?:[^<].*?\n)?<!-- end[^>]*-->", re.DOTALL)
        parts = place.split(text, maxsplit=1)
        if len(parts) != 2:
            raise ValueError(f"docs/{name} has no place for the table '{mark}'.")
        text = f"{parts[0]}<!-- table: {mark} -->\n{make()}\n<!-- end -->{parts[1]}"
    return text
