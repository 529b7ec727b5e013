"""The command line: assembles the commands and maps errors to exit codes.

Every command: `--json` (one JSON object on stdout and nothing else), progress and words on stderr,
exit 0 fine, 1 error, 2 guarantee refused or result incomplete.
"""

from __future__ import annotations

import json
import logging
import sys
from typing import NoReturn, cast

import typer

from desist.commands import (
    certificates,
    certifying,
    config,
    live,
    monitoring,
    onboarding,
    probing,
    serving,
    traces,
)
from desist.commands.common import app, err
from desist.data.errors import DesistError

__all__ = [
    "app",
    "certificates",
    "certifying",
    "config",
    "live",
    "main",
    "monitoring",
    "onboarding",
    "probing",
    "serving",
    "traces",
]

# Newer typer brings its own copy of click: its root error is reached through typer's public names.
EXPECTED: tuple[type[Exception], ...] = (
    DesistError,
    OSError,
    *(cast(type[Exception], cls) for cls in typer.BadParameter.__mro__ if cls.__name__ == "ClickException"),
)


def main() -> NoReturn:
    """Entry point: maps errors to exit codes; with --json the error is the JSON object."""
    logging.basicConfig(stream=sys.stderr, format="%(levelname)s %(name)s: %(message)s")
    try:
        outcome = app(standalone_mode=False)
    except EXPECTED as error:
        message = str(error.format_message() if hasattr(error, "format_message") else error)
        if "--json" in sys.argv:
            typer.echo(json.dumps({"error": {"type": type(error).__name__, "message": message}}))
        err.print(f"[red]error[/red] {type(error).__name__}: ", end="")
        err.print(message, markup=False, highlight=False)
        raise SystemExit(1) from error
    except (typer.Abort, KeyboardInterrupt):
        raise SystemExit(1) from None
    raise SystemExit(outcome if isinstance(outcome, int) else 0)
