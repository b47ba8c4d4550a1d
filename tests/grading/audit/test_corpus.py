"""The corpus that the package carries."""

from __future__ import annotations

from code_rl.grading.audit import load_corpus


def test_there_are_several_hundred_hostile_programs_in_classes_and_honest_ones_beside_them() -> None:
    corpus = load_corpus()
    assert len({entry.name for entry in corpus.entries}) == len(corpus.entries)
    assert len(corpus.of("cheat")) > 250
    assert len(corpus.of("honest")) > 150
    assert len(corpus.of("mutant")) > 100
    assert {entry.group for entry in corpus.of("cheat")} >= {
        *("searches memory for others", "other submissions", "reads the expected output", "early exit")
    }


def test_a_class_is_of_one_kind_which_its_line_is_worded_by() -> None:
    kinds: dict[str, set[str]] = {}
    for entry in load_corpus().entries:
        kinds.setdefault(entry.group, set()).add(entry.kind)
    assert {group: found for group, found in kinds.items() if len(found) > 1} == {}


def test_a_part_of_the_corpus_is_the_same_each_time_and_keeps_whom_to_steal_from() -> None:
    corpus = load_corpus()
    part = corpus.share(0.2)
    assert [entry.name for entry in part.entries] == [entry.name for entry in load_corpus().share(0.2).entries]
    names = [{entry.name for entry in entries} for entries in (corpus.of("owner"), part.entries, corpus.entries)]
    assert names[0] <= names[1] < names[2]
    assert {entry.group for entry in part.entries} == {entry.group for entry in corpus.entries}


def test_a_part_keeps_whoever_looks_for_a_token_in_both_forms() -> None:
    kept = [entry for entry in load_corpus().share(0.2).entries if entry.seeks_token]
    assert kept == [entry for entry in kept if entry.name.startswith("token_in_")]
    for place in ("files_around", "arguments_and_environment"):
        assert {f"token_in_{place}", f"token_in_{place}_call"} <= {entry.name for entry in kept}


def test_the_token_that_some_programs_look_for_lies_in_no_file() -> None:
    tokens = {
        str(entry.problem.tests[0].expected) for entry in load_corpus().entries if entry.name.startswith("token_in")
    }
    assert tokens
    assert tokens.isdisjoint(
        {str(e.problem.tests[0].expected) for e in load_corpus().entries if e.name.startswith("token_in")}
    )
