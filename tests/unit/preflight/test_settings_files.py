"""The files through which the config reaches the jobs."""

import json
import os
from pathlib import Path

import pytest
from tokenfill.errors import UserError
from tokenfill.settings_files import distrusted, write_all, write_if_changed


def contents() -> dict[str, str]:
    return {str(path): path.read_text() for path in Path("results").rglob("*.json")}


def stamps() -> dict[str, int]:
    return {str(path): path.stat().st_mtime_ns for path in Path("results").rglob("*.json")}


def age(seconds: int = 100) -> None:
    """Set all times back, so that a rewrite shows."""
    for path in Path("results").rglob("*.json"):
        os.utime(path, (path.stat().st_atime - seconds, path.stat().st_mtime - seconds))


def rewritten(place) -> set[str]:
    """Which files a write replaces."""
    age()
    before = stamps()
    write_all(place.settings)
    return {path.removeprefix("results/") for path, stamp in stamps().items() if before.get(path) != stamp}


def test_every_dataset_has_its_files_and_the_engine_its_own(place):
    write_all(place.settings)
    names = {f"results/{name}/settings/{stage}.json" for name in ("chat", "code") for stage in ("prompts", "responses")}
    names |= {f"results/{name}/settings/{stage}.json" for name in ("chat", "code") for stage in ("records", "journal")}
    assert set(contents()) == names | {"results/engine.json"}
    assert json.loads(Path("results/chat/settings/responses.json").read_text())["budget"] == 1000
    assert json.loads(Path("results/engine.json").read_text())["engine"]["servers"] == ["http://127.0.0.1:1"]


def test_nothing_is_rewritten_without_a_change(place):
    write_all(place.settings)
    assert rewritten(place) == set()
    place.config["budget"] = "1_000"
    assert rewritten(place) == set()


@pytest.mark.parametrize(
    ("key", "value", "files"),
    [
        ("budget", "2k", {"responses"}),
        ("max_new_tokens", 9, {"responses", "records"}),
        ("truncated", "drop", {"responses", "records"}),
        ("limit", 5, {"prompts"}),
    ],
)
def test_a_key_reaches_only_the_stages_that_read_it(place, key, value, files):
    write_all(place.settings)
    place.config["datasets"]["chat"][key] = value
    assert rewritten(place) == {f"chat/settings/{name}.json" for name in files}


def test_an_engine_key_reaches_no_stage(place):
    write_all(place.settings)
    place.config["engine"]["concurrency"] = 3
    place.config["datasets"]["chat"]["engine"] = {"api": "vllm"}
    assert rewritten(place) == {"engine.json"}


def test_one_file_more_of_a_glob_makes_the_prompts_anew(place):
    write_all(place.settings)
    Path("code3.jsonl").touch()
    assert rewritten(place) == {"code/settings/prompts.json"}


def test_a_source_that_is_gone_changes_nothing(place):
    write_all(place.settings)
    for file in ("code1.jsonl", "code2.jsonl", "chat.jsonl"):
        Path(file).unlink()
    assert rewritten(place) == set()


def test_dedupe_across_depends_on_the_datasets_before(place):
    place.config["dedupe"] = "across"
    write_all(place.settings)
    assert json.loads(Path("results/code/settings/prompts.json").read_text())["earlier"] == ["chat"]
    place.config["datasets"] = dict(reversed(place.config["datasets"].items()))
    assert rewritten(place) == {"chat/settings/prompts.json", "code/settings/prompts.json"}


def test_a_file_is_whole_or_as_it_was(tmp_path, monkeypatch):
    path = tmp_path / "a" / "settings.json"
    write_if_changed(path, {"a": 1})

    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(UserError, match=r"settings\.json cannot be written.*No space left"):
        write_if_changed(path, {"a": 2})
    assert json.loads(path.read_text()) == {"a": 1}


class TestTrust:
    """`settings/journal.json`: whether `complete` and the journal tell the same."""

    def value(self, place):
        write_all(place.settings)
        value = json.loads(Path("results/chat/settings/journal.json").read_text())["distrusted"]
        assert value == distrusted(place.settings.datasets["chat"])  # stays when looked at again
        return value

    def test_nothing_yet(self, place):
        assert self.value(place) is None

    def test_they_agree(self, place):
        place.answer("chat")
        assert self.value(place) is None

    def test_a_longer_journal_is_fine(self, place):
        place.answer("chat")
        with Path("results/chat/raw_responses.jsonl").open("a") as file:
            file.write("{}\n")
        assert self.value(place) is None

    @pytest.mark.parametrize("harm", ["delete", "shorten"])
    def test_a_journal_gone_or_shortened_is_seen_and_forgiven_when_put_back(self, place, harm):
        complete = place.answer("chat")
        journal = Path("results/chat/raw_responses.jsonl")
        whole = journal.read_bytes()
        journal.unlink() if harm == "delete" else journal.write_bytes(whole[:-5])
        assert self.value(place) == complete["finished"]
        journal.write_bytes(whole)
        assert self.value(place) is None

    def test_after_the_refill_the_value_stays(self, place):
        """Another value would be a changed input, and the job would run once more."""
        first = place.answer("chat")
        Path("results/chat/raw_responses.jsonl").unlink()
        assert self.value(place) == first["finished"]
        Path("results/chat/complete").unlink()  # Snakemake, before the job
        assert self.value(place) == first["finished"]
        again = place.answer("chat") | {"finished": "2026-02-02T00:00:00Z"}
        Path("results/chat/complete").write_text(json.dumps(again))
        assert self.value(place) == first["finished"]
        Path("results/chat/raw_responses.jsonl").unlink()
        assert self.value(place) == again["finished"]

    def test_fewer_tokens_than_the_budget_asked_for(self, place):
        complete = place.answer("chat", tokens=999)
        assert self.value(place) == complete["finished"]

    def test_a_budget_raised_while_the_job_ended(self, place):
        """Snakemake notes what the inputs hold when a job has ended, so that the raise alone would go unseen."""
        complete = place.answer("chat")
        place.config["budget"] = 1001
        assert self.value(place) == complete["finished"]
        place.config["budget"] = 1000
        assert self.value(place) is None

    def test_exhausted_prompts_may_be_below_the_budget(self, place):
        complete = place.answer("chat", tokens=10) | {"reason": "prompts_exhausted"}
        Path("results/chat/complete").write_text(json.dumps(complete))
        assert self.value(place) is None

    @pytest.mark.parametrize("left", ["", "{", "[]", "{}", '{"reason": "budget_met"}'])
    def test_a_sentinel_that_cannot_be_read_is_not_believed(self, place, left):
        place.answer("chat")
        Path("results/chat/complete").write_text(left)
        value = self.value(place)
        assert value is not None
        place.answer("chat")
        assert self.value(place) == value  # as after the job that wrote it anew

    @pytest.mark.parametrize("left", ["", "[]", "{"])
    def test_a_broken_settings_file_is_made_anew(self, place, left):
        place.answer("chat")
        write_all(place.settings)
        Path("results/chat/settings/journal.json").write_text(left)
        assert self.value(place) is None
