"""Checks one request before it enters the engine, in vLLM's frontend process.

Knows the control fields and what cannot be combined with them. A bare `ValueError` becomes HTTP 400.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from desist.data.errors import ControlError
from desist.proxy.engines.vllm.config import PluginConfig
from desist.proxy.engines.vllm.params import PREFIX, AlphaPolicy, read_params

__all__ = ["admitted", "check_request"]

#: Configurations of the engines that this process has made, the newest last.
admitted: list[PluginConfig] = []


def check_request(params: Any) -> None:
    """Raise `ControlError` (a ValueError) naming the field for a request that asks for the impossible."""
    asked = read_params(params.extra_args)
    if asked is None:
        return
    if params.structured_outputs is not None and asked.asked.answer == "extract":
        raise ControlError(
            f"vllm_xargs field '{PREFIX}answer' is 'extract': with structured output the grammar writes the "
            f"answer. Send {PREFIX}answer='write', or drop the grammar."
        )
    native = getattr(params, "thinking_token_budget", None)
    if native is not None and asked.asked.budget is not None:
        raise ControlError(
            f"the request names two budgets: thinking_token_budget={native} and vllm_xargs field "
            f"'{PREFIX}budget'={asked.asked.budget}. Send one."
        )
    if asked.alpha is not None and admitted:
        asked.control(_certificates(admitted[-1].certificates))


@lru_cache(maxsize=8)
def _certificates(paths: Sequence[Any]) -> tuple[AlphaPolicy, ...]:
    from desist.calibration.certificate import load_certificate

    return tuple(load_certificate(path, force=True) for path in paths)
