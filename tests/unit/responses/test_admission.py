"""Admission lands on the budget, never deadlocks, and looks at what is in flight as seldom as it may."""

import heapq

from hypothesis import given, settings
from hypothesis import strategies as st
from tokenfill.responses.admission import Admission, room
from tokenfill.responses.expectation import Expectation, Forecast

CAP = 1000


def known(length, cap=CAP):
    expectation = Expectation(cap)
    for _ in range(10_000):
        expectation.learn(length)
    return expectation


def admitted_at_once(admission, accepted=0, in_flight=0, generated=0.0, most=10_000, prompt_tokens=0):
    count = 0
    while count < most:
        flight = [generated] * (in_flight + count)
        if not admission.admit(accepted, len(flight), flight.copy, prompt_tokens):
            break
        count += 1
    return count


def fill(lengths, budget, places, cap=CAP):
    """A dataset filled on a server that gives every request one token a tick: (order of the answers, tokens)."""
    expectation = Expectation(cap)
    admission = Admission(expectation, budget)
    now, accepted, flight, answered, new = 0, 0, [], [], 0

    def generated():
        return [now - end + lengths[prompt] for end, prompt in flight]

    while True:
        while new < len(lengths) and len(flight) < places and admission.admit(accepted, len(flight), generated):
            heapq.heappush(flight, (now + lengths[new], new))
            new += 1
        if not flight:
            return answered, accepted
        now, prompt = heapq.heappop(flight)
        accepted += lengths[prompt]
        answered.append(prompt)
        expectation.learn(lengths[prompt])


def test_a_far_budget_fills_all_places_before_anything_is_known():
    assert admitted_at_once(Admission(Expectation(CAP), budget=10**9), most=2048) == 2048


def test_a_near_budget_is_not_overrun_before_anything_is_known():
    assert admitted_at_once(Admission(Expectation(CAP), budget=20 * CAP)) == 20


def test_a_met_budget_admits_nothing():
    assert admitted_at_once(Admission(known(100), budget=5000), accepted=5000) == 0


def test_what_is_in_flight_counts():
    assert admitted_at_once(Admission(known(100), budget=5000, care=0), in_flight=30) in range(18, 23)


def test_one_goes_out_when_nothing_is_in_flight_and_one_token_is_missing():
    assert admitted_at_once(Admission(known(100), budget=5000), accepted=4999) == 1


def test_prompts_that_count_take_room():
    assert admitted_at_once(Admission(known(100), budget=5000, care=0), prompt_tokens=100) in range(23, 28)


def test_care_holds_back_what_is_uncertain():
    forecast = Forecast(tokens=9000, variance=300**2, fresh=100, fresh_variance=0)
    assert room(0, 10_000, forecast, care=0) == 10
    assert room(0, 10_000, forecast, care=1) == 7


def test_the_forecast_is_renewed_once_per_64th_of_the_flight():
    looks = 0

    def generated():
        nonlocal looks
        looks += 1
        return [500.0] * 640

    admission = Admission(known(CAP), budget=640 * CAP)
    for settled in range(1, 101):
        admission.admit(settled * CAP, 640 - settled, generated)
    assert 9 <= looks <= 13


def test_a_small_flight_is_looked_at_each_time():
    admission = Admission(known(100), budget=500)
    assert admitted_at_once(admission, in_flight=5) == 0
    assert admission.admit(0, 4, lambda: [0.0] * 4) is True


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(1, CAP), min_size=1, max_size=80),
    st.integers(1, 30_000),
    st.integers(1, 40),
)
def test_the_end_meets_the_budget_or_the_prompts_are_exhausted(lengths, budget, places):
    answered, accepted = fill(lengths, budget, places)
    assert accepted >= budget or len(answered) == len(lengths)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, CAP), min_size=1, max_size=80), st.integers(1, 30_000), st.integers(1, 40))
def test_the_answered_prompts_are_the_first_of_the_order(lengths, budget, places):
    answered, _ = fill(lengths, budget, places)
    assert sorted(answered) == list(range(len(answered)))


@settings(max_examples=40, deadline=None)
@given(st.integers(100, CAP), st.integers(1, 20_000), st.integers(1, 40))
def test_answers_of_one_length_overshoot_by_little(length, budget, places):
    """The first answers go out before their length is known, and are taken for the longest."""
    _, accepted = fill([length] * 400, budget, places)
    assert accepted - budget < 2 * length + 0.1 * budget
