"""The probe on disk: a folder with `weights.safetensors` and `card.json`. Never a pickle.

Knows file formats and fingerprints. A folder is written whole or not at all; a reader refuses what it does
not understand, what was altered, and what was made for something else than what runs now.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict, ValidationError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors

from desist.data.errors import ArtifactMismatch, ProbeError
from desist.kernels import Layer, MinGRUWeights
from desist.probes.base import SCHEMA_VERSION, Family, ProbeCard, Target
from desist.probes.features import HiddenDtype
from desist.probes.lynx import LynxProbe
from desist.probes.rom import RomProbe

__all__ = ["AnyProbe", "load_probe", "probe_fingerprint", "save_probe"]

AnyProbe = LynxProbe | RomProbe
_CARD, _WEIGHTS = "card.json", "weights.safetensors"


class _CardFile(BaseModel):
    """`card.json`. Fields added by later minor versions are passed over."""

    model_config = ConfigDict(extra="ignore")

    schema_version: str
    family: Family
    taps: tuple[int, ...]
    hidden_size: int
    hidden_dtype: HiddenDtype
    target: Target
    seed: int
    problems: tuple[str, ...]
    n_traces: int
    n_boundaries: int
    fingerprints: dict[str, str]
    metrics: dict[str, float]
    settings: dict[str, str | float]
    versions: dict[str, str]
    created: str | None
    uncertified: bool
    weights_sha256: str
    fingerprint: str


def _tensors(probe: AnyProbe) -> dict[str, torch.Tensor]:
    if isinstance(probe, RomProbe):
        named = probe.weights._asdict()
    else:
        named = {f"layer_{number}": layer for number, layer in enumerate(probe.layers)}
    return {
        f"{name}.{part}": tensor.cpu()
        for name, layer in named.items()
        for part, tensor in layer._asdict().items()
    }


def _build(card: ProbeCard, tensors: Mapping[str, torch.Tensor]) -> AnyProbe:
    def layer(name: str) -> Layer:
        return Layer(tensors[f"{name}.weight"], tensors[f"{name}.bias"])

    try:
        if card.family == "rom":
            return RomProbe(card, MinGRUWeights(*(layer(name) for name in MinGRUWeights._fields)))
        return LynxProbe(card, [layer(f"layer_{number}") for number in range(len(tensors) // 2)])
    except KeyError as exc:
        raise ProbeError(
            f"the weights lack {exc} of a probe of family {card.family!r}: the files do not belong together."
        ) from exc


def probe_fingerprint(probe: AnyProbe) -> str:
    """16 hex digits over the weights and what they read; key `probe` of a certificate."""
    card = probe.card
    seal = hashlib.sha256(repr((card.family, card.taps, card.hidden_size, card.hidden_dtype)).encode())
    for name, tensor in sorted(_tensors(probe).items()):
        seal.update(f"{name}{tuple(tensor.shape)}".encode())
        seal.update(tensor.numpy().tobytes())
    return seal.hexdigest()[:16]


def save_probe(probe: AnyProbe, folder: str | Path) -> Path:
    """Write the probe as a folder, replacing what stood there, and return its path."""
    folder = Path(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    weights = save_tensors(_tensors(probe))
    fields = {field.name: getattr(probe.card, field.name) for field in dataclasses.fields(probe.card)}
    card = _CardFile(
        **{
            **fields,
            "problems": tuple(sorted(probe.card.problems)),
            "fingerprints": dict(probe.card.fingerprints),
            "weights_sha256": hashlib.sha256(weights).hexdigest(),
            "fingerprint": probe_fingerprint(probe),
        }
    )
    fresh = folder.with_name(f".{folder.name}.new")
    aside = folder.with_name(f".{folder.name}.old")
    for left_over in (fresh, aside):
        shutil.rmtree(left_over, ignore_errors=True)
    fresh.mkdir()
    (fresh / _WEIGHTS).write_bytes(weights)
    (fresh / _CARD).write_text(json.dumps(card.model_dump(), indent=1) + "\n")
    if folder.exists():
        folder.rename(aside)
    fresh.rename(folder)
    shutil.rmtree(aside, ignore_errors=True)
    return folder


def _read_card(path: Path) -> _CardFile:
    try:
        raw: Any = json.loads(path.read_text())
        version = str(raw["schema_version"])
    except (OSError, ValueError, KeyError, TypeError) as exc:
        raise ProbeError(f"{path} is no probe card ({exc!r}). Give the folder that training wrote.") from exc
    if version.split(".")[0] != SCHEMA_VERSION.split(".")[0]:
        raise ProbeError(
            f"{path}: schema version {version}, this release reads {SCHEMA_VERSION.split('.')[0]}.x. "
            "Install the release that wrote it, or train the probe again."
        )
    try:
        return _CardFile.model_validate(raw)
    except ValidationError as exc:
        first = exc.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ProbeError(f"{path}, field '{where}': {first['msg']}. Train the probe again.") from exc


def _mismatch(card: _CardFile, expect: Mapping[str, str]) -> str | None:
    for field, wanted in sorted(expect.items()):
        found = card.fingerprints.get(field)
        if found != wanted:
            return (
                f"{field} is {found!r} in the probe's card but {wanted!r} in what runs now"
                if found is not None
                else f"the probe's card does not name its {field}; what runs now has {wanted!r}"
            )
    return None


def load_probe(
    folder: str | Path, *, expect: Mapping[str, str] | None = None, force: bool = False
) -> AnyProbe:
    """Read a probe. `expect`: fingerprints of what runs now; each must equal the card's.

    Raises `ProbeError` for a folder that cannot be read, an unknown version, altered or non-finite weights,
    and `ArtifactMismatch` for other fingerprints, unless `force`: then the card is marked `uncertified`.
    """
    folder = Path(folder)
    card = _read_card(folder / _CARD)
    try:
        weights = (folder / _WEIGHTS).read_bytes()
    except OSError as exc:
        raise ProbeError(f"{folder / _WEIGHTS} cannot be read ({exc}). Copy the whole folder.") from exc
    found = hashlib.sha256(weights).hexdigest()
    if found != card.weights_sha256:
        raise ProbeError(
            f"{folder / _WEIGHTS}: SHA-256 {found[:12]}..., the card says {card.weights_sha256[:12]}... "
            "The file was altered or cut short: copy the folder again."
        )
    problem = _mismatch(card, expect or {})
    if problem and not force:
        raise ArtifactMismatch(
            f"{folder}: {problem}. Train a probe for this set-up, or load it by force (uncertified)."
        )
    values = {
        name: value
        for name, value in card.model_dump().items()
        if name not in ("weights_sha256", "fingerprint")
    }
    values |= {
        "problems": frozenset(card.problems),
        "taps": tuple(card.taps),
        "uncertified": card.uncertified or problem is not None,
    }
    probe = _build(ProbeCard(**values), load_tensors(weights))
    if probe_fingerprint(probe) != card.fingerprint:
        raise ProbeError(
            f"{folder / _CARD}: taps, sizes or family were altered after saving. Copy the folder again."
        )
    return probe
