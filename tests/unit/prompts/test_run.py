"""The stage as the workflow calls it: from a settings file."""

import errno
import json
from pathlib import Path

import pytest
from tokenfill.errors import UserError
from tokenfill.prompts import run as running
from tokenfill.prompts.table import read_metadata


@pytest.fixture
def laid_down(tmp_path, model):
    """A results folder with the settings of one dataset of thirty questions, and a budget of a thousand tokens."""
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps({"prompt": f"question {n}"}) + "\n" for n in range(30)))
    settings = {
        "dataset": "chat",
        "model": str(model),
        "revision": None,
        "source": str(tmp_path / "rows.jsonl"),
        "format": "auto",
        "columns": {},
        "order": "shuffled",
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
    (tmp_path / "settings").mkdir()
    (tmp_path / "settings" / "prompts.json").write_text(json.dumps(settings))
    (tmp_path / "settings" / "responses.json").write_text(json.dumps({"budget": 1000}))
    paths = {"settings": tmp_path / "settings" / "prompts.json", "out": tmp_path / "prompts.parquet"}
    return paths | {"log": tmp_path / "log"}


def test_the_account_is_in_the_log_too(laid_down, capsys):
    running.run(**laid_down)
    assert read_metadata(laid_down["out"])["prompts"] == 30
    log = laid_down["log"].read_text()
    assert "prompts made            30" in log and log in capsys.readouterr().err
    assert "limit: 10 would spare" in log  # the budget stands in the settings of the next stage


def test_a_full_disk_is_one_sentence(laid_down, monkeypatch):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(running, "tokenize_prompts", full)
    with pytest.raises(UserError, match="no space left"):
        running.run(**laid_down)
    monkeypatch.setattr(running, "tokenize_prompts", lambda *_, **__: Path("/nowhere/at/all").read_text())
    with pytest.raises(FileNotFoundError):
        running.run(**laid_down)
