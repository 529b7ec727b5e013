"""Finds and loads the certificates of one server, and what is known about savings.

Knows files and fingerprints; the check itself is the certificate's. Nothing is loaded that does not fit.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path

from desist.proxy.control import OperatingPoint
from desist.proxy.estimates import StepTable
from desist.proxy.settings import Settings

__all__ = ["certificate_paths", "load_points"]


def certificate_paths(settings: Settings) -> tuple[Path, ...]:
    """The certificates that `settings` name; for the built-in reasoner and its probe, the built-in ones."""
    if settings.certificates or not settings.serves_builtin or settings.probe is not None:
        return settings.certificates
    return _builtin()


def load_points(settings: Settings, fingerprints: Mapping[str, str]) -> tuple[OperatingPoint, ...]:
    """The operating points of `settings`, in their order, each checked against what runs now.

    `fingerprints`: those of the running engine. An estimate table is read from
    `<certificate>.estimates.json` where that file exists. Raises `ArtifactMismatch` or `CalibrationError`.
    """
    paths = certificate_paths(settings)
    if not paths:
        return ()
    from desist.calibration.certificate import load_for_running

    points = []
    for path in paths:
        beside = path.with_suffix(".estimates.json")
        estimates = StepTable.load(beside) if beside.exists() else None
        points.append(
            OperatingPoint.of(load_for_running(path, fingerprints), name=path.stem, estimates=estimates)
        )
    return tuple(points)


def _builtin() -> tuple[Path, ...]:
    """Those that come with the package. The folder is found without the cost of importing the package."""
    spec = importlib.util.find_spec("desist.calibration")
    folders = [] if spec is None else list(spec.submodule_search_locations or [])
    found = [path for folder in folders for path in Path(folder, "builtin").glob("*.json")]
    return tuple(sorted(path for path in found if not path.name.endswith(".estimates.json")))
