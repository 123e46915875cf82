"""From the config to what each stage is asked for."""

import json

import jsonschema
import pytest
import yaml
from tokenfill import settings as module
from tokenfill.config_check import refuse_doubled_keys
from tokenfill.errors import UserError
from tokenfill.settings import content_digests, digest, engine_of, keys_of_class, leaves, load

OTHER_VALUES = {
    "budget_counts": "total",
    "truncated": "drop",
    "cycles": "keep",
    "format": "messages",
    "columns": {"messages": "dialog"},
    "order": "source",
    "turns": "each",
    "template_date": "2027-02-03",
    "template_kwargs": {"enable_thinking": False},
    "special_tokens_in_text": "escape",
    "exclude": ["held_out.jsonl"],
    "dedupe": "across",
    "engine.api": "vllm",
    "engine.servers": ["http://127.0.0.1:30001"],
    "engine.launch": "serve {port}",
    "engine.api_key_env": "SERVER_KEY",
    "sampling.stop_token_ids": [7],
    "sampling.top_p": 0.5,
    "sampling.min_p": 0.5,
    "sampling.top_k": 5,
    "max_new_tokens": 99,
    "min_new_tokens": 2,
    "samples_per_prompt": 2,
    "sampling.repetition_penalty": 1.5,
}


def other_value(path, leaf):
    """A valid value other than the default."""
    if (key := ".".join(path)) in OTHER_VALUES:
        return OTHER_VALUES[key]
    if leaf.get("type") == "boolean":
        return not leaf["default"]
    types = leaf["type"] if isinstance(leaf["type"], list) else [leaf["type"]]
    return 1 if "integer" in types or "number" in types else "another"


def changed(schema, loaded, path, leaf):
    """The settings of dataset chat before and after this one key is set for it."""
    value = other_value(path, leaf)
    return loaded().datasets["chat"], loaded("datasets.chat." + ".".join(path), value).datasets["chat"]


def dataset_leaves(schema):
    return list(leaves(schema["properties"]["datasets"]["additionalProperties"]))


def test_the_schema_is_a_schema_and_describes_every_key(schema):
    jsonschema.Draft202012Validator.check_schema(schema)
    for path, leaf in dataset_leaves(schema):
        assert leaf["description"].endswith((".", "train")), path
        assert leaf["class"] in ("identity", "extent", "operation"), path
        assert "type" in leaf or "enum" in leaf, path
        assert bool(leaf.get("read_by")) == (leaf["class"] != "operation"), path


def test_every_mapping_of_the_schema_refuses_unknown_keys(schema):
    def nodes(node):
        yield node
        for child in node.get("properties", {}).values():
            yield from nodes(child)

    dataset = schema["properties"]["datasets"]["additionalProperties"]
    for node in (*nodes(schema), *nodes(dataset)):
        if "properties" in node:
            assert node["additionalProperties"] is False


def test_a_key_does_what_its_class_says(schema, loaded):
    """Identity names the answers, extent leaves that name alone, operation reaches no stage's settings."""
    for path, leaf in dataset_leaves(schema):
        if path == ("chat_template",):
            continue  # identity by its file's content, which content_digests tells
        then, now = changed(schema, loaded, path, leaf)
        name = ".".join(path)
        stages = {stage for stage in ("prompts", "responses", "records") if getattr(then, stage) != getattr(now, stage)}
        assert stages == set(leaf.get("read_by", ())), name
        is_identity = then.responses["identity"] != now.responses["identity"]
        assert is_identity == (leaf["class"] == "identity"), name
        assert (then.engine != now.engine) == (leaf["class"] == "operation"), name


def test_keys_of_class_lists_dotted_keys(schema):
    assert {"model", "revision", "sampling.temperature"} <= set(keys_of_class(schema, "identity"))
    assert "budget" in keys_of_class(schema, "extent")
    assert all(key.startswith("engine.") for key in keys_of_class(schema, "operation"))


def test_a_dataset_has_its_own_value_or_else_the_general_one(loaded):
    datasets = loaded("sampling.temperature", 0.1, "datasets.code.sampling", {"top_p": 0.5}).datasets
    assert (datasets["chat"].responses["budget"], datasets["code"].responses["budget"]) == (2_000_000, 500_000)
    sampling = datasets["code"].responses["identity"]["sampling"]
    assert (sampling["temperature"], sampling["top_p"]) == (0.1, 0.5)
    assert datasets["chat"].responses["identity"]["sampling"]["top_p"] == 1.0


def test_the_form_of_a_value_changes_nothing(loaded):
    """Finished datasets must not be pending for 2e6 in place of 2M, or 0 in place of 0.0."""
    plain = loaded("sampling.temperature", 1, "engine.outage_patience", 90)
    forms = loaded(
        *("budget", 2e6, "sampling.temperature", "1.0", "engine.outage_patience", "90s"),
        *("engine.servers", ["http://127.0.0.1:30000/"]),
    )
    assert json.dumps(plain.datasets["chat"].responses) == json.dumps(forms.datasets["chat"].responses)
    assert json.dumps(plain.engine) == json.dumps(forms.engine)


