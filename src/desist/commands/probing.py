"""From problems to scored traces: `collect`, `train`, `score`."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import typer

from desist.commands.common import (
    Json,
    Model,
    Quiet,
    Seed,
    VllmArgs,
    app,
    dump,
    err,
    progress_bar,
    show,
    status,
    tap_list,
    today,
)

if TYPE_CHECKING:
    from desist.controller import ModelProfile
    from desist.data.schema import Sampling
    from desist.probes.disk import HiddenDisk
    from desist.proxy.collection.batch_runs import BatchRunner
    from desist.proxy.engines.model import ModelFacts

Engine = Annotated[Literal["embedded", "vllm"], typer.Option("--engine", help="What generates.")]


@app.command()
def collect(
    out: Annotated[Path, typer.Option("--out", help="File of traces to write; hidden states beside it.")],
    problems: Annotated[Path | None, typer.Option(help="Problem file (default: draw word problems).")] = None,
    split: Annotated[str, typer.Option(help="Split to draw from: train, calibration or test.")] = "train",
    n: Annotated[int, typer.Option("--n", min=1, help="How many problems.")] = 3000,
    model: Model = None,
    profile: Annotated[str | None, typer.Option(help="Model profile (default: the built-in one's).")] = None,
    taps: Annotated[
        str | None, typer.Option(help="Layers to keep, as 7,14,-1 (0: embeddings, -1: last).")
    ] = None,
    token_tap: Annotated[int | None, typer.Option(help="Layer kept for every token (ROM).")] = None,
    temperature: Annotated[float | None, typer.Option(help="Default: the model's own.")] = None,
    top_p: Annotated[float | None, typer.Option(help="Default: the model's own.")] = None,
    max_tokens: Annotated[int | None, typer.Option(help="Reasoning and answer together.")] = None,
    answer: Annotated[Literal["write", "extract"], typer.Option(help="Answer mode.")] = "write",
    batch: Annotated[int, typer.Option(min=1, help="Rows decoded side by side.")] = 64,
    floors: Annotated[int, typer.Option(min=0, help="Problems for the floors (0: none).")] = 0,
    engine: Engine = "embedded",
    vllm_arg: VllmArgs = None,
    seed: Seed = 0,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Run problems in full, force an exit at every boundary, label, and keep hidden states. Resumable."""
    from desist.controller import builtin_profile, get_profile
    from desist.data import read_problems
    from desist.proxy.collection.collect import collect as run
    from desist.proxy.engines.embedded.artefacts import builtin_model
    from desist.proxy.engines.model import count_layers, default_sampling, tap_index
    from desist.proxy.studies.builtin import builtin_problems, builtin_taps

    if vllm_arg and engine != "vllm":
        raise typer.BadParameter("--vllm-arg is for --engine vllm. Leave it out, or name that engine.")
    folder = model or builtin_model()
    own_sampling = default_sampling(folder)
    sampling = dataclasses.replace(
        own_sampling,
        temperature=own_sampling.temperature if temperature is None else temperature,
        top_p=own_sampling.top_p if top_p is None else top_p,
        max_tokens=own_sampling.max_tokens if max_tokens is None else max_tokens,
    )
    chosen = list(read_problems(problems)) if problems else builtin_problems(cast(Any, split), seed, n)
    used = get_profile(profile or "qwen3") if profile or model else builtin_profile()
    n_layers = count_layers(folder)
    layers = tap_list(taps) or builtin_taps(n_layers)
    for tap in (*layers, *([] if token_tap is None else [token_tap])):
        tap_index(tap, n_layers)  # a layer that is not there is told before anything is loaded
    with (
        _running(engine, folder, used, layers, token_tap, batch, vllm_arg or ()) as (running, runner),
        progress_bar(quiet) as tell,
    ):
        disk = _disk(running, used, sampling, len(chosen), layers, token_tap)
        _tell_disk(disk, out, quiet)
        report = run(
            chosen, model=running, profile=used, sampling=sampling, out=out, seed=seed, taps=layers,
            keep_tokens_tap=token_tap, batch=batch, answer=answer, floors=floors, runner=runner,
            progress=lambda done, total: tell("collecting", done, total),
        )  # fmt: skip
    show({**dump(report), "hidden_disk": {**dump(disk), "total_bytes": disk.total_bytes}}, as_json=as_json)


def _disk(
    model: ModelFacts,
    profile: ModelProfile,
    sampling: Sampling,
    n: int,
    taps: Sequence[int],
    token_tap: int | None,
) -> HiddenDisk:
    """What the hidden states of `n` traces will need."""
    from desist.probes.disk import hidden_disk

    longest = min((size for size in (sampling.max_tokens, model.max_length) if size), default=None)
    every = {"token": 1, "every_n": profile.every_n}
    return hidden_disk(
        n, taps=taps, token_tap=token_tap, hidden_size=model.hidden_size, max_tokens=longest,
        every_n=next((step for kind, step in every.items() if kind in profile.kinds), None),
    )  # fmt: skip


def _tell_disk(disk: HiddenDisk, out: Path, quiet: bool) -> None:
    """Says before the run what it will write, and loudly where that does not fit."""
    out.parent.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(out.parent).free
    short = disk.total_bytes is not None and disk.total_bytes > free
    if short:
        err.print(
            f"{disk.words()}: may not fit, {free / 1e9:,.3g} GB are free at {out.parent}. Keep fewer layers "
            "(--taps), no --token-tap, or write elsewhere (--out).",
            style="bold yellow",
        )
    elif not quiet:
        err.print(f"{disk.words()}; {free / 1e9:,.3g} GB free")


@contextmanager
def _running(
    engine: str,
    folder: Path,
    profile: ModelProfile,
    taps: Sequence[int],
    token_tap: int | None,
    batch: int,
    arguments: Sequence[str],
) -> Iterator[tuple[ModelFacts, BatchRunner | None]]:
    """The model that generates, and the runner that it generates with (None: the embedded one's own)."""
    if engine == "embedded":
        from desist.proxy.engines.embedded.loading import load_model

        yield load_model(folder), None
        return
    from desist.proxy.engines.vllm.offline.runner import vllm_runner

    with vllm_runner(
        folder, profile, taps=taps, token_tap=token_tap, max_rows=batch, arguments=arguments
    ) as runner:
        yield runner.model, runner


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
    chosen = tap_list(taps)
    with status(f"training a {family} probe", quiet):
        trained = train_probe(
            read_traces(traces), hidden, family=family, target=target, seed=seed, taps=chosen,
            created=today(), unlabelled="skip", controls=controls,
        )  # fmt: skip
        save_probe(trained.probe, out)
    show({"out": str(out), "family": family, "report": trained.report.to_dict()}, as_json=as_json)


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
