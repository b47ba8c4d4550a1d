"""Filters, duplicates and overlap with evaluation sets, decided from texts and tests alone."""

from __future__ import annotations

import dataclasses
import html
import json
import random
import re
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from code_rl.commands.prepare import prepare_command
from code_rl.errors import DataError
from code_rl.preparation.bench import Entry, entry_from_json, make_entry
from code_rl.preparation.filter import filter_entry
from code_rl.preparation.normalise import open_source
from code_rl.preparation.overlap.decontaminate import Decontaminator
from code_rl.preparation.overlap.deduplicate import Deduplicator, in_series
from code_rl.preparation.overlap.evaluation_sets import EvaluationProblem, evaluation_problems
from code_rl.preparation.overlap.text import among, canonical, grams, jaccard, numbers, pattern, words
from code_rl.preparation.settings import PrepareConfig
from code_rl.problems.problem import CallTest, Problem, StdinTest
from code_rl.problems.sources.records import Ambiguous
from tests.corpus.rooms import data_file

CONFIG = PrepareConfig(dataset="builtin", out="nowhere")
TASK = (
    "A farmer has n fields in a row and the i-th of them yields a_i sacks of grain. Neighbouring fields must not be harvested in one year. "
    "Print the largest number of sacks that can be harvested. The first line holds n, the second line the yields.\n\n1 <= n <= {most}\n"
)
TESTS = (("3\n1 2 3\n", "4\n"), ("2\n5 9\n", "9\n"), ("1\n7\n", "7\n"))


def problem(name: str, statement: str, tests: Sequence[tuple[str, str]] = TESTS, code: str = "") -> Problem:
    cases = tuple(StdinTest(given, expected) for given, expected in tests)
    return Problem(name, statement, cases, solutions=(code,) if code else ())


def entry(made: Problem) -> Entry:
    return make_entry(made, 0)[0]


def kept(*problems: Problem) -> list[str]:
    by_id = {one.id: one for one in problems}
    found = Deduplicator(0.8, lambda entry: by_id[entry.id])
    return [one.id for one in problems if found.decide(entry(one)).keep]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("Look at this board: ![board](http://x/y.png) and print the number of rooks.", "image"),
        ("Look at this board and print the number of rooks. <IMG src='board.png'>", "image"),
        ("This is an interactive problem. Guess the number that the judge thinks of.", "interactive"),
        ("English statement is not available for the problem. Please switch to Chinese.", "no_statement"),
        ("Statement: https://example.org/problems/17/statement", "no_statement"),
        ("The [statement](https://example.org/17).", "no_statement"),
        ("Add.", "too_short"),
        ("word " * 5000, "too_long"),
        ("You are given an image as a grid of pixels. Print how many of them are black.", ""),
        ("Best hand: a Flush is five cards of one suit. Print the name of the given hand.", ""),
        ("Find the nth bell number. https://example.org/bell-numbers/", ""),
    ],
)
def test_a_filter_drops_for_its_own_reason(text: str, reason: str) -> None:
    assert filter_entry(entry(problem("p", text)), CONFIG).reason == reason


def test_too_few_tests_and_too_many_bytes_are_dropped() -> None:
    assert filter_entry(entry(problem("p", TASK, TESTS[:1])), CONFIG).reason == "few_tests"
    large = problem("p", TASK, [("x" * 2_000_000, "1"), ("y", "2")])
    assert filter_entry(entry(large), PrepareConfig(dataset="d", out="o", max_row_mb=1.0)).reason == "oversized"


def test_an_entry_survives_being_written_and_read() -> None:
    one = entry(problem("p", TASK))
    assert entry_from_json(json.loads(json.dumps(dataclasses.asdict(one)))) == one


@pytest.mark.parametrize(
    "spelling",
    ["10^5", "10^{5}", "10⁵", "1e5", "100000", "100,000", "10**5", "10<sup>5</sup>", "1 \\cdot 10^5", "100 000", "100_000", "100{,}000", "1e+5", "10\\^5", "100'000"],
)  # fmt: skip
def test_every_spelling_of_a_number_is_one_token(spelling: str) -> None:
    assert "100000" in words(f"$1 \\le n \\leq {spelling}$")


@pytest.mark.parametrize(
    ("text", "token"),
    [
        ("modulo 10^9 + 7", "1000000007"),
        ("modulo 1e9+7.", "1000000007"),
        ("at most 1.000.000.000", "1000000000"),
        ("at most 1'000'000", "1000000"),
        ("weighs 1.250 kg", "1.250"),
        ("the list 1 200 300", "200"),
        ("the list 1,2,300", "300"),
        ("print 10^9 + 7k", "1000000000"),
        ("print 2 * 10^9 + 7 * n", "2000000000"),
    ],
)
def test_a_number_is_read_as_it_is_meant(text: str, token: str) -> None:
    assert token in numbers(text)[()]


@pytest.mark.parametrize("sign", ["<=", "=<", "≤", "\\le", "\\leq", "\\leqslant", "&le;"])
def test_every_spelling_of_at_most_is_one_token(sign: str) -> None:
    assert words(f"n {sign} 7") == ("n", "<=", "7")


def test_renaming_variables_leaves_the_canonical_form() -> None:
    one = canonical("Given `nums` and k, add k to every a_i.", frozenset({"nums"}))
    assert one == canonical("Given `items` and m, add m to every b_j.", frozenset({"items"}))


def test_limits_are_numbers_of_the_problem_and_examples_are_not() -> None:
    text = TASK.format(most="10^5") + "\nExample 1:\n\n3\n41 42 43\n"
    assert set(numbers(text)[()]) == {"1", "100000"}


@given(st.lists(st.text("abcde ", max_size=30), max_size=6))
def test_a_text_is_wholly_like_itself(parts: list[str]) -> None:
    found = grams(words(" ".join(parts)), 5)
    assert among(found, found).sum() == len(found)
    assert jaccard(found, found) == (1.0 if len(found) else 0.0)


@given(st.lists(st.integers(0, 40)), st.lists(st.integers(0, 40)))
def test_shared_counts_as_sets_do(left: list[int], right: list[int]) -> None:
    arrays = [np.unique(np.array(items, dtype=np.uint64)) for items in (left, right)]
    assert among(*arrays).sum() == len(set(left) & set(right))


