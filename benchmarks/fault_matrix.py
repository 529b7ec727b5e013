"""What a client of the proxy sees when the server behind it fails: every fault at every moment.

    python -m benchmarks.fault_matrix [--ids] [--json]

Rows: faults; columns: the moment at which it strikes, streamed / not streamed. `answer`: the right answer came all the
same; a number: an error of that status, told as one; `-`: cannot happen there; `WRONG`: a clean end with text lost, a
broken connection, a wrong status (listed below the table, and the exit code is 1). "between, once": only the first try
to continue fails. `--ids`: the upstream gives token ids, so that continuing goes by prompt ids.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence

from benchmarks.fault_cells import PHASES, Cell, Seen, all_cells, bench, judge, see

__all__ = ["main", "table"]


def table(found: Sequence[tuple[Cell, Seen, str | None]]) -> str:
    """The matrix as Markdown."""
    shown = {(cell.name, cell.phase, cell.stream): _word(seen, wrong) for cell, seen, wrong in found}
    lines = ["| fault | " + " | ".join(PHASES) + " |", "|---" * (len(PHASES) + 1) + "|"]
    for name in dict.fromkeys(cell.name for cell, _, _ in found):
        cells = [
            " / ".join(shown[name, phase, stream] for stream in (True, False))
            if (name, phase, True) in shown
            else "-"
            for phase in PHASES
        ]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _word(seen: Seen, wrong: str | None) -> str:
    return "WRONG" if wrong else str(seen.status) if seen.told else "answer"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fault_matrix")
    parser.add_argument("--ids", action="store_true", help="an upstream that gives token ids")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    asked = parser.parse_args(arguments)
    with bench() as at:
        cells = all_cells(asked.ids)
        found = [(cell, seen := see(cell, at), judge(cell, seen)) for cell in cells]
    wrong = [(str(cell), why) for cell, _, why in found if why]
    if asked.json:
        rows = [
            {"fault": c.name, "phase": c.phase, "stream": c.stream, "saw": str(s), "wrong": w}
            for c, s, w in found
        ]
        sys.stdout.write(json.dumps({"cells": len(found), "wrong": len(wrong), "rows": rows}) + "\n")
    else:
        listed = "".join(f"- {name}: {why}\n" for name, why in wrong)
        sys.stdout.write(f"{table(found)}\n\n{len(found)} cells, {len(wrong)} wrong.\n{listed}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
