"""The entry point `desist` of `vllm.general_plugins`: called in every process that runs vLLM.

Offers vLLM a reasoning parser for each model profile, which is used only where it is named. Beyond that it
does nothing but look at each new configuration: without an object `desist` in `--additional-config` nothing
of vLLM is changed. With one, what cannot work is refused before anything is loaded, the taps are written
into the configuration (they must be part of the compile cache's key), and the worker is made to install the
hooks.
"""

from __future__ import annotations

import sys
from typing import Any

__all__ = ["register"]

_MARK = "_desist_wrapped"
_WORKER = "vllm.v1.worker.worker_base"
_PARSERS = "desist.proxy.engines.vllm.inside.thinking_parser"


def register() -> None:
    """Wrap what must be wrapped in this process. May be called more than once."""
    from vllm.config import VllmConfig

    if not getattr(VllmConfig.__post_init__, _MARK, False):
        original = VllmConfig.__post_init__

        def post_init(self: Any, *args: Any, **kwargs: Any) -> None:
            original(self, *args, **kwargs)
            if self.additional_config:
                _admit(self)

        setattr(post_init, _MARK, True)
        VllmConfig.__post_init__ = post_init
        _offer_parsers()
    if _WORKER in sys.modules:  # a worker process: its configuration was made elsewhere
        _wrap_worker()


def _offer_parsers() -> None:
    """Let vLLM find a reasoning parser by each profile's name; harmony's models have one of vLLM's own."""
    from vllm.reasoning import ReasoningParserManager

    from desist.controller.profiles import PROFILES
    from desist.proxy.engines.vllm.config import PARSER

    for name, profile in PROFILES.items():
        if profile.style == "tags":
            ReasoningParserManager.register_lazy_module(PARSER + name, _PARSERS, name)


def _admit(vllm_config: Any) -> None:
    """Check a configuration that names desist, and prepare for its worker."""
    from desist.proxy.engines.vllm.config import SECTION, config_of
    from desist.proxy.engines.vllm.inside.admission import admitted
    from desist.proxy.engines.vllm.inside.checks import refuse_impossible

    config = config_of(vllm_config.additional_config)
    if config is None or vllm_config.model_config is None:
        return
    if vllm_config.model_config.runner_type == "draft":  # a copy of the server's, for its drafter
        return
    refuse_impossible(vllm_config, config)
    additional = dict(vllm_config.additional_config)
    additional[SECTION] = {**additional[SECTION], "tap_layers": list(config.wanted_taps())}
    vllm_config.additional_config = additional
    if config not in admitted:
        admitted.append(config)
    _wrap_worker()


def _wrap_worker() -> None:
    from vllm.v1.worker.worker_base import WorkerWrapperBase

    if getattr(WorkerWrapperBase.init_device, _MARK, False):
        return
    original = WorkerWrapperBase.init_device

    def init_device(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        from desist.proxy.engines.vllm.config import config_of

        config = config_of(self.vllm_config.additional_config)
        if config is not None:
            from desist.proxy.engines.vllm.inside.hooks import hook_runner

            hook_runner(self.worker.model_runner, self.vllm_config, config)
        return result

    setattr(init_device, _MARK, True)
    WorkerWrapperBase.init_device = init_device
