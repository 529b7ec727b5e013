"""Where the built-in model and its probes lie.

Knows folders; loads nothing and no torch, so that an engine in another process can be pointed at them.
"""

from __future__ import annotations

import json
from pathlib import Path

from desist.data.errors import EngineError

__all__ = ["builtin_model", "builtin_probes"]


def builtin_model() -> Path:
    """The folder of the built-in reasoner. Raises `EngineError` where it is missing."""
    import desist.data.reasoner

    folder = Path(desist.data.reasoner.__file__).parent / "weights"
    if not (folder / "config.json").is_file():
        raise EngineError(
            f"the built-in reasoner is not in {folder}. Install desist with its data files, or name a model."
        )
    return folder


def builtin_probes() -> tuple[Path | None, Path | None]:
    """Folders of the built-in probes: (boundary probe, streaming probe), None where there is none."""
    import desist.probes

    found: dict[bool, Path] = {}
    for card in sorted((Path(desist.probes.__file__).parent / "builtin").glob("*/card.json")):
        family = json.loads(card.read_text(encoding="utf-8")).get("family")
        found.setdefault(family == "rom", card.parent)
    return found.get(False), found.get(True)
