"""The embedded engine: transformers in process, batched in flight, probes and hand-off inside."""

from __future__ import annotations

from desist.proxy.engines.embedded.engine import EmbeddedEngine
from desist.proxy.engines.embedded.job import Done, Emitted, Failed, Job, Reached
from desist.proxy.engines.embedded.loading import LoadedModel, default_sampling, load_model
from desist.proxy.engines.embedded.runner import Runner
from desist.proxy.engines.embedded.sampler import Draw, derived_seed
from desist.proxy.engines.refusal import RequestRefused

__all__ = [
    "Done",
    "Draw",
    "EmbeddedEngine",
    "Emitted",
    "Failed",
    "Job",
    "LoadedModel",
    "Reached",
    "RequestRefused",
    "Runner",
    "default_sampling",
    "derived_seed",
    "load_model",
]
