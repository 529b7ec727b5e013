"""Writes the tables of docs/profiles.md from the profiles and the rules of names that desist brings along.

python -m benchmarks.profiles_table            prints the page as it should be
python -m benchmarks.profiles_table --write    writes it
python -m benchmarks.profiles_table --check    exit 1 where the page is not current
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from desist.controller import PROFILES, ModelProfile
from desist.controller.model_names import NAME_RULES
from desist.data.jsonl import atomic_file

PAGE = Path(__file__).resolve().parents[1] / "docs" / "profiles.md"
_CALLS = {"any": "always", "name": "with a name after it", "markup": "with `{`, `[` or markup after it"}


def profile_table() -> str:
    """One row a profile."""
    head = ("profile", "thinking", "tool call in thinking ends it", "assistant header", "who opens", "switch")
    return _table(head, [_row(profile) for profile in PROFILES.values()])


def _row(profile: ModelProfile) -> tuple[str, ...]:
    call = "none"
    if profile.style == "harmony":
        call = "messages with a recipient (`to=`)"
    elif profile.tool_call_open:
        call = f"{_code(profile.tool_call_open)}, {_CALLS[profile.tool_call_form]}"
    switch = ", ".join(f"`{name}`" for name in profile.thinking_switch) or "none"
    return (
        f"`{profile.name}`",
        f"{_code(profile.think_open)} ... {_code(profile.think_close)}",
        call,
        _code(profile.assistant_header or ""),
        "template" if profile.template_opens else "model",
        f"{switch}; {'on' if profile.thinks_by_default else 'off'} by default",
    )


def name_table() -> str:
    """The rules of names, in the order in which they are tried."""
    return _table(("the model's name holds", "profile"), [(_code(p), f"`{name}`") for p, name in NAME_RULES])


def page(text: str) -> str:
    """`text` with each table between its two marks made anew. Raises `ValueError` where marks are missing."""
    for name, make in (("profiles", profile_table), ("names", name_table)):
        parts = re.split(
            f"<!-- table: {name} -->\n.*?<!-- end: {name} -->", text, maxsplit=1, flags=re.DOTALL
        )
        if len(parts) != 2:
            raise ValueError(f"docs/profiles.md has no place for the table '{name}'.")
        text = f"{parts[0]}<!-- table: {name} -->\n{make()}\n<!-- end: {name} -->{parts[1]}"
    return text


def _code(text: str) -> str:
    return f"`{text}`".replace("\n", "\\n")


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print, write or check the page."""
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
