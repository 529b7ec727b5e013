"""`desist bench proxy`: three processes are started, read and ended, and the figures are of what was sent."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from desist.data.errors import EngineError
from desist.proxy.studies.bench_proxy import _side
from desist.proxy.studies.stream_load import Heard


@pytest.mark.slow
def test_the_bench_measures_both_ways_and_leaves_nothing_behind() -> None:
    command = [
        sys.executable,
        "-c",
        "from desist.cli import main; main()",
        "bench",
        "proxy",
        "--json",
        "--quiet",
    ]
    ran = subprocess.run(
        [*command, "--seconds", "1", "--streams", "2"], capture_output=True, text=True, timeout=200
    )
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout)
    (level,) = found["levels"]
    assert (level["streams"], level["gap_ms"], level["offered_per_s"]) == (2, 10.0, 200.0)
    for side in (
        level["direct"],
        level["proxied"],
        found["zero_gap"]["direct"],
        found["zero_gap"]["proxied"],
    ):
        assert side["chunks"] > 0
        assert 0 < side["p50_ms"] <= side["p99_ms"]
        assert side["broken_streams"] == 0
    assert level["added_p50_ms"] == pytest.approx(level["proxied"]["p50_ms"] - level["direct"]["p50_ms"])
    assert level["cpu_us_per_chunk"] > 0
    assert found["control"] == {"desist": {"budget": 1_000_000}}


def test_percentiles_are_of_all_slices_together() -> None:
    heard = [Heard(3, 1.0, 0.1, 0), Heard(1, 1.0, 0.1, 1)]
    side = _side(heard, [[1_000_000, 2_000_000, 3_000_000], [9_000_000]])
    assert (side.p50_ms, side.chunks, side.delivered_per_s, side.broken_streams) == (2.5, 4, 2.0, 1)
    with pytest.raises(EngineError, match="no chunk arrived"):
        _side([Heard(0, 1.0, 0.0, 0)], [[]])