def test_an_equal_statement_is_a_duplicate() -> None:
    assert kept(problem("a", TASK.format(most=100)), problem("b", TASK.format(most=100))) == ["a"]


def test_another_limit_makes_another_problem() -> None:
    assert kept(problem("a", TASK.format(most=100)), problem("b", TASK.format(most="10^5"))) == ["a", "b"]


def test_parts_of_a_series_survive_even_with_equal_text_and_tests() -> None:
    text = TASK.format(most=100)
    assert kept(problem("harvest-i", text), problem("harvest-ii", text), problem("harvest-ii-copy", text)) == [
        "harvest-i",
        "harvest-ii",
    ]


@pytest.mark.parametrize(
    "addition",
    [
        "\nTime limit: 2 seconds",
        "\nTime limit per test: 2 seconds. Memory limit: 256 megabytes.",
        " There are 30 tests.",
    ],
)
def test_a_copy_with_a_number_added_is_a_duplicate(addition: str) -> None:
    text = TASK.format(most=100)
    assert kept(problem("a", text), problem("b", text + addition)) == ["a"]
    assert kept(problem("b", text + addition), problem("a", text)) == ["b"]


@pytest.mark.parametrize(
    "limits",
    ["Time Limit: 2sec", "TL 2s", "Limits: 1 s, 256 MiB", "time-limit 2000ms", "256 megabytes of memory", "Time limit (seconds): 2", "time_limit: 2.0",
     "Time Limit: 2 second(s)", "Time Limit: 2000/1000 MS (Java/Others)    Memory Limit: 65536/32768 K (Java/Others)", "Memory: 256MB", "2s, 256MB",
     "(Time: 1 sec. Memory: 16 Mb)", "CPU time limit: 1 second", "Time limit is 2 seconds.", "Limits\n2 seconds, 256 megabytes", "Memory limit: 1 GB",
     "Execution time limit is 1 second\nRuntime memory usage limit is 128 megabytes", "Time limit: 2 seconds (extended to 4 seconds for Python)"],
)  # fmt: skip
def test_a_line_of_limits_is_no_part_of_a_task(limits: str) -> None:
    text = TASK.format(most=100)
    for copy in (f"{text}\n{limits}\n", f"{limits}\n\n{text}"):
        assert kept(problem("a", text), problem("b", copy, OTHER_TESTS)) == ["a"]
        assert kept(problem("a", f"Time limit: 9 seconds\n{text}"), problem("b", copy, OTHER_TESTS)) == ["a"]


def test_a_limit_of_time_is_no_word_of_substance() -> None:
    text = TASK.format(most=100)
    other = [("4\n1 1 1 1\n", "2\n"), ("1\n8\n", "8\n")]
    assert kept(problem("a", text), problem("b", f"{text}\nTime limit: 2 seconds", other)) == ["a"]
    assert kept(problem("a", text), problem("b", f"{text}\nAt most 2 fields are harvested.", other)) == ["a", "b"]


def test_a_number_in_the_place_of_another_makes_another_problem_whatever_is_added() -> None:
    one, other = TASK.format(most=100), TASK.format(most=1000) + "\nTime limit: 2 seconds"
    assert kept(problem("a", one), problem("b", other)) == ["a", "b"]


@pytest.mark.slow
def test_a_copy_is_found_in_a_family_of_thousands() -> None:
    family = [
        problem(f"p{most}", TASK.format(most=most), [(f"{most}\n", "1\n"), ("1\n2\n", "2\n")])
        for most in range(10, 1010)
    ]
    copy = problem("copy", f"Welcome. {TASK.format(most=1000)}", [("1000\n", "1\n"), ("1\n2\n", "2\n")])
    assert "copy" not in kept(*family, copy)


def test_renamed_variables_make_a_duplicate() -> None:
    text = TASK.format(most=100)
    renamed = (
        text.replace(" n ", " m ")
        .replace("n <=", "m <=")
        .replace(" n,", " m,")
        .replace("a_i", "b_j")
        .replace("<= n", "<= m")
    )
    assert kept(problem("a", text), problem("b", renamed)) == ["a"]


@pytest.mark.parametrize(
    ("one", "other"),
    [("x & y", "x | y"), ("[a, b)", "(a, b]"), ("[a, b]", "(a, b)"), ("|x - y|", "x - y"), ("x!", "x"), ("~x", "x"), ("-x", "x"), ("√x", "x"),
     ("⌊x⌋", "⌈x⌉"), ("a ∪ b", "a ∩ b"), ("x = y", "x ≠ y"), ("the sign '#'", "the sign '.'")],
)  # fmt: skip
def test_a_sign_of_substance_makes_another_problem_when_nothing_else_is_known(one: str, other: str) -> None:
    text = f"{TASK.format(most=100)} Print it for {{sign}} and no other."
    tests = [("4\n1 1 1 1\n", "2\n"), ("1\n8\n", "8\n")]
    assert kept(problem("a", text.format(sign=one)), problem("b", text.format(sign=other), tests)) == ["a", "b"]


def test_the_same_tests_and_a_solution_of_one_shape_make_a_duplicate_under_other_numbers() -> None:
    text, tests = TASK.format(most=100), [("4\n1 1 1 1\n", "2\n"), ("1\n8\n", "8\n"), ("2\n1 1\n", "1\n")]
    one = problem("a", f"Score: 100 points\n{text}", tests, code="n = int(input())\nprint(n)")
    two = problem("b", f"Score: 300 points\n{text}", tests, code="k = int(input())\nprint(k)")
    assert kept(one, two) == ["a"]
    assert kept(one, dataclasses.replace(two, solutions=("print(1)",))) == ["a", "b"]


def test_a_limit_under_which_other_programs_solve_a_task_is_part_of_it() -> None:
    text, other = TASK.format(most=100), [("4\n1 1 1 1\n", "2\n"), ("1\n8\n", "8\n")]
    one = problem("a", f"{text}\nTime: 30 seconds\n", code="n = int(input())\nprint(n)")
    two = problem("b", f"{text}\nTime: 45 seconds\n", other, code="for _ in range(2):\n    print(input())")
    assert kept(one, two) == ["a", "b"]


