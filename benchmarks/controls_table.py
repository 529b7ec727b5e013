"""Writes the tables of docs/controls.md from the code that reads the fields.

python -m benchmarks.controls_table            prints the page as it should be
python -m benchmarks.controls_table --write    writes it
python -m benchmarks.controls_table --check    exit 1 where the page is not current
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.pages import page_command
from desist.data.markdown import table
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
    return table(("field", "header", "value", "asks for"), rows)


def alias_table() -> str:
    """The ecosystem's fields, and what servers do with each by themselves."""
    rows = [
        (f"`{alias.name}`", alias.origin, _MEANS[alias.kind], alias.takes, *alias.servers)
        for alias in ALIASES
    ]
    return table(("field", "from", "means here", "value", "vLLM", "SGLang", "llama.cpp", "OpenRouter"), rows)


def effort_table() -> str:
    """The default sizes of efforts."""
    sizes = ControlSettings().efforts
    return table(
        ("effort", *(f"`{name}`" for name in sizes)),
        [("budget", *("no limit" if size is None else str(size) for size in sizes.values()))],
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Print, write or check the page."""
    return page_command(
        __doc__, PAGE, {"own": own_table, "efforts": effort_table, "aliases": alias_table}, arguments
    )


if __name__ == "__main__":
    raise SystemExit(main())
