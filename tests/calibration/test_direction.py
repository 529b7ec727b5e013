"""Which way a score points, against the definition by pairs."""

from __future__ import annotations

import numpy as np
import pytest

from desist.calibration.direction import direction
from desist.calibration.paths import build_paths
from desist.calibration.scorers import stored
from desist.controller.core import Policy
from tests.fakes.traces import make_trace, random_paths


@pytest.mark.parametrize("seed", range(4))
def test_R58_the_auroc_is_that_of_all_pairs_and_turns_with_the_score(seed: int) -> None:
    paths = random_paths(np.random.default_rng(seed), 40, t=6)
    paths.statistic[:] = np.round(paths.statistic, 1)  # with ties
    here = np.isfinite(paths.statistic)
    good, bad = paths.statistic[here & ~paths.bad], paths.statistic[here & paths.bad]
    pairs = np.sign(good[:, None] - bad[None, :])
    found = direction(paths)
    assert found.auroc == pytest.approx(float((pairs + 1).mean() / 2))
    assert (found.boundaries, found.wrong) == (int(here.sum()), False)
    paths.statistic[here] = 1 - paths.statistic[here]
    turned = direction(paths)
    assert found.auroc is not None
    assert turned.auroc == pytest.approx(1 - found.auroc)
    assert turned.wrong


def test_one_kind_of_boundary_tells_no_direction() -> None:
    traces = [make_trace([0.1, 0.9], [False, False], name=str(n)) for n in range(3)]
    found = direction(build_paths(traces, Policy(), stored("probe"), lambda trace, boundary: False))
    assert (found.auroc, found.boundaries, found.wrong) == (None, 6, False)
    assert direction(random_paths(np.random.default_rng(0), 0)).auroc is None