def test_a_row_of_a_known_shape_is_known_by_its_function_and_its_id(tmp_path: Path) -> None:
    row = {"task_id": 2, "prompt": "Write a function to find shared elements.", "code": "def similar_elements(a, b):\n    return a",
           "test_imports": [], "test_list": ["assert similar_elements((3,), (3,)) == (3,)"], "source_file": "x"}  # fmt: skip
    rows = tmp_path / "rows.jsonl"
    rows.write_text(json.dumps(row) + "\n")
    (one,) = evaluation_problems(str(rows))
    assert "Mbpp/2" in one.names
    assert one.functions == ("similar_elements",)


def test_one_input_with_two_answers_makes_two_problems() -> None:
    text = TASK.format(most=100)
    other = [(given, f"{int(expected) + 1}\n") for given, expected in TESTS]
    assert kept(problem("a", text), problem("b", text.replace("largest", "smallest"), other)) == ["a", "b"]


def test_a_word_of_substance_makes_another_problem_when_nothing_else_is_known() -> None:
    text = TASK.format(most=100)
    other = [("4\n1 1 1 1\n", "2\n"), ("1\n8\n", "8\n")]
    assert kept(problem("a", text), problem("b", text.replace("largest", "smallest"), other)) == ["a", "b"]


def test_solutions_of_one_shape_make_a_duplicate_of_a_retold_statement() -> None:
    text = TASK.format(most=100)
    other = [("4\n1 1 1 1\n", "2\n"), ("1\n8\n", "8\n")]
    one = problem("a", text, code="n = int(input())\nprint(n)")
    two = problem(
        "b", text.replace("Print the", "Output the"), other, code="count = int(input())  # rows\nprint(count)"
    )
    assert kept(one, two) == ["a"]
    assert kept(one, dataclasses.replace(two, solutions=("print(1)",))) == ["a", "b"]


def overlap(made: Problem, exam: EvaluationProblem, *others: Problem) -> str:
    entries = [entry(one) for one in (made, *others)]
    found = Decontaminator([exam], entries, 0.5).find(entries[0])
    return "" if found is None else found.why


def exam(text: str, names: tuple[str, ...] = (), functions: tuple[str, ...] = ()) -> EvaluationProblem:
    return EvaluationProblem("exams", "e", text, names, functions)


def test_an_evaluation_file_whose_rows_all_read_alike_is_refused(tmp_path: Path) -> None:
    rows = [{"description": "Solve the problem in Python. " * 40, "prompt": "", "id": n} for n in range(9)]
    (tmp_path / "exam.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "train.jsonl").write_text(
        json.dumps({"id": "a", "statement": TASK, "tests": [{"kind": "stdin", "input": "1", "expected": "1"}]}) + "\n"
    )
    words = {
        "dataset": tmp_path / "train.jsonl",
        "decontaminate": tmp_path / "exam.jsonl",
        "out": tmp_path / "out",
        "min_tests": 1,
    }
    with pytest.raises(DataError, match=r"9 of 9 rows have one text, 'Solve the problem"):
        prepare_command({name: str(value) for name, value in words.items()})


