"""The probes that run in the proxy: the one that decides (`decide: proxy`), and a candidate that only scores.

Knows settings, artefacts and what the plugin streams. Brings torch: imported only where a probe runs here.
"""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from desist.data.errors import EngineError
from desist.proxy.engines.embedded.artefacts import load_scorers
from desist.proxy.engines.model import ModelFacts
from desist.proxy.engines.vllm.beside.counters import VllmCounters
from desist.proxy.engines.vllm.beside.hidden_rows import HiddenScorer
from desist.proxy.engines.vllm.beside.launch import probe_folders
from desist.proxy.engines.vllm.beside.remote import Remote, cap_of
from desist.proxy.engines.vllm.wire import Hello, StopNow
from desist.proxy.settings import Settings

__all__ = ["ProxyProbes"]

_SWITCH_S = 0.0005  # Python's own is ten times as long


class ProxyProbes:
    """Probes on the hidden states that one plugin streams. Build with `load`, in the event loop.

    `fingerprints`: of the probe that decides, as the engine would name it.
    """

    def __init__(self, hello: Hello, facts: ModelFacts | None) -> None:
        self._hello, self._facts = hello, facts
        self.fingerprints: Mapping[str, str] = {}
        self.remote: Remote

    @classmethod
    async def load(
        cls,
        settings: Settings,
        hello: Hello,
        facts: ModelFacts | None,
        send: Callable[[StopNow], bool],
        counters: VllmCounters,
    ) -> ProxyProbes:
        """Load the probes that `settings` name and begin to score.

        Raises `EngineError`, `ProbeError` or `ArtifactMismatch` where one does not fit what runs.
        """
        if hello.stream is None:
            raise EngineError(
                "a probe in the proxy reads streamed hidden states, and the plugin streams none. Set "
                "'stream' in its --additional-config to float32 or bfloat16."
            )
        probes = cls(hello, facts)
        decides = hello.decide == "proxy"
        folder = probe_folders(settings)[0] if decides else None
        found = {}
        if folder is not None:
            found["probe"], probes.fingerprints = await asyncio.to_thread(probes._read, folder, False)
        if settings.vllm.candidate is not None:
            found["candidate"], _ = await asyncio.to_thread(probes._read, settings.vllm.candidate, False)
        probes.remote = Remote(
            found,
            decides=decides,
            send=send,
            counters=counters,
            waiting=settings.vllm.waiting,
            cap=cap_of(hello),
        )
        # The scoring thread asks the event loop's thread for the interpreter after every call into torch.
        sys.setswitchinterval(_SWITCH_S)
        # What was loaded stays: to look through it all again would stop everything for a moment.
        gc.collect()
        gc.freeze()
        probes.remote.start()
        return probes

    @property
    def deciding(self) -> frozenset[str]:
        """The scores by which stops may be decided."""
        return self.remote.names - {"candidate"}

    async def reload(self, folder: Path, *, force: bool) -> None:
        """Decide by another probe from now on; requests that run keep the one they began with."""
        scorer, prints = await asyncio.to_thread(self._read, folder, force)
        self.remote.use({"probe": scorer})
        self.fingerprints = prints

    def _read(self, folder: Path, force: bool) -> tuple[HiddenScorer, Mapping[str, str]]:
        hello, facts = self._hello, self._facts
        scorers = load_scorers(folder, None, expect=hello.fingerprints, force=force, device="cpu")
        if scorers.probe is None:
            raise EngineError(
                f"{folder} holds a streaming probe, which reads every token; the proxy is sent boundaries "
                "only. Give a boundary probe, or set vllm.decide to engine."
            )
        scorer = HiddenScorer(
            scorers.probe, hello.taps, hello.hidden_size, None if facts is None else facts.n_layers
        )
        return scorer, scorers.fingerprints
