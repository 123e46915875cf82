"""The forecast of what is in flight: right where the answer is known, unbiased where it is not."""

import heapq
import itertools
import random
from statistics import mean

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenfill.responses.expectation import Expectation, _edges

CAP = 16384
lengths_of_any_kind = st.lists(st.integers(1, CAP), max_size=60)
progress_of_any_kind = st.lists(st.floats(0, CAP + 100), max_size=60)


def learned(lengths, cap=CAP, counts=True):
    expectation = Expectation(cap)
    for length in lengths:
        expectation.learn(length, counts)
    return expectation


def test_nothing_known_is_taken_for_the_longest():
    expectation = Expectation(CAP)
    assert expectation.fresh == pytest.approx(CAP)
    assert expectation.of([0, 17, 4000.5]) == pytest.approx(3 * CAP)


def test_nothing_in_flight_is_nothing_expected():
    assert Expectation(CAP).of([]) == 0


@pytest.mark.parametrize("length", [1, 60, 1000, 5000, CAP - 1])
def test_answers_of_one_length_are_expected_to_have_it(length):
    expectation = learned([length] * 100_000)
    assert expectation.fresh == pytest.approx(length, rel=0.06, abs=1)  # as fine as a bin is wide
    assert expectation.of([0] * 10) == pytest.approx(10 * length, rel=0.06, abs=10)


def test_answers_that_all_reach_the_cap_are_expected_to_reach_it():
    assert learned([CAP] * 50).fresh == pytest.approx(CAP)


def test_an_answer_longer_than_the_cap_counts_as_one_that_reached_it():
    assert learned([CAP + 7]).fresh == learned([CAP]).fresh


def test_what_has_got_far_is_expected_to_end_later():
    expectation = learned([100] * 500 + [8000] * 500)
    early, late = expectation.of([0]), expectation.of([500])
    assert early == pytest.approx(4050, rel=0.1)
    assert late == pytest.approx(8000, rel=0.06)


def test_what_is_in_flight_corrects_the_mean_of_those_that_ended_first():
    """100 start at once, half of them give 100 tokens. How long the others get is not known when these have ended."""
    expectation = learned([100] * 50)
    assert expectation.fresh < 300
    assert expectation.forecast([120.0] * 50).fresh > CAP * 0.45


def test_the_weight_of_the_unknown_falls_with_each_answer():
    fresh = [learned([60] * n, cap=4096).fresh for n in (0, 1, 10, 100, 1000)]
    assert fresh == sorted(fresh, reverse=True)
    assert fresh[-1] == pytest.approx(60, rel=0.1)


def test_truncated_answers_that_are_dropped_are_not_expected():
    expectation = Expectation(1000)
    for _ in range(500):
        expectation.learn(100)
        expectation.learn(1000, counts=False)
    assert expectation.fresh == pytest.approx(50, rel=0.1)
    assert expectation.of([500]) == pytest.approx(0, abs=10)


def test_no_answer_that_counts_still_leaves_something_to_expect():
    assert 0 < learned([1000] * 500, cap=1000, counts=False).fresh < 10


@pytest.mark.parametrize("in_flight", [64, 512])
def test_the_forecast_is_unbiased_while_the_first_answers_end(in_flight):
    """A server that always has `in_flight` requests, looked at after 600 answers: too high by little, never too low."""
    ratios = []
    for seed in range(20):
        rng = random.Random(seed)
        expectation, now, flight = Expectation(CAP), 0.0, []
        for _ in range(600):
            while len(flight) < in_flight:
                tokens = min(CAP, round(rng.lognormvariate(7.84, 0.9)) + 1)
                heapq.heappush(flight, (now + tokens, tokens))
            now, tokens = heapq.heappop(flight)
            expectation.learn(tokens)
        truth = sum(tokens for _, tokens in flight)
        ratios.append(expectation.of([now - end + tokens for end, tokens in flight]) / truth)
    assert -0.02 < mean(ratios) - 1 < 0.12 * in_flight / 64


def test_the_spread_is_that_of_the_lengths():
    forecast = learned([1000, 3000] * 5000).forecast([0.0] * 100)
    assert forecast.fresh_variance == pytest.approx(1000**2, rel=0.1)
    assert forecast.variance == pytest.approx(100 * 1000**2, rel=0.1)


def test_the_bins_stay_few():
    assert len(_edges(131_072)) < 150


@given(st.integers(1, 200_000))
def test_the_edges_rise_from_nothing_to_the_cap(cap):
    edges = _edges(cap)
    assert edges[0] == 0
    assert edges[-1] == cap
    assert all(a < b for a, b in itertools.pairwise(edges))


@given(lengths_of_any_kind, progress_of_any_kind)
def test_expected_is_no_less_than_generated_and_no_more_than_the_cap(lengths, generated):
    expected = learned(lengths).of(generated)
    bin_width = 1.1  # progress is known to a bin
    assert expected >= sum(min(g, CAP) for g in generated) / bin_width - len(generated)
    assert expected <= len(generated) * CAP * (1 + 1e-9)


@given(lengths_of_any_kind, progress_of_any_kind, st.randoms())
def test_the_order_of_what_is_in_flight_does_not_matter(lengths, generated, rng):
    expectation = learned(lengths)
    shuffled = rng.sample(generated, len(generated))
    assert expectation.of(generated) == expectation.of(shuffled)


@given(lengths_of_any_kind, progress_of_any_kind)
def test_the_forecast_leaves_the_expectation_as_it_is(lengths, generated):
    expectation = learned(lengths)
    before = expectation.fresh
    expectation.forecast(generated)
    assert expectation.fresh == before
