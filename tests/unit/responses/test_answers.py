"""Joining parts and counting answers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenfill.responses.answers import Counting, fold, key_of, tally


def line(part=0, ids=(5, 6), finish="stop", **more):
    return {
        "id": "a",
        "prompt_hash": "h",
        "sample": 0,
        "turn": 0,
        "part": part,
        "output_ids": list(ids),
        "finish_reason": finish,
        "flags": [],
        "prompt_tokens": 10,
        "max_new_tokens": 100,
        "started": 1.0,
        "seconds": 2.0,
        **more,
    }


def folded(*lines):
    answers = {}
    for place, each in enumerate(lines):
        fold(answers, each, place)
    return answers


def test_parts_of_one_answer_are_one_answer():
    answers = folded(line(0, [1] * 4, "part"), line(1, [2] * 3, "part"), line(2, [3], "stop"))
    (answer,) = answers.values()
    assert (answer.output_tokens, answer.finish_reason, answer.places) == (8, "stop", (0, 1, 2))
    assert tally(answers.values(), Counting()).tokens == 8


def test_parts_that_go_on_do_not_count_yet():
    total = tally(folded(line(0, [1] * 4, "part")).values(), Counting())
    assert (total.tokens, total.responses, total.unfinished) == (0, 0, 1)


def test_a_key_that_stands_twice_counts_once():
    answers = {}
    assert fold(answers, line(0, [1] * 4), 0)
    assert not fold(answers, line(0, [1] * 9), 1)
    assert tally(answers.values(), Counting()).tokens == 4


def test_an_answer_with_a_missing_part_is_broken_and_does_not_count():
    answers = folded(line(0, finish="part"), line(2, finish="stop"))
    assert next(iter(answers.values())).is_broken
    assert tally(answers.values(), Counting()).tokens == 0


def test_total_counts_the_prompt_once_however_many_parts():
    answers = folded(line(0, [1] * 4, "part"), line(1, [2] * 3, "stop"))
    assert tally(answers.values(), Counting(budget_counts="total")).tokens == 10 + 7


@pytest.mark.parametrize(("policy", "tokens"), [("keep", 2), ("drop", 0)])
def test_truncated_answers_count_by_policy(policy, tokens):
    counting = Counting(truncated=policy, max_new_tokens=100)
    total = tally(folded(line(finish="length")).values(), counting)
    assert (total.tokens, total.dropped, total.unfinished) == (tokens, policy == "drop", 0)


@pytest.mark.parametrize(("policy", "tokens"), [("keep", 2), ("drop", 0)])
def test_cycles_count_by_policy(policy, tokens):
    total = tally(folded(line(finish="length", flags=["cycle"])).values(), Counting(cycles=policy, max_new_tokens=100))
    assert (total.tokens, total.flagged) == (tokens, 1)


def test_raising_max_new_tokens_reopens_what_was_cut():
    cut = folded(line(finish="length", max_new_tokens=100)).values()
    assert tally(cut, Counting(max_new_tokens=100)).responses == 1
    assert tally(cut, Counting(max_new_tokens=50)).responses == 1
    raised = tally(cut, Counting(max_new_tokens=4096))
    assert (raised.responses, raised.unfinished) == (0, 1)


def test_raising_max_new_tokens_leaves_what_filled_the_context():
    cut = folded(line(finish="length", max_new_tokens=100)).values()
    assert tally(cut, Counting(max_new_tokens=4096, context_length=110)).responses == 1


def test_samples_beyond_the_number_asked_for_do_not_count():
    answers = folded(line(), line(sample=1))
    assert tally(answers.values(), Counting(samples_per_prompt=1)).responses == 1
    assert tally(answers.values(), Counting(samples_per_prompt=2)).responses == 2


@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.integers(0, 5))
def test_joining_keeps_every_token_whatever_the_cuts(sizes, repeat_at):
    """However an answer is cut, its parts sum to it; a line read twice changes nothing."""
    lines = [line(part, [7] * size, "part") for part, size in enumerate(sizes)]
    lines[-1]["finish_reason"] = "stop"
    if repeat_at < len(lines):
        lines.append(dict(lines[repeat_at]))
    (answer,) = folded(*lines).values()
    assert answer.output_tokens == sum(sizes)
    assert not answer.is_broken
    assert key_of(lines[0]) == ("a", "h", 0, 0)


def test_lowering_max_new_tokens_ends_what_is_already_as_long():
    begun = folded(line(0, [1] * 60, "part")).values()
    assert tally(begun, Counting(max_new_tokens=100)).unfinished == 1
    lowered = tally(begun, Counting(max_new_tokens=50))
    assert (lowered.tokens, lowered.truncated, lowered.unfinished) == (60, 1, 0)
    assert tally(begun, Counting(max_new_tokens=50, truncated="drop")).tokens == 0
