"""A server goes out when it fails, comes back with care, and is known to hang by its silence."""

import random

import pytest
from tokenfill.responses.servers.health import Health, State, patience, rest


class Dice(random.Random):
    """Jitter switched off: always the upper end."""

    def uniform(self, low, high):
        return high


DICE = Dice()


def up(now=0.0):
    health = Health(now)
    health.probed(now, 0)
    health.answered(now)
    return health


def fail(health, now, took=0.01, is_outage=True, in_flight=0):
    count = health.failed if is_outage else health.disappointed
    return count(now, now - took, in_flight, "connection refused", DICE)


def test_one_broken_connection_among_answers_is_no_outage():
    health = up()
    for second in range(1, 50):
        assert not fail(health, second)
        assert not fail(health, second)
        health.answered(second)
    assert health.state is State.UP


def test_three_failures_in_a_row_take_it_out_once_for_all_that_was_in_flight():
    health = up()
    assert [health.failed(10.0, 1.0, 0, "reset", DICE) for _ in range(256)].count(True) == 1
    assert (health.state, health.strikes, health.until) == (State.OUT, 1, 10.5)
    health.probed(11.0, 0)
    assert not health.failed(11.1, 1.0, 0, "reset", DICE), "a request from before the outage belongs to it"
    assert health.state is State.UP


def test_what_fails_fast_while_most_is_under_way_is_no_outage_and_a_crash_is_one():
    health = up()
    assert not any(fail(health, 10.0, in_flight=243) for _ in range(13))
    assert [fail(health, 11.0, in_flight=left) for left in range(242, -1, -1)].count(True) == 1


def test_bad_answers_take_it_out_later_than_broken_connections():
    health = up()
    assert [fail(health, 10 + n / 10, is_outage=False) for n in range(8)] == [False] * 7 + [True]


def test_bad_answers_never_mean_a_long_rest_since_it_may_be_the_prompts():
    health, now = up(), 10.0
    for _ in range(12):
        for _ in range(8):
            now += 0.1
            fail(health, now, is_outage=False)
        assert health.state is State.OUT and health.until - now <= 5.001
        now = health.until
        health.probed(now, 0)
    assert health.last_proof > now - 6


def test_on_trial_one_failure_is_enough_and_the_rest_doubles():
    health, now, rests = up(), 10.0, []
    for _ in range(3):
        fail(health, now)
    for _ in range(9):
        rests.append(health.until - now)
        now = health.until
        health.probed(now, 0)
        now += 0.1
        assert fail(health, now)
    assert pytest.approx(rests) == [0.5, 1, 2, 4, 8, 16, 30, 30, 30]


def test_an_answer_makes_the_next_outage_a_first_one_again():
    health = up()
    for _ in range(3):
        fail(health, 10.0)
    health.probed(11.0, 0)
    fail(health, 11.5)
    health.probed(13.0, 0)
    health.answered(13.5)
    assert health.strikes == 0 and health.is_proven()


def test_the_rest_is_jittered():
    dice = random.Random(0)
    rests = {rest(3, dice) for _ in range(20)}
    assert len(rests) == 20
    assert min(rests) >= 1.0 and max(rests) <= 2.0


def test_a_server_that_fails_fast_gets_few_requests_each_time():
    health, now, asked = up(), 10.0, 0
    for _ in range(3):
        fail(health, now)
    while now < 130.0:
        now = max(now, health.until)
        health.probed(now, 0)
        asked += health.allowance(now + 0.001)
        fail(health, now + 0.001, took=0.001)
    assert asked < 50


def test_a_server_that_is_well_again_is_full_within_seconds():
    health = up()
    for _ in range(3):
        fail(health, 10.0)
    health.probed(11.0, in_flight=5)
    assert health.allowance(11.0) == 9
    assert health.allowance(14.0) == 5 + 32
    assert health.allowance(18.0) > 256
    assert health.allowance(60.0) is None


def test_a_failure_that_takes_long_to_show_makes_it_come_back_slower():
    health = up()
    for _ in range(3):
        health.failed(40.0, 10.0, 0, "no route", DICE)
    health.probed(41.0, 0)
    assert health.allowance(60.0) < 8 <= health.allowance(71.0)


def test_what_hung_gets_one_request_until_that_has_ended():
    health = up()
    health.hung(100.0, 60.0, DICE)
    health.probed(101.0, 0)
    assert health.allowance(130.0) == 1
    health.answered(131.0)
    assert health.allowance(131.0) is None


def test_a_server_that_was_never_up_is_not_on_probation_when_it_comes():
    health = Health(0.0)
    for second in range(5):
        health.probe_failed(second, "connection refused", DICE)
    assert health.state is State.NEW and health.until == 4 + 8.0
    health.probed(20.0, 0)
    assert health.allowance(20.0) is None and health.strikes == 0


def test_another_server_on_its_port_is_refused_but_looked_at_again():
    health = up()
    health.refused(10.0, "serves another model")
    assert (health.state, health.until) == (State.REFUSED, 70.0)
    assert not fail(health, 11.0)


@pytest.mark.parametrize(
    ("piece", "speed", "slowest", "seconds"),
    [
        (4096, 50.0, 80.0, 3 * 4096 / 50),
        (4096, 1e5, 0.1, 30.0),
        (4096, 1e5, 200.0, 400.0),
        (4096, None, 0.0, 4096 / 5),
        (20, None, 0.0, 600.0),
    ],
)
def test_patience_follows_from_speed_and_the_longest_piece(piece, speed, slowest, seconds):
    assert patience(piece, speed, slowest) == pytest.approx(seconds)
