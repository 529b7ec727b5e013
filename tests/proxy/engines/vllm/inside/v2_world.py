"""A made-up V2 runner and its scheduler, under the plugin's real hooks: by the host, or on the device.

Requests come, are preempted, come back into other slots and end; prefills run in parts; drafts are taken and
refused; forced tokens may be masked. Two worlds of one seed stay in step as long as the same is forced.
"""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from desist.controller.automaton import TokenAutomaton, automaton_for
from desist.kernels.boundary_score import Packed, pack
from desist.proxy.engines.vllm.inside import rows_v2
from desist.proxy.engines.vllm.inside.assembly import Installed, forget, remember
from desist.proxy.engines.vllm.inside.device_path import DevicePath
from desist.proxy.engines.vllm.inside.device_probes import Kernels, kernels_of
from desist.proxy.engines.vllm.inside.device_slots import DeviceSlots
from desist.proxy.engines.vllm.inside.device_tables import device_tables
from desist.proxy.engines.vllm.inside.forcing import apply_at_places
from desist.proxy.engines.vllm.inside.hooks import take_in
from desist.proxy.engines.vllm.inside.runtime import Runtime
from desist.proxy.engines.vllm.inside.scoring import Scoring
from desist.proxy.engines.vllm.wire import Command
from tests.proxy.engines.vllm.inside.v2_requests import (
    HANDOFF,
    N_LAYERS,
    N_VOCABULARY,
    PROFILE,
    SAID,
    TOKENS,
    VOCABULARY,
    WIDTH,
    Client,
    fresh,
    scorers,
)


