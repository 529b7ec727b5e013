"""What runs a model to show or measure it: `demo`, `study`, `bench`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console

from desist.commands.common import (
    REFUSED,
    Delta,
    Json,
    Loss,
    Quiet,
    Seed,
    VllmArgs,
    app,
    dump,
    progress_bar,
    show,
    status,
)


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
    from desist.proxy.studies.builtin import load_builtin
    from desist.proxy.studies.demo import figures, run_demo
    from desist.proxy.studies.demo_screen import live, summary

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
    from desist.proxy.studies.builtin import load_builtin

    if what == "parity":
        from desist.proxy.studies.parity import study_parity

        with status("live against replay", quiet):
            same = study_parity(load_builtin(), seed=seed, n=n or 200)
        show({**dump(same), "exact": same.exact}, as_json=as_json)
        return 0 if same.exact else REFUSED
    from desist.proxy.studies.reasoner import study_reasoner

    with progress_bar(quiet) as tell:
        found = study_reasoner(
            load_builtin(probes=False), seed=seed, n=n or 500,
            progress=lambda done, total: tell(what, done, total),
        )  # fmt: skip
    show(found.as_json(), as_json=as_json)
    return REFUSED if found.misses else 0


@app.command()
def bench(
    what: Annotated[
        Literal["probe", "vllm", "kernels", "proxy"], typer.Argument(help="What to measure.")
    ] = "probe",
    n: Annotated[int | None, typer.Option("--n", min=8, help="Problems a run [128, vllm 400].")] = None,
    rounds: Annotated[int | None, typer.Option(min=1, help="Interleaved rounds [3, vllm 30].")] = None,
    clients: Annotated[int, typer.Option(min=1, help="Requests in flight (vllm).")] = 16,
    seconds: Annotated[float, typer.Option(min=1, help="Seconds a level and a side (proxy).")] = 30.0,
    streams: Annotated[
        list[int] | None,
        typer.Option("--streams", min=1, help="Streams at once (proxy); repeat [1, 64, 512]."),
    ] = None,
    vllm_arg: VllmArgs = None,
    seed: Seed = 1,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """What desist costs. probe, vllm: scoring (ratios of interleaved runs); kernels: us; proxy: each
    chunk."""
    if what == "proxy":
        from desist.proxy.studies.bench_proxy import STREAMS, bench_proxy

        with progress_bar(quiet) as tell:
            added = bench_proxy(seconds=seconds, streams=streams or STREAMS, progress=tell)
        show(dump(added), as_json=as_json)
        return
    if what == "kernels":
        from desist.proxy.studies.bench_kernels import bench_kernels

        with progress_bar(quiet) as tell:
            kernels = bench_kernels(seed=seed, progress=tell)
        show(dump(kernels), as_json=as_json)
        return
    from desist.proxy.studies.builtin import load_builtin

    if what == "vllm":
        from desist.proxy.studies.bench_vllm import bench_vllm

        with progress_bar(quiet) as tell:
            served = bench_vllm(
                load_builtin(), seed=seed, n=n or 400, clients=clients, rounds=rounds or 30,
                arguments=vllm_arg or (), progress=tell,
            )  # fmt: skip
        show(dump(served), as_json=as_json)
        return
    from desist.proxy.studies.bench import bench_probe

    with status("measuring", quiet):
        found = bench_probe(load_builtin(), seed=seed, n=n or 128, rounds=rounds or 3)
    show(dump(found), as_json=as_json)
