"""From problems to a certificate: `collect`, `train`, `score`, `calibrate`."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import typer

from desist.commands.common import (
    REFUSED,
    Alpha,
    Delta,
    Json,
    Loss,
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
    from desist.proxy.batch_runs import BatchRunner
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
    taps: Annotated[str | None, typer.Option(help="Layers to keep, for example 7,14,21,28.")] = None,
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
    from desist.proxy.collect import collect as run
    from desist.proxy.engines.embedded.artefacts import builtin_model
    from desist.proxy.engines.model import count_layers, default_sampling
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
    layers = tap_list(taps) or builtin_taps(count_layers(folder))
    with (
        _running(engine, folder, used, layers, token_tap, batch, vllm_arg or ()) as (running, runner),
        progress_bar(quiet) as tell,
    ):
        report = run(
            chosen, model=running, profile=used, sampling=sampling, out=out, seed=seed, taps=layers,
            keep_tokens_tap=token_tap, batch=batch, answer=answer, floors=floors, runner=runner,
            progress=lambda done, total: tell("collecting", done, total),
        )  # fmt: skip
    show(dump(report), as_json=as_json)


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
    else:
        err.print("no --probe given: overlap with its training problems is not checked", style="yellow")
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
    payload = {
        "certificate": str(path),
        "overlap_checked": card is not None,
        **found.model_dump(mode="json", exclude={"problems"}),
    }
    show(payload, as_json=as_json, words=words)
    return 0
