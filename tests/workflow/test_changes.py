"""What changes of the config and of files make pending, and what they leave alone."""

import json
import os
import shutil
import time

import pytest


def touch(project, name):
    future = time.time() + 5
    os.utime(project.path(name), (future, future))


def test_a_raised_budget_tops_up_that_dataset_alone(finished, server):
    before = finished.path("results/chat/raw_responses.jsonl").read_bytes()
    code = finished.path("results/code/complete").read_bytes()
    finished.configure(budget=300)
    assert finished.plan() == {"generate_responses": {"chat"}, "build_records": {"chat"}}
    finished.run()
    journal = finished.path("results/chat/raw_responses.jsonl").read_bytes()
    assert journal.startswith(before)
    assert finished.complete("chat")["tokens"] == 300
    assert len(finished.records("chat")) == 15
    assert len(server.log) == 5
    assert not finished.doubled("chat")
    assert finished.path("results/code/complete").read_bytes() == code
    assert finished.is_finished()


def test_a_lowered_budget_sends_no_request(finished, server):
    finished.configure(budget=60)
    finished.run()
    assert finished.complete("chat")["tokens"] == 200
    assert finished.is_finished()
    assert server.log == []


def test_a_raised_and_lowered_budget_leaves_nothing_pending(finished):
    finished.configure(budget=300)
    finished.run("-n")
    finished.configure(budget=200)
    assert finished.is_finished()


def test_the_same_number_in_another_form_leaves_nothing_pending(finished):
    finished.configure(budget="2e2")
    assert finished.is_finished()


def test_nothing_under_engine_makes_a_dataset_pending(finished, server):
    finished.configure(
        engine={"servers": ["http://127.0.0.1:9"], "concurrency": 99, "max_failed": 0.5, "api_key_env": "SOME_KEY"}
    )
    assert finished.is_finished()
    finished.configure(engine={"servers": [], "launch": "serve {port}", "api": "vllm"})
    assert finished.is_finished()
    assert json.loads(finished.path("results/engine.json").read_bytes())["engine"]["api"] == "vllm"


def test_no_edit_of_comments_code_or_times_makes_a_dataset_pending(finished, server):
    config = finished.path("config.yaml")
    config.write_text("# a comment\n" + config.read_text())
    for script in ("generate_responses", "tokenize_prompts", "build_records"):
        path = finished.path(f"scripts/{script}.py")
        path.write_text(path.read_text() + "\n# a comment\n")
    for name in ("chat.jsonl", "model/tokenizer.json", "results/chat/prompts.parquet", "scripts/build_records.py"):
        touch(finished, name)
    assert finished.is_finished()
    finished.run()
    assert server.log == []


def test_a_touched_source_of_megabytes_makes_nothing_pending(new, server):
    """Snakemake compares small files alone by content if it is not told otherwise."""
    padding = "x" * 30_000
    with new.path("chat.jsonl").open("a") as file:
        for n in range(110):
            row = {"id": f"long-{n}", "messages": [{"role": "user", "content": "long"}], "padding": padding}
            file.write(json.dumps(row) + "\n")
    assert new.path("chat.jsonl").stat().st_size > 3_000_000
    new.run()
    requests = len(server.log)
    touch(new, "chat.jsonl")
    assert new.is_finished()
    new.run()
    assert len(server.log) == requests


def test_a_lost_snakemake_folder_sends_no_request(finished, server):
    complete = finished.path("results/chat/complete").read_bytes()
    shutil.rmtree(finished.path(".snakemake"))
    finished.run()
    assert finished.path("results/chat/complete").read_bytes() == complete
    shutil.rmtree(finished.path(".snakemake"))
    finished.configure(budget=220)
    assert "chat" in finished.plan()["generate_responses"]
    assert server.log == []


def test_forcing_all_sends_no_request_and_keeps_every_answer(finished, server):
    before = {name: finished.journal(name) for name in ("chat", "code")}
    complete = finished.path("results/chat/complete").read_bytes()
    finished.run("--forceall")
    assert {name: finished.journal(name) for name in ("chat", "code")} == before
    assert finished.path("results/chat/complete").read_bytes() == complete
    assert server.log == []


def test_a_row_more_in_the_source_leaves_the_answers_as_they_are(finished, server):
    with finished.path("chat.jsonl").open("a") as file:
        file.write(json.dumps({"id": "one more", "messages": [{"role": "user", "content": "one more"}]}) + "\n")
    assert finished.plan()["tokenize_prompts"] == {"chat"}
    finished.run()
    assert server.log == []
    assert finished.is_finished()


def test_a_source_may_go_when_its_prompts_are_made(finished, server):
    finished.path("chat.jsonl").unlink()
    assert finished.is_finished()
    finished.configure(budget=300)
    finished.run()
    assert finished.complete("chat")["tokens"] == 300


@pytest.mark.parametrize(("key", "value", "tokens"), [("samples_per_prompt", 2, 200), ("truncated", "drop", 200)])
def test_what_counts_is_counted_anew(finished, server, key, value, tokens):
    """No answer was cut and the budget is met, so that a recount is all there is to do."""
    finished.configure(**{key: value})
    assert finished.plan()["generate_responses"] == {"chat", "code"}
    finished.run()
    assert finished.complete("chat")["tokens"] == tokens
    assert server.log == []


def test_a_config_of_its_own_replaces_the_shipped_one(finished):
    other = finished.path("other.yaml")
    other.write_text(finished.path("config.yaml").read_text().replace("chat:", "talk:"))
    plan = finished.run("-n", "--configfile", str(other))
    assert "talk: 0 of 200 tokens" in plan
    assert "chat:" not in plan.partition("Building DAG")[2]
