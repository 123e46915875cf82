"""The worker as a process: signals, a parent that dies, a second worker, and what a shell allows it."""

import os
import signal
import subprocess

import pytest
from one_dataset import OneDataset, wait_for
from scripted_server import ThreadedServer

SLOW = 100  # tokens per second of one request
STOPPED = 75


@pytest.fixture
def server():
    """A server that takes two seconds for an answer of 200 ids."""
    with ThreadedServer({"length": {"fixed": 200}, "rate": SLOW}) as server:
        yield server


@pytest.fixture
def dataset(tmp_path, server):
    """40 prompts, a budget of 4 answers of the greatest length, all of them in flight at once."""
    return OneDataset(tmp_path, [server.url], budget=800, max_new_tokens=200, engine={"drain_patience": "0.2s"})


def end(process: subprocess.Popen) -> tuple[int, str]:
    """(status, stderr) of a process that ends within 20 s."""
    try:
        _, said = process.communicate(timeout=20)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    return process.returncode, said


def running(server, count: int):
    return lambda: server.stats()["inflight"] >= count


def whole_answers(tmp_path, server) -> dict:
    """What an undisturbed run gives."""
    server.update(rate=None)
    undisturbed = OneDataset(tmp_path / "undisturbed", [server.url], budget=800, max_new_tokens=200)
    undisturbed.fill()
    return undisturbed.answers()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_keeps_the_pieces_and_the_next_run_goes_on_from_them(dataset, server, number, tmp_path):
    process = dataset.start()
    wait_for(running(server, 4))
    process.send_signal(number)
    status, said = end(process)
    assert status == STOPPED
    assert "stopping: answers may end for" in said
    assert "all are kept, run the same command to go on" in said.splitlines()[-1]
    assert not dataset.complete_path.exists()
    pieces = dataset.lines()
    assert len(pieces) == 4
    assert {(line["part"], line["finish_reason"]) for line in pieces} == {(0, "part")}
    assert all(0 < line["output_tokens"] < 200 for line in pieces)

    server.update(rate=None)
    asked = len(server.log)
    assert dataset.fill()["tokens"] == 800
    positions = sorted(entry["position"] for entry in server.log[asked:])
    assert positions == sorted(line["output_tokens"] for line in pieces)
    assert dataset.answers() == whole_answers(tmp_path, server)


def test_answers_that_end_while_it_drains_are_whole(dataset, server):
    dataset.configure(engine={"drain_patience": "10s"})
    process = dataset.start()
    wait_for(running(server, 4))
    process.send_signal(signal.SIGINT)
    assert end(process)[0] == 0  # what was in flight met the budget
    assert dataset.complete()["tokens"] == 800
    assert len(server.log) == 4


def test_no_prompt_is_admitted_while_it_drains(dataset, server):
    dataset.configure(budget=4000, engine={"drain_patience": "10s"})
    process = dataset.start()
    wait_for(running(server, 4))
    process.send_signal(signal.SIGTERM)
    assert end(process)[0] == STOPPED
    assert len(server.log) == 4
    assert [line["finish_reason"] for line in dataset.lines()] == ["stop"] * 4


def test_a_second_signal_stops_at_once(dataset, server):
    dataset.configure(engine={"drain_patience": "1h"})
    server.update(rate=1)
    process = dataset.start()
    wait_for(running(server, 4))
    process.send_signal(signal.SIGINT)
    wait_for(lambda: "again to stop now" in process.stderr.readline())
    process.send_signal(signal.SIGINT)
    assert end(process)[0] == STOPPED
    assert not dataset.complete_path.exists()


def test_a_signal_while_it_waits_for_a_server_stops_at_once(dataset, server):
    server.down()
    process = dataset.start()
    wait_for(lambda: "waiting for a server" in process.stderr.readline())
    process.send_signal(signal.SIGINT)
    assert end(process)[0] == STOPPED


def test_a_worker_whose_parent_is_gone_drains(dataset, server):
    shell = dataset.start("sh", "-c", '"$@" & wait', "sh")
    wait_for(running(server, 4))
    shell.kill()
    _, said = shell.communicate(timeout=20)  # the pipe ends when the worker does
    assert "the process that started this one is gone; stopping" in said
    assert {line["finish_reason"] for line in dataset.lines()} == {"part"}
    assert len(dataset.lines()) == 4


def test_a_killed_worker_costs_no_line_and_no_answer_twice(dataset, server, tmp_path):
    dataset.configure(engine={"part_tokens": 20})
    process = dataset.start()
    wait_for(lambda: dataset.journal_path.exists() and dataset.journal_path.read_bytes().count(b"\n") >= 8)
    process.kill()
    end(process)
    kept = dataset.journal_path.read_bytes()
    kept = kept[: kept.rindex(b"\n") + 1]
    server.update(rate=None)
    dataset.fill()
    assert dataset.journal_path.read_bytes().startswith(kept)
    assert dataset.answers() == whole_answers(tmp_path, server)


def test_a_second_worker_is_refused_and_told_who_is_first(dataset, server):
    server.update(rate=1)
    first = dataset.start()
    wait_for(running(server, 4))
    status, said = end(dataset.start())
    assert status == 1
    assert f"is being filled by process {first.pid} on {os.uname().nodename}" in said
    first.send_signal(signal.SIGINT)
    assert end(first)[0] == STOPPED


def test_few_open_files_lower_the_concurrency_and_cost_no_prompt(dataset, server):
    server.update(rate=None, length={"fixed": 20}, delay=0.05)
    dataset.configure(engine={"concurrency": 100, "adaptive": False})
    process = dataset.start("sh", "-c", 'ulimit -n 72; exec "$@"', "sh")
    status, said = end(process)
    assert status == 0
    assert "too few files for a concurrency of 100 on 1 servers: going on with 8" in said
    assert server.stats()["max_inflight"] <= 8
    assert dataset.complete()["tokens"] == 800
    assert dataset.failures() == []


def test_a_file_that_may_not_grow_ends_the_run_and_the_next_one_goes_on(dataset, server):
    server.update(rate=None)
    dataset.configure(budget=8000)
    process = dataset.start("bash", "-c", 'ulimit -f 16; exec "$@"', "bash")
    status, said = end(process)
    assert status == STOPPED
    assert "raw_responses.jsonl cannot be written: File too large" in said.splitlines()[-1]
    assert not dataset.complete_path.exists()
    kept = dataset.answers()
    assert 5 < len(kept) < 40
    assert dataset.fill()["tokens"] == 8000
    assert dataset.answers().items() >= kept.items()
