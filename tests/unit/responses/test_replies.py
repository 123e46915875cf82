"""Which replies are answers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenfill.responses.engines import Reply
from tokenfill.responses.failures import Failure
from tokenfill.responses.replies import check, goes_in_a_cycle, seed_of

EOS = 2


def checked(ids, finish="stop", asked_for=8, completion_tokens=None):
    reply = Reply(ids, "", finish, 3, completion_tokens)
    return check(reply, sent=3, asked_for=asked_for, vocab_size=100, stop_ids=frozenset({EOS}))


def test_an_answer_that_stops_at_a_stop_token_is_one():
    assert checked([5, 6, EOS], completion_tokens=3) == []


def test_an_answer_that_used_its_length_is_one():
    assert checked([5] * 8, "length") == []


def test_stopping_at_an_unknown_token_is_flagged():
    assert checked([5, 6]) == ["no_stop_token"]


@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        (([],), "not_an_answer"),
        (([5, 100, EOS],), "not_an_answer"),
        (([5, -1, EOS],), "not_an_answer"),
        (([5, 6, EOS], "stop", 8, 2), "not_an_answer"),
        (([5] * 9, "length"), "not_an_answer"),
        (([5, EOS, 6, EOS],), "stop_ignored"),
        (([5] * 7, "length", 128), "cut_by_server"),
    ],
)
def test_what_is_none_is_told_apart(reply, kind):
    with pytest.raises(Failure) as failure:
        checked(*reply)
    assert failure.value.kind.name == kind


def test_two_tokens_short_of_the_context_is_still_the_whole_length():
    assert checked([5] * 126, "length", 128) == []


@given(st.integers(1, 32), st.integers(512, 900))
def test_every_short_period_is_a_cycle(period, length):
    ids = [number % period for number in range(length)]
    assert goes_in_a_cycle([99, 98, *ids])


def test_varied_or_short_answers_are_no_cycle():
    assert not goes_in_a_cycle([number * number % 8191 for number in range(2000)])
    assert not goes_in_a_cycle([0] * 511)


@given(st.integers(), st.text(max_size=5), st.text(max_size=5), st.integers(0, 3), st.integers(0, 3))
def test_seeds_follow_from_their_six_alone_and_fit_31_bits(seed, dataset, id_, sample, part):
    once = seed_of(seed, dataset, id_, sample, 0, part)
    assert once == seed_of(seed, dataset, id_, sample, 0, part)
    assert 0 <= once < 2**31


def test_seeds_differ_with_each_of_the_six():
    base = (1, "d", "i", 0, 0, 0)
    others = [(2, *base[1:]), ("1", "e", *base[2:]), (1, "d", "j", 0, 0, 0)]
    others += [(1, "d", "i", 1, 0, 0), (1, "d", "i", 0, 1, 0), (1, "d", "i", 0, 0, 1)]
    assert len({seed_of(*six) for six in [base, *others]}) == 7


def test_a_prompt_that_the_server_cut_gives_no_answer():
    with pytest.raises(Failure, match="read 2 tokens of a prompt of 3"):
        check(Reply([5, EOS], "", "stop", 2, 2), sent=3, asked_for=8, vocab_size=100, stop_ids=frozenset({EOS}))
