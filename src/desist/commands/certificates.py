"""Certificates in use: `certificate show`, `verify`, `diff`, `activate`, `rollback`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from desist.commands.certificate_files import certificate_files, paired_by_group
from desist.commands.common import REFUSED, Json, app, show, today

if TYPE_CHECKING:
    from desist.calibration import Certificate
    from desist.calibration.activation import Active

commands = typer.Typer(
    help="Show, verify, compare, activate and roll back certificates.", no_args_is_help=True
)
app.add_typer(commands, name="certificate")

File = Annotated[Path, typer.Argument(help="A certificate, or a folder of groups.", exists=True)]
Files = Annotated[list[Path], typer.Argument(help="Certificates, or folders of groups.", exists=True)]
Folder = Annotated[Path, typer.Option("--activation", help="Activation folder; `serve` follows it.")]
Probe = Annotated[Path | None, typer.Option("--probe", help="Folder of the probe.", exists=True)]


@commands.command("show")
def show_one(files: Files, as_json: Json = False) -> None:
    """What a certificate promises, for what, and until when. A folder: those of all its groups."""
    from desist.calibration import load_certificate

    found = [load_certificate(path) for path in certificate_files(files)]
    shown = [_shown(one) for one in found]
    words = "\n\n".join(lines for _, lines in shown)
    payload = shown[0][0] if len(shown) == 1 else {"certificates": [each for each, _ in shown]}
    show(payload, as_json=as_json, words=words)


def _shown(found: Certificate) -> tuple[dict[str, Any], str]:
    """A certificate as JSON and in words."""
    from desist.calibration.plan import voids

    lines = [
        found.text,
        *([f"group {found.group} (by {found.group_by})"] if found.group_by else []),
        f"threshold {found.lam:.6g} on score '{found.scorer}' ({found.method}), "
        f"{found.n_bad} of {found.n} lost, {found.saved_fraction:.1%} saved",
        f"made {found.created or 'at no known date'}, valid until {found.expires or 'no date'}",
        f"digest {found.digest[:16]}, made for",
        *(f"  {name}: {value}" for name, value in sorted(found.prints.items())),
    ]
    return _document(found) | {"voids": list(voids(found))}, "\n".join(lines)


@commands.command()
def verify(
    files: Files,
    probe: Probe = None,
    expect: Annotated[
        list[str] | None,
        typer.Option(
            "--expect", help="A field that must be as calibrated, as template=51588db0. Repeatable."
        ),
    ] = None,
    model: Annotated[
        Path | None, typer.Option("--model", help="Model folder to compare.", exists=True)
    ] = None,
    profile: Annotated[str | None, typer.Option("--profile", help="Model profile to compare.")] = None,
    dtype: Annotated[str | None, typer.Option("--dtype", help="Number format the model runs in.")] = None,
    as_json: Json = False,
) -> int:
    """Whether a certificate is whole, in date and made for what is named. Exit 2 where it is not."""
    from desist.calibration import load_certificate

    running = dict(_pairs(expect))
    checked = []
    for path in certificate_files(files):
        found = load_certificate(path)
        asked = dict(running)
        if probe is not None:
            asked[found.scorer] = _probe_print(probe)
        if model is not None:
            from desist.proxy.engines.model import read_model

            asked |= read_model(model, dtype=dtype or found.fingerprints.get("dtype", "")).fingerprints
        if profile is not None:
            from desist.controller import get_profile
            from desist.controller.fingerprints import profile_fingerprints

            asked |= profile_fingerprints(get_profile(profile))
        payload, words = _verified(found, asked)
        checked.append((payload | {"file": str(path), "group": found.group}, words))
    valid = all(payload["valid"] for payload, _ in checked)
    if len(checked) == 1:
        show(checked[0][0], as_json=as_json, words=checked[0][1])
    else:
        both = {"valid": valid, "certificates": [payload for payload, _ in checked]}
        show(both, as_json=as_json, words="\n".join(f"{one['file']}: {words}" for one, words in checked))
    return 0 if valid else REFUSED


def _verified(found: Certificate, running: Mapping[str, str]) -> tuple[dict[str, Any], str]:
    """What of `running` is not as calibrated, as JSON and in words."""
    from desist.calibration.fingerprints import differing

    other = differing(found, found.fingerprints, running)
    expired = bool(found.expires) and today() > found.expires
    payload: dict[str, Any] = {
        "valid": not other and not expired,
        "digest": found.digest,
        "expired": expired,
        "compared": sorted(running),
        "differing": {
            name: {"certified": value, "running": running[name]} for name, value in sorted(other.items())
        },
        "not_compared": sorted(set(found.prints) - set(running)),
    }
    lines = [f"{name}: certified {value}, running {running[name]}" for name, value in sorted(other.items())]
    lines += [f"expired on {found.expires}"] if expired else []
    return payload, "\n".join(lines) or f"whole; {len(running)} fields compared, all as calibrated"


@commands.command()
def diff(old: File, new: File, as_json: Json = False) -> None:
    """What differs between two certificates, field by field; between two folders, group by group."""
    from desist.calibration import load_certificate

    before, after = ([load_certificate(path) for path in certificate_files([given])] for given in (old, new))
    if len(before) == len(after) == 1:
        payload, words = _difference(before[0], after[0])
        show(payload, as_json=as_json, words=words)
        return
    groups: dict[str, Any] = {}
    lines = []
    for group, first, second in paired_by_group(before, after):
        name = group or "(no group)"
        if first is None or second is None:
            groups[name] = {"only_in": "new" if first is None else "old"}
            lines.append(f"{name}: only in the {groups[name]['only_in']} ones")
            continue
        groups[name], words = _difference(first, second)
        lines.append(f"{name}:\n{words}")
    show({"groups": groups}, as_json=as_json, words="\n".join(lines))


def _difference(first: Certificate, second: Certificate) -> tuple[dict[str, Any], str]:
    from desist.calibration.audits import certificate_diff

    shared = len(set(first.problems) & set(second.problems))
    changes = certificate_diff(first, second)
    payload = {
        "changed": {each.field: [each.old, each.new] for each in changes},
        "problems": [len(first.problems), len(second.problems)],
        "problems_shared": shared,
        "made_for_the_same": first.prints == second.prints,
    }
    lines = [f"{each.field}: {each.old} -> {each.new}" for each in changes]
    lines.append(f"calibration problems in both: {shared}")
    return payload, "\n".join(lines)


@commands.command()
def activate(
    files: Annotated[
        list[Path],
        typer.Argument(help="Certificates, the default one first; a folder: its groups'.", exists=True),
    ],
    activation: Folder,
    probe: Probe = None,
    percent: Annotated[int, typer.Option(min=1, max=100, help="Share of requests it takes over.")] = 100,
    force: Annotated[
        bool, typer.Option("--force", help="Use it though it does not fit, uncertified.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Make certificates and their probe, as a pair, the active ones. Servers take over, no restart."""
    from desist.calibration import load_certificate
    from desist.calibration.activation import ActivationFolder
    from desist.data.errors import ArtifactMismatch

    files = certificate_files(files)
    if probe is not None and not force:
        own = _probe_print(probe)
        for path in files:
            found = load_certificate(path)
            made_for = found.fingerprints.get(found.scorer)
            if made_for != own:
                raise ArtifactMismatch(
                    f"{path} was made for something else "
                    f"({found.scorer}: certified {made_for!r}, given {own!r}). "
                    "Give the probe that it was calibrated with, or force it and lose the guarantee."
                )
    active = ActivationFolder(activation).activate(files, probe, percent=percent, force=force, when=today())
    _show_active(active, as_json)


