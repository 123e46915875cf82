"""Files as people have them: dialects, encodings, compression, and data that is cut off."""

import gzip
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from tokenfill.errors import UserError
from tokenfill.prompts import files, sources

ROWS = [{"id": name, "prompt": f"Where does the {name} rise?"} for name in ("Elbe", "Oder", "Inn")]
LINES = "".join(json.dumps(row) + "\n" for row in ROWS)


def read(path, wanted=frozenset({"id", "prompt"})):
    (source,) = map(sources.pinned, sources.parse_source(str(path)))
    return list(sources.read_rows(source, set(wanted)))


def values(path):
    return [row.value for row in read(path)]


def zstd(text: str) -> bytes:
    return zstandard.ZstdCompressor().compress(text.encode())


DIALECTS = {
    "plain": LINES.encode(),
    "byte order mark and CRLF": b"\xef\xbb\xbf" + LINES.replace("\n", "\r\n").encode(),
    "blank lines": f"\n  \n{LINES}\n\t\n".encode(),
    "no last newline": LINES[:-1].encode(),
    "an array": json.dumps(ROWS).encode(),
    "an indented array": json.dumps(ROWS, indent=4).encode(),
    "an array after a mark": b"\xef\xbb\xbf \n" + json.dumps(ROWS).encode(),
    "UTF-16": LINES.encode("utf-16"),
    "UTF-16, the other order": b"\xfe\xff" + LINES.encode("utf-16-be"),
    "UTF-32": LINES.encode("utf-32"),
    "gzip": gzip.compress(LINES.encode()),
    "gzip of several members": b"".join(gzip.compress(line.encode()) for line in LINES.splitlines(keepends=True)),
    "zstd": zstd(LINES),
    "zstd of several frames": b"".join(zstd(line) for line in LINES.splitlines(keepends=True)),
    "a compressed array": gzip.compress(json.dumps(ROWS).encode()),
}


@pytest.mark.parametrize("content", DIALECTS.values(), ids=DIALECTS)
def test_every_dialect_gives_the_same_rows(tmp_path, content):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(content)
    assert values(path) == ROWS


def test_only_a_line_feed_ends_a_line(tmp_path):
    path = tmp_path / "rows.jsonl"
    text = "one\u2028two\u2029three\u0085four"
    path.write_text(json.dumps({"prompt": text}, ensure_ascii=False) + "\n", encoding="utf-8")
    assert values(path) == [{"prompt": text}]


def test_lines_are_counted_as_an_editor_counts_them(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('\n{"prompt": 1}\n\n{bad}\n{"prompt": 2}\n')
    rows = read(path)
    assert [row.line for row in rows] == [2, 4, 5]
    assert rows[1].value is None and "column 2" in rows[1].problem


@pytest.mark.parametrize(
    "content", [gzip.compress(LINES.encode())[:-12], zstd(LINES)[:-7], zstd(LINES) + zstd(LINES)[:-7]]
)
def test_compressed_data_that_is_cut_off_is_refused(tmp_path, content):
    path = tmp_path / "rows.jsonl.gz"
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"rows\.jsonl\.gz: .*cut off or damaged"):
        read(path)


@pytest.mark.parametrize("content", [LINES[:-10], json.dumps(ROWS)[:-10], json.dumps(ROWS)[:-1]])
def test_text_that_is_cut_off_is_refused(tmp_path, content):
    path = tmp_path / "rows.jsonl"
    path.write_text(content)
    with pytest.raises(UserError, match=r"rows\.jsonl: line \d+"):
        read(path)


def test_an_array_with_a_damaged_item_is_refused_by_line(tmp_path):
    path = tmp_path / "rows.json"
    path.write_text('[\n{"prompt": "a"},\n{oops},\n{"prompt": "b"}\n]' + " " * 50)
    with pytest.raises(UserError, match=r"line 3: not valid JSON"):
        read(path)


def test_text_in_another_encoding_without_a_mark_is_refused(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(LINES.encode("utf-16-le"))
    with pytest.raises(UserError, match="not UTF-8"):
        read(path)


def test_an_array_is_read_piece_by_piece(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "_CHUNK", 16)
    path = tmp_path / "rows.json"
    path.write_text(json.dumps(ROWS, indent=1) + "\n")
    assert values(path) == ROWS


@pytest.mark.parametrize("text", ["[1234567, 89]", "[true, null]"])
def test_an_array_item_may_end_at_the_border_of_a_piece(tmp_path, monkeypatch, text):
    path = tmp_path / "rows.json"
    path.write_text(text)
    for size in range(2, 12):
        monkeypatch.setattr(files, "_CHUNK", size)
        assert values(path) == json.loads(text)


def test_nan_big_integers_and_equal_keys():
    assert sources.loads(b'{"prompt": "p", "score": NaN}')["prompt"] == "p"
    assert sources.loads(b'{"id": 123456789012345678901234567890}')["id"] == 123456789012345678901234567890
    assert sources.loads(b'{"id": 9007199254740993}')["id"] == 9007199254740993
    assert sources.loads(b'{"prompt": "first", "prompt": "second"}') == {"prompt": "second"}
    with pytest.raises(ValueError, match="UTF-8"):
        sources.loads(b'{"prompt": "\xff"}')


def test_parquet_reads_only_what_is_wanted(tmp_path):
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.Table.from_pylist([row | {"score": 1.0} for row in ROWS]), path)
    assert values(path) == ROWS
    with pytest.raises(UserError, match="no column that holds prompts among id, prompt, score"):
        read(path, wanted={"messages"})