class World:
    """`device`: whether requests are on the device path. `lag` 1: as under async scheduling."""

    def __init__(
        self,
        seed: int,
        *,
        device: bool,
        drafts: int = 0,
        lag: int = 0,
        zones: bool = False,
        masks: bool = False,
        rom: bool = False,
        mixed: bool = False,
        kernels: Kernels | None = None,
    ) -> None:
        self.rng, self.seed = random.Random(seed), seed
        self.drafts, self.lag = drafts, lag
        self.kind = {"zones": zones, "masks": masks, "rom": rom}
        scoring = Packing(scorers(rom=rom), N_LAYERS, impl="torch")
        self.runtime = Runtime(PROFILE, VOCABULARY, scoring, min_answer_tokens=4)
        self.events: list[Any] = []
        self.runtime.sinks.append(self.events.extend)
        facts: Any = SimpleNamespace(n_layers=N_LAYERS)
        config: Any = None
        self.plugin = Installed(config, facts, self.runtime, "v2", "cpu", 0, (1,))
        slots = 4
        if device:
            self.slots = DeviceSlots(slots, drafts, handoff=16, device="cpu")
            kind = Some if mixed else DevicePath
            tables = device_tables(automaton(), VOCABULARY, "cpu")
            self.plugin.path = kind(self.runtime, kernels or kernels_of("torch"), tables, self.slots, lag=lag)
        self.commands: list[Command] = []
        self.plugin.inbox = SimpleNamespace(take=self._commands)  # type: ignore[assignment]
        self.config = SimpleNamespace()
        remember(self.config, self.plugin)
        self.sampler = SimpleNamespace(needs_logits_processing=np.zeros(slots, bool))
        self.execute_model_state: Any = None
        rows_v2.hook_sampling(self, self.config)
        self.free, self.running, self.waiting = list(range(slots)), [], []  # type: ignore[var-annotated]
        self.done: dict[str, Client] = {}
        self.made = self.copied = self.refused = self.preempted = 0
        self.batch: Any = None
        self.hidden: Any = None

    @property
    def path(self) -> DevicePath:
        assert self.plugin.path is not None
        return self.plugin.path

    def told(self, name: str) -> list[Any]:
        """The events of one request."""
        return [event for event in self.events if event.identity.key == name]

    def _commands(self) -> list[tuple[Command, None]]:
        taken, self.commands = self.commands, []
        return [(command, None) for command in taken]

    def run(self, steps: int) -> None:
        """Steps with arrivals, and then as many as it takes until all have ended."""
        for _ in range(steps):
            self.step()
        while self.running or self.waiting:
            self.step(arrivals=False)
        self.step(arrivals=False)
        self.plugin.inbox = None
        forget(self.config)

    def step(self, *, arrivals: bool = True) -> None:
        """Schedule, run and sample once."""
        finished = [one for one in self.running if len(one.out) >= one.end and one.stale >= self.lag]
        for one in finished:
            self.running.remove(one)
            self._free(one)
            self.done[one.name] = one
        preempted = [one for one in self.running if not one.stale and self.rng.random() < 0.04]
        for one in preempted:
            self.running.remove(one)
            self._free(one)
            one.computed = 0
            self.waiting.insert(0, one)
            self.preempted += bool(one.out)
        while arrivals and self.rng.random() < 0.3:
            self.made += 1
            self.waiting.append(fresh(self.seed, self.made, **self.kind))
        new = []
        while self.free and self.waiting and (not arrivals or self.rng.random() < 0.7):
            one = self.waiting.pop(0)
            one.slot, one.prefill = self.free.pop(self.rng.randrange(len(self.free))), len(one.ids)
            self.running.append(one)
            new.append(one)
        told = SimpleNamespace(
            finished_req_ids={one.name for one in finished},
            preempted_req_ids={one.name for one in preempted},
            scheduled_new_reqs=[
                SimpleNamespace(req_id=one.name, prompt_token_ids=one.prompt, sampling_params=one.params)
                for one in new
            ],
        )
        take_in(self.plugin, told, lambda _: ())
        if self.running:
            self._build()
            self.execute_model_state = SimpleNamespace(aux_hidden_states=[self.hidden * 2.0])
            with torch.inference_mode():
                self.sample_tokens()

    def sample_tokens(self) -> None:
        output, num_sampled, _ = self.sample(self.hidden, self.batch)
        self._take(output.sampled_token_ids, num_sampled)

    def sample(self, hidden: torch.Tensor, batch: Any) -> Any:
        """vLLM's sampler: greedy, in slices of whole requests; drafts are taken as long as they are right."""
        rows = int(batch.cu_num_logits_np[-1])
        logits = torch.zeros(rows, N_VOCABULARY)
        ends = batch.cu_num_logits_np.tolist()
        for number, one in enumerate(self.here):
            for row in range(ends[number], ends[number + 1]):
                n = int(batch.positions[batch.logits_indices[row]]) + 1 - len(one.prompt)
                logits[row, one.next(max(0, n))] = 1.0
                if one.hides_handoff(n):
                    logits[row, list(HANDOFF)] = -torch.inf
        cut = self.rng.choice([*range(len(ends) - 1), len(ends) - 1])
        for first, last in ((0, cut), (cut, len(ends) - 1)):
            slots = batch.idx_mapping_np[first:last]
            if len(slots) and self.sampler.needs_logits_processing[slots].any():
                self.copied += 1
                self._apply(logits[ends[first] : ends[last]], slice(ends[first], ends[last]))
        best = logits.argmax(dim=1).tolist()
        sampled = torch.zeros(len(self.here), self.drafts + 1, dtype=torch.int64)
        counts = []
        for number, one in enumerate(self.here):
            low, high = ends[number], ends[number + 1]
            taken = best[low:high]
            right = 1
            while right < len(taken) and one.drafts[right - 1] == taken[right - 1]:
                right += 1
            self.refused += len(taken) - right
            complete = self.fed[number] + one.computed >= one.prefill
            counts.append(right if complete else 0)
            sampled[number, :right] = torch.tensor(taken[:right])
        num_sampled = torch.tensor(counts, dtype=torch.int32)
        return SimpleNamespace(sampled_token_ids=sampled), num_sampled, None

    def _apply(self, logits: torch.Tensor, rows: slice) -> None:
        """What `DesistProcessor.apply` does."""
        batch = self.batch
        context = SimpleNamespace(
            expanded_idx_mapping=batch.expanded_idx_mapping[rows],
            expanded_local_pos=batch.expanded_local_pos[rows],
            pos=batch.positions[batch.logits_indices][rows],
        )
        if self.runtime.forces:
            apply_at_places(logits, context.expanded_idx_mapping, context.pos, self.runtime.forces)
        if self.plugin.path is not None:
            self.plugin.path.force(logits, context)

    def _take(self, sampled: torch.Tensor, num_sampled: torch.Tensor) -> None:
        for number, (one, count) in enumerate(zip(self.here, num_sampled.tolist(), strict=True)):
            one.computed += self.fed[number] + max(0, count - 1)
            one.stale += len(one.out) >= one.end
            one.out += sampled[number, :count].tolist()

    def _build(self) -> None:
        """The batch of this step: parts of prefills, and one row and some drafts of all others."""
        self.here = self.rng.sample(self.running, len(self.running))
        self.fed: list[int] = []
        positions: list[int] = []
        tokens: list[int] = []
        at: list[int] = []
        ends = [0]
        local: list[int] = []
        for one in self.here:
            one.drafts = []
            if one.computed < one.prefill:
                left = one.prefill - one.computed
                fed = left if self.rng.random() < 0.6 else self.rng.randint(1, left)
                fed_ids = one.ids[one.computed : one.computed + fed]
            else:
                one.drafts = self._drafts(one)
                fed, fed_ids = 1, [one.ids[-1], *one.drafts]
            positions += range(one.computed, one.computed + len(fed_ids))
            tokens += fed_ids
            rows = 1 + len(one.drafts)
            at += range(len(tokens) - rows, len(tokens))
            local += range(rows)
            ends.append(len(at))
            self.fed.append(fed)
        slots = np.array([one.slot for one in self.here], np.intp)
        rows_each = np.diff(ends)
        prefill = np.array([one.prefill for one in self.here], np.int32)
        computed = np.minimum(np.array([one.computed for one in self.here], np.int32), prefill)
        drafts = rows_each - 1
        self.batch = SimpleNamespace(
            req_ids=[one.name for one in self.here],
            idx_mapping_np=slots,
            expanded_idx_mapping=torch.tensor(np.repeat(slots, rows_each)),
            expanded_local_pos=torch.tensor(local, dtype=torch.int32),
            num_scheduled_tokens=np.array(self.fed) + drafts,
            num_draft_tokens_per_req=drafts if self.drafts else None,
            prefill_len_np=prefill,
            num_computed_prefill_tokens_np=computed,
            is_prefilling_np=computed < prefill,
            positions=torch.tensor(positions),
            input_ids=torch.tensor(tokens, dtype=torch.int32),
            logits_indices=torch.tensor(at),
            cu_num_logits_np=np.array(ends, np.int32),
        )
        owners = np.repeat(np.arange(len(self.here)), np.array(self.fed) + drafts)
        self.hidden = torch.zeros(len(tokens), WIDTH)
        for place, (owner, position, token) in enumerate(zip(owners, positions, tokens, strict=True)):
            drawn = hash((self.here[owner].seed, position, token, 3))
            self.hidden[place] = torch.tensor([SAID[drawn % len(SAID)], drawn % 5 - 2.0, 1.0, 0.5])

    def _drafts(self, one: Client) -> list[int]:
        """A drafter that is often right, also about a hand-off that has begun."""
        guesses: list[int] = []
        room = max(0, one.end - len(one.out) - 1)  # what is sampled beyond the end would be dropped
        for place in range(min(room, self.rng.randint(0, self.drafts))):
            so_far = [*one.out, *guesses]
            begun = next((n for n in range(len(HANDOFF) - 1, 0, -1) if tuple(so_far[-n:]) == HANDOFF[:n]), 0)
            right = one.next(len(one.out) + place)
            forced = HANDOFF[begun] if begun and self.rng.random() < 0.7 else right
            guesses.append(forced if self.rng.random() < 0.7 else self.rng.choice(TOKENS))
        return guesses

    def _free(self, one: Client) -> None:
        assert one.slot is not None
        self.free.append(one.slot)
        one.slot = None


class Packing(Scoring):
    """Scores by the specification, and has the boundary probe for the device as well."""

    @property
    def packed(self) -> Packed:
        probe: Any = self.scorers.probe
        return pack(probe.layers, torch.float32, 1)


class Some(DevicePath):
    """Leaves every other request to the host."""

    def adopt(self, request_id: str) -> None:
        if int(request_id[1:]) % 2:
            super().adopt(request_id)


def automaton() -> TokenAutomaton:
    found = automaton_for(PROFILE, VOCABULARY, N_VOCABULARY)
    assert isinstance(found, TokenAutomaton)
    return found
