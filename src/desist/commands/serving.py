"""What stands before an engine: `serve`, `doctor`. Both read the same flags into the same settings."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from desist._version import __version__
from desist.commands.common import REFUSED, Json, Quiet, app, err, show, status

if TYPE_CHECKING:
    from desist.proxy.settings import Settings

EngineName = Annotated[
    Literal["embedded", "upstream", "vllm"] | None,
    typer.Option("--engine", help="embedded, vllm (started as a child, or at --upstream), upstream."),
]
Upstream = Annotated[str | None, typer.Option("--upstream", help="An OpenAI-compatible server.")]
ModelName = Annotated[str | None, typer.Option("--model", help="Model folder; vllm: or a hub name.")]
VllmArg = Annotated[
    list[str] | None, typer.Option("--vllm-arg", help="Argument for the vLLM that is started; repeat.")
]
Decide = Annotated[
    Literal["engine", "proxy"] | None,
    typer.Option("--decide", help="Where vLLM's boundaries are scored [engine]."),
]
Probe = Annotated[Path | None, typer.Option("--probe", help="Probe artefact.")]
Certificates = Annotated[list[Path] | None, typer.Option("--certificate", help="Certificates.")]
Force = Annotated[
    bool, typer.Option("--force", help="Use certificates that do not fit; all is marked uncertified.")
]
Activation = Annotated[
    Path | None, typer.Option("--activation", help="Folder of the active pair; followed while serving.")
]
Config = Annotated[Path | None, typer.Option("--config", help="YAML or TOML file.")]


@app.command()
def serve(
    host: Annotated[str | None, typer.Option("--host", help="Address to listen on [127.0.0.1].")] = None,
    port: Annotated[int | None, typer.Option("--port", help="Port; 0 takes any free one [8100].")] = None,
    engine: EngineName = None,
    upstream: Upstream = None,
    model: ModelName = None,
    vllm_arg: VllmArg = None,
    decide: Decide = None,
    probe: Probe = None,
    certificate: Certificates = None,
    force: Force = False,
    activation: Activation = None,
    mode: Annotated[str | None, typer.Option("--mode", help="off, shadow or active [active].")] = None,
    config: Config = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Start the proxy. With no argument: the built-in reasoner on http://127.0.0.1:8100."""
    from desist.proxy.serve import serve as run

    flags = {"host": host, "port": port, "control": {"mode": mode}, "activation": activation}
    flags["force_certificates"] = True if force else None
    settings = _settings(config, flags, engine, upstream, model, vllm_arg, decide, probe, certificate, quiet)

    def announce(address: str) -> None:
        what = settings.upstream.url if settings.upstream else settings.model or "the built-in reasoner"
        lines = (
            f"desist {__version__} in front of {what}: [bold]{address}/v1[/bold]",
            f"models {address}/v1/models  metrics {address}/metrics  (Ctrl-C stops)",
        )
        if as_json:
            show({"url": f"{address}/v1", "engine": settings.engine}, as_json=True)
        for line in lines if not quiet else ():
            err.print(line, highlight=False, soft_wrap=True)

    run(settings, announce=announce)


@app.command()
def doctor(
    engine: EngineName = None,
    upstream: Upstream = None,
    model: ModelName = None,
    vllm_arg: VllmArg = None,
    decide: Decide = None,
    probe: Probe = None,
    certificate: Certificates = None,
    config: Config = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> int:
    """What an engine can do, found out by doing it. Exit 2 where something asked for cannot work."""
    from desist.proxy.doctor import diagnose

    settings = _settings(config, {}, engine, upstream, model, vllm_arg, decide, probe, certificate, True)
    with status("trying it out", quiet):
        found = asyncio.run(diagnose(settings))
    show(found.as_json(), as_json=as_json, words=found.words())
    return 0 if found.healthy else REFUSED


def _settings(
    config: Path | None,
    flags: dict[str, Any],
    engine: str | None,
    upstream: str | None,
    model: str | None,
    vllm_arg: list[str] | None,
    decide: str | None,
    probe: Path | None,
    certificate: list[Path] | None,
    quiet: bool,
) -> Settings:
    from desist.proxy.settings import load_settings

    if upstream is not None and engine == "embedded":
        raise typer.BadParameter("--engine embedded runs the model itself: leave --upstream out.")
    flags |= {
        "model": model,
        "probe": probe,
        "certificates": tuple(certificate) if certificate else None,
        "engine": engine,
        "vllm": {"args": tuple(vllm_arg or ()) or None, "decide": decide, "log": False if quiet else None},
    }
    if upstream is not None:
        flags |= {"engine": engine or "upstream", "upstream": {"url": upstream}}
    return load_settings(config, flags)
