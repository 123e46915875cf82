"""Prompts and journal lines to training records."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenfill.errors import UserError
from tokenfill.records.build import build
from tokenfill.records.exporters import pretokenized
from tokenfill.records.loss_mask import joined

IDS = st.lists(st.integers(0, 2**31 - 1), max_size=30)


@given(IDS, IDS.filter(len))
def test_the_mask_is_one_on_what_was_generated_and_on_nothing_else(prompt_ids, output_ids):
    input_ids, loss_mask = joined(prompt_ids, output_ids)
    assert len(input_ids) == len(loss_mask) == len(prompt_ids) + len(output_ids)
    assert [token for token, bit in zip(input_ids, loss_mask, strict=True) if bit] == output_ids
    assert [token for token, bit in zip(input_ids, loss_mask, strict=True) if not bit] == prompt_ids


def test_the_border_is_where_the_prompt_ends():
    assert joined([1, 3, 10], [20, 21, 4]) == ([1, 3, 10, 20, 21, 4], [0, 0, 0, 1, 1, 1])


def test_an_answer_that_repeats_its_prompt_moves_no_border():
    assert joined([5, 6], [5, 6, 5, 6])[1] == [0, 0, 1, 1, 1, 1]


def test_nothing_generated_is_no_record():
    with pytest.raises(ValueError, match="nothing to train on"):
        joined([1, 2], [])


def consumer_rules(record: dict) -> None:
    """What the trainers check of a row with ids: flat whole numbers, a mask of 0 and 1, equal lengths, not all 0."""
    ids, mask = record["input_ids"], record["loss_mask"]
    assert ids and all(type(token) is int for token in ids)
    assert all(type(bit) is int and bit in (0, 1) for bit in mask)
    assert len(ids) == len(mask)
    assert sum(mask) >= 1


def test_a_line_is_one_json_object_whatever_the_text():
    raw = pretokenized.line(
        id="a\nb\u2028c", sample=0, turns=[0], prompt_ids=[1], output_ids=[2], finish_reason="stop", dataset="chat"
    )
    assert raw.count(b"\n") == 1
    record = json.loads(raw)
    consumer_rules(record)
    assert list(record) == [
        *("id", "sample", "turns", "input_ids", "loss_mask", "prompt_len", "finish_reason", "dataset")
    ]


class Dataset:
    """A folder with prompts `a`, `b`, `c`, of 2, 3 and 4 ids, and what was answered."""

    def __init__(self, folder):
        self.folder = folder
        self.lines: list[dict] = []
        self.counting = {
            "budget_counts": "output",
            "truncated": "keep",
            "cycles": "drop",
            "samples_per_prompt": 1,
            "max_new_tokens": 100,
        }
        prompts = [("a", [1, 2]), ("b", [1, 2, 3]), ("c", [1, 2, 3, 4])]
        table = pa.table(
            {
                "id": [name for name, _ in prompts],
                "turn": pa.array([0] * 3, pa.int32()),
                "input_ids": pa.array([ids for _, ids in prompts], pa.list_(pa.int32())),
                "prompt_hash": [f"hash-{name}" for name, _ in prompts],
            }
        ).replace_schema_metadata({"tokenfill": json.dumps({"v": 1})})
        pq.write_table(table, folder / "prompts.parquet", row_group_size=2)

    def answer(self, name, ids, finish_reason="stop", **others):
        self.lines.append(
            {
                **{"id": name, "prompt_hash": f"hash-{name}", "sample": 0, "turn": 0, "part": 0, "output_ids": ids},
                **{"finish_reason": finish_reason, "flags": [], "prompt_tokens": {"a": 2, "b": 3}.get(name, 4)},
                **{"max_new_tokens": 100, "started": 1.0, "seconds": 1.0},
                **others,
            }
        )

    def build(self, tokens, size=None):
        journal = self.folder / "raw_responses.jsonl"
        journal.write_text("".join(json.dumps(line) + "\n" for line in self.lines))
        size = journal.stat().st_size if size is None else size
        (self.folder / "complete").write_text(json.dumps({"tokens": tokens, "journal": {journal.name: size}}))
        (self.folder / "settings.json").write_text(json.dumps({"dataset": "chat", "counting": self.counting}))
        records = self.folder / "records.jsonl"
        build(self.folder / "settings.json", self.folder / "prompts.parquet", self.folder / "complete", records)
        return [json.loads(line) for line in records.open()]


@pytest.fixture
def dataset(tmp_path):
    return Dataset(tmp_path)


def test_records_stand_in_the_order_of_the_prompts(dataset):
    for name in ("c", "a", "b"):
        dataset.answer(name, [9, 9])
    records = dataset.build(6)
    assert [record["id"] for record in records] == ["a", "b", "c"]
    assert [record["prompt_len"] for record in records] == [2, 3, 4]
    assert records[0]["input_ids"] == [1, 2, 9, 9]
    for record in records:
        consumer_rules(record)


def test_parts_are_joined(dataset):
    dataset.answer("a", [7, 8], "part")
    dataset.answer("b", [5])
    dataset.answer("a", [9], "stop", part=1)
    assert [record["input_ids"] for record in dataset.build(4)] == [[1, 2, 7, 8, 9], [1, 2, 3, 5]]


def test_what_does_not_count_is_no_record(dataset):
    dataset.answer("a", [7] * 100, "length")
    dataset.answer("b", [5, 5], flags=["cycle"])
    dataset.answer("c", [5], "part")
    dataset.answer("gone", [5])
    assert [record["finish_reason"] for record in dataset.build(100)] == ["length"]
    dataset.counting["truncated"] = "drop"
    dataset.counting["cycles"] = "keep"
    assert [record["id"] for record in dataset.build(2)] == ["b"]


def test_samples_of_one_prompt_stand_together(dataset):
    dataset.counting["samples_per_prompt"] = 2
    dataset.answer("b", [6], sample=1)
    dataset.answer("a", [7])
    dataset.answer("b", [5], sample=0)
    records = dataset.build(3)
    assert [(record["id"], record["sample"]) for record in records] == [("a", 0), ("b", 0), ("b", 1)]


def test_only_what_is_certified_is_taken(dataset):
    dataset.answer("a", [7])
    size = len(json.dumps(dataset.lines[0])) + 1
    dataset.answer("b", [5])
    assert [record["id"] for record in dataset.build(1, size)] == ["a"]


def test_an_answer_to_an_older_prompt_is_no_record(dataset):
    dataset.answer("a", [7], prompt_hash="hash-before")
    dataset.answer("b", [5])
    assert [record["id"] for record in dataset.build(1)] == ["b"]


def test_records_that_do_not_add_up_are_not_written(dataset):
    dataset.answer("a", [7])
    with pytest.raises(UserError, match=r"1 counted tokens where .* certifies 2"):
        dataset.build(2)
    assert sorted(path.name for path in dataset.folder.iterdir() if path.name.startswith((".", "records"))) == []
