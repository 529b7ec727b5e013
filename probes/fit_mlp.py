"""Fitting a cue probe to an array of rows: members, early stopping, a calibrated logit.

Knows arrays, labels, weights and folds; no traces and no files. Each member stops early on another tenth
of the problems, so that together they train on everything but the evaluation tenth, and every row of
those tenths gets one score from a member that did not train on it: the logit's scale is fitted on these.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from sklearn.linear_model import LogisticRegression

from desist.kernels import Layer
from desist.probes.labels import EVAL_FOLD
from desist.probes.lynx import merge_members, network
from desist.probes.metrics import auroc
from desist.probes.rows import fold_standardisation

__all__ = ["MlpSettings", "Standardisation", "fit_layers", "fit_logit_scale", "scale_logit", "standardise"]

Floats32 = npt.NDArray[np.float32]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class MlpSettings:
    """How a cue probe is fitted. `hidden` = () gives a logistic probe.

    `members`: networks averaged into one. A round is at most `round_rows` rows; after each the running
    average of the weights (`ema` per step) is judged by its AUROC on the member's own tenth of the
    problems, and `patience` rounds without a better one end the fit. `trace_power`: see `trace_weights`.
    """

    hidden: tuple[int, ...] = (256, 64)
    members: int = 3
    learning_rate: float = 5e-4
    weight_decay: float = 1e-2
    dropout: float = 0.3
    input_dropout: float = 0.1
    label_smoothing: float = 0.0
    batch_rows: int = 512
    round_rows: int = 25_000
    max_rounds: int = 60
    patience: int = 8
    ema: float = 0.99
    trace_power: float = 0.5


class Standardisation(NamedTuple):
    """Column means and scales [W]; scale 0 marks a column that never varied."""

    mean: torch.Tensor
    scale: torch.Tensor


def standardise(rows: Floats32, chosen: Bools) -> Standardisation:
    """Bring `rows` [n, W] to mean 0 and variance 1 over the `chosen` rows, IN PLACE (they are large)."""
    count, width = int(chosen.sum()), rows.shape[1]
    total, square = np.zeros(width), np.zeros(width)
    parts = [slice(start, start + 4096) for start in range(0, len(rows), 4096)]
    for part in parts:
        total += rows[part][chosen[part]].sum(axis=0, dtype=np.float64)
    mean = (total / count).astype(np.float32)
    rows -= mean
    for part in parts:
        square += np.square(rows[part][chosen[part]], dtype=np.float64).sum(axis=0)
    scale = np.sqrt(square / count).astype(np.float32)
    scale[scale < 1e-6 * max(float(scale.max()), 1e-6)] = 0.0
    rows *= np.divide(1.0, scale, out=np.zeros_like(scale), where=scale > 0)
    return Standardisation(torch.from_numpy(mean), torch.from_numpy(scale))


def class_balanced(label: Bools, weight: Floats) -> Floats:
    """Weights [n] with the same total for both classes, mean 1 (n / (2 n_c) times `weight`)."""
    out = np.where(label, 0.5 / weight[label].sum(), 0.5 / weight[~label].sum()) * weight
    balanced: Floats = out / out.mean()
    return balanced


class _Member(NamedTuple):
    layers: list[Layer]
    logits: Floats  # of its own early-stopping rows
    area: float
    rounds: int


def _logits(net: torch.nn.Module, rows: torch.Tensor) -> Floats:
    net.eval()
    with torch.no_grad():
        parts = [net(part).squeeze(-1) for part in torch.split(rows, 8192)]
    net.train()
    logits: Floats = torch.cat(parts).double().numpy()
    return logits


def _fit_member(
    rows: torch.Tensor,
    label: Bools,
    weight: Floats,
    train: Ints,
    stop: Ints,
    settings: MlpSettings,
    seed: int,
) -> _Member:
    """One network, trained on the rows `train` until its AUROC on the rows `stop` no longer grows."""
    rng = np.random.default_rng(seed)
    smooth = label * (1.0 - settings.label_smoothing) + 0.5 * settings.label_smoothing
    target, weights = (torch.from_numpy(a.astype(np.float32)) for a in (smooth, weight))
    batch = int(np.clip(len(train) // 40, 32, settings.batch_rows))
    per_round = max(1, min(len(train), settings.round_rows) // batch)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        net = network(rows.shape[1], settings.hidden, settings.dropout)
        drop = torch.nn.Dropout(settings.input_dropout)
        optimiser = torch.optim.AdamW(
            net.parameters(), lr=settings.learning_rate, weight_decay=settings.weight_decay
        )
        average = copy.deepcopy(net)
        best, best_area, since, rounds, step = copy.deepcopy(net), -1.0, 0, 0, 0
        queue = np.empty(0, dtype=np.int64)
        stop_rows = rows[stop]
        while rounds < settings.max_rounds and since < settings.patience:
            for _ in range(per_round):
                if len(queue) < batch:
                    queue = np.concatenate((queue, rng.permutation(train)))
                picked, queue = torch.from_numpy(queue[:batch]), queue[batch:]
                logit = net(drop(rows[picked])).squeeze(-1)
                loss = torch.nn.functional.binary_cross_entropy_with_logits(
                    logit, target[picked], weights[picked]
                )
                optimiser.zero_grad(set_to_none=True)
                torch.autograd.backward(loss)
                optimiser.step()
                step += 1
                keep = min(settings.ema, step / (step + 10))
                with torch.no_grad():
                    for slow, fast in zip(average.parameters(), net.parameters(), strict=True):
                        slow.lerp_(fast, 1.0 - keep)
            rounds += 1
            area = auroc(label[stop], _logits(average, stop_rows)) or 0.0
            since += 1
            if area > best_area:
                best, best_area, since = copy.deepcopy(average), area, 0
    layers = [
        Layer(part.weight.detach(), part.bias.detach()) for part in best if isinstance(part, torch.nn.Linear)
    ]
    return _Member(layers, _logits(best, stop_rows), best_area, rounds)


def fit_logit_scale(logit: Floats, label: Bools) -> tuple[float, float]:
    """Slope and offset that turn unseen logits [n] into log-odds (Platt 1999). The slope stays positive."""
    unit = LogisticRegression(C=1e6).fit(logit[:, None], label)
    slope = max(float(unit.coef_[0, 0]), 0.05)
    if slope == 0.05:  # no signal: keep the order and say the base rate
        rate = float(np.clip(label.mean(), 1e-3, 1 - 1e-3))
        return slope, float(np.log(rate / (1 - rate)) - slope * logit.mean())
    return slope, float(unit.intercept_[0])


def scale_logit(layer: Layer, slope: float, offset: float) -> Layer:
    """The last layer with its logit multiplied by `slope` and moved by `offset`."""
    return Layer(layer.weight * slope, layer.bias * slope + offset)


def fit_layers(
    rows: Floats32, label: Bools, weight: Floats, fold: Ints, settings: MlpSettings, seed: int
) -> tuple[tuple[Layer, ...], dict[str, float]]:
    """Fit to `rows` [n, W] (changed in place) and return folded layers and what happened.

    Rows of the evaluation fold are never looked at.
    """
    seen = fold != EVAL_FOLD
    standardisation = standardise(rows, seen)
    tensor = torch.from_numpy(rows)
    balanced = np.zeros(len(label))
    balanced[seen] = class_balanced(label[seen], weight[seen])
    members: list[_Member] = []
    for number in range(settings.members):
        train, stop = np.flatnonzero(seen & (fold != number)), np.flatnonzero(fold == number)
        members.append(_fit_member(tensor, label, balanced, train, stop, settings, seed=seed * 1000 + number))
    unseen = np.concatenate([np.flatnonzero(fold == number) for number in range(settings.members)])
    slope, offset = fit_logit_scale(np.concatenate([m.logits for m in members]), label[unseen])
    layers: Sequence[Layer] = merge_members([member.layers for member in members])
    layers = [fold_standardisation(layers[0], *standardisation), *layers[1:]]
    layers[-1] = scale_logit(layers[-1], slope, offset)
    return tuple(layers), {
        "stop_auroc": float(np.mean([member.area for member in members])),
        "rounds": float(np.mean([member.rounds for member in members])),
        "logit_slope": slope,
    }
