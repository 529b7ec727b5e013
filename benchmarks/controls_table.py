"""Writes the tables of docs/controls.md from the code that reads the fields.

python -m benchmarks.controls_table            prints the page as it should be
python -m benchmarks.controls_table --write    writes it
python -m benchmarks.controls_table --check    exit 1 where the page is not current
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from desist.data.jsonl import atomic_file
from desist.proxy.controls.aliases import ALIASES, OWN
from desist.proxy.settings import ControlSettings

PAGE = Path(__file__).resolve().parents[1] / "docs" / "controls.md"
_MEANS = {
    "budget": "budget",
    "effort": "effort: a budget by name",
    "switch": "thinking on or off",
    "format": "how thinking is shown",
}


def own_table() -> str:
    """The keys of the `desist` object and their headers."""
    rows = [(f"`desist.{own.name}`", f"`{own.header}`", own.takes, own.says) for own in OWN]
    return _table(("field", "header", "value", "asks for"), rows)


def alias_table() -> str:
    """The ecosystem's fields, and what servers do with each by themselves."""
    rows = [
        (f"`{alias.name}`", alias.origin, _MEANS[alias.kind], alias.takes, *alias.servers)
        for alias in ALIASES
    ]
    return _table(("field", "from", "means here", "value", "vLLM", "SGLang", "llama.cpp", "OpenRouter"), rows)


def effort_table() -> str:
    """The default sizes of efforts."""
    sizes = ControlSettings().efforts
    return _table(
        ("effort", *(f"`{name}`" for name in sizes)),
        [("budget", *("no limit" if size is None else str(size) for size in sizes.values()))],
    )


def page(text: str) -> str:
    """`text` with each table between its two marks made anew. Raises `ValueError` where marks are missing."""
    for name, make in (("own", own_table), ("efforts", effort_table), ("aliases", alias_table)):
        mark = re.compile(rf"<!-- table: {name} -->\n(?:[^<].*?\n)?<!-- end -->", re.DOTALL)
        parts = mark.split(text, maxsplit=1)
        if len(parts) != 2:
            raise ValueError(f"docs/controls.md has no place for the table '{name}'.")
        text = f"{parts[0]}<!-- table: {name} -->\n{make()}\n<!-- end -->{parts[1]}"
    return text


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--write", action="store_true", help="write the page")
    parser.add_argument("--check", action="store_true", help="exit 1 where the page is not current")
    asked = parser.parse_args(arguments)
    now = PAGE.read_text(encoding="utf-8")
    made = page(now)
    if asked.check:
        return int(made != now)
    if asked.write:
        with atomic_file(PAGE) as file:
            file.write(made.encode())
    else:
        sys.stdout.write(made)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
