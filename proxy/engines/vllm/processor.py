"""The class for `--logits-processors`: forces what the runtime has decided. Serves both model runners.

vLLM refuses a class of one runner's interface under the other, so that this one has both as bases. It holds
no state: requests are followed by `hooks`, which see them on either runner. The frontend imports this module
to check parameters, so it imports little.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vllm.v1.sample.logits_processor.interface import LogitsProcessor as RowsProcessor
from vllm.v1.worker.gpu.sample.logits_processor.interface import LogitsProcessor as SlotsProcessor

if TYPE_CHECKING:
    import torch

__all__ = ["DesistProcessor"]


class DesistProcessor(RowsProcessor, SlotsProcessor):  # type: ignore[misc]
    """Forces hand-offs. Both runners build it with the engine's configuration and two things of their own."""

    def __init__(self, vllm_config: Any, *_: Any) -> None:
        self._config = vllm_config
        self._installed: Any = None

    @classmethod
    def validate_params(cls, params: Any) -> None:
        """Refuse a request whose `desist_*` fields make no sense; vLLM answers 400 with the text."""
        from desist.proxy.engines.vllm.inside.admission import check_request

        check_request(params)

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update: Any) -> None:
        """V1: nothing to do, rows are read from the runner itself."""

    def add_request(self, req_idx: int, sampling_params: Any) -> bool:
        """V2: False, so that logits are copied in no step but those that may force (see `rows_v2`)."""
        return False

    def apply(self, logits: torch.Tensor, ctx: Any = None) -> torch.Tensor:
        """Force at the rows of this step. Never raises: an error leaves the logits as they are."""
        if self._installed is None:
            from desist.proxy.engines.vllm.inside.assembly import installed

            self._installed = installed(self._config)
            if self._installed is None:
                return logits
        runtime = self._installed.runtime
        if runtime.forces:
            from desist.proxy.engines.vllm.inside.forcing import apply_at_places, apply_at_rows

            with runtime.guarded("forcing"):
                if ctx is None:
                    apply_at_rows(logits, runtime.forces)
                else:
                    apply_at_places(logits, ctx.expanded_idx_mapping, ctx.pos, runtime.forces)
        path = self._installed.path
        if path is not None and ctx is not None:
            with runtime.guarded("forcing on the device"):
                path.force(logits, ctx)
        return logits
