"""Finds and loads the certificates of one server, and what is known about savings.

Knows files and fingerprints; the check itself is the certificate's. Nothing is loaded that does not fit.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path

from desist.data.fingerprint import fingerprint
from desist.data.schema import Sampling
from desist.proxy.answering.estimates import StepTable
from desist.proxy.control import OperatingPoint
from desist.proxy.engines.base import Engine
from desist.proxy.settings import Settings

__all__ = ["certificate_paths", "load_points", "running_prints"]


def running_prints(engine: Engine, sampling: Sampling) -> dict[str, str]:
    """The fingerprints of what runs: the engine's, and the sampler of requests that do not name one.

    An engine that does not tell its sampler (`sampling`) is not asked for it.
    """
    prints = dict(getattr(engine, "fingerprints", {}))
    if prints and hasattr(engine, "sampling"):
        top_k = int(getattr(engine, "top_k", 0) or 0)
        prints["sampler"] = fingerprint([sampling.temperature, sampling.top_p, top_k])
    return prints


def certificate_paths(settings: Settings) -> tuple[Path, ...]:
    """The certificates that `settings` name; for the built-in reasoner and its probe, the built-in ones."""
    if settings.certificates or not settings.serves_builtin or settings.probe is not None:
        return settings.certificates
    return _builtin()


def load_points(settings: Settings, fingerprints: Mapping[str, str]) -> tuple[OperatingPoint, ...]:
    """The operating points of `settings`, in their order, each checked against what runs now.

    `fingerprints`: those of the running engine. An estimate table is read from
    `<certificate>.estimates.json` and a drift reference from `<certificate>.drift`, where these exist. With
    `force_certificates` those that do not fit are used all the same, as uncertified. Raises
    `ArtifactMismatch` or `CalibrationError`.
    """
    paths = certificate_paths(settings)
    if not paths:
        return ()
    from desist.calibration.certificate import load_for_running
    from desist.calibration.drift_reference import DriftReference, reference_path

    points = []
    for path in paths:
        beside = path.with_suffix(".estimates.json")
        estimates = StepTable.load(beside) if beside.exists() else None
        certificate = load_for_running(path, fingerprints, force=settings.force_certificates)
        drift = DriftReference.load(reference_path(path)) if reference_path(path).exists() else None
        points.append(OperatingPoint.of(certificate, name=path.stem, estimates=estimates, drift=drift))
    return tuple(points)


def _builtin() -> tuple[Path, ...]:
    """Those that come with the package. The folder is found without the cost of importing the package."""
    spec = importlib.util.find_spec("desist.calibration")
    folders = [] if spec is None else list(spec.submodule_search_locations or [])
    found = [path for folder in folders for path in Path(folder, "builtin").glob("*.json")]
    return tuple(sorted(path for path in found if not path.name.endswith(".estimates.json")))
