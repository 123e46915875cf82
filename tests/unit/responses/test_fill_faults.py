"""The worker as a whole when servers refuse, break, hang, come back or answer what is no answer."""

import errno
import os
import shlex
import sys

import pytest
from one_dataset import ROOT, OneDataset, meanwhile, prompt
from scripted_server import ThreadedServer
from tokenfill.errors import TemporaryFailure, UserError
from tokenfill.responses import flight, journal
from tokenfill.responses.failures import retry_delay
from tokenfill.responses.servers import health, launch
from tokenfill.responses.servers import server as server_module
from tokenfill.responses.worker import Worker


@pytest.fixture
def hurry(monkeypatch):
    """Delays between attempts, and rests of servers, a fiftieth of what they are; Retry-After as it is."""
    monkeypatch.setattr(
        flight, "retry_delay", lambda n, after, dice: max(retry_delay(n, None, dice) / 50, after or 0.0)
    )
    monkeypatch.setattr(health, "FIRST_REST", health.FIRST_REST / 50)
    monkeypatch.setattr(health, "LONGEST_REST", health.LONGEST_REST / 50)


def by_status(server) -> dict:
    return server.stats()["by_status"]


def only_good_answers(dataset, server) -> bool:
    """Whether the journal holds what the server meant for each prompt, and nothing twice."""
    meant = {entry.get("prompt") for entry in server.log if entry["status"] == 200}
    return len(dataset.answers()) == 10 and all(
        line["prompt_hash"] in meant and len(line["output_ids"]) == 20 and not line["flags"] for line in dataset.lines()
    )


# -- asked again -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504])
def test_a_refusal_for_now_is_asked_again(dataset, server, hurry, status):
    server.update(faults=[{"when": {"nth": [2, 3, 5]}, "do": {"status": status}}])
    assert dataset.fill()["tokens"] == 200
    assert only_good_answers(dataset, server)
    assert len(server.log) == 13
    assert dataset.failures() == []
    assert max(line["attempt"] for line in dataset.lines()) > 1


BROKEN = ["reset", "cut", "empty", "html", "abort", "null_finish", "no_ids", "empty_ids", "wrong_count"]
BROKEN += ["prompt_at_head", "out_of_vocabulary", "early_length"]


@pytest.mark.parametrize("fault", BROKEN)
def test_what_is_no_answer_is_neither_kept_nor_the_prompts_fault(dataset, server, hurry, fault):
    server.update(faults=[{"when": {"nth": [2, 3, 5]}, "do": {"fault": fault}}])
    dataset.configure(max_new_tokens=22 if fault == "prompt_at_head" else 200)
    assert dataset.fill()["tokens"] == 200
    assert only_good_answers(dataset, server)
    assert len(server.log) == 13
    assert dataset.failures() == []


def test_a_busy_server_is_left_alone_for_as_long_as_it_asks(dataset, server):
    server.update(faults=[{"when": {"before": 0.5}, "do": {"status": 503, "retry_after": 1}}])
    assert dataset.fill()["tokens"] == 200
    refused = [entry["t"] for entry in server.log if entry["status"] == 503]
    answered = [entry["t"] for entry in server.log if entry["status"] == 200]
    assert len(refused) <= 8  # each place was refused once or twice, and not as often as it can ask
    assert min(answered) >= min(refused) + 1
    assert only_good_answers(dataset, server)


def test_an_answer_of_another_content_type_is_one(dataset, server):
    server.update(faults=[{"do": {"content_type": "text/plain"}}])
    assert dataset.fill()["tokens"] == 200
    assert len(server.log) == 10


def test_a_prompt_that_fails_for_now_leaves_no_sentinel_and_is_asked_by_the_next_run(dataset, server, hurry):
    dataset.configure(budget=10_000, engine={"concurrency": 40, "adaptive": False})
    server.update(faults=[{"when": {"has_id": 51}, "do": {"fault": "early_length"}}])  # prompts with a 3 in them
    with pytest.raises(TemporaryFailure, match="13 prompts failed for now"):
        dataset.fill()
    assert not dataset.complete_path.exists()
    assert {(line["class"], line["attempts"]) for line in dataset.failures()} == {("cut_by_server", 4)}
    server.update(faults=[])
    asked = len(server.log)
    assert dataset.fill()["reason"] == "prompts_exhausted"
    assert len(server.log) - asked == 13
    assert len(dataset.answers()) == 40