def test_stop_ids_are_a_set(loaded):
    settings = loaded("sampling.stop_token_ids", [9, 2, 9])
    assert settings.datasets["chat"].responses["identity"]["sampling"]["stop_token_ids"] == [2, 9]


def test_the_engine_of_a_dataset_replaces_key_by_key(loaded):
    settings = loaded("engine.concurrency", 8, "datasets.code.engine", {"api": "vllm"})
    assert settings.datasets["code"].engine == settings.datasets["chat"].engine | {"api": "vllm"}
    assert engine_of(settings.engine, "code") == settings.datasets["code"].engine


def test_servers_of_its_own_replace_a_general_launch_and_the_other_way_round(loaded):
    own_servers = loaded(
        *("engine", {"launch": "serve {port}"}, "datasets.code.engine", {"servers": ["http://127.0.0.1:1"]})
    ).datasets["code"]
    assert (own_servers.engine["launch"], own_servers.engine["servers"]) == (None, ["http://127.0.0.1:1"])
    own_launch = loaded("datasets.code.engine", {"launch": "serve {port}"}).datasets["code"]
    assert (own_launch.engine["launch"], own_launch.engine["servers"]) == ("serve {port}", [])


def test_loading_leaves_the_config_as_it_was(schema):
    config = {"model": "m", "budget": "2k", "engine": {"servers": ["http://h"]}, "datasets": {"a": {"source": "s"}}}
    before = json.dumps(config)
    load(config, schema)
    assert json.dumps(config) == before


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (("budgt", 5), ["budgt", "not a known key", "budget?"]),
        (("temperature", 5), ["temperature", "sampling.temperature?"]),
        (("sampling.temprature", 5), ["sampling.temprature", "sampling.temperature?"]),
        (("datasets.chat.engine", {"lunch": 1}), ["datasets.chat.engine.lunch", "datasets.chat.engine.launch?"]),
        (("zzz", 5), ["zzz", "known are", "budget"]),
        (("budget", -5), ["budget: -5"]),
        (("budget", True), ["budget: True"]),
        (("budget", "ten"), ["budget: 'ten'", "10M"]),
        (("datasets.chat.budget", 0), ["datasets.chat.budget: 0"]),
        (("budget", None), ["budget is missing", "datasets.chat.budget"]),
        (("model", None), ["model is missing"]),
        (("datasets.chat.source", None), ["datasets.chat", "source is missing"]),
        (("datasets", {}), ["datasets", "empty"]),
        (("datasets", None), ["datasets is missing"]),
        (("datasets", ["chat"]), ["datasets", "mapping"]),
        (("datasets.chat", "chat.jsonl"), ["datasets.chat", "mapping"]),
        (("sampling.temperature", -1), ["sampling.temperature", "at least 0"]),
        (("sampling.top_p", 0), ["sampling.top_p", "more than 0"]),
        (("sampling.top_k", 0), ["sampling.top_k", "-1"]),
        (("sampling.seed", 1.5), ["sampling.seed", "whole number"]),
        (("order", "random"), ["order", "shuffled, source"]),
        (("max_new_tokens", 4, "min_new_tokens", 9), ["min_new_tokens 9", "max_new_tokens 4"]),
        (("engine.servers", []), ["engine", "neither servers nor launch"]),
        (("engine", {}), ["engine", "neither servers nor launch"]),
        (("engine.launch", "serve {port}"), ["engine", "both servers and launch"]),
        (("engine", {"launch": "serve 80"}), ["engine.launch", "{port}"]),
        (("engine.servers", ["127.0.0.1:30000"]), ["engine.servers[0]", "http://127.0.0.1:30000"]),
        (("engine.servers", ["http://h", "http://h/"]), ["engine.servers", "twice"]),
        (("engine.max_failed", 2), ["engine.max_failed", "at most 1"]),
        (("template_kwargs", {1: 2}), ["template_kwargs", "quotes"]),
        (("columns", {"text": "a"}), ["columns", "text"]),
    ],
)
def test_a_bad_config_ends_in_one_sentence_with_file_and_key(loaded, changes, words):
    *others, value = changes
    if value is None:
        changes = (*others, None)
    with pytest.raises(UserError) as refused:
        loaded(*changes)
    sentence = str(refused.value)
    assert sentence.startswith("my.yaml: ")
    assert "\n" not in sentence
    for word in words:
        assert word in sentence


