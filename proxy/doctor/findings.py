"""What was found out about an engine, as values, as lines and as a table. Tries nothing out."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal

from rich import box
from rich.table import Table
from rich.text import Text

__all__ = ["Diagnosis", "Finding", "State"]

State = Literal["on", "off", "fails"]
_MARKS = {"on": "+", "off": "-", "fails": "!"}
_STYLES = {"on": "green", "off": "dim", "fails": "bold red"}


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was tried. `fails`: it was asked for, and cannot work; `off`: nobody asked for it.

    `detail`: what was seen; `means`: what that is to whoever uses the proxy, where it is not plain.
    """

    what: str
    state: State
    detail: str
    means: str = ""

    def as_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {"what": self.what, "state": self.state, "detail": self.detail, "means": self.means}


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """All findings, in the order in which they were made. `capabilities`: an upstream's, for programs."""

    findings: tuple[Finding, ...]
    capabilities: dict[str, Any] = field(default_factory=dict)

    @property
    def healthy(self) -> bool:
        """Whether everything that was asked for works."""
        return all(finding.state != "fails" for finding in self.findings)

    def asked(self, names: tuple[str, ...]) -> Diagnosis:
        """This diagnosis, where each of `names` was asked for: what is off or was not found then fails."""
        present = {each.what for each in self.findings}
        judged = [
            replace(each, state="fails", detail=f"asked for, but: {each.detail}")
            if each.what in names and each.state == "off"
            else each
            for each in self.findings
        ]
        judged += [
            Finding(name, "fails", "asked for, but it could not be tried out here")
            for name in dict.fromkeys(names)
            if name not in present
        ]
        return replace(self, findings=tuple(judged))

    def as_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        told = {"healthy": self.healthy, "findings": [each.as_json() for each in self.findings]}
        return told | ({"capabilities": self.capabilities} if self.capabilities else {})

    def words(self) -> str:
        """A line for each finding."""
        return "\n".join(
            f"{_MARKS[each.state]} {each.what}: {each.detail}" + (f" [{each.means}]" if each.means else "")
            for each in self.findings
        )

    def table(self) -> Table:
        """For a terminal."""
        made = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        made.add_column("")
        made.add_column("what", no_wrap=True)
        made.add_column("seen", ratio=3)
        made.add_column("what it means", ratio=3)
        for each in self.findings:
            style = _STYLES[each.state]
            cells = (_MARKS[each.state], each.what, each.detail, each.means)
            made.add_row(*(Text(cell, style if n < 2 else "") for n, cell in enumerate(cells)))
        return made
