"""Which failure gets which decision, and what the ledger remembers."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenfill.errors import UserError
from tokenfill.responses.failures import CLASSES, Decision, Failure, Ledger, next_step, of_status, retry_delay
from tokenfill.responses.giving_up import ALL_ALIKE, GivingUp
from tokenfill.responses.prompt_table import Prompt
from tokenfill.responses.work import Ask

KEY = ("a", "h", 0, 0)


@pytest.mark.parametrize(
    ("status", "name"),
    [
        (400, "rejected"),
        (404, "rejected"),
        (413, "rejected"),
        (422, "rejected"),
        (401, "unauthorized"),
        (403, "unauthorized"),
        (408, "busy"),
        (429, "busy"),
        (503, "busy"),
        (500, "server_error"),
        (507, "server_error"),
        (502, "gateway"),
        (504, "gateway"),
        (302, "malformed"),
    ],
)
def test_every_status_has_its_class(status, name):
    assert of_status(status).name == name


@given(st.sampled_from(sorted(CLASSES)), st.integers(1, 10_000))
def test_only_classes_with_a_limit_ever_give_a_prompt_up(name, attempts):
    kind = CLASSES[name]
    step = next_step(kind, attempts)
    if kind.decision is not Decision.RETRY:
        assert step is kind.decision
    elif kind.attempts:
        assert (step is Decision.PUT_ASIDE) == (attempts >= kind.attempts)
    else:
        assert step is Decision.RETRY


@given(st.integers(0, 10_000), st.one_of(st.none(), st.floats(0, 3600)), st.integers())
def test_delays_grow_are_jittered_and_never_come_before_retry_after(attempts, retry_after, dice):
    delay = retry_delay(attempts, retry_after, random.Random(dice))
    assert delay >= (retry_after or 0)
    assert 0.1 < delay <= max(30.0, 1.1 * (retry_after or 0))


def test_the_ledger_forgets_transient_failures_and_keeps_the_others(tmp_path):
    ledger = Ledger(tmp_path / "failures.jsonl", "s1")
    ledger.give_up(KEY, Failure("rejected", "no", 400), 1)
    ledger.give_up(("b", "h", 0, 0), Failure("malformed", "cut"), 6)
    assert KEY in ledger and ("b", "h", 0, 0) in ledger
    again = Ledger(tmp_path / "failures.jsonl", "s1")
    again.load()
    assert (again.permanent, again.counts()) == ({KEY: "rejected"}, {"rejected": 1})


def test_other_settings_give_prompts_another_chance(tmp_path):
    Ledger(tmp_path / "failures.jsonl", "s1").give_up(KEY, Failure("too_long", "long"), 0)
    other = Ledger(tmp_path / "failures.jsonl", "s2")
    other.load()
    assert KEY not in other


def test_a_torn_line_in_the_ledger_harms_no_other(tmp_path):
    path = tmp_path / "failures.jsonl"
    Ledger(path, "s").give_up(KEY, Failure("rejected", "no", 400), 1)
    path.write_bytes(path.read_bytes() + b'{"id": "b", "prom')
    Ledger(path, "s").give_up(("c", "h", 0, 0), Failure("rejected", "no", 400), 1)
    ledger = Ledger(path, "s")
    ledger.load()
    assert set(ledger.permanent) == {KEY, ("c", "h", 0, 0)}


def ask(number):
    return Ask(Prompt(f"p{number}", "h", 0, [1]), 0, 10)


def refusing(tmp_path, max_failed=0.05):
    ledger = Ledger(tmp_path / "failures.jsonl", "s")
    return GivingUp("chat", ledger, max_failed), ledger


def test_refusals_of_every_prompt_alike_end_the_run_and_give_nothing_up(tmp_path):
    giving_up, ledger = refusing(tmp_path)
    failure = Failure("rejected", "model not found", 404)
    errors = []
    for number in range(ALL_ALIKE):
        errors.append(giving_up.is_set_up_wrong(failure, "http://a"))
        giving_up.put_aside(ask(number), failure, number)
    assert errors[:-1] == [None] * (ALL_ALIKE - 1)
    assert "model not found" in str(errors[-1])
    assert not ledger.permanent


def test_refusals_before_the_first_answer_are_given_up_after_it(tmp_path):
    giving_up, ledger = refusing(tmp_path)
    giving_up.put_aside(ask(1), Failure("rejected", "too odd", 400), 1)
    assert not ledger.permanent
    giving_up.succeeded()
    assert ledger.counts() == {"rejected": 1}
    assert giving_up.is_set_up_wrong(Failure("rejected", "too odd", 400), "http://a") is None


def test_too_many_put_aside_ends_the_run_with_counts_by_class(tmp_path):
    giving_up, _ = refusing(tmp_path)
    giving_up.succeeded()
    failure = Failure("rejected", "no", 400)
    assert [giving_up.put_aside(ask(number), failure, 199) for number in range(30)] == [None] * 30
    error = giving_up.put_aside(ask(30), failure, 400)
    assert "31 of 400 prompts were put aside (31 rejected)" in str(error)


def test_a_dataset_without_any_answer_gives_nothing_up_at_its_end(tmp_path):
    giving_up, ledger = refusing(tmp_path)
    giving_up.put_aside(ask(1), Failure("rejected", "no such model", 404), 1)
    with pytest.raises(UserError, match="not one prompt was answered"):
        giving_up.settle(has_answers=False)
    assert not ledger.permanent
    giving_up.settle(has_answers=True)
    assert ledger.counts() == {"rejected": 1}
