"""What all commands share: the app, common flags, and how results and progress are shown."""

from __future__ import annotations

import dataclasses
import datetime
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console

from desist._version import __version__

__all__ = [
    "REFUSED",
    "Alpha",
    "Delta",
    "Json",
    "Loss",
    "Model",
    "Quiet",
    "Seed",
    "VllmArgs",
    "app",
    "dump",
    "err",
    "progress_bar",
    "show",
    "status",
    "tap_list",
    "today",
]

app = typer.Typer(
    name="desist",
    help="Ends a reasoning model's thinking when its answer has settled.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)

REFUSED = 2
Json = Annotated[bool, typer.Option("--json", help="One JSON object on stdout, nothing else.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress on stderr.")]
Seed = Annotated[int, typer.Option("--seed", help="Seed of everything that is drawn.")]
Model = Annotated[Path | None, typer.Option("--model", help="Model folder (default: built-in reasoner).")]
Loss = Annotated[Literal["consistency", "harm"], typer.Option("--loss", help="Which loss is bounded.")]
VllmArgs = Annotated[
    list[str] | None,
    typer.Option("--vllm-arg", help="Argument of vLLM, as --vllm-arg=--max-model-len=8192. Repeatable."),
]
Alpha = Annotated[str, typer.Option("--alpha", help="Tolerated risk, exact (0.05 is 1/20).")]
Delta = Annotated[str, typer.Option("--delta", help="Probability that the certificate is wrong.")]

# Newer typer brings its own copy of click: its root error is reached through typer's public names.
err = Console(stderr=True)


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        typer.echo(__version__)
        raise typer.Exit


def show(payload: dict[str, Any], *, as_json: bool, words: str | None = None) -> None:
    """Print a result: as one JSON object, or in words (default: indented JSON)."""
    if as_json:
        typer.echo(json.dumps(payload, sort_keys=True))
    else:
        typer.echo(words if words is not None else json.dumps(payload, indent=2, sort_keys=True))


@contextmanager
def status(what: str, quiet: bool) -> Iterator[None]:
    """A line on stderr while something runs."""
    if quiet:
        yield
    else:
        with err.status(what):
            yield


@contextmanager
def progress_bar(quiet: bool) -> Iterator[Callable[[str, int, int], None]]:
    """A bar per named step on stderr; yields the function that moves it."""
    from rich.progress import MofNCompleteColumn, Progress, TimeElapsedColumn

    with Progress(
        *Progress.get_default_columns(), MofNCompleteColumn(), TimeElapsedColumn(), console=err, disable=quiet
    ) as bars:
        tasks: dict[str, Any] = {}

        def tell(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(what, total=total)
            bars.update(tasks[what], completed=done, total=total)

        yield tell


def today() -> str:
    return datetime.datetime.now(datetime.UTC).date().isoformat()


def dump(value: Any) -> dict[str, Any]:
    """A frozen dataclass as plain JSON values."""
    plain: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(value), default=str))
    return plain


def tap_list(taps: str | None) -> tuple[int, ...] | None:
    try:
        return tuple(int(tap) for tap in taps.split(",")) if taps else None
    except ValueError:
        raise typer.BadParameter(f"--taps is {taps!r}; give layer numbers such as 2,4,6.") from None