# -- put aside -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [400, 404, 413, 422])
def test_a_refused_prompt_is_put_aside_and_not_asked_again(dataset, server, status):
    server.update(faults=[{"when": {"has_id": 51}, "do": {"status": status}}])  # prompts with a 3 in them
    dataset.configure(budget=10_000)
    complete = dataset.fill()
    assert complete["failed"] == {"rejected": 13}
    assert (complete["reason"], complete["responses"]) == ("prompts_exhausted", 27)
    assert {(line["status"], line["attempts"]) for line in dataset.failures()} == {(status, 0)}
    assert len(server.log) == 40
    dataset.complete_path.unlink()
    assert dataset.fill() == complete
    assert len(server.log) == 40


def test_what_was_put_aside_is_asked_again_when_other_answers_are_asked_for(dataset, server):
    server.update(faults=[{"when": {"has_id": 51}, "do": {"status": 400}}])
    dataset.configure(budget=10_000)
    dataset.fill()
    server.update(faults=[])
    dataset.configure(max_new_tokens=100)
    complete = dataset.fill()
    assert (complete["failed"], complete["responses"]) == ({}, 40)
    assert len(server.log) == 53


def test_prompts_that_no_server_could_take_are_never_sent(tmp_path, server):
    server.update(context_length=100, length={"fixed": 50})
    outside = [*prompt(8)[:-1], 99_999, *prompt(8)[-1:]]
    below = [*prompt(9)[:-1], -1, *prompt(9)[-1:]]
    prompts = [prompt(0), [], outside, below, prompt(1, 70), prompt(2, 98), prompt(3, 100), prompt(4, 5000), prompt(5)]
    dataset = OneDataset(tmp_path, [server.url], prompts=prompts, budget=10_000, min_new_tokens=5)
    complete = dataset.fill()
    assert complete["failed"] == {"bad_token_ids": 3, "too_long": 3}
    assert [line["id"] for line in dataset.lines()] == ["row-0", "row-4", "row-8"]
    assert len(server.log) == 3
    asked = {entry["ids_len"]: entry["max_tokens"] for entry in server.log}
    assert 0 < asked[70] <= 100 - 70
    assert all(length + most <= 100 for length, most in asked.items())


def test_too_many_put_aside_stop_the_dataset_with_counts(tmp_path, server):
    server.update(faults=[{"when": {"every": 4}, "do": {"status": 422}}])
    dataset = OneDataset(tmp_path, [server.url], prompts=400, budget=100_000, engine={"concurrency": 16})
    with pytest.raises(UserError, match=r"\d+ of 2\d\d prompts were put aside \(\d+ rejected\).*max_failed \(0.05\)"):
        dataset.fill()
    assert not dataset.complete_path.exists()
    assert len(server.log) < 240
    dataset.configure(engine={"max_failed": 0.5})
    assert dataset.fill()["reason"] == "prompts_exhausted"


# -- stopped ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [401, 403])
def test_a_refused_key_stops_at_once(dataset, server, status):
    server.update(faults=[{"do": {"status": status}}])
    with pytest.raises(UserError, match=f"answers {status}"):
        dataset.fill()
    assert len(server.log) <= 4
    assert dataset.failures() == []
    server.update(faults=[])
    assert dataset.fill()["tokens"] == 200


def test_the_key_comes_from_the_environment_and_stands_nowhere(dataset, server, monkeypatch):
    server.update(api_key="sk-nowhere")
    dataset.configure(engine={"api_key_env": "KEY_OF_THE_TEST"})
    with pytest.raises(UserError, match="KEY_OF_THE_TEST, but that environment variable is not set"):
        dataset.fill()
    monkeypatch.setenv("KEY_OF_THE_TEST", "sk-wrong")
    with pytest.raises(UserError, match=r"refuses the key \(HTTP 401"):
        dataset.fill()
    monkeypatch.setenv("KEY_OF_THE_TEST", "sk-nowhere")
    assert dataset.fill()["tokens"] == 200
    written = [path for path in dataset.folder.rglob("*") if path.is_file()]
    assert written and not any(b"sk-nowhere" in path.read_bytes() for path in written)


def test_a_key_that_the_server_quotes_is_blotted_out(dataset, server, monkeypatch):
    monkeypatch.setenv("KEY_OF_THE_TEST", "sk-nowhere")
    dataset.configure(engine={"api_key_env": "KEY_OF_THE_TEST"})
    server.update(faults=[{"do": {"status": 401, "body": '{"error": "the key sk-nowhere is not known"}'}}])
    with pytest.raises(UserError, match=r"the key \*\*\* is not known"):
        dataset.fill()


