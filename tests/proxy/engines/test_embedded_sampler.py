"""The sampler: distribution, truncation, independence of rows."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from desist.data.errors import EngineError
from desist.proxy.engines.embedded.sampler import Draw, Uniforms, choose, derived_seed

draws = st.builds(
    Draw,
    st.sampled_from([0.0, 0.5, 1.0, 2.0]),
    st.sampled_from([0.1, 0.5, 0.95, 1.0]),
    st.sampled_from([None, 0, 1, 3, 40]),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(draws, min_size=1, max_size=6), st.integers(0, 2**32 - 1), st.sampled_from([5, 100, 300]))
def test_a_row_depends_on_itself_only(chosen: list[Draw], seed: int, vocabulary: int) -> None:
    rng = np.random.default_rng(seed)
    logits = torch.from_numpy(rng.normal(0, 3, (len(chosen), vocabulary)).astype(np.float32))
    numbers = rng.random(len(chosen)).tolist()
    together = choose(logits, chosen, numbers)
    alone = [choose(logits[n : n + 1], [chosen[n]], [numbers[n]])[0] for n in range(len(chosen))]
    assert together == alone


@settings(max_examples=60, deadline=None)
@given(draws, st.integers(0, 2**32 - 1), st.floats(0, 1, exclude_max=True), st.sampled_from([5, 100, 300]))
def test_a_draw_lies_in_the_nucleus(draw: Draw, seed: int, number: float, vocabulary: int) -> None:
    """Against a slow nucleus written out: top_k first, then the smallest set that reaches top_p."""
    logits = np.random.default_rng(seed).normal(0, 2, vocabulary).astype(np.float32)
    token = choose(torch.from_numpy(logits)[None], [draw], [number])[0]
    if draw.greedy:
        assert token == int(logits.argmax())
        return
    weights = np.exp(logits.astype(np.float64) / draw.temperature)
    order = np.argsort(-weights, kind="stable")[: draw.top_k or vocabulary]
    share = weights[order] / weights[order].sum()
    before = np.cumsum(share) - share
    assert token in order[before < draw.top_p + 1e-12]


def test_frequencies_follow_the_probabilities() -> None:
    logits = torch.tensor([0.0, 1.0, 2.0, -1.0]).log_softmax(0)
    n = 20_000
    uniforms = Uniforms(7)
    numbers = [uniforms.at(step) for step in range(n)]
    for draw in (Draw(1.0), Draw(1.0, top_p=0.9999999)):
        tokens = choose(logits.expand(n, 4), [draw] * n, numbers)
        found = np.bincount(tokens, minlength=4) / n
        assert np.abs(found - logits.exp().numpy()).max() < 0.015


def test_uniforms_depend_on_seed_and_step_only() -> None:
    forwards = [Uniforms(5).at(step) for step in range(400)]
    jumping = Uniforms(5)
    assert [jumping.at(step) for step in reversed(range(400))] == forwards[::-1]
    assert len(set(forwards)) == 400
    assert all(0.0 <= number < 1.0 for number in forwards)
    assert forwards[:5] != [Uniforms(6).at(step) for step in range(5)]
    assert Uniforms(-1).at(0) != Uniforms(1).at(0)


def test_locked_tokens_are_never_drawn() -> None:
    logits = torch.tensor([[5.0, -torch.inf, 1.0]])
    for draw in (Draw(0.0), Draw(1.0), Draw(1.0, 0.99)):
        for number in (0.0, 0.5, 0.9999999):
            assert choose(logits, [draw], [number])[0] != 1


def test_derived_seeds_fit_into_a_json_number_and_differ() -> None:
    seeds = {derived_seed("a", seed, "p") for seed in range(100)} | {derived_seed("b", 0, "p")}
    assert len(seeds) == 101
    assert max(seeds) < 2**53
    assert derived_seed("request", 1, "x") == derived_seed("request", 1, "x")


@pytest.mark.parametrize("bad", [{"temperature": -1.0}, {"top_p": 0.0}, {"top_p": 1.5}, {"top_k": -2}])
def test_bad_samplers_are_refused(bad: dict[str, float]) -> None:
    with pytest.raises(EngineError, match=next(iter(bad))):
        Draw(**bad)  # type: ignore[arg-type]
