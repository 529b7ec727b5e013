"""The command line. Parses, calls the library, prints; holds no logic of its own.

Every command: `--json` (one JSON object on stdout and nothing else), progress and words on stderr,
exit 0 fine, 1 error, 2 guarantee refused or result incomplete.
"""

from __future__ import annotations

import dataclasses
import datetime
import itertools
import json
import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn, cast

import typer
from rich.console import Console

from desist._version import __version__
from desist.data.errors import DesistError

__all__ = ["app", "main"]

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
Alpha = Annotated[str, typer.Option("--alpha", help="Tolerated risk, exact (0.05 is 1/20).")]
Delta = Annotated[str, typer.Option("--delta", help="Probability that the certificate is wrong.")]

# Newer typer brings its own copy of click: its root error is reached through typer's public names.
EXPECTED: tuple[type[Exception], ...] = (
    DesistError,
    OSError,
    *(cast(type[Exception], cls) for cls in typer.BadParameter.__mro__ if cls.__name__ == "ClickException"),
)

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


@app.command("import")
def import_traces(
    files: Annotated[list[Path], typer.Argument(help="Files of saved traces.", exists=True)],
    out: Annotated[Path, typer.Option("--out", help="File to write: .jsonl, .jsonl.gz or .parquet.")],
    format: Annotated[str, typer.Option("--format", help="auto, published, chat, text or desist.")] = "auto",
    judge: Annotated[str | None, typer.Option(help="Judge correctness anew by: math, option.")] = None,
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
def train(
    traces: Annotated[Path, typer.Argument(help="Collected traces, hidden states beside.", exists=True)],
    out: Annotated[Path, typer.Option("--out", help="Folder of the probe.")],
    family: Annotated[Literal["mlp", "logistic", "rom"], typer.Option(help="Kind of probe.")] = "mlp",
    target: Annotated[Literal["consistent", "correct"], typer.Option(help="Label learnt.")] = "consistent",
    taps: Annotated[str | None, typer.Option(help="Some of the stored taps, for example 2,4,6.")] = None,
    seed: Seed = 0,
    controls: Annotated[bool, typer.Option(help="Also measure text-only rivals (slower).")] = True,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Train a probe on collected traces, split by problem."""
    from desist.data import read_traces
    from desist.probes import save_probe, train_probe
    from desist.probes.features import hidden_dir, read_hidden, token_dir

    hidden = read_hidden(token_dir(traces) if family == "rom" else hidden_dir(traces))
    chosen = _tap_list(taps)
    with status(f"training a {family} probe", quiet):
        trained = train_probe(
            read_traces(traces), hidden, family=family, target=target, seed=seed, taps=chosen,
            created=today(), unlabelled="skip", controls=controls,
        )  # fmt: skip
        save_probe(trained.probe, out)
    show({"out": str(out), "family": family, "report": trained.report.to_dict()}, as_json=as_json)


def _tap_list(taps: str | None) -> tuple[int, ...] | None:
    try:
        return tuple(int(tap) for tap in taps.split(",")) if taps else None
    except ValueError:
        raise typer.BadParameter(f"--taps is {taps!r}; give layer numbers such as 2,4,6.") from None


@app.command()
def score(
    traces: Annotated[Path, typer.Argument(help="Collected traces, hidden states beside.", exists=True)],
    probe: Annotated[Path, typer.Option("--probe", help="Folder of the probe.")],
    out: Annotated[Path, typer.Option("--out", help="File of scored traces to write.")],
    name: Annotated[str, typer.Option("--name", help="Name of the score.")] = "probe",
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Write a probe's score to every boundary of collected traces."""
    from desist.data import read_traces, write_traces
    from desist.probes import load_probe, score_traces
    from desist.probes.features import hidden_dir, read_hidden, token_dir

    loaded = load_probe(probe)
    hidden = read_hidden(token_dir(traces) if loaded.card.family == "rom" else hidden_dir(traces))
    with status("scoring", quiet):
        written = write_traces(out, score_traces(read_traces(traces), hidden, loaded, name))
    show({"out": str(out), "written": written, "name": name}, as_json=as_json)


@app.command()
def calibrate(
    traces: Annotated[Path, typer.Argument(help="Scored, labelled traces (see `collect`).", exists=True)],
    alpha: Alpha,
    out: Annotated[Path, typer.Option("--out", help="Folder for certificate.json and report.html.")],
    delta: Delta = "0.05",
    loss: Loss = "consistency",
    method: Annotated[Literal["ltt", "pac"], typer.Option(help="Declared before looking.")] = "ltt",
    scorer: Annotated[str, typer.Option(help="Name of the stored score.")] = "probe",
    patience: Annotated[int, typer.Option(min=1, help="Consecutive boundaries above.")] = 1,
    warmup: Annotated[int, typer.Option(min=0, help="Reasoning tokens before the first stop.")] = 0,
    ema: Annotated[float, typer.Option(help="Weight of the newest score.")] = 1.0,
    probe: Annotated[Path | None, typer.Option(help="Probe whose training problems are refused.")] = None,
    answer: Annotated[Literal["write", "extract"], typer.Option(help="Answer mode.")] = "write",
    judge: Annotated[str, typer.Option(help="Judge of equality.")] = "math",
    seed: Seed = 0,
    as_json: Json = False,
    quiet: Quiet = False,
) -> int:
    """Turn scored traces into a certified threshold and a report, or say what is missing (exit code 2)."""
    from desist.calibration import CannotCertify, write_report
    from desist.calibration import calibrate as certify_traces
    from desist.data import read_traces
    from desist.proxy.estimates import StepTable

    collected = list(read_traces(traces))
    stored = dict(collected[0].provenance.get("fingerprints", {})) if collected else {}
    card = None
    if probe is not None:
        from desist.probes import load_probe
        from desist.probes.artifact import probe_fingerprint

        loaded = load_probe(probe)
        card, stored[scorer] = loaded.card, probe_fingerprint(loaded)
    with status("calibrating", quiet):
        found = certify_traces(
            collected, alpha=alpha, delta=delta, loss=loss, scorer=scorer, method=method, patience=patience,
            warmup_tokens=warmup, ema=ema, answer_mode=answer, judge=judge, seed=seed, created=today(),
            forbidden_problems=card.problems if card else (), fingerprints=stored,
        )  # fmt: skip
        out.mkdir(parents=True, exist_ok=True)
        write_report(out / "report.html", [found], collected)
    if isinstance(found, CannotCertify):
        show({"certified": False, **found.model_dump(mode="json")}, as_json=as_json, words=found.message)
        return REFUSED
    path = found.save(out / "certificate.json")
    StepTable.from_traces(collected).save(out / "certificate.estimates.json")
    words = f"certified: lam = {found.lam:.6g}, saves {found.saved_fraction:.1%} on calibration\n{found.text}"
    payload = {"certificate": str(path), **found.model_dump(mode="json", exclude={"problems"})}
    show(payload, as_json=as_json, words=words)
    return 0


@app.command()
def collect(
    out: Annotated[Path, typer.Option("--out", help="File of traces to write; hidden states beside it.")],
    problems: Annotated[Path | None, typer.Option(help="Problem file (default: draw word problems).")] = None,
    split: Annotated[str, typer.Option(help="Split to draw from: train, calibration or test.")] = "train",
    n: Annotated[int, typer.Option("--n", min=1, help="How many problems.")] = 3000,
    model: Model = None,
    profile: Annotated[str | None, typer.Option(help="Model profile (default: the built-in one's).")] = None,
    taps: Annotated[str | None, typer.Option(help="Layers to keep, for example 7,14,21,28.")] = None,
    token_tap: Annotated[int | None, typer.Option(help="Layer kept for every token (ROM).")] = None,
    temperature: Annotated[float | None, typer.Option(help="Default: the model's own.")] = None,
    top_p: Annotated[float | None, typer.Option(help="Default: the model's own.")] = None,
    max_tokens: Annotated[int | None, typer.Option(help="Reasoning and answer together.")] = None,
    answer: Annotated[Literal["write", "extract"], typer.Option(help="Answer mode.")] = "write",
    batch: Annotated[int, typer.Option(min=1, help="Rows decoded side by side.")] = 64,
    floors: Annotated[int, typer.Option(min=0, help="Problems for the floors (0: none).")] = 0,
    seed: Seed = 0,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Run problems in full, force an exit at every boundary, label, and keep hidden states. Resumable."""
    from desist.controller import builtin_profile, get_profile
    from desist.data import read_problems
    from desist.proxy.builtin import builtin_problems, builtin_taps
    from desist.proxy.collect import collect as run
    from desist.proxy.engines.embedded.artefacts import builtin_model
    from desist.proxy.engines.embedded.loading import default_sampling, load_model

    folder = model or builtin_model()
    loaded = load_model(folder)
    own_sampling = default_sampling(folder)
    sampling = dataclasses.replace(
        own_sampling,
        temperature=own_sampling.temperature if temperature is None else temperature,
        top_p=own_sampling.top_p if top_p is None else top_p,
        max_tokens=own_sampling.max_tokens if max_tokens is None else max_tokens,
    )
    chosen = list(read_problems(problems)) if problems else builtin_problems(cast(Any, split), seed, n)
    own = builtin_profile() if model is None else get_profile("qwen3")
    with progress_bar(quiet) as tell:
        report = run(
            chosen, model=loaded, profile=get_profile(profile) if profile else own, sampling=sampling,
            out=out, seed=seed, taps=_tap_list(taps) or builtin_taps(loaded.network.config.num_hidden_layers),
            keep_tokens_tap=token_tap, batch=batch, answer=answer, floors=floors,
            progress=lambda done, total: tell("collecting", done, total),
        )  # fmt: skip
    show(dump(report), as_json=as_json)


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
        settings["budgets"] = _tap_list(budgets)
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


@app.command()
def report(
    traces: Annotated[Path, typer.Argument(help="The scored traces that were calibrated on.", exists=True)],
    certificates: Annotated[list[Path], typer.Option("--certificate", help="One or several certificates.")],
    out: Annotated[Path, typer.Option("--out", help="HTML file to write.")],
    as_json: Json = False,
) -> None:
    """Write the calibration report again: one HTML file that opens offline."""
    from desist.calibration import load_certificate, write_report
    from desist.data import read_traces

    points = [load_certificate(path, force=True) for path in certificates]
    write_report(out, points, list(read_traces(traces)))
    show({"out": str(out)}, as_json=as_json, words=f"report in {out}")


@app.command()
def serve(
    host: Annotated[str | None, typer.Option("--host", help="Address to listen on [127.0.0.1].")] = None,
    port: Annotated[int | None, typer.Option("--port", help="Port; 0 takes any free one [8100].")] = None,
    upstream: Annotated[str | None, typer.Option("--upstream", help="An OpenAI-compatible server.")] = None,
    model: Annotated[str | None, typer.Option("--model", help="Local model folder.")] = None,
    probe: Annotated[Path | None, typer.Option("--probe", help="Probe artefact.")] = None,
    certificate: Annotated[list[Path] | None, typer.Option("--certificate", help="Certificates.")] = None,
    mode: Annotated[str | None, typer.Option("--mode", help="off, shadow or active [active].")] = None,
    config: Annotated[Path | None, typer.Option("--config", help="YAML or TOML file.")] = None,
    quiet: Quiet = False,
) -> None:
    """Start the proxy. With no argument: the built-in reasoner on http://127.0.0.1:8100."""
    from desist.proxy.serve import serve as run
    from desist.proxy.settings import load_settings

    flags: dict[str, Any] = {
        "host": host, "port": port, "model": model, "probe": probe,
        "certificates": tuple(certificate) if certificate else None,
        "control": {"mode": mode},
    }  # fmt: skip
    if upstream is not None:
        flags |= {"engine": "upstream", "upstream": {"url": upstream}}
    settings = load_settings(config, flags)

    def announce(address: str) -> None:
        what = settings.upstream.url if settings.upstream else settings.model or "the built-in reasoner"
        if not quiet:
            err.print(
                f"desist {__version__} in front of {what}: [bold]{address}/v1[/bold]",
                highlight=False,
                soft_wrap=True,
            )
            err.print(
                f"models {address}/v1/models  metrics {address}/metrics  (Ctrl-C stops)", highlight=False
            )

    run(settings, announce=announce)


@app.command()
def demo(
    n: Annotated[int, typer.Option("--n", min=1, help="Problems of the paired runs.")] = 200,
    loss: Loss = "harm",
    alpha: Annotated[str | None, typer.Option("--alpha", help="Default: 0.02 harm, 0.05 else.")] = None,
    delta: Delta = "0.05",
    traces: Annotated[Path | None, typer.Option("--traces", help="File for every problem's row.")] = None,
    problem: Annotated[str | None, typer.Option("--problem", help="Your own word problem, live.")] = None,
    rivals: Annotated[bool, typer.Option(help="Compare with rival policies.")] = True,
    batch: Annotated[int, typer.Option(min=1, help="Rows decoded side by side.")] = 64,
    seed: Seed = 1,
    as_json: Json = False,
    quiet: Quiet = False,
) -> int:
    """One problem live, then paired runs on fresh problems: full against stopped, with rivals."""
    from desist.calibration import CannotCertify
    from desist.proxy.builtin import load_builtin
    from desist.proxy.demo import figures, run_demo
    from desist.proxy.demo_screen import live, summary

    risk = alpha or ("0.02" if loss == "harm" else "0.05")
    builtin = load_builtin()
    if not as_json:
        live(builtin, problem, seed=seed, console=Console())
    with progress_bar(quiet) as tell:
        found = run_demo(
            builtin, seed=seed, n=n, loss=loss, alpha=risk, delta=delta, out=traces,
            rivals=rivals, batch=batch, progress=tell,
        )  # fmt: skip
    if isinstance(found, CannotCertify):
        show({"certified": False, **found.model_dump(mode="json")}, as_json=as_json, words=found.message)
        return REFUSED
    show(figures(found, seed=seed), as_json=as_json, words=summary(found))
    return 0


@app.command()
def study(
    what: Annotated[Literal["reasoner", "parity"], typer.Argument(help="What to study.")] = "reasoner",
    n: Annotated[int | None, typer.Option("--n", min=8, help="Problems [500, parity 200].")] = None,
    seed: Seed = 1,
    as_json: Json = False,
    quiet: Quiet = False,
) -> int:
    """reasoner: is the built-in model the test bed it claims to be; parity: does live equal replay."""
    from desist.proxy.builtin import load_builtin

    if what == "parity":
        from desist.proxy.parity import study_parity

        with status("live against replay", quiet):
            same = study_parity(load_builtin(), seed=seed, n=n or 200)
        show({**dump(same), "exact": same.exact}, as_json=as_json)
        return 0 if same.exact else REFUSED
    from desist.proxy.study import study_reasoner

    with progress_bar(quiet) as tell:
        found = study_reasoner(
            load_builtin(probes=False), seed=seed, n=n or 500,
            progress=lambda done, total: tell(what, done, total),
        )  # fmt: skip
    show(found.as_json(), as_json=as_json)
    return REFUSED if found.misses else 0


@app.command()
def bench(
    n: Annotated[int, typer.Option("--n", min=8, help="Problems a run.")] = 128,
    rounds: Annotated[int, typer.Option(min=1, help="Interleaved rounds.")] = 3,
    seed: Seed = 1,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """What scoring costs: full runs with and without the probe, as ratios measured in one run."""
    from desist.proxy.bench import bench_probe
    from desist.proxy.builtin import load_builtin

    with status("measuring", quiet):
        found = bench_probe(load_builtin(), seed=seed, n=n, rounds=rounds)
    show(dump(found), as_json=as_json)


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