@pytest.mark.parametrize("order", [1, -1])
def test_an_evaluation_problem_of_two_files_has_the_names_of_both(order: int) -> None:
    text = TASK.format(most=100)
    half = " ".join(text.split()[: len(text.split()) * 2 // 5])
    own = [
        entry(
            problem(
                "HumanEval/7",
                f"{half} and then something else altogether, in words of its own that nobody else has said so far.",
            )
        )
    ]
    unnamed, named = exam(text), exam(text, ("HumanEval/7",))
    assert Decontaminator([unnamed], own, 0.5).find(own[0]) is None
    assert Decontaminator([unnamed, named][::order], own, 0.5).find(own[0]) is not None


def test_an_evaluation_problem_told_in_a_frame_is_found() -> None:
    text = TASK.format(most=100)
    assert overlap(problem("a", f"Round 7.\n{text}\nHave fun!"), exam(f"Solve this.\n\n{text}")) == "shared text"


def test_an_evaluation_problem_without_thirteen_words_is_found_when_equal() -> None:
    assert (
        overlap(problem("a", "Print the product of two integers."), exam("print the product of two INTEGERS"))
        == "equal text"
    )
    assert overlap(problem("a", "Print the product of two integers."), exam("Print the sum of two integers.")) == ""


def test_boilerplate_is_no_overlap() -> None:
    frame = (
        "The first line contains a single integer t, the number of test cases. Each test case consists of one line with a single integer n. "
        "For each test case print one line with the answer to the question asked above. {} 1 <= t <= 1000."
    )
    tasks = (
        "Count the ones of n.",
        "Print n backwards.",
        "Tell whether n is odd.",
        "Double what n gives.",
        "Find a root near n.",
        "Say n in words.",
    )
    others = [problem(f"o{index}", frame.format(task)) for index, task in enumerate(tasks)]
    assert (
        overlap(problem("a", frame.format("Reverse the digits.")), exam(frame.format("Add the divisors.")), *others)
        == ""
    )


LEAK = (
    "A lighthouse keeper has a row of n lamps, and lamp i burns for a_i minutes before it goes out. She may refill one lamp every minute, "
    "walking from lamp to lamp at a cost of one minute for each step along the row. Tell for how long she can keep at least k lamps burning "
    "at the same time, when she starts beside the first of them and never rests.\n\nInput\n\nThe first line holds n and k, the second line holds "
    "the burning times.\n\nOutput\n\nPrint one integer, the number of minutes, or the word forever.\n\n1 <= n <= 1000\n1 <= a_i <= 500\n"
)
EDITS = ("lighthouse", "minutes", "walking", "starts", "burning", "forever", "lamp", "rests")


@pytest.mark.parametrize("times", [1, 3, 6, 20])
def test_naming_a_set_again_changes_nothing(times: int) -> None:
    entries = [entry(problem("leak", f"Good morning! {LEAK}")), entry(problem("clean", TASK.format(most=100)))]
    named = [EvaluationProblem(f"release {number}", "e", LEAK, (), ()) for number in range(times)]
    found = Decontaminator(named, entries, 0.5)
    assert [found.find(one) is not None for one in entries] == [True, False]


def other_word(number: int) -> str:
    return LEAK.replace(EDITS[number % len(EDITS)], ("beacon", "seconds", "moving")[number % 3], 1)


@pytest.mark.parametrize("copies", [6, 20])
@pytest.mark.parametrize(
    "edited",
    [
        lambda number: f"{LEAK}\n(copy {number})",
        lambda number: f"Practice round, task {number}.\n\n{LEAK}\n\nGood luck!",
        other_word,
        lambda number: LEAK.replace("1000", str(2000 + number)),
    ],
    ids=["numbered", "framed", "one word", "one limit"],
)
def test_edited_copies_of_a_leak_do_not_hide_each_other(edited: Callable[[int], str], copies: int) -> None:
    entries = [entry(problem(f"p{number}", edited(number))) for number in range(copies)]
    found = Decontaminator([exam(LEAK)], entries, 0.5)
    assert all(found.find(one) for one in entries)


@pytest.mark.parametrize("share", [0.02, 0.05])
@pytest.mark.parametrize("copies", [1, 3, 6, 12])
def test_edited_copies_of_an_evaluation_problem_free_no_leak(share: float, copies: int) -> None:
    half = LEAK.split()[: len(LEAK.split()) * 11 // 20]
    opening = " ".join(re.findall(r"[a-z]{3,}", TASK))
    own = dataclasses.replace(problem("a", f"{' '.join(half)} {opening}"), meta={"title": "Lamps of the keeper"})
    other = problem("Lamps of the keeper", " ".join(reversed(LEAK.split())))
    entries = [entry(own), entry(other)]
    for seed in range(20):
        edited = [
            exam(scattered_edits(LEAK, share, 100 * seed + copy), ("Lamps of the keeper",)) for copy in range(copies)
        ]
        for named in ([*edited, exam(LEAK, ("Lamps of the keeper",))], [exam(LEAK, ("Lamps of the keeper",)), *edited]):
            found = Decontaminator(named, entries, 0.5)
            assert all(map(found.find, entries))


@pytest.mark.slow
@pytest.mark.parametrize("times", [pytest.param(1, marks=pytest.mark.slow), 3, pytest.param(6, marks=pytest.mark.slow)])
def test_public_sets_overlap_alike_however_often_they_are_named(times: int) -> None:
    problems = data_file("leetcode/LeetCodeDataset-v0.3.1-test.jsonl.gz")
    prompts = data_file("qwq_lcb_prompts/livecodebench_v5.jsonl")
    texts = [item.problem if isinstance(item, Ambiguous) else item for item in open_source(str(problems)).items()]
    entries = [entry(item) for item in texts if isinstance(item, Problem)]
    found = Decontaminator([one for _ in range(times) for one in evaluation_problems(str(prompts))], entries, 0.5)
    assert (sum(found.find(one) is not None for one in entries), len(entries)) == (116, 228)


def test_a_long_slug_decides_alone_and_a_short_id_does_not() -> None:
    made = problem(
        "longest-walk-on-a-frozen-lake", "Skaters cross the frozen lake; print how long their longest walk is."
    )
    told = "On a lake that is frozen, how long can a walk be at most? Skaters start anywhere. Print the longest."
    assert overlap(made, exam(told, names=("Longest walk on a frozen lake",))).startswith("slug")
    assert overlap(dataclasses.replace(made, id="17"), exam(told, names=("17",))) == ""
    unlike = "Queue at a bakery: each customer needs a time of her own; name whoever waits most."
    assert overlap(made, exam(unlike, names=("Longest walk on a frozen lake",))) == ""
    assert overlap(dataclasses.replace(made, id="mbpp/2"), exam(unlike, names=("mbpp/2",))) == ""


def test_a_common_title_needs_words_that_tell() -> None:
    told = "You are given a tree with n vertices. In one move you may delete an edge and add another one so that the graph remains a tree. Print the least number of moves after which the diameter of the tree is k. The first line contains n and k."
    asked = "You are given a rooted tree with n vertices, each of which has a colour. For each vertex print the number of colours that stand an odd number of times among the vertices of its subtree. The first line contains n, the next one the colours."
    title = "Yet another tree problem"
    assert overlap(problem("yet-another-tree-problem", told), exam(asked, (title,))) == ""
    assert overlap(problem("yet-another-tree-problem", "Print, for each vertex of a rooted tree, how many colours stand oddly often in its subtree."), exam(asked, (title,))).startswith("slug")  # fmt: skip


def test_an_address_that_a_whole_set_has_is_no_name() -> None:
    address = "https://example.org/a-code-data-set"
    exams = [exam(TASK.replace(" ", f" {word}"), (address,)) for word in ("", "bee", "cow", "doe", "elk", "fox", "gnu", "hen", "yak")]  # fmt: skip
    own = entry(dataclasses.replace(problem("a", " ".join(reversed(TASK.split()))), meta={"url": address}))
    assert Decontaminator(exams[:1], [own], 1.0).find(own) is not None
    assert Decontaminator(exams, [own], 1.0).find(own) is None


def test_an_id_made_of_the_name_of_a_file_is_no_name(tmp_path: Path) -> None:
    row = {"question": LEAK, "input_output": json.dumps({"inputs": ["1\n"], "outputs": ["2\n"]}), "solutions": "[]"}
    (tmp_path / "my-code-set.jsonl").write_text(json.dumps(row) + "\n")
    (one,) = evaluation_problems(str(tmp_path / "my-code-set.jsonl"))
    assert one.names == ()


def wrapped(text: str, columns: int) -> str:
    return "\n".join("\n".join(textwrap.wrap(line, columns, break_on_hyphens=False)) for line in text.split("\n"))


def before_lines(text: str, mark: Callable[[int], str]) -> str:
    return "\n".join(f"{mark(at)}{line}".rstrip() for at, line in enumerate(text.split("\n"), start=1))


LAYOUTS: dict[str, Callable[[str], str]] = {
    "quote": lambda text: before_lines(text, lambda _: "> "),
    "quote in a quote": lambda text: before_lines(text, lambda _: "> > "),
    "quoted paragraphs": lambda text: re.sub(r"(?m)^(?=\S)", "> ", text),
    "quote wrapped": lambda text: before_lines(wrapped(text, 40), lambda _: "> "),
    "numbered lines": lambda text: before_lines(text, lambda at: f"{at}: "),
    "numbers in a column": lambda text: before_lines(wrapped(text, 72), lambda at: f"{at:4d}  "),
    "wrapped": lambda text: wrapped(text, 80),
    "breaks": lambda text: text.replace("\n", "<br>"),
    "breaks and line ends": lambda text: text.replace("\n", "<br />\n"),
    "emphasis": lambda text: re.sub(r"\b([a-z]{6,})\b", r"_\1_", text),
    "stars": lambda text: re.sub(r"\b([a-z]{6,})\b", r"*\1*", text),
    "strong": lambda text: re.sub(r"\b([a-z]{6,} \w+)\b", r"**\1**", text),
    "strong emphasis": lambda text: re.sub(r"\b([a-z]{6,})\b", r"**_\1_**", text),
    "character references": lambda text: re.sub(r"(?<=\w)a", "&#97;", html.escape(text)),
    "header": lambda text: f"Problem 7 (time limit: 2 seconds)\n\n{text}",
}


@pytest.mark.parametrize("lay", LAYOUTS.values(), ids=LAYOUTS)
def test_how_a_text_is_laid_out_hides_no_copy(lay: Callable[[str], str]) -> None:
    text = f"{LEAK} Count only lamps (of those lit) where {'lamp ' * 9}i - 1 > i + 1 * 2 holds and a_i - n < k * 2 too\nExample\n\n{{}}"
    one, other = text.format("3 2\n1 5 5"), lay(text.format("4 1\n7 7 1 2"))
    assert kept(problem("a", one), problem("b", other, OTHER_TESTS)) == ["a"]
    own = [entry(problem(str(at), f"{' '.join([f'word{at}'] * at)}\n\n{lay(LEAK)}")) for at in range(20)]
    found = Decontaminator([exam(LEAK)], own, 0.5)
    assert all(map(found.find, own))
    assert words(lay(LEAK.strip())) == words(LEAK.strip())


SPELLINGS: dict[str, Callable[[str], str]] = {
    "literal line ends": lambda text: text.replace("\n", "\\n"),
    "JSON": lambda text: json.dumps(text)[1:-1],
    "fullwidth digits": lambda text: re.sub(r"\d", lambda digit: chr(ord(digit[0]) + 0xFEE0), text),
    "no width": lambda text: text.replace("th", "t\u200bh"),
    "soft hyphens": lambda text: re.sub(r"(\w{4})(\w{3})", "\\1\u00ad\\2", text),
    "broken words": lambda text: re.sub(r"(\w{4})(\w{3,})\b", r"\1-\n\2", text),
    "mathematical letters": lambda text: re.sub(r"\b[kn]\b", lambda name: chr(0x1D44E + ord(name[0]) - 97), text),
}


@pytest.mark.parametrize("spell", SPELLINGS.values(), ids=SPELLINGS)
def test_another_spelling_of_a_text_has_its_tokens(spell: Callable[[str], str]) -> None:
    assert words(spell(LEAK.strip())) == words(LEAK.strip())
    assert overlap(problem("a", spell(LEAK)), exam(LEAK)) == "shared text"


@pytest.mark.parametrize(
    "edit",
    [
        lambda line, number: " ".join("each" if (at - 7 * number) % 25 == 0 else word for at, word in enumerate(line.split(" "))),
        lambda line, number: re.sub(r"\d+", lambda digits: str(int(digits[0]) + number), line),
        lambda line, number: line.replace("burn", f"glow{number}") if number % 2 else line.replace("lamp", f"light{number}"),
    ],
    ids=["every 25th word", "every number", "one word throughout"],
)  # fmt: skip
def test_a_copy_that_is_found_alone_is_found_among_many(edit: Callable[[str, int], str]) -> None:
    copies = [entry(problem(f"p{number}", edit(LEAK, number))) for number in range(1, 25)]
    alone = [Decontaminator([exam(LEAK)], [one], 0.5).find(one) is not None for one in copies]
    found = Decontaminator([exam(LEAK)], copies, 0.5)
    assert [found.find(one) is not None for one in copies] == alone
    assert sum(alone) >= 12


def scattered_edits(text: str, share: float, seed: int) -> str:
    """`text` with a share of its words replaced, left out, or followed by another."""
    rng, spare = random.Random(seed), TASK.split()
    edits: tuple[Callable[[str], str], ...] = (lambda _: rng.choice(spare), lambda _: "", lambda word: f"{word} {rng.choice(spare)}")  # fmt: skip
    return " ".join(rng.choice(edits)(word) if rng.random() < share else word for word in text.split(" "))


@pytest.mark.parametrize("copies", [7, 24])
@pytest.mark.parametrize("share", [0.03, 0.05])
def test_copies_with_scattered_edits_do_not_hide_each_other(share: float, copies: int) -> None:
    missed = 0
    for seed in range(20):
        own = [entry(problem(f"p{copy}", scattered_edits(LEAK, share, 100 * seed + copy))) for copy in range(copies)]
        found = Decontaminator([exam(LEAK)], own, 0.5)
        missed += sum(found.find(one) is None for one in own)
    assert missed <= 0.01 * 20 * copies


@pytest.mark.parametrize("edit", [lambda word: "indeed", lambda word: f"{word} indeed"], ids=["replaced", "added"])
@pytest.mark.parametrize("distance", [8, 10, 12, 13])
def test_edits_at_regular_distances_hide_no_leak(edit: Callable[[str], str], distance: int) -> None:
    words = [edit(word) if at % distance == distance - 1 else word for at, word in enumerate(LEAK.split())]
    assert overlap(problem("a", " ".join(words)), exam(LEAK)) == "shared text"


def test_another_task_in_a_long_frame_is_no_copy_with_scattered_edits() -> None:
    story, asked = LEAK.split("Tell for how long she can keep at least k lamps burning at the same time, ")
    tasks = [f"{story}{task}, {asked}" for task in (
        "Say which of the lamps goes out before any other one does", "Count the pairs of neighbours that are never dark together",
        "Find how many steps she takes until half of them are out", "Name every lamp whose light she sees from where she stands",
        "Report the mean of all times between two refills she makes", "Add up what each visit costs her over the whole long night",
        "Choose the order of visits that wastes the fewest possible refills")]  # fmt: skip
    own = [entry(problem(f"o{number}", task)) for number, task in enumerate(tasks)]
    other = exam(f"{story}Compare the two rows of lamps by the light that each gives, {asked}")
    found = Decontaminator([exam(LEAK), other], own, 0.5)
    assert [found.find(one) for one in own] == [None] * len(own)


@pytest.mark.parametrize("copies", [1, 2, 3, 7, 24])
def test_copies_whose_opening_is_told_anew_do_not_hide_each_other(copies: int) -> None:
    kept = " ".join(LEAK.split()[28:])
    told = [" ".join(word + chr(97 + copy) * 3 for word in re.findall(r"[a-z]{3,}", TASK)) for copy in range(copies)]
    own = [entry(problem(f"p{copy}", f"{opening} {kept}")) for copy, opening in enumerate(told)]
    found = Decontaminator([exam(LEAK)], own, 0.5)
    assert all(map(found.find, own))


def test_an_instruction_before_every_problem_hides_no_leak() -> None:
    instruction = " ".join(f"advice{number} and so on" for number in range(60))
    others = [problem(f"o{number}", f"{instruction}\n\nTask about thing{number}.") for number in range(8)]
    assert overlap(problem("a", f"{instruction}\n\n{LEAK}"), exam(LEAK), *others) == "shared text"
    assert overlap(others[0], exam(LEAK), *others[1:]) == ""


@pytest.mark.parametrize(
    "frame", ["Problem: {}", "You are an expert, and here is your task: {} Answer in a code block."]
)
def test_a_short_evaluation_problem_is_found_in_a_frame(frame: str) -> None:
    short = "Write a function to find the shared elements from the given two lists."
    assert overlap(problem("a", frame.format(short)), exam(short)) == "shared text"
    assert overlap(problem("a", frame.format(short.replace("shared", "largest"))), exam(short)) == ""


@pytest.mark.parametrize(
    "shown",
    [">>> {}([2, 3], 4)\n    20\n    >>> {}([5], 6)\n    30", "For example: {}([2, 3], 4) == 20, {}([5], 6) == 30"],
)
def test_a_docstring_told_as_prose_is_the_same_evaluation_problem(shown: str) -> None:
    doc = f"Return the weight of all stones.\n    {shown.format('weigh', 'weigh')}"
    stub = f'def weigh(stones: list[int], each: int) -> int:\n    """ {doc}\n    """\n'
    assert overlap(problem("a", " ".join(doc.split())), exam(stub)) == "shared text"
    assert overlap(problem("a", " ".join(doc.replace("weigh", "f").split())), exam(stub)) == "shared text"


def test_parts_of_a_series_overlap_only_where_their_texts_are_equal() -> None:
    other = LEAK.replace(
        "one integer, the number of minutes, or the word forever", "how often she refills a lamp until then"
    )
    first, second = problem("walk-i", other), exam(LEAK, ("walk-ii",))
    assert overlap(dataclasses.replace(first, id="walk"), exam(LEAK)) == "shared text"
    assert overlap(first, second) == overlap(dataclasses.replace(first, id="walk"), second) == ""
    assert overlap(dataclasses.replace(first, statement=LEAK), second) == "shared text"


def test_a_function_of_another_name_is_the_same_evaluation_problem() -> None:
    stub = 'def truncate(number: float) -> float:\n    """Given a positive floating point number, return its decimal part, the leftover smaller than one.\n    >>> truncate(3.5)\n    0.5\n    """\n'
    made = dataclasses.replace(problem("a", "Complete the function."), starter_code=stub.replace("truncate", "g"))
    assert overlap(made, exam(stub)) == "shared text"


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": [{"role": "system", "content": "Be terse."}, {"role": "user", "content": LEAK}]},
        {"question": "Problem 3", "prompt": LEAK},
        {"description": "n/a", "text": LEAK},
        {"task_id": "B/1", "complete_prompt": LEAK},
    ],
    ids=["chat", "title beside it", "n/a beside it", "other field"],
)  # fmt: skip
def test_an_evaluation_row_of_any_shape_is_read(row: dict[str, object], tmp_path: Path) -> None:
    folder = tmp_path / "set" / "below"
    folder.mkdir(parents=True)
    (folder / "rows.jsonl").write_text(json.dumps(row) + "\n")
    assert [one.text.strip() for one in evaluation_problems(str(tmp_path / "set"))] == [LEAK.strip()]


WORDINGS = [f"{word} the problem below with a program in Python, and give nothing but its code, please, in one block." for word in ("Solve", "Do", "Answer", "Tackle")]  # fmt: skip
FRAME = (
    "You are an expert. Write a program that passes all of the hidden tests of the task that you are given, and explain it. "
    * 9
)


@pytest.mark.parametrize(
    "row",
    [
        lambda text: {"prompt": text, "description": FRAME},
        lambda text: {"text": FRAME, "problem": text},
        lambda text: {"prompt": text, "text": f"{text[::-1]}\n" * 3},
        lambda text: {"messages": [{"role": "system", "content": text}, {"role": "user", "content": FRAME}]},
        lambda text: {"messages": [{"role": "user", "content": [{"type": "text", "text": text}]}]},
        lambda text: {"messages": [{"role": "user", "content": FRAME}, {"role": "user", "content": text}]},
        lambda text: {"conversations": [{"from": "human", "value": text}]},
        lambda text: {"instruction": WORDINGS[len(text) % 4], "input": text, "output": "x"},
        lambda text: {"prompt": WORDINGS[len(text) % 4], "extra_info": {"problem": text}},
        lambda text: {"prompt": WORDINGS[len(text) % 4], "doc": [{"body_of_it": text}]},
        lambda text: {"description": f"Problem {len(text)} of the set.", "told": text},
        lambda text: {"question": {"title": "Lamps", "told": text}, "tests": [{"input": FRAME + text[::-1]}]},
    ],
    ids=["constant field", "constant longest", "longer field", "system", "parts", "constant turn", "from and value", "instruction and input", "nested", "unknown within", "unknown", "question of parts"],
)  # fmt: skip
def test_a_statement_is_found_in_whatever_text_of_its_row(row: Callable[[str], object], tmp_path: Path) -> None:
    names = ["ant", "bee", "cow", "doe", "elk", "fox", "gnu", "hen", "ibex"]
    texts = [LEAK, *(" ".join(f"{word}{name}" for word in TASK.split()) for name in names)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row(text)) + "\n" for text in texts))
    own = entry(problem("a", LEAK))
    assert Decontaminator(evaluation_problems(str(tmp_path / "rows.jsonl")), [own], 0.5).find(own) is not None