@pytest.mark.parametrize(
    ("do", "name"), [({"status": 404, "body": "no such model"}, "rejected"), ({"fault": "html"}, "malformed")]
)
def test_when_all_fail_alike_it_stops_and_no_prompt_is_given_up(dataset, server, hurry, do, name):
    server.update(faults=[{"do": do}])
    dataset.configure(engine={"outage_patience": "5s"})
    with pytest.raises((UserError, TemporaryFailure)) as ended:
        dataset.fill()
    assert name in str(ended.value) or "no server has answered" in str(ended.value)
    assert len(server.log) < 50
    assert dataset.failures() == []
    server.update(faults=[])
    assert dataset.fill()["tokens"] == 200


def test_not_one_answer_from_few_prompts_gives_none_of_them_up(tmp_path, server):
    server.update(faults=[{"do": {"status": 404, "body": "no such model"}}])
    dataset = OneDataset(tmp_path, [server.url], prompts=5)
    with pytest.raises(UserError, match=r"not one prompt was answered, rejected, HTTP 404 \(no such model\)"):
        dataset.fill()
    assert dataset.failures() == []
    server.update(faults=[])
    assert dataset.fill()["responses"] == 5


# -- servers ---------------------------------------------------------------------------------------------------


def test_an_outage_uses_up_no_attempts(dataset, server):
    dataset.configure(budget=800, engine={"outage_patience": "1s"})
    server.update(delay=0.02)
    gone = meanwhile(lambda: by_status(server).get("200", 0) >= 8, server.down)
    with pytest.raises(TemporaryFailure, match="no server has answered for"):
        dataset.fill()
    gone.join()
    kept = dataset.answers()
    assert len(kept) >= 8
    assert dataset.failures() == []
    server.up()
    assert dataset.fill()["tokens"] == 800
    assert dataset.answers().items() >= kept.items()


def test_a_server_that_comes_back_is_asked_on(dataset, server):
    dataset.configure(budget=800)
    server.update(delay=0.02)
    gone = meanwhile(lambda: by_status(server).get("200", 0) >= 8, server.down)
    back = meanwhile(lambda: not gone.is_alive(), server.up)
    assert dataset.fill()["tokens"] == 800
    back.join()
    assert len(dataset.answers()) == 40
    assert dataset.failures() == []


def test_a_server_that_is_not_up_yet_is_waited_for(dataset, server):
    server.down()
    up = meanwhile(lambda: (dataset.results / "raw_responses.lock").exists(), server.up)
    assert dataset.fill()["tokens"] == 200
    up.join()


def test_no_server_at_all_ends_the_run_for_now(dataset, server):
    server.down()
    dataset.configure(engine={"outage_patience": "0.2s"})
    with pytest.raises(TemporaryFailure, match=r"No server was up .*Connect"):
        dataset.fill()
    assert dataset.failures() == []


def test_a_hung_server_loses_its_prompts_to_the_other(dataset, server, monkeypatch):
    monkeypatch.setattr(server_module, "patience", lambda *_: 0.3)
    server.update(faults=[{"when": {"from_nth": 3}, "do": {"fault": "hang"}}])
    with ThreadedServer({"length": {"fixed": 20}}) as other:
        dataset.configure(budget=800, engine={"servers": [server.url, other.url]})
        assert dataset.fill()["tokens"] == 800
    assert len(dataset.answers()) == 40


def test_a_lone_server_that_hangs_ends_the_run_for_now(dataset, server, hurry, monkeypatch):
    monkeypatch.setattr(server_module, "patience", lambda *_: 0.3)
    server.update(faults=[{"when": {"from_nth": 4}, "do": {"fault": "hang"}}])
    dataset.configure(engine={"outage_patience": "1s", "concurrency": 1})
    with pytest.raises(TemporaryFailure, match=r"no server has answered for .*hung: nothing ended for"):
        dataset.fill()
    assert len(dataset.answers()) == 3
    assert not dataset.complete_path.exists()


def test_a_slow_server_holds_nobody_up(dataset, server):
    server.update(delay=1.0)
    with ThreadedServer({"length": {"fixed": 20}, "delay": 0.01}) as fast:
        dataset.configure(budget=800, engine={"servers": [server.url, fast.url], "concurrency": 2})
        dataset.fill()
        assert len(server.log) <= 4
        assert len(fast.log) >= 36


def test_servers_of_two_models_are_refused_by_both_names(dataset, server):
    with ThreadedServer({"model": "another"}) as other:
        dataset.configure(engine={"servers": [server.url, other.url]})
        with pytest.raises(UserError, match=r"serves the model (another|tiny), but .* (tiny|another)"):
            dataset.fill()
        assert server.log == other.log == []


