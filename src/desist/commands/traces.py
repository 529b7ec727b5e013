"""Saved traces: `import`, `replay`."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from desist.commands.common import (
    REFUSED,
    Alpha,
    Delta,
    Json,
    Loss,
    Quiet,
    Seed,
    app,
    show,
    status,
    tap_list,
)


@app.command("import")
def import_traces(
    files: Annotated[list[Path], typer.Argument(help="Files of saved traces.", exists=True)],
    out: Annotated[Path, typer.Option("--out", help="File to write: .jsonl, .jsonl.gz or .parquet.")],
    format: Annotated[str, typer.Option("--format", help="auto, published, chat, text or desist.")] = "auto",
    judge: Annotated[str | None, typer.Option(help="Judge correctness anew by this judge.")] = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> int:
    """Bring published traces, chat responses or tagged text into desist's schema."""
    from desist.data import import_file, write_traces

    jobs = [import_file(file, cast(Any, format), judge=judge) for file in files]
    written = write_traces(out, itertools.chain.from_iterable(jobs))
    reports = [job.report for job in jobs]
    dropped = sum(len(report.dropped) for report in reports)
    payload = {
        "out": str(out),
        "written": written,
        "dropped": dropped,
        "files": [r.as_json() for r in reports],
    }
    lines = [f"{r.source}: {r.n_read} read, {r.n_imported} imported" for r in reports]
    for report in reports:
        lines += [f"  dropped: {count} x {reason}" for reason, count in report.reasons().items()]
        lines += [f"  note: {count} x {note}" for note, count in report.notes.items()]
    show(payload, as_json=as_json, words="\n".join([*lines, f"{written} traces in {out}"]))
    return REFUSED if dropped else 0


@app.command()
def replay(
    traces: Annotated[list[Path], typer.Argument(help="Saved traces, any number of files.", exists=True)],
    certificate: Annotated[Path | None, typer.Option(help="A certificate to replay.")] = None,
    budgets: Annotated[str | None, typer.Option(help="Fixed budgets, for example 256,1024.")] = None,
    alpha: Alpha = "0.05",
    delta: Delta = "0.05",
    loss: Loss = "consistency",
    out: Annotated[Path | None, typer.Option("--out", help="Markdown file for the tables.")] = None,
    seed: Seed = 0,
    as_json: Json = False,
    quiet: Quiet = False,
) -> int:
    """Replay policies on saved traces with the live system's own stop machine; net token accounting."""
    from desist.calibration import load_certificate, replay_tables
    from desist.data import import_file

    settings: dict[str, Any] = {"alpha": alpha, "delta": delta, "loss": loss, "seed": seed}
    if budgets:
        settings["budgets"] = tap_list(budgets)
    if certificate is not None:
        settings["certificate"] = load_certificate(certificate, force=True)
    jobs = [import_file(file) for file in traces]
    with status("replaying", quiet):
        tables = replay_tables(itertools.chain.from_iterable(jobs), **settings)
    dropped = sum(len(job.report.dropped) for job in jobs)
    words = "\n\n".join(table.text() for table in tables)
    if out is not None:
        out.write_text(f"```\n{words}\n```\n", encoding="utf-8")
    reports = [job.report.as_json() for job in jobs]
    payload = {"tables": [t.as_json() for t in tables], "files": reports, "dropped": dropped}
    show(json.loads(json.dumps(payload, default=str)), as_json=as_json, words=words)
    return REFUSED if dropped else 0
