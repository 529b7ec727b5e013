from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom

from desist.calibration.crc import crc_threshold, envelope
from desist.calibration.exact import exact
from desist.calibration.ltt import accepted, default_grid, grid_of_scores, p_values
from desist.calibration.pac import pac_rank
from desist.calibration.split import conformal_quantile
from desist.data.errors import CalibrationError

ALPHA, DELTA = exact(0.05), exact(0.05)


@settings(deadline=None)
@given(st.lists(st.integers(0, 60), min_size=1, max_size=40), st.integers(60, 1200))
def test_fixed_sequence_equals_brute_force(counts: list[int], n: int) -> None:
    losses = np.asarray(counts, dtype=np.int64)
    most = pac_rank(n, ALPHA, DELTA)
    expected = []
    for place, count in enumerate(counts):
        if most is None or count > most:
            break
        expected.append(place)
    assert accepted(losses, n, ALPHA, DELTA).tolist() == expected


@settings(deadline=None)
@given(st.integers(1, 500), st.sampled_from([Fraction(1, 20), Fraction(1, 3), Fraction(1, 50)]))
def test_p_values_are_exact_tails(n: int, alpha: Fraction) -> None:
    losses = np.arange(n + 1, dtype=np.int64)
    p = p_values(losses, n, alpha, DELTA)
    np.testing.assert_allclose(p, binom.cdf(losses, n, float(alpha)), rtol=1e-6)
    most = pac_rank(n, alpha, DELTA)
    assert (p <= float(DELTA)).sum() == (0 if most is None else most + 1)


def test_no_trace_is_an_error() -> None:
    with pytest.raises(CalibrationError, match="no calibration trace"):
        accepted(np.asarray([0]), 0, ALPHA, DELTA)


def test_the_default_grid_falls_and_begins_at_a_threshold_that_never_stops() -> None:
    grid = default_grid()
    assert grid[0] == 1.0
    assert grid[-1] == 0.0
    assert (np.diff(grid) < 0).all()
    assert ((grid > 0.9999) & (grid < 1)).sum() > 100


def test_a_grid_of_training_scores_is_their_quantiles() -> None:
    grid = grid_of_scores(np.asarray([0.3, 0.1, np.nan, 0.2]), size=10)
    assert grid.tolist() == [1.0, 0.3, 0.2, 0.1]


def test_conformal_risk_control_equals_the_conformal_quantile_on_the_envelope() -> None:
    rng = np.random.default_rng(0)
    critical = np.round(rng.random(199), 3)
    grid = np.arange(1000, -1, -1) / 1000
    losses = (critical[:, None] > grid[None, :]).astype(float)
    assert crc_threshold(losses, grid, ALPHA) == conformal_quantile(critical, ALPHA)


def test_conformal_risk_control_uses_the_envelope_of_a_loss_that_wobbles() -> None:
    grid = np.asarray([0.9, 0.5, 0.1])
    losses = np.tile([0.0, 1.0, 0.0], (100, 1))
    assert envelope(losses)[0].tolist() == [0, 1, 1]
    assert crc_threshold(losses, grid, ALPHA) == 0.9
    assert crc_threshold(np.ones((100, 3)), grid, ALPHA) is None
    with pytest.raises(CalibrationError, match=r"\[0, 1\]"):
        crc_threshold(losses * 2, grid, ALPHA)


def test_mapies_split_conformal_quantile_is_ours() -> None:
    from mapie.classification import SplitConformalClassifier

    class Probe:
        """The least that MAPIE takes for a fitted classifier: column 0 holds the probability of class 1."""

        classes_ = np.asarray([0, 1])

        def fit(self, rows: np.ndarray, labels: np.ndarray) -> Probe:
            return self

        def predict_proba(self, rows: np.ndarray) -> np.ndarray:
            return np.column_stack([1 - rows[:, 0], rows[:, 0]])

        def predict(self, rows: np.ndarray) -> np.ndarray:
            return (rows[:, 0] > 0.5).astype(int)

        def __sklearn_is_fitted__(self) -> bool:
            return True

    rng = np.random.default_rng(3)
    rows, labels = rng.random((200, 1)), rng.integers(0, 2, 200)
    fitted = SplitConformalClassifier(Probe(), confidence_level=0.9, prefit=True).conformalize(rows, labels)
    scores = 1 - np.where(labels == 1, rows[:, 0], 1 - rows[:, 0])
    mine = conformal_quantile(scores, exact("0.1"))
    # MAPIE keeps its quantile to itself; the set of a row tells on which side of it the row's score lies.
    near = np.asarray([[1 - mine], [1 - mine - 1e-6]])
    _, sets = fitted.predict_set(near)
    assert sets[:, 1, 0].tolist() == [True, False]
