"""Prompts that run out, and prompts that fail for now or for good."""

import json

import pytest


@pytest.fixture
def short(new):
    """A dataset of 5 prompts and far too large a budget."""
    lines = new.path("code.jsonl").read_text().splitlines(keepends=True)[:5]
    new.path("code.jsonl").write_text("".join(lines))
    new.configure(datasets={"code": {"source": "code.jsonl", "budget": "10k"}})
    new.config["datasets"].pop("chat")
    new.configure()
    return new


def test_exhausted_prompts_are_said_aloud_and_not_asked_again(short, server):
    output = short.run()
    assert "its prompts are exhausted" in output
    assert "code: 100 of 10k tokens, 5 responses; its prompts are exhausted" in output
    complete = short.complete("code")
    assert (complete["reason"], complete["tokens"], complete["budget"]) == ("prompts_exhausted", 100, 10_000)
    assert len(short.records("code")) == 5
    assert short.is_finished()
    short.run()
    assert len(server.log) == 5


def test_more_samples_or_a_lower_budget_settle_it(short, server):
    short.run()
    short.configure(samples_per_prompt=3)
    short.run()
    assert short.complete("code")["tokens"] == 300
    assert len({json.dumps(line["output_ids"]) for line in short.journal("code")}) >= 5
    assert not short.doubled("code")
    short.configure(datasets={"code": {"source": "code.jsonl", "budget": 300}})
    short.run()
    assert short.complete("code")["reason"] == "budget_met"
    assert len(server.log) == 15


def test_failures_for_now_leave_no_sentinel(short, server):
    server.update(faults=[{"when": {"has_id": ord("3")}, "do": {"fault": "nan"}}])  # the prompt "code 3?"
    output = short.run(status=1)
    assert not short.path("results/code/complete").exists()
    assert len(short.journal("code")) == 4
    assert "run again to ask them again" in output
    server.update(faults=[])
    short.run()
    assert short.complete("code")["tokens"] == 100
    assert not short.doubled("code")


def test_a_prompt_too_long_is_put_aside_for_good(short, server):
    with short.path("code.jsonl").open("a") as file:
        file.write(json.dumps({"id": "long", "messages": [{"role": "user", "content": "z" * 5000}]}) + "\n")
    short.configure(max_prompt_tokens=100_000)
    short.run()
    assert short.complete("code")["failed"] == {"too_long": 1}
    assert short.is_finished()
    assert len(server.log) == 5
