"""Made-up requests for `v2_world`: what a model writes, what may be masked, and how it is to be controlled.

Everything hangs on the request and the place, so that a request writes the same in any world of one seed.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch

from desist.controller import ModelProfile
from desist.kernels import Layer
from desist.probes.base import ProbeCard
from desist.probes.lynx import LynxProbe
from desist.probes.rom import MinGRUNetwork, RomProbe
from desist.proxy.engines.embedded.artefacts import Scorers
from tests.fakes.vllm_engine import xargs
from tests.fakes.vocabulary import FakeVocabulary

PROFILE = ModelProfile("test", handoff_write=" so\n</think>\n\n", tool_call_open=None)
PLAIN = (" one", " two", " three", ".", " wait", " hmm", "\n\n", "\n", "é".encode()[:1], "é".encode()[1:])
ZONES = ("$$", ' {"', '"}', "```", "[", " \\", ".\n\n")
VOCABULARY = FakeVocabulary(tags=("<think>", "</think>"))
TOKENS = VOCABULARY.ids(*PLAIN, *ZONES, " so")
N_VOCABULARY = TOKENS[-1] + 3  # two of padding
OPEN, CLOSE = VOCABULARY.ids("<think>", "</think>")
HANDOFF = VOCABULARY.encode(PROFILE.handoff_write)
N_LAYERS, WIDTH = 2, 4
#: Logits of the scores: 0 is 0.5 exactly, a tie with the commonest threshold.
SAID = (-2.0, -0.5, 0.0, 0.25, 1.0, 3.0)


def scorers(*, rom: bool) -> Scorers:
    weight = torch.zeros(1, WIDTH)
    weight[0, 0] = 1.0
    card = ProbeCard("logistic", (2,), WIDTH, "consistent", hidden_dtype="float32")
    probe = LynxProbe(card, [Layer(weight, torch.zeros(1))])
    if not rom:
        return Scorers(probe=probe)
    torch.manual_seed(0)
    network = MinGRUNetwork(WIDTH, 8, 8, 0.0)
    head = RomProbe(ProbeCard("rom", (1,), WIDTH, "consistent", hidden_dtype="float32"), network.weights())
    return Scorers(probe=probe, rom=head)


@dataclass
class Client:
    """A request as scheduler and model see it. `out`: sampled, the newest of which no row has read."""

    name: str
    seed: int
    prompt: list[int]
    params: Any
    end: int
    pieces: list[int]
    masked: bool
    out: list[int] = field(default_factory=list)
    computed: int = 0
    prefill: int = 0
    slot: int | None = None
    drafts: list[int] = field(default_factory=list)
    stale: int = 0  # steps since its end

    @property
    def ids(self) -> list[int]:
        return [*self.prompt, *self.out]

    def next(self, n: int) -> int:
        """What the model writes after `n` generated tokens."""
        drawn = hash((self.seed, n)) % 199
        return CLOSE if drawn == 0 and n > 12 else self.pieces[drawn % len(self.pieces)]

    def hides_handoff(self, n: int) -> bool:
        return self.masked and hash((self.seed, n, 7)) % 9 == 0


def fresh(seed: int, number: int, *, zones: bool, masks: bool, rom: bool) -> Client:
    """Request `number` of a world, the same whatever became of the others."""
    rng = random.Random(f"{seed} {number}")
    pieces = rng.sample(TOKENS[: len(PLAIN)], 6)
    if zones:
        pieces += rng.sample(TOKENS[len(PLAIN) : -1], 3)
    control: dict[str, Any] = {"mode": rng.choice(["active", "active", "active", "shadow", "off"])}
    if rng.random() < 0.9:
        control |= {
            "lam": rng.choice([0.5, 0.5, 0.6]),
            "patience": rng.choice([1, 1, 2]),
            "warmup_tokens": rng.choice([0, 6]),
            "ema": rng.choice([1.0, 0.4]),
            "scorer": rng.choice(["probe", "rom"]) if rom else "probe",
        }
    if rng.random() < 0.4:
        control["budget"] = rng.choice([0, 3, 9, 20])
    end = rng.randint(4, 50)
    prompt = rng.choices(TOKENS, k=rng.randint(1, 4))
    prompt += rng.choice([[OPEN], [OPEN], [OPEN, *VOCABULARY.ids(" wait")], []])
    extra = xargs(f"r{number}", **control)
    params = SimpleNamespace(extra_args=extra, max_tokens=end, structured_outputs=None)
    return Client(f"r{number}", rng.randrange(1 << 30), prompt, params, end, pieces, masks)
