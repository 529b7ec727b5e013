"""`extract_answer`: braces are matched, thinking is never read, announced answers come out whole."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from desist.data.answers import extract_answer
from desist.data.braces import balanced, boxed_arguments, closing_brace, split_top_level
from desist.data.thinking import split_thinking

CASES = [
    ("the answer is 34.", "34"),
    ("The answer is 3.5.", "3.5"),
    ("3.5.", "3.5"),
    (r"\boxed{\frac{14}{3}}", r"\frac{14}{3}"),
    (r"So $x = \boxed{\left\{1, \tfrac{2}{3}\right\}}$.", r"\left\{1, \tfrac{2}{3}\right\}"),
    (r"first \boxed{5}, then \boxed{6}? No: \boxed{7}.", "7"),
    (r"\[\boxed{0}, \boxed{1}\]", "0, 1"),
    (r"$\boxed{2}$ and $\boxed{3}$", "2, 3"),
    (r"\boxed{\boxed{5}}", "5"),
    (r"it is $\boxed 5$, done", "5"),
    (r"\fbox{12}", "12"),
    (r"\boxed{3} and then \boxed{4", "3"),
    (r"\boxed{3", None),
    (r"\boxed{}", None),
    ("34}.", "34"),
    (r"\frac{1}{2}} and so on", r"\frac{1}{2}"),
    ("<answer> 7 </answer> (or 8)", "7"),
    ("<answer>The answer is 7.</answer>", "7"),
    ("FINAL ANSWER: C", "C"),
    ("Answer: C", "C"),
    ("Answer: D) 45 m", "D"),
    ("**Answer:** (B) because it is", "B"),
    ("The correct answer is E.", "E"),
    ("(C)", "C"),
    ("C.", "C"),
    ("It follows.\n\n**(C)**", "C"),
    ("That is the expected response.\n\nC", "C"),
    ("Option (E) is correct.", "E"),
    ("QED ==> E", "E"),
    (r"the answer is $\frac{1}{2}$.", r"\frac{1}{2}"),
    (r"The answer is \(x+3\), as said.", "x+3"),
    ("The final answer is 1,234.", "1,234"),
    ("The answer is $34.", "34"),
    ("The answer is 5 cm.", "5 cm"),
    ("The answer is 50%.", "50%"),
    ("The answer is 12.\nNext question", "12"),
    ("The answer to the question is 12 apples because there are more", "12 apples"),
    ("**Answer:** There are 23 blue parrots on the island.", "23"),
    ("Final answer: (2, 3)", "(2, 3)"),
    ("answer: -5", "-5"),
    ("### Final Answer\n42", "42"),
    ("#### 42", "42"),
    ("So the total is **42 apples**", "42 apples"),
    ("I think the answer is not obvious. So it is 5.", "5"),
    ("He has 3 apples and 4 pears, so 7 in all.", "7"),
    ("yes", "yes"),
    ("no idea", None),
    ("", None),
    ("<think>\\boxed{3}</think> it is 4", "4"),
    ("<think>so \\boxed{3}", None),
    ("so \\boxed{3}</think>", None),
    ("4</think>5", "5"),
    ("<think>a</think>The answer is 5.<think>No: \\boxed{6}</think>", "5"),
    ("<think>a</think>The answer is 5.<think>No: \\boxed{6}", "5"),
    ("Write `<think>` first. The answer is 5.", "5"),
]


@pytest.mark.parametrize(("text", "answer"), CASES)
def test_extracts(text: str, answer: str | None) -> None:
    assert extract_answer(text) == answer


nested = st.recursive(
    st.text("abx123+-^_ ,", min_size=1, max_size=6).filter(str.strip),
    lambda inner: st.one_of(
        st.builds("\\frac{{{}}}{{{}}}".format, inner, inner),
        st.builds("{{{}}}".format, inner),
        st.builds("\\sqrt{{{}}}x".format, inner),
        st.builds("\\{{{}\\}}".format, inner),
        st.builds("{}{}".format, inner, inner),
    ),
    max_leaves=12,
)


@given(nested, st.text("ab {}$.\n", max_size=15))
def test_a_box_is_read_to_its_own_brace(content: str, before: str) -> None:
    assert balanced(content)
    text = before.replace("{", "(").replace("}", ")") + "\\boxed{" + content + "} and so on"
    assert next(boxed_arguments(text))[2] == content.strip()


@given(st.text(alphabet="\\{}boxed fbox12$()<>/thinkansweris.*:\n", max_size=120))
def test_any_text_gives_an_answer_or_none(text: str) -> None:
    answer = extract_answer(text)
    assert answer is None or answer.strip()


@given(st.text(max_size=60), st.integers(100_000, 999_999))
def test_an_answer_never_comes_from_thinking(reasoning: str, secret: int) -> None:
    inside = reasoning.replace("<", "") + f" The answer is \\boxed{{{secret}}}. "
    for text in (f"<think>{inside}</think>\nIt is 5.", f"<think>{inside}", f"{inside}</think>It is 5."):
        assert str(secret) not in (extract_answer(text) or "")


@given(st.text("{}\\a", max_size=30))
def test_closing_brace_encloses_balanced_text(text: str) -> None:
    whole = "{" + text
    if (end := closing_brace(whole, 0)) is not None:
        assert balanced(whole[: end + 1])


def test_splits_only_outside_brackets() -> None:
    assert split_top_level(r"(1,2), \{3,4\}, \frac{5,6}{7}", frozenset(",")) == [
        "(1,2)", r"\{3,4\}", r"\frac{5,6}{7}",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "reasoning", "answer", "closed"),
    [
        ("<think>a</think>b", "a", "b", True),
        ("  \n<think>a</think>b", "a", "b", True),
        ("a</think>b", "a", "b", True),
        ("<think>a", "a", "", False),
        ("plain", "", "plain", True),
        ("<think>a <think>b</think> c</think>d", "a <think>b</think> c", "d", True),
        ("<think>say `</think>` last</think>d", "say `</think>` last", "d", True),
        ("<think>I open <think> once</think>d", "I open <think> once", "d", True),
        ("<think></think>b", "", "b", True),
        ("The tag <think> is one.", "", "The tag <think> is one.", True),
    ],
)
def test_thinking_is_split_off(text: str, reasoning: str, answer: str, closed: bool) -> None:
    assert split_thinking(text) == (reasoning, answer, closed)
