"""What an import did: how much was read, what became of it, and why anything was left out.

Nothing is dropped in silence: each record that does not become a trace has a line here.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

__all__ = ["Dropped", "ImportReport", "Unusable"]


class Unusable(Exception):
    """Raised by an importer for one record that cannot become a trace; the text is the reason."""


@dataclass(frozen=True, slots=True)
class Dropped:
    """A record that was left out: its line (or number) in the file, and the reason."""

    line: int
    reason: str


@dataclass(slots=True)
class ImportReport:
    """Counts of one import; complete when its iterator is exhausted.

    `n_read` = `n_imported` traces came from it + `len(dropped)`, but for records with several choices,
    where each choice counts as read. `notes` counts what was imported with something missing or mended
    ("no reasoning text", "id renamed").
    """

    source: str
    format: str
    n_read: int = 0
    n_imported: int = 0
    dropped: list[Dropped] = field(default_factory=list)
    notes: Counter[str] = field(default_factory=Counter)

    def drop(self, line: int, reason: str) -> None:
        self.dropped.append(Dropped(line, reason))

    def reasons(self) -> Counter[str]:
        """How often each reason for dropping occurred."""
        return Counter(entry.reason for entry in self.dropped)

    def as_json(self) -> dict[str, object]:
        """Plain values for one JSON object."""
        return {
            "source": self.source,
            "format": self.format,
            "n_read": self.n_read,
            "n_imported": self.n_imported,
            "dropped": [{"line": entry.line, "reason": entry.reason} for entry in self.dropped],
            "notes": dict(self.notes),
        }
