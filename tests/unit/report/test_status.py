"""Where datasets stand, from what lies in results/, whatever a kill left of it."""

import json
import os
import time

import pytest
from tokenfill.report import closing
from tokenfill.report.status import Standings, standing, table


@pytest.fixture
def results(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def write(dataset, **files):
        folder = tmp_path / "results" / dataset
        (folder / "settings").mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            path = {
                "asked": folder / "settings/responses.json",
                "complete": folder / "complete",
                "progress": folder / "progress.json",
            }[name]
            path.write_text(content if isinstance(content, str) else json.dumps(content))
        return folder

    return write


def test_a_dataset_that_was_not_begun(results):
    assert str(standing(results("chat", asked={"budget": 10_000_000}))) == "chat: 0 of 10M tokens, 0 responses"


def test_a_dataset_on_its_way(results):
    folder = results("chat", asked={"budget": 10_000_000}, progress={"tokens": 1_240_000, "responses": 812})
    assert str(standing(folder)) == "chat: 1.24M of 10M tokens, 812 responses"
    assert f"{Standings():chat}" == "chat: 1.24M of 10M tokens, 812 responses"
    assert standing(folder).state == "running"
    os.utime(folder / "progress.json", (0, time.time() - 60))
    assert standing(folder).state == "stopped"


def test_a_complete_dataset_and_one_whose_prompts_ran_out(results):
    complete = {"tokens": 120, "responses": 6, "reason": "budget_met", "failed": {"too_long": 2}}
    row = standing(results("chat", asked={"budget": 100}, complete=complete, progress={"tokens": 5}))
    assert (row.state, row.tokens, row.failed) == ("complete", 120, 2)
    row = standing(results("code", asked={"budget": 1000}, complete=complete | {"reason": "prompts_exhausted"}))
    assert row.state == "exhausted"


def test_a_budget_raised_since_is_not_complete(results):
    complete = {"tokens": 120, "responses": 6, "reason": "budget_met"}
    assert standing(results("chat", asked={"budget": 1000}, complete=complete)).state == "stopped"


@pytest.mark.parametrize("written", ["complete", "progress"])
def test_counts_of_a_journal_that_shrank_are_doubted(results, written):
    counted = {"tokens": 400, "responses": 20, "reason": "budget_met", "journal": {"raw_responses.jsonl": 12}}
    folder = results("chat", asked={"budget": 400}, **{written: counted})
    assert str(standing(folder)).endswith("20 responses at most, since its journal is shorter now")
    (folder / "raw_responses.jsonl").write_bytes(b"twelve bytes")
    assert str(standing(folder)) == "chat: 400 of 400 tokens, 20 responses"


@pytest.mark.parametrize("left", ["", "{", "[]", "5", '{"tokens": "many"}', '{"failed": 5}', "\0\0"])
def test_no_file_that_a_kill_left_stops_the_status(results, left):
    folder = results("chat", asked=left, complete=left, progress=left)
    assert str(standing(folder)).startswith("chat: 0 of unknown tokens")
    assert "chat" in table()


def test_the_table_has_a_line_for_each_dataset(results, tmp_path):
    assert "no dataset yet" in table()
    results("chat", asked={"budget": 100}, complete={"tokens": 120, "responses": 6, "reason": "budget_met"})
    progress = {"tokens": 20, "responses": 1, "in_flight": 4, "tokens_per_second": 9.5, "seconds_left": 125}
    results("code", asked={"budget": 200}, progress=progress)
    (tmp_path / "results/report").mkdir()
    lines = table().splitlines()
    assert len(lines) == 3
    assert lines[1].split() == ["chat", "complete", "120", "100", "120", "%", "6", "0"]
    assert lines[2].split()[:6] == ["code", "running", "20", "200", "10", "%"]
    assert lines[2].endswith("4 in flight, 9 tokens/s, 2 min left")


class TestClosing:
    """The last lines of a run."""

    def log(self, tmp_path, rule, dataset, *lines):
        path = tmp_path / "logs" / rule / f"{dataset}.log"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(line + "\n" for line in lines))
        return path

    def test_success_says_what_is_there_and_which_prompts_ran_out(self, results):
        results("chat", asked={"budget": 100}, complete={"tokens": 120, "responses": 6, "reason": "budget_met"})
        results("code", asked={"budget": 100}, complete={"tokens": 20, "responses": 1, "reason": "prompts_exhausted"})
        assert closing.after_success(["chat", "code"]) == [
            "code: 20 of 100 tokens, 1 responses; its prompts are exhausted, so add prompts, raise samples_per_prompt "
            "or lower the budget",
            "2 of 2 datasets are done: 140 tokens in 7 responses",
        ]

    def test_each_failure_of_this_run_has_a_line(self, results, tmp_path):
        for name in ("chat", "code", "old"):
            results(name, asked={"budget": 100})
        results("done", asked={"budget": 100}, complete={"tokens": 120, "responses": 6, "reason": "budget_met"})
        self.log(tmp_path, "generate_responses", "chat", "detail", "tokenfill: chat: no server answers")
        self.log(tmp_path, "tokenize_prompts", "code", "tokenfill: code.jsonl line 3 is no JSON")
        os.utime(self.log(tmp_path, "generate_responses", "old", "tokenfill: of another run"), (0, 1000))
        self.log(tmp_path, "generate_responses", "done", "all is well")
        since = time.time() - 60
        lines = closing.after_error(["chat", "code", "old", "done"], since)
        assert lines[0] == "1 of 4 datasets are done; what was answered is kept, and the same command goes on"
        assert set(lines[1:]) == {"chat: no server answers", "code: code.jsonl line 3 is no JSON"}

    def test_a_job_that_was_killed_is_named(self, results, tmp_path):
        results("chat", asked={"budget": 100})
        self.log(tmp_path, "generate_responses", "chat", "detail")
        lines = closing.after_error(["chat"], time.time() - 60)
        assert (
            lines[1] == "chat: generate_responses was killed and left no reason; see logs/generate_responses/chat.log"
        )