def test_another_model_than_the_journals_is_refused(dataset, server):
    dataset.fill()
    server.update(model="another")
    dataset.configure(budget=400)
    with pytest.raises(UserError, match=r"serves the model another, but the answers so far are of tiny"):
        dataset.fill()
    assert len(server.log) == 10


def test_a_server_that_comes_back_with_another_model_is_not_asked(dataset, server):
    dataset.configure(budget=800, engine={"outage_patience": "4s"})
    server.update(delay=0.02)

    def swap() -> None:
        server.down()
        server.update(model="another")
        server.up()

    swapped = meanwhile(lambda: by_status(server).get("200", 0) >= 8, swap)
    with pytest.raises(TemporaryFailure, match="serves the model another"):
        dataset.fill()
    swapped.join()
    assert {line["model"] for line in dataset.lines()} == {"tiny"}


def test_the_wrong_protocol_is_named(dataset, server):
    with ThreadedServer() as plain:
        dataset.configure(engine={"servers": [plain.url + "/nowhere"]})
        with pytest.raises(UserError, match=r"engine\.api"):
            dataset.fill()


# -- a server that the job starts ------------------------------------------------------------------------------


def launched_server(script: str) -> str:
    words = [sys.executable, str(ROOT / "tests/scripted_server.py"), "--port", "{port}", "--script", script]
    return shlex.join(words).replace("'{port}'", "{port}")


def test_a_prompt_that_kills_the_server_twice_is_put_aside_and_the_rest_answered(tmp_path, monkeypatch):
    monkeypatch.setattr(launch, "RESTART_DELAY", 0.05)
    monkeypatch.setattr(flight, "retry_delay", lambda *_: 0.02)
    log = tmp_path / "requests.jsonl"
    script = '{"length": {"fixed": 20}, "faults": [{"when": {"has_id": 99}, "do": {"fault": "die"}}]}'
    poison = [*prompt(2)[:-14], 99, *prompt(2)[-14:]]
    dataset = OneDataset(
        tmp_path,
        [],
        prompts=[prompt(0), prompt(1), poison, prompt(3), prompt(4)],
        budget=10_000,
        engine={"launch": launched_server(script) + f" --log {log}", "concurrency": 2, "launch_restarts": 6},
    )
    complete = dataset.fill()
    assert complete["failed"] == {"poison": 1}
    assert complete["responses"] == 4
    assert {(line["id"], line["class"]) for line in dataset.failures()} == {("row-2", "poison")}


def test_a_launched_server_that_keeps_dying_ends_the_run_for_now(tmp_path, monkeypatch):
    monkeypatch.setattr(launch, "RESTART_DELAY", 0.05)
    monkeypatch.setattr(flight, "retry_delay", lambda *_: 0.02)
    script = '{"faults": [{"do": {"fault": "die"}}]}'
    dataset = OneDataset(
        tmp_path, [], engine={"launch": launched_server(script), "concurrency": 1, "launch_restarts": 1}
    )
    with pytest.raises(TemporaryFailure, match="the launched server died 2 times"):
        dataset.fill()
    assert not dataset.complete_path.exists()


# -- the disk --------------------------------------------------------------------------------------------------


def test_a_full_disk_ends_the_run_with_the_files_name_and_what_is_there_stays(dataset, server, monkeypatch):
    def full(descriptor, content):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(journal.os, "write", full)
    with pytest.raises(TemporaryFailure, match=r"raw_responses.jsonl cannot be written: No space left on device"):
        dataset.fill()
    assert not dataset.complete_path.exists()
    monkeypatch.undo()
    assert dataset.fill()["tokens"] == 200


def test_progress_that_cannot_be_shown_ends_no_run(dataset):
    (dataset.results / "progress.json").mkdir()
    assert dataset.fill()["tokens"] == 200


def test_an_engine_file_that_cannot_be_read_changes_nothing(dataset, server, capsys):
    server.update(delay=0.1)
    dataset.configure(budget=800)
    engine = dataset.folder / "results/engine.json"
    harmed = meanwhile(lambda: len(server.log) > 1, lambda: engine.write_text("{"))
    assert dataset.fill()["tokens"] == 800
    harmed.join()
    assert "engine.json cannot be read" in capsys.readouterr().err


def test_an_error_beside_the_answers_ends_the_run(dataset, server, monkeypatch):
    """Otherwise nothing would drain, sync or give up any more."""

    def fail(_) -> None:
        raise RuntimeError("as the test wants")

    server.update(delay=0.1)
    dataset.configure(budget=800, engine={"concurrency": 1})
    monkeypatch.setattr(Worker, "_give_up_on_outage", fail)
    with pytest.raises(RuntimeError, match="as the test wants"):
        dataset.fill()
    assert len(server.log) < 30
