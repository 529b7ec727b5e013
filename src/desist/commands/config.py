"""The settings of the proxy: `desist config check`, `show`, and the tables of the docs made from the code."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from desist.commands.common import Json, app, show

commands = typer.Typer(help="Check and show the proxy's settings.", no_args_is_help=True)
app.add_typer(commands, name="config")

File = Annotated[Path | None, typer.Argument(help="YAML or TOML file; none: environment and defaults alone.")]


@commands.command()
def check(
    file: File = None,
    config: Annotated[Path | None, typer.Option("--config", help="The same as FILE.")] = None,
    as_json: Json = False,
) -> int:
    """Whether the settings can be served with. Exit 1 for what is wrong; warnings alone are exit 0."""
    from desist.proxy.settings import SettingsError, load_with_origins
    from desist.proxy.settings.conflicts import conflicts

    path = _one(file, config)
    try:
        settings = load_with_origins(path).settings
    except SettingsError as error:
        payload: dict[str, Any] = {"ok": False, "errors": _lines(str(error)), "warnings": []}
        show(payload, as_json=as_json, words=str(error))
        return 1
    found = conflicts(settings)
    errors = [f"{each.path}: {each.says}" for each in found if each.level == "error"]
    warnings = [f"{each.path}: {each.says}" for each in found if each.level == "warning"]
    payload = {"ok": not errors, "errors": errors, "warnings": warnings}
    words = "\n".join(map(str, found)) or "the settings are fine"
    show(payload, as_json=as_json, words=words)
    return 1 if errors else 0


@commands.command("show")
def show_settings(
    file: File = None,
    config: Annotated[Path | None, typer.Option("--config", help="The same as FILE.")] = None,
    as_json: Json = False,
) -> None:
    """Every setting, its value (secrets masked) and where it came from: flag, env, file or default."""
    from desist.proxy.settings import load_with_origins
    from desist.proxy.settings.showing import shown_values

    values = shown_values(load_with_origins(_one(file, config)))
    words = "\n".join(f"{path} = {_plain(each['value'])}  [{each['from']}]" for path, each in values.items())
    show(values, as_json=as_json, words=words)


@commands.command()
def table(
    which: Annotated[Literal["settings", "metrics"], typer.Argument(help="settings or metrics.")],
    out: Annotated[
        Path | None, typer.Option("--out", help="A page: its table between the two marks is renewed.")
    ] = None,
) -> None:
    """The table of all settings, or of all metrics, as it stands in the docs."""
    from desist.proxy.settings.pages import renewed
    from desist.proxy.settings.showing import settings_table
    from desist.proxy.telemetry.metric_table import metric_table

    text = settings_table() if which == "settings" else metric_table()
    if out is None:
        typer.echo(text, nl=False)
        return
    out.write_text(renewed(out.read_text(encoding="utf-8"), text), encoding="utf-8")


def _one(file: Path | None, config: Path | None) -> Path | None:
    if file is not None and config is not None and file != config:
        raise typer.BadParameter(f"{file} and --config {config} are two files. Name one.")
    return file or config


def _lines(text: str) -> list[str]:
    head, *problems = text.split("\n  ")
    return problems or [head]


def _plain(value: Any) -> str:
    import json

    return value if isinstance(value, str) else json.dumps(value)