@commands.command()
def rollback(activation: Folder, as_json: Json = False) -> None:
    """Go back to the pair before, for all requests. Servers take it over without a restart."""
    from desist.calibration.activation import ActivationFolder

    _show_active(ActivationFolder(activation).rollback(when=today()), as_json)


def _show_active(active: Active, as_json: bool) -> None:
    pair = active.current
    assert pair is not None
    payload = {
        "number": active.number,
        "pair": pair.id,
        "percent": pair.percent,
        "certificates": [str(path) for path in pair.certificates],
        "probe": None if pair.probe is None else str(pair.probe),
        "before": active.history[-1].id if active.history else None,
    }
    share = "all requests" if pair.percent == 100 else f"{pair.percent} % of requests"
    show(payload, as_json=as_json, words=f"pair {pair.id} is active for {share}")


def _document(found: Certificate) -> dict[str, Any]:
    return {
        **found.model_dump(mode="json", exclude={"problems"}),
        "fingerprints": found.prints,
        "digest": found.digest,
    }


def _pairs(texts: list[str] | None) -> list[tuple[str, str]]:
    from desist.calibration.fingerprints import FIELDS

    pairs = []
    for text in texts or ():
        name, sign, value = text.partition("=")
        if not sign or name not in {*FIELDS, "rom"}:
            raise typer.BadParameter(f"--expect is {text!r}; give FIELD=VALUE. Fields: {', '.join(FIELDS)}.")
        pairs.append((name, value))
    return pairs


def _probe_print(folder: Path) -> str:
    from desist.probes import load_probe
    from desist.probes.artifact import probe_fingerprint

    return probe_fingerprint(load_probe(folder, force=True))
