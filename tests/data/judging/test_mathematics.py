"""Judges: a true answer equals itself, a wrong one never does, and nothing hangs."""

from __future__ import annotations

import itertools
import random
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from desist.data.algebra import AlgebraTimeout, AlgebraWorker
from desist.data.errors import DataError
from desist.data.judging import Case, answers_equal, get_judge, register_judge
from desist.data.judging.mathematics import MathJudge
from desist.data.quantities import exact_value

HARD = [
    r"\frac{14}{3}",
    r"\left( 3, \frac{\pi}{2} \right)",
    r"\left[-2, \frac{7}{3}\right)",
    r"\{1, \tfrac{2}{3}\}",
    r"(-\infty, -3) \cup (2, \infty)",
    r"\begin{pmatrix} 1 & -2 \\ 0 & \frac{1}{2} \end{pmatrix}",
    r"\begin{pmatrix} -1/3 \\ 2/3 \\ 5/3 \end{pmatrix}",
    r"\frac{\sqrt{3}+\sqrt{7}}{2\sqrt[3]{5}}",
    r"x^4 - 8x^3 + 3x^2 - 1",
    r"(3x+7)(x+1)",
    r"y = -\frac{3}{4}x + \frac{25}{4}",
    r"p - q",
    r"\text{Evelyn}",
    r"\text{(C)}",
    "1204_9",
    r"10111_{\text{two}}",
    r"\$32,\!348",
    "15\\%",
    r"90^\circ",
    r"6 - 5i",
    r"e^{i\pi/3}",
    r"\pm\sqrt{19}",
    r"1 \pm \sqrt{2}",
    r"-\sqrt{3},-1,1,\sqrt{3}",
    r"\binom{12}{5}",
    r"f(x) = \frac{x}{1-x}",
    r"3\frac{1}{2}",
    r"4.5\times 10^{-7}",
    r"0.\overline{27}",
    r"\lfloor \pi \rfloor",
    r"\sin^2 x + 2\cos x",
    r"\log_2 7",
    r"2k\pi, k \in \mathbb{Z}",
    r"5 < x \le 9",
    r"x \ne 0",
    r"12\text{ cm}^2",
    r"3 \text{ hours and } 20 \text{ minutes}",
    r"\frac{1}{2",
    "}{",
    r"\frac",
    "???",
    "-",
    "$$",
    r"\text{no solution}",
    r"\emptyset",
    r"\triangle ABC \cong \triangle DEF",
    "10:45",
    "3:4:5",
    r"\vec{v} = (1,2)",
    r"a_1 + a_2 + \cdots + a_n",
    r"\sum_{k=1}^{n} k^2",
    r"\int_0^1 x\,dx",
    "😀",
    r"\mathbf{i} + 2\mathbf{j}",
    r"\left|x-3\right|",
    "9^{9^{9^9}}",
    "x" * 5000,
    "[" * 50,
    r"\frac{" * 40 + "1" + "}" * 40,
    "2,3 or 5",
    "{}",
]

