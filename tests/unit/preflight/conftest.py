"""A working directory with one model, one source and settings for it, before and after answers are there."""

import json
from pathlib import Path

import pytest
import yaml
from tokenfill.settings import content_digests, digest, load

PROJECT = Path(__file__).parents[3]


@pytest.fixture(scope="session")
def schema() -> dict:
    return yaml.safe_load((PROJECT / "schemas/config.schema.yaml").read_text())


class Place:
    """The working directory, and what can happen in it."""

    def __init__(self, schema: dict):
        self.schema = schema
        self.config = {
            "model": "model",
            "budget": 1000,
            "datasets": {"chat": {"source": "chat.jsonl"}, "code": {"source": "code*.jsonl"}},
            "engine": {"servers": ["http://127.0.0.1:1"]},
        }
        Path("model").mkdir()
        Path("model/tokenizer.json").write_text("{}")
        for name in ("chat", "code1", "code2"):
            Path(f"{name}.jsonl").write_text("{}\n")

    @property
    def settings(self):
        return load(self.config, self.schema, "config.yaml")

    def tokenize(self, name: str) -> None:
        """As if the dataset's prompts were made by today's settings."""
        folder = Path("results", name)
        (folder / "settings").mkdir(parents=True, exist_ok=True)
        (folder / "settings/prompts.json").write_text(json.dumps(self.settings.datasets[name].prompts))
        (folder / "prompts.parquet").write_bytes(b"PAR1")

    def answer(self, name: str, tokens: int = 1000) -> dict:
        """As if the dataset were filled by today's settings; gives its `complete`."""
        folder = Path("results", name)
        folder.mkdir(parents=True, exist_ok=True)
        identity = self.settings.datasets[name].responses["identity"]
        names = {"identity": identity, "content": content_digests(Path("model"))}
        line = json.dumps({"id": "a", "settings": digest(names)}) + "\n"
        (folder / "raw_responses.jsonl").write_text(line)
        (folder / "raw_responses.meta.json").write_text(json.dumps({"v": 1, **names}))
        complete = {
            "reason": "budget_met",
            "tokens": tokens,
            "budget": 1000,
            "journal": {"raw_responses.jsonl": len(line)},
            "finished": "2026-01-01T00:00:00Z",
        }
        (folder / "complete").write_text(json.dumps(complete))
        return complete


@pytest.fixture
def place(tmp_path, monkeypatch, schema) -> Place:
    monkeypatch.chdir(tmp_path)
    return Place(schema)