@pytest.mark.parametrize("field", ["solutions", "canonical_solution", "tests", "output", "completion", "extra_code"])
def test_what_answers_a_task_is_not_compared(field: str, tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text(json.dumps({"question": LEAK, field: [{"text": TASK}]}) + "\n")
    own = entry(problem("a", TASK))
    assert Decontaminator(evaluation_problems(str(tmp_path / "rows.jsonl")), [own], 0.5).find(own) is None


def test_code_in_an_unknown_field_is_not_compared(tmp_path: Path) -> None:
    code = "\n".join(f"total_of_{word} = add(total, {word})" for word in TASK.split()[:60])
    (tmp_path / "rows.jsonl").write_text(json.dumps({"question": LEAK, "best": code}) + "\n")
    assert [one.others for one in evaluation_problems(str(tmp_path / "rows.jsonl"))] == [()]


def test_an_instruction_in_a_few_wordings_is_no_evaluation_problem(tmp_path: Path) -> None:
    names = ["ant", "bee", "cow", "doe", "elk", "fox", "gnu", "hen", "ibex"] * 4
    rows = [{"instruction": WORDINGS[at % 4], "input": " ".join(f"{word}{name}{at % 9}" for word in TASK.split())} for at, name in enumerate(names)]  # fmt: skip
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows[:9] * 4))
    own = entry(problem("a", f"{WORDINGS[1]} {LEAK[:80]}"))
    with pytest.raises(DataError, match="36 of 36 rows have 9 texts"):
        list(evaluation_problems(str(tmp_path / "rows.jsonl")))
    for at, row in enumerate(rows):
        row["input"] += " " + "abcdefghi"[at // 9] * 3
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert Decontaminator(evaluation_problems(str(tmp_path / "rows.jsonl")), [own], 0.5).find(own) is None


NOTES = "Taken over from the archive by hand, not checked since then, and kept beside the others in this file for all who may ask."
SHORT_TASKS = [f"Write a function to count the {word} of a list." for word in ("peaks", "gaps", "runs", "pairs")]


@pytest.mark.parametrize("size", [3, 4])
@pytest.mark.parametrize(
    "row",
    [
        lambda task, at: {"prompt": task, "notes": f"{NOTES} {at}"},
        lambda task, at: {"prompt": task, "source": NOTES},
        lambda task, at: {"instruction": NOTES, "input": task},
        lambda task, at: {"messages": [{"role": "system", "content": NOTES}, {"role": "user", "content": task}]},
    ],
    ids=["notes", "a constant source", "instruction", "system prompt"],
)
def test_a_short_task_beside_a_longer_text_is_compared(tmp_path: Path, row: Any, size: int) -> None:
    tasks = SHORT_TASKS[:size]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row(task, at)) + "\n" for at, task in enumerate(tasks)))
    own = [entry(problem(str(at), task)) for at, task in enumerate(tasks)]
    found = Decontaminator(evaluation_problems(str(tmp_path / "rows.jsonl")), own, 0.5)
    assert all(map(found.find, own))