SAME = [
    ("5 cm", r"5\,\text{cm}"),
    ("5", "5 cm"),
    ("5 centimeters", "5cm"),
    (r"12\text{ cm}^2", "12 square centimeters"),
    ("50%", "50"),
    (r"50\%", "0.5"),
    ("1,234", "1234"),
    (r"1{,}234", "1234"),
    (r"20,\!000", "20000"),
    ("1 234 567", "1234567"),
    (r"1\,000\,000", "10^6"),
    (r"1.5\times10^3", "1500"),
    ("1.5e3", "1500"),
    (r"\frac12", "0.5"),
    (r"\frac{1}{3}", "0.333"),
    ("0.333", "1/3"),
    (r"0.1\overline{6}", "1/6"),
    ("5.0", "5"),
    (".5", "0.5"),
    ("034", "34"),
    ("-0", "0"),
    ("3.50", r"\$3.5"),
    (r"\$5", "5 dollars"),
    ("1 1/2", r"\frac{3}{2}"),
    (r"3\frac12", "7/2"),
    (r"\dfrac{14}{3}", "14/3"),
    (r"-\frac{132}{55}", r"-\frac{12}{5}"),
    ("2, 3", "3,2"),
    ("1,2", r"\{2,1\}"),
    ("10 or 12", "12, 10"),
    (r"81 \text{ and } 256", "81, 256"),
    (r"\pm 3", "-3, 3"),
    (r"\left(3,\frac{\pi}{2}\right)", r"(3, \pi/2)"),
    ("(0.5, 2)", r"(\frac{1}{2}, 2)"),
    (r"x\in[1,2]", "[1, 2]"),
    (r"(-\infty,2)\cup(3,\infty)", r"(3,\infty)\cup(-\infty,2)"),
    (r"1\le x<2", "[1,2)"),
    ("x<3", "3>x"),
    (r"\begin{pmatrix}1&2\\3&4\end{pmatrix}", r"\begin{bmatrix}1 & 2\\ 3&\frac{8}{2}\end{bmatrix}"),
    ("x=5", "5"),
    ("AB = 5", "5"),
    ("y=2x+3", "2x+3"),
    ("x+3", "3 + x"),
    ("x^2-1", "(x-1)(x+1)"),
    ("2x+3y=6", "3y+2x=6"),
    (r"2\sqrt{3}", r"\sqrt{12}"),
    (r"\frac{\sqrt{2}}{2}", r"\frac{1}{\sqrt{2}}"),
    (r"\sqrt{2}", "1.4142"),
    (r"\pi", "3.1416"),
    ("3+4i", "4i+3"),
    ("2^{10}", "1024"),
    (r"\sin x", r"\sin(x)"),
    ("(C)", "C"),
    (r"\text{(C)}", "C"),
    (r"\text{Yes}", "yes"),
    (r"\textbf{A}", "A"),
    ("30°", r"30^\circ"),
    ("90^\\circ", "90"),
    ("1204_9", "1204"),
    (r"1204_{\text{nine}}", "1204_9"),
    (r"$\boxed{5}$", "5"),
    (r"\emptyset", r"\{ \}"),
    ("x²", "x^2"),
    ("2\u00d73", r"2 \times 3"),
    ("½", "0.5"),
    ("5 apples", "5"),
]

DIFFERENT = [
    ("2", "12"),
    ("12", "2"),
    ("x+3", "y+3"),
    ("(2,3)", "(1,3)"),
    ("(2,3)", "(3,2)"),
    ("(1,2)", "[1,2]"),
    ("[1,2)", "(1,2]"),
    (r"\{1,2\}", "(1,2)"),
    ("1,2", "(1,2)"),
    ("1,2", "1,3"),
    ("1,2", "1,2,3"),
    ("1/3", "0.33"),
    ("1/3", "0.334"),
    ("0.3333", "0.3334"),
    ("0.0000001", "0.0000002"),
    ("5 cm", "5 m"),
    ("5 cm", "6 cm"),
    ("5 apples", "5 pears"),
    ("x=5", "y=5"),
    ("stop", "spot"),
    ("yes", "no"),
    ("A", "B"),
    ("50%", "5"),
    ("50%", "40"),
    ("34", "34.5"),
    (r"\frac{1}{2}", r"\frac{2}{1}"),
    ("x", "-x"),
    ("5x", "5"),
    ("5m", "5"),
    (r"\sqrt{2}", r"\sqrt{3}"),
    (r"\pi", "3"),
    (r"\pi", "3.14"),
    ("1204_9", "1204_8"),
    ("", "5"),
    ("10", "1e2"),
    (r"1\frac12", "1/2"),
    ("x^2", "x^3"),
    ("12:30", "12:31"),
    ("xy=6", "6"),
    ("x>3", "x<3"),
    ("x>3", r"x\ge 3"),
    (r"(-\infty,2)\cup(3,\infty)", r"(-\infty,2)\cup(4,\infty)"),
    ("9^{9^{9^9}}", "3"),
    ("1", "-1"),
    ("1,234", "1.234"),
    (r"\begin{pmatrix}1&2\\3&4\end{pmatrix}", r"\begin{pmatrix}1&3\\2&4\end{pmatrix}"),
    ("Evelyn", "Evelny"),
    (r"\pm 3", "3"),
    ("3+4i", "3-4i"),
    ("$5", "$6"),
    (r"\sin x", r"\cos x"),
    ("100", "1000"),
    ("17", "7"),
]


@pytest.mark.parametrize("answer", HARD)
def test_a_true_answer_equals_itself(answer: str) -> None:
    assert answers_equal(answer, answer)
    assert answers_equal(f" {answer} ", answer)
    assert answers_equal(answer, answer, "option")


@pytest.mark.parametrize(("a", "b"), SAME)
def test_same(a: str, b: str) -> None:
    assert answers_equal(a, b)
    assert answers_equal(b, a)


@pytest.mark.parametrize(("a", "b"), DIFFERENT)
def test_different(a: str, b: str) -> None:
    assert not answers_equal(a, b)
    assert not answers_equal(b, a)


