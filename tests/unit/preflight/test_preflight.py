"""What is refused before anything is written."""

import os
import subprocess
from pathlib import Path

import pytest
from tokenfill import preflight
from tokenfill.errors import UserError


def check(place, **others):
    preflight.check(place.settings, "config.yaml", **others)


def refusal(place, **others) -> str:
    with pytest.raises(UserError) as refused:
        check(place, **others)
    assert "\n" not in str(refused.value)
    return str(refused.value)


def test_a_fresh_place_is_fine(place):
    check(place)


def test_the_settings_that_made_the_answers_are_fine(place):
    place.answer("chat")
    place.config["budget"] = "5M"
    place.config["engine"]["concurrency"] = 8
    check(place)


def test_changed_sampling_is_refused_with_both_values(place):
    place.answer("chat")
    place.config["sampling"] = {"temperature": 0.2, "top_p": 0.9}
    sentence = refusal(place)
    assert "sampling.temperature was 0.8 and is 0.2" in sentence
    assert "sampling.top_p was 1.0 and is 0.9" in sentence
    assert "put it back" in sentence
    assert "results/chat" in sentence


def test_only_the_datasets_with_answers_are_named(place):
    place.answer("code")
    place.config["sampling"] = {"temperature": 0.2}
    sentence = refusal(place)
    assert "results/code" in sentence
    assert "chat" not in sentence


def test_the_command_it_names_leads_out(place):
    for name in ("chat", "code"):
        place.answer(name)
    place.config["sampling"] = {"temperature": 0.2}
    sentence = refusal(place)
    assert "1 more: code" in sentence
    command = sentence.partition("start over: ")[2]
    subprocess.run(command, shell=True, check=True)
    check(place)
    assert Path("results/chat/answers.1/raw_responses.jsonl").exists()
    assert not Path("results/chat/complete").exists()


def test_an_earlier_way_out_is_not_overwritten(place):
    place.answer("chat")
    Path("results/chat/answers.1").mkdir()
    place.config["sampling"] = {"temperature": 0.2}
    assert "mkdir results/chat/answers.2" in refusal(place)


def test_another_tokenizer_in_the_same_folder_is_refused(place):
    place.answer("chat")
    os.utime("model/tokenizer.json")
    check(place)
    Path("model/tokenizer.json").write_text('{"model": 2}')
    assert "content.tokenizer was" in refusal(place)


def test_another_chat_template_is_refused(place):
    place.answer("chat")
    Path("mine.jinja").write_text("{{ messages }}")
    place.config["chat_template"] = "mine.jinja"
    assert "content.template was" in refusal(place)


@pytest.mark.parametrize("left", [None, "", "{", "[]", "{}", '{"identity": {}, "content": 5}'])
def test_an_unreadable_account_of_the_settings_closes_the_door(place, left):
    """Unless the answers themselves carry the name of today's settings."""
    place.answer("chat")
    account = Path("results/chat/raw_responses.meta.json")
    account.unlink() if left is None else account.write_text(left)
    check(place)
    place.config["sampling"] = {"temperature": 0.2}
    assert "raw_responses.meta.json is missing or unreadable" in refusal(place)


def test_without_answers_nothing_is_refused(place):
    place.answer("chat")
    Path("results/chat/raw_responses.jsonl").write_text("")
    place.config["sampling"] = {"temperature": 0.2}
    check(place)


def test_a_missing_source_is_named(place):
    Path("chat.jsonl").unlink()
    sentence = refusal(place)
    assert "datasets.chat.source: chat.jsonl" in sentence


def test_a_glob_that_finds_nothing_is_named(place):
    place.config["datasets"]["code"]["source"] = "nothing/*.jsonl"
    assert "datasets.code.source: nothing/*.jsonl" in refusal(place)


def test_one_missing_source_of_several_is_named(place):
    place.config["datasets"]["chat"]["source"] = ["chat.jsonl", "more.jsonl"]
    assert "datasets.chat.source: more.jsonl" in refusal(place)


def test_a_missing_file_of_excluded_prompts_is_named(place):
    place.config["exclude"] = ["benchmark.jsonl"]
    assert "datasets.chat.exclude: benchmark.jsonl" in refusal(place)


def test_a_source_may_go_once_its_prompts_are_made(place):
    place.tokenize("chat")
    Path("chat.jsonl").unlink()
    check(place)
    place.config["limit"] = 10
    assert "limit was null and is 10" in refusal(place)


def test_hub_sources_and_hub_models_are_not_looked_for_here(place):
    place.config["datasets"] = {"chat": {"source": "hf://owner/name?split=train"}}
    place.config["model"] = "owner/name"
    check(place)


@pytest.mark.parametrize("model", ["./gone", "/gone/model", "model/gone", "a/b/c", "~/model"])
def test_a_path_to_no_folder_is_no_hub_id(place, model):
    place.config["model"] = model
    assert f"model: {model}: no such folder" in refusal(place)


def test_a_model_folder_without_tokenizer_is_named(place):
    Path("model/tokenizer.json").unlink()
    assert "model: model: holds no tokenizer.json" in refusal(place)


def test_a_model_that_a_rule_makes_may_be_missing(place):
    place.config["model"] = "resources/tiny"
    Path("resources").mkdir()
    refusal(place)
    check(place, made_by_rules=("resources/tiny",))


def test_a_missing_chat_template_is_named(place):
    place.config["chat_template"] = "mine.jinja"
    assert "chat_template: mine.jinja: no such file" in refusal(place)


def test_source_files_are_sorted_and_stand_once(place):
    place.config["datasets"]["code"]["source"] = ["code2.jsonl", "code*.jsonl"]
    place.config["exclude"] = ["chat.jsonl"]
    assert preflight.source_files(place.settings.datasets["code"]) == ["chat.jsonl", "code1.jsonl", "code2.jsonl"]


def test_a_folder_as_source_is_all_its_files(place):
    Path("set/data").mkdir(parents=True)
    Path("set/data/train.parquet").touch()
    place.config["datasets"]["chat"]["source"] = "set?split=train"
    assert preflight.source_files(place.settings.datasets["chat"]) == ["set/data/train.parquet"]


def test_a_file_whose_name_looks_like_a_glob_is_a_file(place):
    Path("odd[1].jsonl").touch()
    place.config["datasets"]["chat"]["source"] = "odd[1].jsonl"
    assert preflight.source_files(place.settings.datasets["chat"]) == ["odd[1].jsonl"]


def test_model_files_are_those_that_shape_prompts(place):
    for name in ("config.json", "weights.safetensors"):
        Path("model", name).touch()
    Path("mine.jinja").touch()
    place.config["chat_template"] = "mine.jinja"
    files = preflight.model_files(place.settings.datasets["chat"])
    assert files == ["model/tokenizer.json", "model/config.json", "mine.jinja"]