def test_a_few_words_beside_several_tasks_are_none(tmp_path: Path) -> None:
    rows = [{"instruction": "Solve the following problem in Python.", "input": f"{TASK} {at}"} for at in range(2)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    own = entry(problem("a", "Solve the following problem in Python. Print how many lamps burn."))
    assert Decontaminator(evaluation_problems(str(tmp_path / "rows.jsonl")), [own], 0.5).find(own) is None


def test_code_beside_prose_is_no_evaluation_problem(tmp_path: Path) -> None:
    code = "class Node:\n    def __init__(self, value=0, left=None, right=None):\n        self.value = value\n        self.left = left\n        self.right = right\n"
    (tmp_path / "rows.jsonl").write_text(json.dumps({"prompt": code * 5, "query": LEAK}) + "\n")
    assert [one.text.strip() for one in evaluation_problems(str(tmp_path / "rows.jsonl"))] == [LEAK.strip()]


def test_rows_of_which_only_a_few_instructions_are_read_are_refused(tmp_path: Path) -> None:
    rows = [{"instruction": WORDINGS[at % 4], "output": TASK, "id": at} for at in range(40)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(DataError, match=r"40 of 40 rows have 4 texts, one of them, '[A-Z]"):
        list(evaluation_problems(str(tmp_path / "rows.jsonl")))


def test_an_evaluation_row_without_a_statement_is_an_error_that_names_it(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text(json.dumps({"prompt": LEAK}) + "\n" + json.dumps({"prompt": "n/a", "id": 7}) + "\n")
    with pytest.raises(DataError, match=r"1 of 2 rows have no statement \(rows.jsonl, row 2\)"):
        list(evaluation_problems(str(rows)))


OTHER_TESTS = [("4\n1 1 1 1\n", "2\n"), ("1\n8\n", "8\n")]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Count those that are even or large.", "Count those that are even and large."),
        ("Count the pairs with x < y.", "Count the pairs with x <= y."),
        ("If there is none print -1.", "If there is none print 1."),
        ("Print x + y in the end.", "Print x * y in the end."),
        ("Print the sum modulo n.", "Print the sum modulo i."),
        ("Count the ways from the barn.", "Count the ways to the barn."),
        ("Print evens before odds.", "Print odds before evens."),
        ("He is paid after question 3 of it.", "He is paid after question 7 of it."),
        ("Each has a time limit of 5 seconds.", "Each has a time limit of 9 seconds."),
        ("\nA disk has 256 megabytes of memory.", "\nA disk has 512 megabytes of memory."),
        ("\nMemory: 256 cells.", "\nMemory: 512 cells."),
        ("The light is on for 2s, then off.", "The light is on for 3s, then off."),
        ("\n2 <= k <= 5", "\n2 <= k <= 7"),
        ("`#` is corn, `.` is not.", "`.` is corn, `#` is not."),
        ("Split each at `,`.", "Split each at `;`."),
        ("A `_` is corn.", "A `-` is corn."),
        ("A '(' is corn.", "A ')' is corn."),
        ("The sign # is corn.", "The sign @ is corn."),
        ("The sign * is corn.", "The sign + is corn."),
        ("Print n // m.", "Print n ** m."),
        ("Print `n**m`.", "Print `n*m`."),
        ("Print (n + m) * n.", "Print n + (m * n)."),
        ("Print $(n+m)\\cdot 3$.", "Print $n+m\\cdot 3$."),
        ("Print n/2.", "Print n-2."),
        ("Print 2n-1.", "Print 2n/1."),
        ("Print n- 1.", "Print n+ 1."),
        ("Print n ? m : 0.", "Print n : m ? 0."),
        ("Print !x.", "Print x."),
        ("Count pairs where n\n> m holds.", "Count pairs where n\n< m holds."),
        ("Those count that are\n\n> 5\n\nand no others.", "Those count that are\n\n5\n\nand no others."),
        ("\n>= 5 are many.\n>= 3 are few.", "\n5 are many.\n3 are few."),
        ("Print `a*b` in the end.", "Print `a+b` in the end."),
        ("Print n *m* k.", "Print n +m+ k."),
        ("Sum x_1 and x1.", "Sum x1 and x1."),
        ("The pattern is '*ab*' here.", "The pattern is 'ab' here."),
        (
            "Of all of the sums that there are print n\n- 1 in the end.",
            "Of all of the sums that there are print n\n+ 1 in the end.",
        ),
        ("\n1. n\n2. k\n9. m", "\n1. n\n2. k\n8. m"),
    ],
)
def test_a_small_word_or_a_sign_in_a_formula_or_in_quotes_makes_another_problem(one: str, other: str) -> None:
    text = TASK.format(most=100)
    assert kept(problem("a", text + one), problem("b", text + other, OTHER_TESTS)) == ["a", "b"]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("**Print** it: `n - m`.", "Print it: n - m."),
        ("Print `n-m`", "Print $n - m$"),
        ("Print **n** times", "Print n times"),
        ("* Print it\n* Then stop", "- Print it\n- Then stop"),
        ("# Output\nPrint it (all of it).", "Output\n\nPrint it, all of it."),
        ("Non-empty and/or odd – see it.", "Non‐empty and/or odd — see it."),
        ("A `#` is corn.", "A '#' is corn."),
    ],
)
def test_a_sign_of_prose_or_markup_makes_no_other_problem(one: str, other: str) -> None:
    text = TASK.format(most=100)
    assert kept(problem("a", f"{text}\n{one}"), problem("b", f"{text}\n{other}", OTHER_TESTS)) == ["a"]


