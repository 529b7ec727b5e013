"""Fitting a streaming head to the tokens of whole traces, with early stopping at their boundaries.

Knows networks, weights and folds; what a token's label is stands in `token_batches`.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from desist.kernels import MinGRUWeights
from desist.probes.features import HiddenSet
from desist.probes.fit_mlp import fit_logit_scale, scale_logit
from desist.probes.labels import EVAL_FOLD, LabelledBoundaries
from desist.probes.metrics import auroc
from desist.probes.rom import MinGRUNetwork
from desist.probes.rows import fold_standardisation
from desist.probes.token_batches import LabelStyle, TokenLoader, TokenTrace, token_traces

__all__ = ["RomSettings", "fit_weights"]

Floats32 = npt.NDArray[np.float32]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]
_STOP_FOLD = 0


@dataclass(frozen=True, slots=True)
class RomSettings:
    """How a streaming head is fitted. Sizes: `projection` P, `states` H.

    A batch holds traces of about `batch_tokens` tokens together; a round is `round_tokens` tokens, after
    which the head is judged by its AUROC at the boundaries of the early-stopping problems.
    `boundary_weight`: how much more a token counts at which a decision may be taken.
    """

    projection: int = 64
    states: int = 64
    labels: LabelStyle = "first"
    learning_rate: float = 2e-3
    weight_decay: float = 1e-2
    dropout: float = 0.1
    boundary_weight: float = 4.0
    clip: float = 1.0
    batch_tokens: int = 6_000
    round_tokens: int = 400_000
    max_rounds: int = 30
    patience: int = 4


def _token_weights(item: TokenTrace, settings: RomSettings, class_weights: tuple[float, float]) -> Floats32:
    """Weight [T]: balanced classes, more at boundaries, every trace with the same total but for its group."""
    weights = np.where(item.tokens.label > 0, class_weights[1], class_weights[0])
    weights[item.tokens.where] *= settings.boundary_weight
    out: Floats32 = (weights * item.weight / len(weights) ** 0.5).astype(np.float32)
    return out


def _endless(
    loader: TokenLoader, items: Sequence[TokenTrace], rng: np.random.Generator
) -> Iterator[tuple[list[TokenTrace], torch.Tensor]]:
    while True:
        yield from loader.batches(items, rng)


def _loss(
    net: MinGRUNetwork,
    chosen: Sequence[TokenTrace],
    rows: torch.Tensor,
    settings: RomSettings,
    classes: tuple[float, float],
) -> torch.Tensor:
    """Weighted mean log-loss over the tokens of one padded batch `rows` [B, T, D]."""
    label, weight = np.zeros((2, *rows.shape[:2]), dtype=np.float32)
    for line, item in enumerate(chosen):
        length = len(item.tokens.label)
        label[line, :length] = item.tokens.label
        weight[line, :length] = _token_weights(item, settings, classes)
    weights = torch.from_numpy(weight)
    total = torch.nn.functional.binary_cross_entropy_with_logits(
        net(rows), torch.from_numpy(label), weights, reduction="sum"
    )
    return total / weights.sum()


def _at_boundaries(
    net: MinGRUNetwork, loader: TokenLoader, items: Sequence[TokenTrace]
) -> tuple[Floats, Bools]:
    """Logits and labels of all boundaries of `items`."""
    net.eval()
    logits: list[npt.NDArray[np.float32]] = []
    truth: list[Bools] = []
    with torch.no_grad():
        for chosen, rows in loader.batches(items, None):
            for item, line in zip(chosen, net(rows).numpy(), strict=True):
                logits.append(line[item.tokens.where])
                truth.append(item.tokens.truth)
    net.train()
    return np.concatenate(logits).astype(np.float64), np.concatenate(truth)


def fit_weights(
    table: LabelledBoundaries,
    hidden: HiddenSet,
    columns: Sequence[int],
    fold: Ints,
    settings: RomSettings,
    seed: int,
) -> tuple[MinGRUWeights, dict[str, float]]:
    """Fit a head to the tokens of the traces in `table` and return folded weights and what happened."""
    train = token_traces(table.select((fold != EVAL_FOLD) & (fold != _STOP_FOLD)), settings.labels)
    stop = token_traces(table.select(fold == _STOP_FOLD), settings.labels)
    loader = TokenLoader(hidden, columns, settings.batch_tokens)
    scaling = loader.fit_scaling(train)
    positive = float(np.mean(np.concatenate([item.tokens.label for item in train])))
    classes = (0.5 / max(1 - positive, 1e-3), 0.5 / max(positive, 1e-3))
    rng = np.random.default_rng(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        net = MinGRUNetwork(len(columns), settings.projection, settings.states, settings.dropout)
        optimiser = torch.optim.AdamW(
            net.parameters(), lr=settings.learning_rate, weight_decay=settings.weight_decay
        )
        target = min(settings.round_tokens, sum(len(item.tokens.label) for item in train))
        batches = _endless(loader, train, rng)
        best, best_area, since, rounds = copy.deepcopy(net), -1.0, 0, 0
        while rounds < settings.max_rounds and since < settings.patience:
            tokens = 0
            while tokens < target:
                chosen, rows = next(batches)
                loss = _loss(net, chosen, rows, settings, classes)
                optimiser.zero_grad(set_to_none=True)
                torch.autograd.backward(loss)
                torch.nn.utils.clip_grad_norm_(net.parameters(), settings.clip)
                optimiser.step()
                tokens += sum(len(item.tokens.label) for item in chosen)
            rounds, since = rounds + 1, since + 1
            logits, truth = _at_boundaries(net, loader, stop)
            area = auroc(truth, logits) or 0.0
            if area > best_area:
                best, best_area, since = copy.deepcopy(net), area, 0
        logits, truth = _at_boundaries(best, loader, stop)
    raw = best.weights()
    slope, offset = fit_logit_scale(logits, truth)
    folded = raw._replace(
        inp=fold_standardisation(raw.inp, *scaling), head=scale_logit(raw.head, slope, offset)
    )
    return folded, {"stop_auroc": best_area, "rounds": float(rounds), "logit_slope": slope}
