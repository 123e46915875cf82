"""The shipped config as a stranger runs it: the real model, the real prompts, three datasets filled."""

import json
import shutil
from pathlib import Path
from statistics import mean

import embedded_model
import pytest
import yaml

ROOT = Path(__file__).parents[2]
BUDGETS = {"chat": 1500, "sharegpt": 1500, "function_calls": 1000}


@pytest.fixture(scope="module")
def quick_start(new_project, tmp_path_factory):
    """The project as it is shipped, with the model already fetched."""
    project = new_project(tmp_path_factory.mktemp("quick_start") / "project")
    shutil.copy2(ROOT / "config.yaml", project.folder)
    project.config = yaml.safe_load((ROOT / "config.yaml").read_text())
    shutil.copytree(ROOT / "resources/prompts", project.path("resources/prompts"))
    project.path(embedded_model.FOLDER.relative_to(ROOT)).symlink_to(embedded_model.folder())
    return project


@pytest.fixture(scope="module")
def filled(quick_start):
    quick_start.run("--cores", "1", "all", timeout=1500)
    return quick_start


def servers(project) -> list[str]:
    """Command lines of embedded servers that this folder's jobs started and that are still there."""
    found = []
    for process in Path("/proc").iterdir():
        try:
            command = (process / "cmdline").read_bytes()
            if b"tokenfill.embedded.serve" in command and (process / "cwd").resolve() == project.folder.resolve():
                found.append(command.decode(errors="replace"))
        except OSError:
            continue
    return found


def test_every_dataset_is_filled_before_its_prompts_run_out(filled):
    for dataset, budget in BUDGETS.items():
        complete, journal = filled.complete(dataset), filled.journal(dataset)
        assert (complete["reason"], complete["budget"]) == ("budget_met", budget)
        assert budget <= complete["tokens"] < 2 * budget
        counted = [line for line in journal if "cycle" not in line["flags"] and line["finish_reason"] != "part"]
        assert {line["finish_reason"] for line in counted} <= {"stop", "length"}
        records = filled.records(dataset)
        assert sum(sum(record["loss_mask"]) for record in records) == complete["tokens"]
        assert len(records) == complete["responses"]
        assert complete["responses"] < 40  # of sixty prompts and more
        assert not filled.doubled(dataset)


def test_answers_differ_in_length_by_three_and_more(filled):
    """Which is why a number of samples says so little."""
    lengths = [mean(sum(record["loss_mask"]) for record in filled.records(dataset)) for dataset in BUDGETS]
    assert max(lengths) > 3 * min(lengths)


def test_tools_reach_the_model(filled):
    """Its own chat template leaves them out."""
    from tokenfill.prompts.template import load_tokenizer

    tokenizer = load_tokenizer(embedded_model.folder())
    prompts = [record["input_ids"][: record["prompt_len"]] for record in filled.records("function_calls")]
    offered = [text for text in map(tokenizer.decode, prompts) if "The functions:" in text]
    assert len(offered) > len(prompts) / 2


def test_again_no_server_is_started(filled):
    logs = {path: path.stat().st_mtime_ns for path in filled.path("results").rglob("*")}
    assert servers(filled) == []
    assert "Nothing to be done" in filled.run("--cores", "1", "all")
    assert {path: path.stat().st_mtime_ns for path in filled.path("results").rglob("*")} == logs


def test_asked_greedily_for_the_capital_of_france_it_says_paris(filled, new_project, tmp_path):
    project = new_project(tmp_path / "project")
    row = (ROOT / "resources/prompts/chat.jsonl").read_text().splitlines()[0]
    assert "capital of France" in row
    project.path("paris.jsonl").write_text(row + "\n")
    project.path("resources").mkdir()
    project.path(embedded_model.FOLDER.relative_to(ROOT)).symlink_to(embedded_model.folder())
    project.config = json.loads(json.dumps(filled.config))
    project.configure(datasets=None, sampling={"temperature": 0, "top_p": 1})
    project.configure(datasets={"paris": {"source": "paris.jsonl", "budget": 5}})
    project.run(timeout=300)
    (line,) = project.journal("paris")
    assert "Paris" in line["text"]
    assert line["finish_reason"] == "stop"