@pytest.mark.parametrize(("one", "other"), [("bisect_left", "bisect_right"), ("gcd", "lcm")])
def test_solutions_that_call_other_functions_are_of_other_shapes(one: str, other: str) -> None:
    text, code = TASK.format(most=100), "from math import *\nprint({}(*map(int, input().split())))"
    first = problem("a", text, code=code.format(one))
    assert kept(first, problem("b", text.replace("largest", "least"), OTHER_TESTS, code.format(other))) == ["a", "b"]


def test_a_task_that_only_its_function_names_is_no_copy() -> None:
    made = [problem(name, "Complete the code and return what is asked for by its caller, nothing else at all.") for name in ("is_even", "is_prime")]  # fmt: skip
    ones = [dataclasses.replace(one, fn_name=one.id, starter_code=f"def {one.id}(n): ...", tests=(CallTest((2 + at,), True), CallTest((5 + at,), False))) for at, one in enumerate(made)]  # fmt: skip
    assert kept(*ones) == ["is_even", "is_prime"]


@pytest.mark.parametrize(
    "copy",
    [
        lambda text: "time limit per test2 secondsmemory limit per test256 megabytes\n" + text,
        lambda text: text + "\nTL: 1.5 sec ML: 256 MB",
        lambda text: text.replace("farmer", "farmer’s man"),
        lambda text: text.replace("100000", "100\u2009000"),
        lambda text: text.replace("a_i", "b_i"),
        lambda text: "Task 7\n" + text,
        lambda text: text + " (",
        *SPELLINGS.values(),
    ],
)
def test_a_copy_in_another_spelling_is_a_duplicate(copy: Callable[[str], str]) -> None:
    text = TASK.format(most=100000).strip()
    assert kept(problem("a", text.replace("farmer", "farmer's man") if "’" in copy(text) else text), problem("b", copy(text), OTHER_TESTS)) == ["a"]  # fmt: skip


@pytest.mark.parametrize(
    ("left", "right", "series"),
    [
        (["Two Sum"], ["Two Sum II"], True),
        (["Two Sum I"], ["Two Sum II"], True),
        (["Smallest Score Of Array"], ["Smallest Score Of Array I"], False),
        (["3233", "Two Sum"], ["3233", "Two Sum II"], False),
        (["cf-1250-i"], ["cf-1250-v"], False),
    ],
)
def test_parts_of_a_series_are_told_by_titles_alone(left: list[str], right: list[str], series: bool) -> None:
    assert in_series(left, right) is series


def test_a_word_in_front_of_a_bracket_here_and_not_there_hides_no_leak() -> None:
    assert pattern("sort the array (0-indexed) so that the array rises") == pattern(
        "sort the array(0-indexed) so that the array rises"
    )
