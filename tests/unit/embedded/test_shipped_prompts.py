"""The prompts that the project ships: every row gives one prompt, none twice, and the built file is its source."""

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from tokenfill.prompts.shapes import conversation

FOLDER = Path(__file__).parents[3] / "resources" / "prompts"


def lines(name: str) -> list[dict]:
    return [json.loads(line) for line in (FOLDER / name).read_text(encoding="utf-8").splitlines()]


ROWS = {
    "chat.jsonl": lines("chat.jsonl"),
    "sharegpt.jsonl": lines("sharegpt.jsonl"),
    "function_calls.parquet": pq.read_table(FOLDER / "function_calls.parquet").to_pylist(),
}


@pytest.mark.parametrize("name", ROWS)
def test_every_row_gives_one_prompt_and_none_twice(name):
    prompts = [conversation(row) for row in ROWS[name]]
    asked = {json.dumps([prompt.messages, prompt.tools]) for prompt in prompts}
    assert len(asked) == len(prompts) >= 60
    assert all(len(prompt.ends) == 1 and prompt.messages[-1]["role"] in ("user", "tool") for prompt in prompts)


def test_the_shapes_are_those_that_people_have():
    roles = [[message["role"] for message in row["messages"]] for row in ROWS["chat.jsonl"]]
    assert any(row[0] == "system" for row in roles) and any(row.count("user") > 1 for row in roles)
    assert {turn["from"] for row in ROWS["sharegpt.jsonl"] for turn in row["conversations"]} == {
        "system",
        "human",
        "gpt",
    }
    calls = [conversation(row) for row in ROWS["function_calls.parquet"]]
    assert all(call.tools for call in calls) and any(call.messages[-1]["role"] == "tool" for call in calls)


def test_the_parquet_file_is_what_its_source_builds(monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    import build_function_calls

    assert pq.read_table(FOLDER / "function_calls.parquet").equals(build_function_calls.table())


def test_each_call_in_the_source_is_one_that_its_tools_allow(monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    from build_function_calls import DESKS

    for desk in DESKS.values():
        name, arguments = desk["answered"][1]
        (schema,) = [tool["function"] for tool in desk["tools"] if tool["function"]["name"] == name]
        required = set(schema["parameters"]["required"])
        assert required <= set(arguments) <= set(schema["parameters"]["properties"])


def test_the_readme_counts_the_rows():
    readme = (FOLDER / "README.md").read_text(encoding="utf-8")
    for name, rows in ROWS.items():
        assert f"| `{name}` | {len(rows)} |" in readme
