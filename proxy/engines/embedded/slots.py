"""A KV cache of slots: requests join and leave a running batch, each row at its own position.

Knows transformers' cache interface and the model's forward; nothing of requests, sampling or stopping.
Active rows always stand in the first rows of the cache (a row that leaves is replaced by the last one),
so that a decode step reads views and copies nothing.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from transformers.cache_utils import Cache, CacheLayerMixin

from desist.data.errors import EngineError
from desist.proxy.engines.model import tap_index

__all__ = ["KV_BLOCK", "MIN_WIDTH", "SlotBatch", "Snapshot", "StepOutput"]

#: Keys are read in multiples of this many positions, so that a row sees few different shapes.
KV_BLOCK = 64
#: A step is computed with at least this many rows. Measured (torch 2.13, AVX-512 CPU, float32): from 4
#: rows on, a row's logits and hidden states are bitwise the same at every width, place and company; with
#: a single row other matrix kernels are chosen and the last bits differ (3e-4 in logits of scale 100).
MIN_WIDTH = 4


class _SlotLayer(CacheLayerMixin):  # type: ignore[misc]
    """Keys and values of one layer, [S, H, L, D]; writes go where the owning cache points."""

    def __init__(self, owner: _SlotCache) -> None:
        super().__init__()
        self._owner = owner

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        shape = (self._owner.rows, key_states.shape[1], self._owner.length)
        self.keys = key_states.new_zeros((*shape, key_states.shape[3]))
        self.values = value_states.new_zeros((*shape, value_states.shape[3]))
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write [B, H, T, D] at the owner's rows and positions; return views [B, H, Lread, D]."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        owner = self._owner
        owner.write(self.keys, key_states)
        owner.write(self.values, value_states)
        rows, read = key_states.shape[0], owner.read
        start = owner.first_row
        return (
            self.keys[start : start + rows, :, :read],
            self.values[start : start + rows, :, :read],
        )

    def resize(self, rows: int, length: int) -> None:
        if not self.is_initialized:
            return
        for name in ("keys", "values"):
            old = getattr(self, name)
            new = old.new_zeros((rows, old.shape[1], length, old.shape[3]))
            new[: old.shape[0], :, : old.shape[2]] = old
            setattr(self, name, new)

    def copy(self, source: int, target: int, length: int) -> None:
        if self.is_initialized:
            self.keys[target, :, :length] = self.keys[source, :, :length]
            self.values[target, :, :length] = self.values[source, :, :length]

    def save(self, row: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
        if not self.is_initialized:
            raise EngineError("nothing has been read yet, so there is nothing to save")
        return self.keys[row, :, :length].clone(), self.values[row, :, :length].clone()

    def load(self, row: int, keys: torch.Tensor, values: torch.Tensor) -> None:
        if not self.is_initialized:
            self.lazy_initialization(keys[None], values[None])
        self.keys[row, :, : keys.shape[1]] = keys
        self.values[row, :, : values.shape[1]] = values

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self._owner.read, 0

    def get_seq_length(self) -> int:
        return 0

    def get_max_length(self) -> int:
        return -1


class _SlotCache(Cache):  # type: ignore[misc]
    """Layers of slots and the place of the next write."""

    def __init__(self, n_layers: int, rows: int, length: int) -> None:
        self.rows, self.length = rows, length
        self.read = 0
        self.first_row = 0
        self._row_index: torch.Tensor | None = None
        self._positions: torch.Tensor | None = None
        super().__init__(layers=[_SlotLayer(self) for _ in range(n_layers)])

    def point_decode(self, row_index: torch.Tensor, positions: torch.Tensor, read: int) -> None:
        """The next forward holds one token for each of the first rows, at `positions` [B]."""
        self.first_row, self.read = 0, read
        self._row_index, self._positions = row_index, positions

    def point_prefill(self, row: int, read: int) -> None:
        """The next forward holds whole prefixes from position 0 for rows from `row` on."""
        self.first_row, self.read = row, read
        self._row_index = self._positions = None

    def write(self, store: torch.Tensor, states: torch.Tensor) -> None:
        if self._positions is None:
            end = self.first_row + states.shape[0]
            store[self.first_row : end, :, : states.shape[2]] = states
        else:
            store[self._row_index, :, self._positions] = states[:, :, 0]

    def resize(self, rows: int, length: int) -> None:
        for layer in self.layers:
            layer.resize(rows, length)
        self.rows, self.length = rows, length


class Snapshot(NamedTuple):
    """What a row has read: its length and, per layer, keys and values [H, length, D]."""

    length: int
    layers: tuple[tuple[torch.Tensor, torch.Tensor], ...]


class StepOutput(NamedTuple):
    """What one decode step yields: `logits` [B, V] float32 and, per tap, `hidden` [B, D]."""

    logits: torch.Tensor
    hidden: tuple[torch.Tensor, ...]


class SlotBatch:
    """A transformers causal language model that decodes rows of different ages together.

    `taps` are indices into `output_hidden_states` (0 = embeddings, last = after the final norm;
    negative ones count from the end). `width`: compute every step with this many rows, whatever is active
    (None: with the active rows, at least `MIN_WIDTH`).
    """

    def __init__(
        self,
        model: Any,
        *,
        max_rows: int,
        taps: Sequence[int] = (),
        width: int | None = None,
        length: int = 4 * KV_BLOCK,
    ) -> None:
        kinds = set(getattr(model.config, "layer_types", None) or ("full_attention",))
        if kinds != {"full_attention"}:
            raise EngineError(
                f"the embedded engine serves models with full attention only, found {sorted(kinds)}. "
                "Serve this model with vLLM and use --upstream."
            )
        if max_rows < 1:
            raise EngineError(f"max_rows is {max_rows}; give at least 1")
        self._model = model
        self.device: torch.device = model.device
        self.n_layers: int = model.config.num_hidden_layers
        self.max_rows = max_rows
        self.max_length: int = getattr(model.config, "max_position_embeddings", None) or 1 << 20
        self.taps = tuple(self.tap_index(tap) for tap in taps)
        self._lengths: list[int] = []
        self._stored = max(max_rows, MIN_WIDTH)  # rows of the cache, so that one slot can be padded too
        self._width = min(max(width or 0, MIN_WIDTH), self._stored)
        self._cache = _SlotCache(self.n_layers, self._stored, length)
        self._keyword = (
            "cache" if "cache" in inspect.signature(type(model).forward).parameters else "past_key_values"
        )
        self._rows = torch.arange(self._stored, device=self.device)

    def tap_index(self, tap: int) -> int:
        """A tap as an index from the front. Raises `EngineError` where the model has no such layer."""
        return tap_index(tap, self.n_layers)

    @property
    def n_rows(self) -> int:
        """Rows in use."""
        return len(self._lengths)

    def length(self, row: int) -> int:
        """Tokens that the row has read."""
        return self._lengths[row]

    @torch.inference_mode()
    def join(self, prefix: Sequence[int]) -> int:
        """Read a whole prefix (it may be empty) into a new row; the row's index.

        The prefix is computed alone, so that what it yields does not depend on who else is waiting.
        """
        row, n = self._new_row(len(prefix)), len(prefix)
        if n:
            ids = torch.tensor([list(prefix)], dtype=torch.long, device=self.device)
            positions = torch.arange(n, device=self.device)
            causal = torch.zeros((1, 1, n, n), dtype=self._dtype, device=self.device)
            causal.masked_fill_(positions[None, :] > positions[:, None], self._masked)
            self._cache.point_prefill(row, n)
            self._forward(ids, positions[None], causal, logits=False)
        self._lengths.append(n)
        return row

    @torch.inference_mode()
    def save(self, row: int) -> Snapshot:
        """A copy of what a row has read, to be loaded into new rows later."""
        length = self._lengths[row]
        return Snapshot(length, tuple(layer.save(row, length) for layer in self._cache.layers))

    @torch.inference_mode()
    def load(self, snapshot: Snapshot) -> int:
        """A new row that has read what the saved row had read; its index."""
        row = self._new_row(snapshot.length)
        for layer, (keys, values) in zip(self._cache.layers, snapshot.layers, strict=True):
            layer.load(row, keys, values)
        self._lengths.append(snapshot.length)
        return row

    def _new_row(self, length: int) -> int:
        if self.n_rows >= self.max_rows:
            raise EngineError(f"no free slot: {self.n_rows} of {self.max_rows} are in use")
        self._reserve(length + 1)
        return self.n_rows

    @torch.inference_mode()
    def leave(self, row: int) -> int | None:
        """Free a row. Returns the row that was moved into its place, if any (always the last)."""
        last = self.n_rows - 1
        length = self._lengths.pop()
        if row == last:
            return None
        for layer in self._cache.layers:
            layer.copy(last, row, length)
        self._lengths[row] = length
        return last

    @torch.inference_mode()
    def step(self, tokens: Sequence[int]) -> StepOutput:
        """Read one more token in every row. `tokens`: one id per row, in row order."""
        if len(tokens) != self.n_rows or not tokens:
            raise EngineError(f"{len(tokens)} tokens given for {self.n_rows} rows")
        n = self.n_rows
        width = max(n, self._width)
        longest = max(self._lengths) + 1
        self._reserve(longest)
        read = min(-(-longest // KV_BLOCK) * KV_BLOCK, self._cache.length)
        pad = width - n
        ids = torch.tensor([*tokens, *[0] * pad], dtype=torch.long).to(self.device)
        positions = torch.tensor([*self._lengths, *[0] * pad], dtype=torch.long).to(self.device)
        beyond = torch.arange(read, device=self.device)[None, :] > positions[:, None]
        mask = torch.zeros((width, 1, 1, read), dtype=self._dtype, device=self.device)
        mask.masked_fill_(beyond[:, None, None, :], self._masked)
        self._cache.point_decode(self._rows[:width], positions, read)
        output = self._forward(ids[:, None], positions[:, None], mask, logits=True)
        self._lengths = [length + 1 for length in self._lengths]
        hidden = tuple(output.hidden_states[tap][:n, -1] for tap in self.taps)
        return StepOutput(output.logits[:n, -1].float(), hidden)

    @property
    def _masked(self) -> float:
        return torch.finfo(self._dtype).min

    @property
    def _dtype(self) -> torch.dtype:
        dtype: torch.dtype = self._model.dtype
        return dtype

    def _reserve(self, length: int) -> None:
        if length > self.max_length:
            raise EngineError(f"{length} tokens do not fit into the model's context of {self.max_length}")
        if length > self._cache.length:
            grown = self._cache.length
            while grown < length:
                grown *= 2
            self._cache.resize(self._stored, grown)

    @torch.inference_mode()
    def _forward(
        self, ids: torch.Tensor, positions: torch.Tensor, mask: torch.Tensor, *, logits: bool
    ) -> Any:
        arguments = {
            "input_ids": ids,
            "position_ids": positions,
            "attention_mask": mask,
            "use_cache": True,
            self._keyword: self._cache,
        }
        if not logits:
            return self._model.base_model(**arguments)
        return self._model(**arguments, output_hidden_states=bool(self.taps))
