"""A boundary probe on hidden states that were streamed as bytes.

Knows layers, float types and probes; nothing of requests. Brings torch: imported only where probes run in
the proxy.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from desist.data.errors import ProbeError
from desist.probes.base import Probe
from desist.proxy.engines.vllm.inside.scoring import layer_of

__all__ = ["HiddenScorer"]


class HiddenScorer:
    """A boundary probe on streamed states: `layers` side by side, each `hidden_size` wide.

    Raises `ProbeError` where the probe reads a layer that is not streamed. `n_layers` is the index of the
    last layer, or None where it is not known: then a probe must name its layers from the front.
    """

    def __init__(
        self, probe: Probe, layers: Sequence[int], hidden_size: int, n_layers: int | None = None
    ) -> None:
        if n_layers is None and min(probe.card.taps) < 0:
            raise ProbeError(
                f"the probe reads the taps {probe.card.taps}, counted from the end, and this model's number "
                "of layers is not known here. Name the model's folder with --model."
            )
        taps = probe.card.taps
        wanted = list(taps) if n_layers is None else [layer_of(tap, n_layers) for tap in taps]
        missing = sorted(set(wanted) - set(layers))
        if missing or probe.card.hidden_size != hidden_size:
            raise ProbeError(
                f"the probe reads the layers {wanted} of width {probe.card.hidden_size}; vLLM streams the "
                f"layers {list(layers)} of width {hidden_size}. Start vLLM with this probe, or with "
                "'taps' naming its layers."
            )
        self._probe, self._width = probe, len(layers) * hidden_size
        columns = [
            column
            for layer in wanted
            for column in range(layers.index(layer) * hidden_size, (layers.index(layer) + 1) * hidden_size)
        ]
        self._columns = None if columns == list(range(self._width)) else torch.tensor(columns)

    def warm_up(self) -> None:
        """Score once for nothing: the first call of a thread takes many times as long as the next ones.

        Each thread has its own count of helpers: a probe is small, and to wait for a second core costs more
        than it computes.
        """
        torch.set_num_threads(1)
        self.scores([(bytes(4 * self._width), "float32")])

    def scores(self, rows: Sequence[tuple[bytes, str | None]]) -> list[float]:
        """Scores of rows, each with the name of its float type. Raises `ProbeError` for another size."""
        kind = rows[0][1]
        if any(other != kind for _, other in rows):
            return [self.scores([row])[0] for row in rows]
        dtype = torch.bfloat16 if kind == "bfloat16" else torch.float32
        size = self._width * dtype.itemsize
        for data, _ in rows:
            if len(data) != size:
                raise ProbeError(f"a hidden state of {len(data)} bytes came, {size} were expected")
        # One buffer for all: each call into torch may wait for the event loop's thread.
        stacked = torch.frombuffer(bytearray(b"".join([data for data, _ in rows])), dtype=dtype)
        stacked = stacked.view(len(rows), self._width)
        if self._columns is not None:
            stacked = stacked[:, self._columns]
        found: list[float] = self._probe.score(stacked).tolist()
        return found
