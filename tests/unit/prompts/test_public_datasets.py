"""Each entry of docs/datasets.md, on a row in that dataset's shape."""

import importlib.util
import re
from pathlib import Path

import pytest
import yaml
from tokenfill.prompts import sources
from tokenfill.prompts.gather import Reading
from tokenfill.settings import load

PROJECT = Path(__file__).parents[3]
_spec = importlib.util.spec_from_file_location("public_rows", Path(__file__).with_name("public_rows.py"))
public_rows = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(public_rows)


def documented() -> dict:
    """The datasets of the longest YAML block in the page."""
    blocks = re.findall(r"```yaml\n(.*?)```", (PROJECT / "docs/datasets.md").read_text(), re.DOTALL)
    return yaml.safe_load(max(blocks, key=len))["datasets"]


@pytest.fixture(scope="module")
def entries():
    schema = yaml.safe_load((PROJECT / "schemas/config.schema.yaml").read_text())
    config = {
        "model": "owner/name",
        "budget": "1M",
        "engine": {"servers": ["http://127.0.0.1:1"]},
        "datasets": documented(),
    }
    return {name: dataset.prompts for name, dataset in load(config, schema).datasets.items()}


def asked(settings, row):
    reading = Reading(settings)
    return reading.conversation(reading.value(sources.Row("own", 1, row)))


def test_every_entry_has_an_example():
    assert set(documented()) == set(public_rows.EXAMPLES) | set(public_rows.TOKENIZED)


@pytest.mark.parametrize("name", public_rows.EXAMPLES)
def test_the_entry_reads_its_shape(entries, name):
    row, messages, tools = public_rows.EXAMPLES[name]
    found = asked(entries[name], row)
    assert found.messages[: found.ends[-1]] == messages
    assert found.tools == tools


@pytest.mark.parametrize("name", public_rows.TOKENIZED)
def test_the_entry_reads_ids_without_the_recorded_answer(entries, name):
    row, ids = public_rows.TOKENIZED[name]
    assert asked(entries[name], row).input_ids == ids


def test_an_agents_trace_asks_at_every_step(entries):
    row = public_rows.EXAMPLES["swe_rebench"][0]
    assert asked(entries["swe_rebench"], row).ends == [2, 4]


def test_only_columns_that_are_asked_for_are_read():
    for name, (row, _, _) in public_rows.EXAMPLES.items():
        wanted = Reading({"format": "auto", "turns": "last", "columns": documented()[name].get("columns", {})}).wanted
        kept = {key: value for key, value in row.items() if key in wanted}
        settings = {"format": "auto", "turns": "last", "columns": documented()[name].get("columns", {})}
        assert asked(settings, kept).messages == asked(settings, row).messages, name
