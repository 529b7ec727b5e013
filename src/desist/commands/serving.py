"""What stands before an engine: `serve`, `doctor`. Both read the same flags into the same settings."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console

from desist._version import __version__
from desist.commands.certificate_files import certificate_files
from desist.commands.common import REFUSED, Json, Quiet, app, err, show, status

if TYPE_CHECKING:
    from desist.proxy.settings import Settings

log = logging.getLogger("desist.serve")

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
Certificates = Annotated[
    list[Path] | None, typer.Option("--certificate", help="Certificates; a folder: its groups'.")
]
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
    allow_public: Annotated[
        bool, typer.Option("--allow-public", help="Others may reach --host although no key is asked for.")
    ] = False,
    workers: Annotated[int, typer.Option("--workers", min=1, max=256, help="Processes on one socket.")] = 1,
    config: Config = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Start the proxy. With no argument: the built-in reasoner on http://127.0.0.1:8100."""
    from desist.proxy.lifecycle.serve import serve as run
    from desist.proxy.settings import Source
    from desist.proxy.settings.conflicts import conflicts
    from desist.proxy.telemetry.logs import set_up_logs

    flags: dict[str, Any] = {"host": host, "port": port, "control": {"mode": mode}, "activation": activation}
    flags |= {"force_certificates": True if force else None, "allow_public": True if allow_public else None}
    flags["log"] = {"access": False if quiet else None}
    settings = _settings(config, flags, engine, upstream, model, vllm_arg, decide, probe, certificate, quiet)
    set_up_logs(settings.log)
    for each in conflicts(settings):
        log.log(logging.ERROR if each.level == "error" else logging.WARNING, "%s: %s", each.path, each.says)

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

    source = Source(config, flags)
    if workers == 1:
        run(settings, announce=announce, source=source)
    else:
        from desist.proxy.lifecycle.workers import serve_workers

        serve_workers(settings, workers, announce=announce, source=source)


@app.command()
def doctor(
    url: Annotated[
        str | None, typer.Argument(help="An OpenAI-compatible server to try out; as --upstream.")
    ] = None,
    engine: EngineName = None,
    upstream: Upstream = None,
    model: ModelName = None,
    vllm_arg: VllmArg = None,
    decide: Decide = None,
    probe: Probe = None,
    certificate: Certificates = None,
    require: Annotated[
        list[str] | None,
        typer.Option("--require", help='A finding that must be on, such as "native budget"; repeat.'),
    ] = None,
    config: Config = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> int:
    """What an engine or a server can do, found out by doing it. Exit 2 where what is asked for fails."""
    from desist.proxy.doctor.doctor import REQUIRABLE, diagnose

    if url is not None and upstream not in (None, url):
        raise typer.BadParameter(f"{url} and --upstream {upstream} are two servers. Name one.")
    asked = tuple(require or ())
    if unknown := [name for name in asked if name not in REQUIRABLE]:
        raise typer.BadParameter(f"--require {unknown[0]!r} is not known. One of: {', '.join(REQUIRABLE)}.")
    upstream = url or upstream
    settings = _settings(config, {}, engine, upstream, model, vllm_arg, decide, probe, certificate, True)
    with status("trying it out", quiet):
        found = asyncio.run(diagnose(settings)).asked(asked)
    if as_json:
        show(found.as_json(), as_json=True)
    else:
        Console(highlight=False).print(found.table())
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
        "certificates": tuple(certificate_files(certificate)) if certificate else None,
        "engine": engine,
        "vllm": {"args": tuple(vllm_arg or ()) or None, "decide": decide, "log": False if quiet else None},
    }
    if upstream is not None:
        flags |= {"engine": engine or "upstream", "upstream": {"url": upstream}}
    return load_settings(config, flags)
