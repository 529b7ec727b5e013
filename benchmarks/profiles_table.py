"""Writes the tables of docs/profiles.md from the profiles and the rules of names that desist brings along.

python -m benchmarks.profiles_table            prints the page as it should be
python -m benchmarks.profiles_table --write    writes it
python -m benchmarks.profiles_table --check    exit 1 where the page is not current
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.pages import page_command
from desist.controller import PROFILES, ModelProfile
from desist.controller.model_names import NAME_RULES
from desist.data.markdown import table

PAGE = Path(__file__).resolve().parents[1] / "docs" / "profiles.md"
_CALLS = {"any": "always", "name": "with a name after it", "markup": "with `{`, `[` or markup after it"}


def profile_table() -> str:
    """One row a profile."""
    head = ("profile", "thinking", "tool call in thinking ends it", "assistant header", "who opens", "switch")
    return table(head, [_row(profile) for profile in PROFILES.values()])


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
    return table(("the model's name holds", "profile"), [(_code(p), f"`{name}`") for p, name in NAME_RULES])


def _code(text: str) -> str:
    return f"`{text}`".replace("\n", "\\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Print, write or check the page."""
    return page_command(__doc__, PAGE, {"profiles": profile_table, "names": name_table}, arguments)


if __name__ == "__main__":
    raise SystemExit(main())