@pytest.mark.parametrize(
    ("written", "word"),
    [
        *[
            ("no", "true or false"),
            ("007", "a number"),
            ("1.10", "a number"),
            ("null", "empty"),
            ("2026-01-01", "a date"),
        ],
        *[
            ("../x", "../x"),
            ("/abs", "/abs"),
            ("a;b", "a;b"),
            ("a$(id)", "a$(id)"),
            ("-rf", "-rf"),
            (".hidden", ".hidden"),
        ],
        *[("'x{y}'", "x{y}"), ("a b", "a b"), ("n" * 65, "nnn"), ("org/name", "org/name"), ("report", "report")],
        ("Chat: {source: s}\n  chat", "case alone"),
    ],
)
def test_names_that_are_no_folder_names_are_refused(schema, written, word):
    config = yaml.safe_load(f"model: m\nbudget: 5\ndatasets:\n  {written}: {{source: s}}\n")
    with pytest.raises(UserError, match="datasets") as refused:
        load(config, schema)
    assert word in str(refused.value)


def test_a_key_that_stands_twice_is_refused(tmp_path):
    file = tmp_path / "my.yaml"
    file.write_text("budget: 5\ndatasets:\n  chat: {source: a}\n  code: {source: b}\n  chat: {source: c}\n")
    with pytest.raises(UserError, match=r"my\.yaml: datasets\.chat stands twice, in lines 3 and 5"):
        refuse_doubled_keys(file)
    file.write_text("budget: 5\ndatasets: {chat: {source: a}, code: {source: a}}\nitems: [{a: 1}, {a: 1}]\n")
    refuse_doubled_keys(file)
    file.write_text("a: [")
    refuse_doubled_keys(file)
    refuse_doubled_keys(tmp_path / "none.yaml")


def test_a_slash_at_the_end_of_a_folder_is_no_other_model(loaded):
    assert loaded("model", "models/tiny/") == loaded("model", "models/tiny")
    for value in ("", "/", 7, True):
        with pytest.raises(UserError, match="model"):
            loaded("model", value)


@pytest.mark.parametrize(
    "engine",
    [
        {"servers": ["http://me:s3cret@h:1"]},
        {"launch": "serve {port} --api-key s3cret"},
        {"launch": "serve {port} --api-key=s3cret"},
        {"servers": ["http://h"], "api_key_env": "sk-s3cret"},
    ],
)
def test_a_secret_in_the_config_is_refused_and_not_repeated(loaded, engine):
    for changes in (("engine", engine), ("datasets.chat.engine", engine)):
        with pytest.raises(UserError) as refused:
            loaded(*changes)
        assert "s3cret" not in str(refused.value)


def test_digest_knows_values_and_not_their_order():
    assert digest({"a": 1, "b": [2.0, "é"]}) == digest({"b": [2.0, "é"], "a": 1})
    assert digest({"a": 1}) != digest({"a": 2})
    assert len(digest({})) == 16
    with pytest.raises(ValueError):
        digest({"a": float("nan")})


def write_model(folder):
    folder.mkdir()
    (folder / "tokenizer.json").write_text('{"model": {}}')
    (folder / "tokenizer_config.json").write_text('{"chat_template": "{{ messages }}", "eos_token": "</s>"}')
    return folder


def test_the_tokenizer_and_the_template_have_digests_of_their_own(tmp_path):
    folder = write_model(tmp_path / "model")
    before = content_digests(folder)
    (folder / "tokenizer_config.json").write_text('{"eos_token": "</s>", "chat_template": "{{ other }}"}')
    other_template = content_digests(folder)
    assert other_template["tokenizer"] == before["tokenizer"]
    assert other_template["template"] != before["template"]
    (folder / "tokenizer.json").write_text('{"model": {"a": 1}}')
    assert content_digests(folder)["tokenizer"] != before["tokenizer"]
    assert content_digests(folder)["template"] == other_template["template"]


def test_the_template_is_the_same_wherever_it_stands(tmp_path):
    folder = write_model(tmp_path / "model")
    inline = content_digests(folder)
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    assert content_digests(folder) == inline
    (folder / "chat_template.jinja").write_text("{{ other }}")
    (tmp_path / "mine.jinja").write_text("{{ messages }}")
    assert content_digests(folder)["template"] != inline["template"]
    assert content_digests(folder, tmp_path / "mine.jinja") == inline


def test_other_files_of_a_model_are_not_in_the_digests(tmp_path):
    folder = write_model(tmp_path / "model")
    before = content_digests(folder)
    (folder / "model.safetensors").write_bytes(b"weights")
    (folder / "README.md").write_text("hello")
    assert content_digests(folder) == before


def test_a_folder_without_tokenizer_is_named(tmp_path):
    with pytest.raises(UserError, match=str(tmp_path)):
        content_digests(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text("{")
    with pytest.raises(UserError, match=r"tokenizer_config\.json"):
        content_digests(tmp_path)


def test_settings_import_is_light():
    """What the Snakefile imports is paid for by every dry run."""
    import subprocess
    import sys
    from pathlib import Path

    folder = Path(module.__file__).parents[1]
    code = (
        f"import sys; sys.path.insert(0, {str(folder)!r}); "
        "import tokenfill.settings, tokenfill.preflight, tokenfill.settings_files, tokenfill.report.closing; "
        "heavy = {'transformers', 'pyarrow', 'aiohttp', 'orjson', 'numpy', 'jsonschema', 'tqdm'} & set(sys.modules); "
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
