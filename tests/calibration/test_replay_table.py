from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from desist.calibration.calibrate import calibrate
from desist.calibration.certificate import Certificate
from desist.calibration.replay_table import replay_table, replay_tables
from desist.data.importers import import_file
from desist.data.schema import Trace
from tests.fakes.traces import make_trace, make_traces


def bare(trace: Trace, **extra: object) -> Trace:
    """The trace as a real import would give it: no scores, no forced answers."""
    blank = {"scores": {}, "forced_answer": None, "forced_tokens": None, "consistent": None, "correct": None}
    places = tuple(replace(b, **blank) for b in trace.boundaries)  # type: ignore[arg-type]
    return replace(trace, boundaries=places, provenance={"extra": extra})


def test_stored_scores_are_certified_on_some_problems_and_shown_on_the_others() -> None:
    table = replay_table(make_traces(300, 4), budgets=(100,), alpha=0.1, delta=0.1)
    rows = {row.policy: row for row in table.rows}
    found = rows["score 'probe', certified"]
    assert found.n < 300
    assert found.saved_fraction > 0
    assert found.inconsistent is not None
    assert found.inconsistent.low <= 0.1
    assert {"full run", "budget 100", "budget 100, next boundary", "same answer 2 times"} <= rows.keys()
    assert rows["full run"].saved_fraction == 0
    assert rows["same answer 3 times"].n_stopped <= rows["same answer 2 times"].n_stopped
    json.dumps(table.as_json())
    assert "score 'probe', certified" in table.text()


def test_few_problems_are_refused_and_the_row_says_that_nothing_stops() -> None:
    table = replay_table(make_traces(40, 4), budgets=())
    row = table.rows[-1]
    assert (row.policy, row.n_stopped, row.saved_fraction) == ("score 'probe', refused", 0, 0.0)
    assert "need n >= 59 problems" in table.notes[-1]


def test_what_is_not_known_is_not_made_up() -> None:
    traces = [bare(trace) for trace in make_traces(30, 5)]
    table = replay_table(traces, budgets=(100,))
    assert [row.policy for row in table.rows] == ["full run", "budget 100"]
    budget = table.rows[1]
    assert budget.n_unknown == budget.n_stopped > 0
    assert (budget.accuracy_stopped, budget.inconsistent, budget.cut_early) == (None, None, None)
    assert budget.accuracy_full is not None
    assert budget.saved_fraction > 0
    assert table.notes == ()


def test_right_runs_cut_before_they_mention_the_right_answer_are_counted() -> None:
    trace = make_trace([0.1] * 3, [False] * 3, gap=100)  # 400 reasoning tokens
    middle = len(trace.reasoning) // 2
    late = bare(trace, boundary={"first_gold_conclusive_char": middle, "gold_in_problem": False})
    noisy = bare(trace, boundary={"first_gold_conclusive_char": middle, "gold_in_problem": True})
    wrong = replace(late, full_correct=False)
    table = replay_table([late, noisy, wrong, bare(trace)], budgets=(150, 250))
    early = [row.cut_early for row in table.rows]
    assert [(share.count, share.n) for share in early if share] == [(0, 1), (1, 1), (0, 1)]


def test_a_given_certificate_is_shown_and_sets_are_kept_apart() -> None:
    found = calibrate(make_traces(100, 1), alpha=0.1, delta=0.1, loss="harm", forbidden_problems=())
    assert isinstance(found, Certificate)
    others = [replace(trace, model="other", dataset="d") for trace in make_traces(10, 2)]
    tables = replay_tables([*others, *make_traces(20, 3)], certificate=found, budgets=())
    assert [(table.name, table.n) for table in tables] == [("fake on unnamed data", 20), ("other on d", 10)]
    assert all(table.rows[3].policy == "certificate (probe)" for table in tables)


def test_R76_long_traces_are_shown_beside_the_mean() -> None:
    """Eight short traces and two long ones: the median is the short ones', p90 and max are not."""
    short = [make_trace([0.9] * 4, [False] * 4, name=f"s{n}", gap=100) for n in range(8)]
    long = [make_trace([0.1] * 99, [False] * 99, name=f"l{n}", gap=100) for n in range(2)]
    table = replay_table([*short, *long], budgets=(250,))
    rows = {row.policy: row for row in table.rows}
    full = rows["full run"]
    assert (full.tokens_p50, full.tokens_p90, full.tokens_max) == (510, 10_010, 10_010)
    longest = rows["budget 250"].tokens_max
    assert longest is not None
    assert longest < 1000
    head = table.text().splitlines()[1].split()
    assert {"tok_p50", "tok_p90", "tok_max"} <= set(head)
    assert "10010" in table.text()
    assert replay_table([], budgets=()).rows[0].tokens_p90 is None


@pytest.mark.traces
def test_real_traces_give_a_table_and_the_decile_set_a_certificate_or_a_refusal(real_traces: Path) -> None:
    path = next(real_traces.glob("*decile*"))
    traces = list(import_file(path))
    (table,) = replay_tables(traces, budgets=(1024,))
    assert table.n == len(traces)
    row = table.rows[-1]
    assert row.policy in ("score 'option_probability', certified", "score 'option_probability', refused")
    assert row.policy.endswith("certified") or row.saved_fraction == 0
    assert any("tenths" in note for note in table.notes)
