"""Stopped and killed at random moments: no line is lost, none stands twice, and the documented command goes on."""

import os
import random
import re
import signal
import time

import pytest

LINES = 40
FAST = 100_000  # tokens a second per request


@pytest.fixture
def slow(new, server):
    """One dataset of 40 answers at a server that takes half a second for each."""
    new.config["datasets"] = {"chat": {"source": "chat.jsonl", "budget": LINES * 20}}
    new.configure(engine={"drain_patience": 1})
    server.update(rate=40)
    return new


@pytest.fixture
def running(slow):
    """The run, stopped nowhere yet, with a random number of answers on disk."""
    process = slow.start()
    enough = random.randint(1, LINES // 2)
    print("lines on disk when it is hit:", enough)
    slow.wait_for(lambda: len(slow.journal("chat")) >= enough)
    yield process
    for worker in slow.workers():
        os.kill(worker, signal.SIGKILL)
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def finish(project, server, before: bytes) -> None:
    """Run to the end as fast as the server can, and hold the journal against what it was."""
    server.update(rate=FAST)
    project.run()
    journal = project.path("results/chat/raw_responses.jsonl").read_bytes()
    whole = before[: before.rindex(b"\n") + 1]
    assert journal.startswith(whole)
    assert not project.doubled("chat")
    complete = project.complete("chat")
    assert complete["tokens"] >= LINES * 20
    assert complete["tokens"] == sum(line["output_tokens"] for line in project.journal("chat"))
    assert len(project.records("chat")) == complete["responses"]
    assert project.is_finished()


def journal_of(project) -> bytes:
    return project.path("results/chat/raw_responses.jsonl").read_bytes()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["ctrl-c", "terminate"])
def test_a_signal_to_the_group_drains(slow, server, running, number):
    os.killpg(running.pid, number)
    assert running.wait(30) == 1
    slow.wait_for(lambda: not slow.workers())
    assert not slow.path("results/chat/complete").exists()
    assert "run the same command to go on" in slow.output()
    in_flight = {request["prompt"] for request in server.log}
    finish(slow, server, journal_of(slow))
    assert len({request["prompt"] for request in server.log}) <= max(LINES, len(in_flight)) + 4


def test_no_answer_on_disk_is_asked_for_again(slow, server, running):
    os.killpg(running.pid, signal.SIGINT)
    running.wait(30)
    slow.wait_for(lambda: not slow.workers())
    answered = {line["prompt_hash"] for line in slow.journal("chat") if line["finish_reason"] == "stop"}
    seen = len(server.log)
    finish(slow, server, journal_of(slow))
    assert not answered & {request["prompt"] for request in server.log[seen:]}


def test_snakemake_killed_leaves_a_worker_that_drains_by_itself(slow, server, running):
    os.kill(running.pid, signal.SIGKILL)
    running.wait()
    slow.wait_for(lambda: not slow.workers(), 30)
    assert not slow.path("results/chat/complete").exists()
    before = journal_of(slow)
    assert "LockException" in slow.run(status=1)
    slow.run("--unlock")
    finish(slow, server, before)


def test_a_second_worker_is_refused_and_told_who_is_first(slow, server, running):
    """After SIGKILL of snakemake and --unlock, while the first worker still drains."""
    (worker,) = slow.workers()
    os.kill(worker, signal.SIGSTOP)
    os.kill(running.pid, signal.SIGKILL)
    running.wait()
    slow.run("--unlock")
    started = time.monotonic()
    output = slow.run(status=1)
    assert time.monotonic() - started < 60
    assert re.search(rf"being filled by process {worker} on \S+", output)
    os.kill(worker, signal.SIGCONT)
    slow.wait_for(lambda: not slow.workers(), 30)
    finish(slow, server, journal_of(slow))


def test_a_killed_worker_costs_only_what_was_in_flight(slow, server, running):
    (worker,) = slow.workers()
    os.kill(worker, signal.SIGKILL)
    assert running.wait(30) == 1
    output = slow.output()
    assert "0 of 1 datasets are done" in output
    assert "chat: generate_responses was killed" in output
    finish(slow, server, journal_of(slow))


def test_everything_killed_at_once(slow, server, running):
    os.killpg(running.pid, signal.SIGKILL)
    running.wait()
    slow.wait_for(lambda: not slow.workers())
    slow.run("--unlock")
    finish(slow, server, journal_of(slow))


def test_a_dry_run_with_an_edited_config_does_not_disturb_a_run(slow, server, running):
    """The edit is applied: the running worker goes on to the budget that is asked for when it certifies."""
    server.update(rate=1)
    slow.configure(datasets={"chat": {"source": "chat.jsonl", "budget": (LINES - 4) * 20}})
    slow_output = slow.path("output.txt").rename(slow.path("running.txt"))
    slow.run("-n")
    server.update(rate=FAST)
    assert running.wait(60) == 0, slow_output.read_text()
    slow.path("output.txt").unlink()
    assert slow.complete("chat")["budget"] == (LINES - 4) * 20
    assert slow.complete("chat")["tokens"] >= (LINES - 4) * 20
    assert slow.is_finished()


def test_a_budget_raised_during_a_run_is_met_by_it_or_pending_after_it(slow, server, running):
    server.update(rate=1)
    slow.configure(datasets={"chat": {"source": "chat.jsonl", "budget": LINES * 20, "samples_per_prompt": 2}})
    slow.path("output.txt").rename(slow.path("running.txt"))
    slow.run("-n")
    slow.configure(datasets={"chat": {"source": "chat.jsonl", "budget": LINES * 25, "samples_per_prompt": 2}})
    slow.run("-n")
    server.update(rate=FAST)
    running.wait(60)
    finish(slow, server, journal_of(slow))
    assert slow.complete("chat")["tokens"] >= LINES * 25
