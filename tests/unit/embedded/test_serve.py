"""How the embedded server chooses its file and its threads. The server itself runs in tests/workflow."""

import os

import pytest
from tokenfill.embedded import serve
from tokenfill.errors import UserError


@pytest.mark.parametrize("names", [[], ["a.gguf", "b.gguf"]])
def test_a_folder_without_exactly_one_gguf_is_refused(tmp_path, names):
    for name in names:
        (tmp_path / name).touch()
    with pytest.raises(UserError, match=rf"exactly one \.gguf file to be served, and holds {len(names)}"):
        serve.only_gguf(tmp_path)


def test_the_one_gguf_of_a_folder_is_found_among_other_files(tmp_path):
    for name in ("a.gguf", "tokenizer.json"):
        (tmp_path / name).touch()
    assert serve.only_gguf(tmp_path) == tmp_path / "a.gguf"


@pytest.mark.parametrize(
    ("cpus", "cpu_max", "threads"),
    [
        (2, "max 100000", 2),
        (64, "max 100000", 8),
        (64, "400000 100000", 4),
        (64, "50000 100000", 1),
        (4, None, 4),
        (4, "nonsense", 4),
    ],
)
def test_threads_follow_the_cpus_that_this_process_may_use(tmp_path, monkeypatch, cpus, cpu_max, threads):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(cpus)), raising=False)
    file = tmp_path / "cpu.max"
    if cpu_max is not None:
        file.write_text(cpu_max)
    assert serve.cores(file) == threads


def test_a_folder_that_cannot_be_served_is_told_without_a_traceback(tmp_path, capsys):
    assert serve.main([str(tmp_path), "0"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"{tmp_path} must hold exactly one .gguf file")