def test_random_wrong_pairs_are_refused() -> None:
    rng = random.Random(7)
    numbers = [str(rng.randint(-999, 999)) for _ in range(40)]
    fractions = [rf"\frac{{{rng.randint(1, 99)}}}{{{rng.randint(100, 199)}}}" for _ in range(40)]
    pairs = [f"({rng.randint(0, 30)}, {rng.randint(0, 30)})" for _ in range(40)]
    roots = [rf"{rng.randint(2, 9)}\sqrt{{{rng.choice([2, 3, 5, 7, 11])}}}" for _ in range(40)]
    lines = [f"y = {rng.randint(2, 9)}x + {rng.randint(1, 9)}" for _ in range(20)]
    answers = sorted({*numbers, *fractions, *pairs, *roots, *lines})
    equal = [
        (a, b)
        for a, b in itertools.combinations(answers, 2)
        if answers_equal(a, b) and (exact_value(a) is None or exact_value(a) != exact_value(b))
    ]
    assert equal == []


@given(st.integers(-(10**6), 10**6), st.integers(-(10**6), 10**6))
def test_integers_are_compared_exactly(a: int, b: int) -> None:
    assert answers_equal(str(a), str(b)) == (a == b)
    assert answers_equal(f"{a:,}", str(b)) == (a == b)


@given(st.fractions(max_denominator=1000), st.fractions(max_denominator=1000))
def test_fractions_are_compared_exactly(a: object, b: object) -> None:
    assert answers_equal(str(a), str(b)) == (a == b)


@given(st.text(max_size=40), st.text(max_size=3))
def test_reflexive_on_any_text(text: str, other: str) -> None:
    assert answers_equal(text, text)
    assert answers_equal(text, text, "option")
    assert answers_equal(text, other, "option") == answers_equal(other, text, "option")


def test_missing_answers() -> None:
    assert answers_equal(None, None)
    assert not answers_equal(None, "5")
    assert not answers_equal("", None)


@pytest.mark.parametrize(
    ("a", "b", "same"),
    [
        ("(C)", "C.", True),
        ("C. 45 m", "c", True),
        ("Choice C", "C", True),
        (r"\text{C}", "C", True),
        ("A", "B", False),
        ("A dog", "A", False),
        ("Paris", "paris", True),
        ("Answer: D", "D", True),
        ("I", "J", False),
    ],
)
def test_option_judge(a: str, b: str, same: bool) -> None:
    assert answers_equal(a, b, "option") is same
    assert answers_equal(b, a, "option") is same


def test_judges_are_found_by_name() -> None:
    for name in ("math", "option", "tool", "json", "json:a,b.0"):
        assert get_judge(name).name == get_judge(name).label == name
    with pytest.raises(DataError, match=r"no judge is named 'maths'.*json.*math, option, tool"):
        get_judge("maths")
    for wrong in ("math:x", "tool[a=1]", "option:"):
        with pytest.raises(DataError, match="takes nothing behind its name"):
            get_judge(wrong)
    with pytest.raises(DataError, match="registered already"):
        register_judge(MathJudge())


def test_works_in_threads() -> None:
    verdicts: list[bool] = []
    threads = [
        threading.Thread(
            target=lambda n=n: verdicts.append(answers_equal(f"(x+{n})^2", f"x^2+{2 * n}x+{n * n}"))
        )
        for n in range(2, 6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert verdicts == [True] * 4


def test_a_comparison_that_hangs_is_ended_and_the_next_one_works() -> None:
    worker = AlgebraWorker(limit_s=60.0)
    assert worker.equal("x+x", "2x")
    worker.limit_s = 1.0
    began = time.monotonic()
    with pytest.raises(AlgebraTimeout):
        worker.equal("9^{9^{9^9}}", "9^{9^{9^8}}")
    assert time.monotonic() - began < 15  # the limit on the clock is ten times that of the processor
    worker.limit_s = 60.0
    assert worker.equal("x+x", "2x")
    worker.close()


def test_a_timeout_is_unjudgeable_logged_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    judge = MathJudge(limit_s=1e-4)
    other_letters = judge.compare(r"\int_0^1 x dx", r"\int_0^1 y dy + \int_0^1 x dx", Case())
    assert other_letters.outcome == "different"  # no algebra is needed
    assert judge.timeouts == 0
    assert judge.compare(r"\int_0^1 x dx", r"\int_0^1 xx dx", Case()).outcome == "unjudgeable"
    assert judge.timeouts == 1
    assert "not decided" in caplog.text


def test_plain_integers_are_fast() -> None:
    began = time.perf_counter()
    for number in range(100_000):
        answers_equal(str(number % 997), str(number % 991))
    assert time.perf_counter() - began < 60
