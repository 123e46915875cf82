"""The workflow as a house: small files, one name for rule, script and log, clean by its own tools."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_the_files_stay_small():
    assert len((ROOT / "Snakefile").read_text().splitlines()) < 40
    assert len((ROOT / "rules/common.smk").read_text().splitlines()) <= 80
    for script in (ROOT / "scripts").glob("*.py"):
        assert len(script.read_text().splitlines()) <= 15, script
    for module in (ROOT / "scripts/tokenfill").rglob("*.py"):
        assert len(module.read_text().splitlines()) <= 325, module


def test_rule_script_and_log_have_one_name():
    text = "".join(path.read_text() for path in sorted((ROOT / "rules").glob("*.smk")))
    rules = re.split(r"^(?:local)?rule (\w+):$", text, flags=re.MULTILINE)[1:]
    scripted = [(name, body) for name, body in zip(rules[::2], rules[1::2], strict=True) if "script:" in body]
    assert {"tokenize_prompts", "generate_responses", "build_records"} <= {name for name, _ in scripted}
    for name, body in scripted:
        assert f'"../scripts/{name}.py"' in body
        assert f'"logs/{name}' in body
        assert (ROOT / f"scripts/{name}.py").exists()


def test_every_file_opens_with_what_is_in_it():
    files = [ROOT / "Snakefile", *(ROOT / "rules").glob("*.smk"), *(ROOT / "scripts").rglob("*.py")]
    for path in files:
        text = path.read_text()
        assert not text or text.startswith('"""'), path


def test_lint_finds_nothing(new):
    output = new.run("--lint", status=None)
    assert "Congratulations" in output, output


def test_the_generating_rule_declares_the_sentinel_alone():
    """Snakemake deletes what is declared when a job starts, fails or runs again."""
    text = (ROOT / "rules/responses.smk").read_text()
    outputs = re.search(r"output:\n(.*?)\n    \w", text, re.DOTALL)[1]
    assert outputs.strip() == 'complete="results/{dataset}/complete",'


def test_datasets_are_filled_in_the_order_of_the_config(new):
    """One after the other where only one may be filled at a time."""
    new.configure(engine={"datasets_at_once": 1}, datasets={"aaa": {"source": "code.jsonl", "budget": 20}})
    output = new.run()
    order = re.findall(r"^(\w+): complete:", output, re.MULTILINE)
    assert order == ["chat", "code", "aaa"]


@pytest.mark.parametrize("script", ["status.py"])
def test_the_status_needs_no_lock_and_writes_nothing(finished, script):
    finished.path(".snakemake/locks").mkdir(exist_ok=True)
    finished.path(".snakemake/locks/0.input.lock").write_text("results/chat/complete\n")
    before = {path: path.stat().st_mtime_ns for path in finished.folder.rglob("*")}
    output = subprocess.run(
        [sys.executable, "-S", f"scripts/{script}"], cwd=finished.folder, capture_output=True, text=True, check=True
    ).stdout
    assert re.search(r"chat +complete +200 +200 +100 %", output)
    assert {path: path.stat().st_mtime_ns for path in finished.folder.rglob("*")} == before
