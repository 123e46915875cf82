"""A tiny model, and the whole stage on rows given in a test."""

import json

import pyarrow.parquet as pq
import pytest
from tiny_tokenizer import make_model_folder
from tokenfill.prompts.tokenize import tokenize_prompts

SETTINGS = {
    "dataset": "chat",
    "revision": None,
    "format": "auto",
    "columns": {},
    "order": "source",
    "order_seed": 0,
    "limit": None,
    "turns": "last",
    "max_prompt_tokens": None,
    "template_date": "2026-01-01",
    "chat_template": None,
    "template_kwargs": {},
    "special_tokens_in_text": "keep",
    "exclude": [],
    "dedupe": "within",
    "trust_remote_code": False,
}
BOS = {"content": "<s>", "lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": True}


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    return make_model_folder(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="session")
def bos_model(tmp_path_factory):
    """The same with a BOS that the tokenizer puts before every text, as Llama's does."""
    folder = make_model_folder(tmp_path_factory.mktemp("bos"))
    path = folder / "tokenizer.json"
    state = json.loads(path.read_text())
    bos = max(token["id"] for token in state["added_tokens"]) + 1
    state["added_tokens"].append({"id": bos, **BOS})
    state["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<s>": {"id": "<s>", "ids": [bos], "tokens": ["<s>"]}},
    }
    path.write_text(json.dumps(state))
    config = folder / "tokenizer_config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"bos_token": "<s>"}))
    return folder


class Result:
    """What a run left: its prompts, the lines of the skipped rows, its metadata."""

    def __init__(self, out, metadata):
        self.out, self.metadata = out, metadata
        self.prompts = pq.read_table(out).to_pylist()
        skipped = out.with_name("prompts_skipped.jsonl").read_text().splitlines()
        self.skipped = [json.loads(line) for line in skipped]

    @property
    def ids(self):
        return [prompt["id"] for prompt in self.prompts]

    @property
    def questions(self):
        return [json.loads(prompt["messages"])[-1]["content"] for prompt in self.prompts]

    @property
    def reasons(self):
        return {line.get("id", line["source_row"]): line["reason"] for line in self.skipped}


@pytest.fixture
def tokenized(tmp_path, model):
    """tokenized(rows or path, key=value, ...): the stage with these settings."""

    def run(source, *, earlier=(), budget=None, out="run", **settings):
        if not isinstance(source, str):
            path = tmp_path / "rows.jsonl"
            path.write_text("".join(json.dumps(row) + "\n" for row in source), encoding="utf-8")
            source = str(path)
        target = tmp_path / out / "prompts.parquet"
        asked = SETTINGS | {"model": str(model), "source": source} | settings
        return Result(target, tokenize_prompts(asked, target, earlier=earlier, budget=budget))

    return run


@pytest.fixture(scope="session")
def decoded(model):
    """decoded(ids): their text, special tokens shown."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(model).decode
