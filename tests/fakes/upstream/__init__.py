"""A fake OpenAI-compatible server with knobs for dialect, latency, abilities and faults; remembers all."""

from tests.fakes.upstream.faults import Fault
from tests.fakes.upstream.script import Dialect
from tests.fakes.upstream.server import FakeUpstream, served

__all__ = ["Dialect", "FakeUpstream", "Fault", "served"]
