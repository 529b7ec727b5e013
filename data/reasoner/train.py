"""Trains the built-in reasoner from nothing: seeded, resumable, on CPU in float32.

Run as `python -m desist.data.reasoner.train` (`make reasoner`). Knows the optimisers, the schedule and the
checkpoints; what is learnt is in `stream`, `rows` and `derivation`.
"""

from __future__ import annotations

import argparse
import logging
import random
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedTokenizerFast

from desist.data.reasoner.export import export
from desist.data.reasoner.model import WEIGHTS, build_config, build_model
from desist.data.reasoner.muon import Muon
from desist.data.reasoner.problems import draw_problems
from desist.data.reasoner.rows import FastEncoder, RowMaker, text_of_rows
from desist.data.reasoner.stream import Batch, batches, draw_pool
from desist.data.reasoner.tokenizer import VOCABULARY, train_tokenizer
from desist.data.splits import split_of

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything a run depends on. `steps` (if not 0) ends the run by count, else `minutes` by the clock."""

    seed: int = 7
    minutes: float = 82.0
    steps: int = 0
    width: int = 160
    layers: int = 6
    vocabulary: int = VOCABULARY
    batch_tokens: int = 5000
    pool_rows: int = 512
    lr_matrices: float = 0.02
    lr_others: float = 0.003
    warmup: float = 0.01
    decay_from: float = 0.55
    threads: int = 2
    compile: bool = True
    checkpoint_seconds: float = 180.0


def make_tokenizer(settings: Settings) -> PreTrainedTokenizerFast:
    """The tokenizer of this seed."""
    own = draw_problems(settings.seed, 4000, keep=lambda identity: split_of(identity) == "reasoner")
    return train_tokenizer(text_of_rows(own, random.Random(settings.seed)), settings.vocabulary)


class Trainer:
    """A run: the network, its optimisers and how far it has come."""

    def __init__(self, settings: Settings, out: Path, cache: Path) -> None:
        torch.set_num_threads(settings.threads)
        self.settings, self.out, self.cache = settings, out, cache
        self.tokenizer = make_tokenizer(settings)
        self.encoder = FastEncoder(self.tokenizer)
        self.pad = int(self.tokenizer.pad_token_id)
        config = build_config(
            len(self.tokenizer),
            self.pad,
            int(self.tokenizer.eos_token_id),
            width=settings.width,
            layers=settings.layers,
        )
        self.model = build_model(config, settings.seed)
        named = list(self.model.named_parameters())
        matrices = [p for name, p in named if p.ndim == 2 and "embed" not in name]
        others = [p for name, p in named if p.ndim != 2 or "embed" in name]
        self.optimisers: list[torch.optim.Optimizer] = [
            Muon(matrices, lr=settings.lr_matrices),
            torch.optim.AdamW(others, lr=settings.lr_others, betas=(0.9, 0.98), weight_decay=0.0),
        ]
        self.forward: Any = torch.compile(self.model, dynamic=True) if settings.compile else self.model
        self.pool = 0
        self.step = 0
        self.tokens = 0
        self.seconds = 0.0
        self.losses: list[float] = []

    @property
    def progress(self) -> float:
        """Share of the run that is done."""
        if self.settings.steps:
            return self.step / self.settings.steps
        return self.seconds / (60.0 * self.settings.minutes)

    def run(self, *, stop_after_pools: int | None = None) -> None:
        """Train to the end (or for some pools, which tests use to break off)."""
        began = saved = time.monotonic()
        before = self.seconds
        pools = 0
        while self.progress < 1.0 and (stop_after_pools is None or pools < stop_after_pools):
            rng = random.Random(f"{self.settings.seed}:{self.pool}")
            rows = draw_pool(RowMaker(self.encoder, rng), rng, self.progress, self.settings.pool_rows)
            for batch in batches(rows, rng, tokens=self.settings.batch_tokens, pad=self.pad):
                if self.progress >= 1.0:
                    break
                self._update(batch)
                self.seconds = before + time.monotonic() - began
            self.pool += 1
            pools += 1
            recent = self.losses[-20:]
            log.info(
                "pool %d step %d progress %.3f tokens %.2fM tok/s %.0f loss %.4f",
                self.pool, self.step, self.progress, self.tokens / 1e6,
                self.tokens / max(self.seconds, 1e-9), sum(recent) / len(recent),
            )  # fmt: skip
            if time.monotonic() - saved > self.settings.checkpoint_seconds:
                self.save()
                saved = time.monotonic()
        self.save()

    def _rate(self) -> float:
        progress, settings = min(self.progress, 1.0), self.settings
        if progress < settings.warmup:
            return max(progress / settings.warmup, 0.02)
        if progress < settings.decay_from:
            return 1.0
        return 0.01 + 0.99 * (1.0 - progress) / (1.0 - settings.decay_from)

    def _update(self, batch: Batch) -> None:
        rate = self._rate()
        for optimiser, base in zip(
            self.optimisers, (self.settings.lr_matrices, self.settings.lr_others), strict=True
        ):
            for group in optimiser.param_groups:
                group["lr"] = base * rate
        ids = torch.tensor(batch.ids)
        weights = torch.tensor(batch.weights)[:, 1:].reshape(-1)
        logits = self.forward(input_ids=ids, use_cache=False).logits[:, :-1]
        each = torch.nn.functional.cross_entropy(
            logits.reshape(-1, logits.size(-1)), ids[:, 1:].reshape(-1), reduction="none"
        )
        loss = (each * weights).sum() / weights.sum().clamp_min(1.0)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for optimiser in self.optimisers:
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)
        self.step += 1
        self.tokens += batch.tokens
        self.losses.append(float(loss.detach()))

    def save(self) -> None:
        """Write the checkpoint (to resume from) and the weights (to use), each in one move."""
        self.cache.mkdir(parents=True, exist_ok=True)
        state = {
            "settings": asdict(self.settings),
            "model": self.model.state_dict(),
            "optimisers": [optimiser.state_dict() for optimiser in self.optimisers],
            "pool": self.pool, "step": self.step, "tokens": self.tokens, "seconds": self.seconds,
            "losses": self.losses,
        }  # fmt: skip
        temporary = self.cache / "checkpoint.tmp"
        torch.save(state, temporary)
        temporary.replace(self.cache / "checkpoint.pt")
        export(self.model, self.tokenizer, self.out, self.card())

    def resume(self) -> bool:
        """Go on from the checkpoint; False where there is none or it belongs to other settings."""
        path = self.cache / "checkpoint.pt"
        if not path.exists():
            return False
        state = torch.load(path, weights_only=True)
        same = ("seed", "width", "layers", "vocabulary", "batch_tokens", "pool_rows")
        if any(state["settings"][key] != getattr(self.settings, key) for key in same):
            log.warning("the checkpoint in %s belongs to other settings; starting anew", self.cache)
            return False
        self.model.load_state_dict(state["model"])
        for optimiser, saved in zip(self.optimisers, state["optimisers"], strict=True):
            optimiser.load_state_dict(saved)
        self.pool, self.step, self.tokens = state["pool"], state["step"], state["tokens"]
        self.seconds, self.losses = state["seconds"], state["losses"]
        return True

    def card(self) -> dict[str, object]:
        """What the run says of itself."""
        return {
            "training": asdict(self.settings),
            "parameters": sum(p.numel() for p in self.model.parameters()),
            "steps": self.step,
            "tokens_seen": self.tokens,
            "train_seconds": round(self.seconds, 1),
            "finished": self.progress >= 1.0,
        }


def main(arguments: list[str] | None = None) -> int:
    """Command line of `make reasoner`."""
    defaults = Settings()
    parser = argparse.ArgumentParser(prog="python -m desist.data.reasoner.train", description=__doc__)
    parser.add_argument("--minutes", type=float, default=defaults.minutes)
    parser.add_argument("--steps", type=int, default=0, help="end by steps instead of by the clock")
    parser.add_argument("--seed", type=int, default=defaults.seed)
    parser.add_argument("--out", type=Path, default=WEIGHTS)
    parser.add_argument("--cache", type=Path, default=Path(".cache/reasoner"))
    parser.add_argument("--width", type=int, default=defaults.width)
    parser.add_argument("--layers", type=int, default=defaults.layers)
    parser.add_argument("--resume", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, default=True)
    given = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    settings = Settings(
        seed=given.seed, minutes=given.minutes, steps=given.steps, width=given.width, layers=given.layers,
        compile=given.compile,
    )  # fmt: skip
    trainer = Trainer(settings, given.out, given.cache)
    if given.resume and trainer.resume():
        log.info("resumed at step %d", trainer.step)
    trainer.run()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