def test_parquet_structs_lose_the_fields_that_other_rows_have(tmp_path):
    path = tmp_path / "rows.parquet"
    rows = [{"prompt": [{"a": 1}, {"b": 2}]}]
    pq.write_table(pa.Table.from_pylist(rows), path)
    assert values(path) == rows


def test_half_a_parquet_file_is_refused(tmp_path):
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.Table.from_pylist(ROWS), path)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(UserError, match=r"rows\.parquet: not a whole Parquet file"):
        read(path)


def test_compressed_parquet(tmp_path):
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.Table.from_pylist(ROWS), path)
    path.write_bytes(gzip.compress(path.read_bytes()))
    assert values(path) == ROWS


def test_globs_are_sorted_and_must_match(tmp_path):
    for name in ("b", "a"):
        (tmp_path / f"{name}.jsonl").write_text(json.dumps({"prompt": name}))
    assert values(tmp_path / "*.jsonl") == [{"prompt": "a"}, {"prompt": "b"}]
    with pytest.raises(UserError, match="matches no file"):
        read(tmp_path / "*.json")


def test_a_name_with_glob_characters_is_a_file_if_there_is_one(tmp_path):
    path = tmp_path / "rows[1].jsonl"
    path.write_text(LINES)
    assert values(path) == ROWS


def test_dataset_folders(tmp_path):
    datasets = pytest.importorskip("datasets")
    datasets.disable_progress_bars()
    data = datasets.Dataset.from_list(ROWS)
    data.save_to_disk(str(tmp_path / "saved"))
    datasets.DatasetDict({"train": data, "test": data.select([1])}).save_to_disk(str(tmp_path / "splits"))
    assert values(tmp_path / "saved") == ROWS
    assert values(tmp_path / "splits") == ROWS
    assert values(f"{tmp_path}/splits?split=test") == ROWS[1:2]
    with pytest.raises(UserError, match=r"has no split dev; add \?split= with one of train, test"):
        read(f"{tmp_path}/splits?split=dev")


def test_a_folder_of_data_files_is_streamed(tmp_path):
    pytest.importorskip("datasets")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "train.jsonl").write_text(LINES)
    assert values(tmp_path / "data") == ROWS


def test_a_loading_script_is_not_run(tmp_path):
    pytest.importorskip("datasets")
    folder = tmp_path / "scripted"
    folder.mkdir()
    (folder / "scripted.py").write_text(f"open({str(tmp_path / 'was_run')!r}, 'w')")
    with pytest.raises(UserError, match="cannot be read as a dataset"):
        read(folder)
    assert not (tmp_path / "was_run").exists()


def test_hub_addresses():
    (source,) = sources.parse_source("hf://owner/name?config=all&split=train_sft&revision=v1.0")
    assert source == sources.Source([], "owner/name", "all", "train_sft", "v1.0")
    with pytest.raises(UserError, match="cannot be read"):
        sources.parse_source("hf://owner/name?splits=train")


def test_a_hub_that_does_not_answer_is_one_sentence(monkeypatch):
    pytest.importorskip("datasets")
    import huggingface_hub

    def no_network(*_, **__):
        raise OSError("Name or service not known")

    monkeypatch.setattr(huggingface_hub.HfApi, "dataset_info", no_network)
    with pytest.raises(UserError, match=r"the hub did not give hf://owner/name .*network"):
        read("hf://owner/name")


def test_a_hub_dataset_is_read_at_the_commit_that_its_branch_names(monkeypatch):
    datasets = pytest.importorskip("datasets")
    import huggingface_hub

    asked = {}

    class Info:
        sha = "0123abcd"

    def load(path, **options):
        asked.update(options, path=path)
        return datasets.Dataset.from_list(ROWS).to_iterable_dataset()

    monkeypatch.setattr(huggingface_hub.HfApi, "dataset_info", lambda self, name, revision: Info)
    monkeypatch.setattr(datasets, "load_dataset", load)
    assert values("hf://owner/name?config=all&split=test&revision=main") == ROWS
    assert asked == {"path": "owner/name", "name": "all", "split": "test", "revision": "0123abcd", "streaming": True}
    parts = [sources.pinned(part) for part in sources.parse_source("hf://owner/name?revision=main")]
    assert sources.revision_read(parts) == "0123abcd"
