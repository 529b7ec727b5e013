"""Training a probe: labelled traces and their hidden states in, a probe and a report on it out.

Knows the order of the steps and what makes data unfit; the networks are in `fit_mlp` and `fit_rom`.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from desist.data.errors import ProbeError
from desist.data.schema import Trace
from desist.probes.artifact import AnyProbe
from desist.probes.base import Family, ProbeCard, Target
from desist.probes.controls import control_aurocs
from desist.probes.evaluate import ProbeReport, evaluate_scores, table_scores
from desist.probes.features import HiddenSet
from desist.probes.fit_mlp import MlpSettings, fit_layers
from desist.probes.fit_rom import RomSettings, fit_weights
from desist.probes.labels import EVAL_FOLD, LabelledBoundaries, Unlabelled, label_boundaries
from desist.probes.lynx import LynxProbe
from desist.probes.rom import RomProbe

__all__ = ["LOGISTIC", "MIN_PROBLEMS", "TrainedProbe", "train_probe"]

MIN_PROBLEMS = 50
LOGISTIC = MlpSettings(hidden=(), members=3, learning_rate=3e-3, weight_decay=3e-2, input_dropout=0.0)


@dataclass(frozen=True, slots=True)
class TrainedProbe:
    """A probe, and the report on the tenth of the problems that was held out (`card.metrics` has it too)."""

    probe: AnyProbe
    report: ProbeReport

    @property
    def card(self) -> ProbeCard:
        return self.probe.card


def _check(table: LabelledBoundaries, fold: npt.NDArray[np.int64], members: int) -> None:
    """Refuse data that no honest probe can be made of."""
    rate = float(table.label.mean())
    if rate in (0.0, 1.0):
        raise ProbeError(
            f"all {len(table)} boundaries have the same label ({bool(rate)}). "
            "Collect traces of harder or easier problems, so that both labels occur."
        )
    n_problems = len(table.problems())
    if n_problems < MIN_PROBLEMS:
        raise ProbeError(
            f"{n_problems} problems are too few to train, stop and evaluate by problem; at least "
            f"{MIN_PROBLEMS} are needed (3,000 or more are good). Collect more problems, "
            "not more traces of the same ones."
        )
    for part in (*range(members), EVAL_FOLD):
        labels = table.label[fold == part]
        if labels.all() or not labels.any():
            raise ProbeError(
                f"tenth {part} of the {n_problems} problems holds one label only ({len(labels)} boundaries). "
                "Collect more problems, or take another seed."
            )


def _settings_of(family: Family, settings: MlpSettings | RomSettings | None) -> MlpSettings | RomSettings:
    """The settings given, or the family's own; those of another family are refused."""
    if settings is None:
        defaults: Mapping[str, MlpSettings | RomSettings] = {
            "mlp": MlpSettings(),
            "logistic": LOGISTIC,
            "rom": RomSettings(),
        }
        return defaults[family]
    fits = (
        isinstance(settings, RomSettings)
        if family == "rom"
        else (isinstance(settings, MlpSettings) and bool(settings.hidden) == (family == "mlp"))
    )
    if not fits:
        raise ProbeError(
            f"{settings} do not fit family {family!r}. Leave them out, or take the other family."
        )
    return settings


def _versions() -> dict[str, str]:
    names = ("torch", "numpy", "scikit-learn", "safetensors")
    return {"python": platform.python_version()} | {name: importlib.metadata.version(name) for name in names}


def _plain(settings: MlpSettings | RomSettings, unlabelled: Unlabelled) -> dict[str, str | float]:
    values = dataclasses.asdict(settings) | {"unlabelled": unlabelled}
    return {k: v if isinstance(v, (int, float, str)) else repr(v) for k, v in values.items()}


def train_probe(
    traces: Iterable[Trace],
    hidden: HiddenSet,
    *,
    family: Family = "mlp",
    target: Target = "consistent",
    seed: int = 0,
    taps: Sequence[int] | None = None,
    settings: MlpSettings | RomSettings | None = None,
    fingerprints: Mapping[str, str] | None = None,
    created: str | None = None,
    unlabelled: Unlabelled = "error",
    controls: bool = False,
) -> TrainedProbe:
    """Train a probe on labelled `traces` and their `hidden` states, split by problem.

    A tenth of the problems is held out for the report; early stopping uses others. `taps`: some of those
    stored (default all; a streaming probe reads exactly one). `fingerprints` go into the card (default:
    those of the hidden states). `controls` adds the text-only rivals to the report, which takes longer.
    The same data, seed and number of threads give the same weights.

    Raises `ProbeError`, with the remedy, for missing labels, one class only, too few problems, hidden
    states that are missing or of the wrong kind, and settings of the wrong family.
    """
    taps = tuple(hidden.taps if taps is None else taps)
    columns = hidden.columns(taps)
    wanted = "tokens" if family == "rom" else "boundaries"
    if hidden.store != wanted:
        raise ProbeError(
            f"family {family!r} learns from one hidden state for each of the {wanted}; this folder holds "
            f"{hidden.store}. Give the other folder, or collect with the other kind kept."
        )
    settings = _settings_of(family, settings)
    table = label_boundaries(traces, target, unlabelled=unlabelled)
    fold = table.folds(seed)
    _check(table, fold, settings.members if isinstance(settings, MlpSettings) else 1)
    card = ProbeCard(
        family=family,
        taps=taps,
        hidden_size=hidden.dim,
        target=target,
        hidden_dtype=hidden.dtype,
        seed=seed,
        problems=table.problems(),
        n_traces=len(table.traces),
        n_boundaries=len(table),
        fingerprints=dict(hidden.fingerprints if fingerprints is None else fingerprints),
        settings=_plain(settings, unlabelled),
        versions=_versions(),
        created=created,
    )
    probe: AnyProbe
    if isinstance(settings, RomSettings):
        weights, history = fit_weights(table, hidden, columns, fold, settings, seed)
        probe = RomProbe(card, weights)
    else:
        rows = hidden.gather(table.keys())
        if taps != hidden.taps:
            rows = rows[:, columns]
        if not np.isfinite(rows).all():
            bad = int((~np.isfinite(rows).all(axis=1)).sum())
            raise ProbeError(f"{bad} of {len(rows)} hidden states are not finite. Collect them again.")
        layers, history = fit_layers(
            rows, table.label, table.trace_weights(settings.trace_power), fold, settings, seed
        )
        probe = LynxProbe(card, layers)
    held_out, scores = table_scores(table.select(fold == EVAL_FOLD), hidden, probe)
    rivals = control_aurocs(table.select(fold != EVAL_FOLD), held_out, seed=seed) if controls else None
    report = evaluate_scores(held_out, scores, controls=rivals)
    probe.card = dataclasses.replace(card, metrics=report.flat() | history)
    return TrainedProbe(probe, report)
