"""A bad config ends in one sentence before anything runs or is written."""

import pytest
import yaml


def refusal(project, *arguments) -> str:
    """The only thing that is printed beside Snakemake's own notices."""
    output = project.run(*arguments, status=1)
    assert "Traceback" not in output
    assert not project.path("results").exists()
    return output.strip().splitlines()[-1]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"budgte": 5}, ["budgte", "did you mean budget?"]),
        ({"budget": -5}, ["budget: -5"]),
        ({"budget": True}, ["budget: True"]),
        ({"budget": "ten"}, ["budget: 'ten'"]),
        ({"datasets": {"../x": {"source": "chat.jsonl"}}}, ["'../x'"]),
        ({"datasets": {"a;touch PWNED": {"source": "chat.jsonl"}}}, ["a;touch PWNED"]),
        ({"datasets": {"A": {"source": "chat.jsonl"}, "a": {"source": "chat.jsonl"}}}, ["A and a", "case"]),
        ({"datasets": {False: {"source": "chat.jsonl"}}}, ["False", "quotes"]),
        ({"datasets": {7: {"source": "chat.jsonl"}}}, ["7", "quotes"]),
        ({"datasets": {"code": {"source": "gone.jsonl"}}}, ["datasets.code.source: gone.jsonl"]),
        ({"engine": {"servers": []}}, ["engine", "neither servers nor launch"]),
    ],
)
def test_one_sentence_that_names_the_key(new, changes, words):
    new.configure(**changes)
    sentence = refusal(new, "-n")
    assert sentence.startswith("config.yaml: ")
    for word in words:
        assert word in sentence
    assert not new.path("PWNED").exists()


def test_a_run_is_refused_like_a_dry_run(new, server):
    new.configure(budget="ten")
    assert "budget: 'ten'" in refusal(new)
    assert server.log == []


def test_a_config_that_is_no_mapping(new):
    for text in ("", "- a\n", "hello\n"):
        new.path("config.yaml").write_text(text)
        output = new.run("-n", status=1)
        assert "Traceback" not in output, text


def test_budgets_on_the_command_line_mean_the_same(finished):
    assert "Nothing to be done" in finished.run("-n", "--config", "budget=2e2")
    assert yaml.safe_load(finished.path("config.yaml").read_text())["budget"] == 200
