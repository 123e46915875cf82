"""The tokenized prompts as a Parquet file: its columns, its row groups, its metadata."""

import hashlib
import json
import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

METADATA = b"tokenfill"
SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("turn", pa.int32()),
        ("messages", pa.string()),
        ("tools", pa.string()),
        ("input_ids", pa.list_(pa.int32())),
        ("prompt_hash", pa.string()),
        ("source_row", pa.int64()),
    ]
)
_ROW_GROUP = 12 << 20  # bytes, uncompressed: readers hold a whole row group


def prompt_hash(ids: np.ndarray) -> str:
    """First 16 hex digits of sha256 over the ids as little-endian int32."""
    return hashlib.sha256(np.ascontiguousarray(ids, dtype="<i4").tobytes()).hexdigest()[:16]


class PromptTable:
    """Writes prompts.parquet row by row; the file appears under its name only when it is closed whole."""

    def __init__(self, path: Path):
        self._path, self._part = path, path.with_name(path.name + ".part")
        self._rows, self._bytes = [], 0
        # Without a stored Arrow schema the reader's schema carries the metadata that is only known at the end.
        self._writer = pq.ParquetWriter(
            self._part, SCHEMA, compression="zstd", use_dictionary=["tools"], store_schema=False
        )

    def append(self, row_id: str, turn: int, messages: str, tools: str | None, ids: np.ndarray, digest: str, row: int):
        """One prompt. `ids` is a one-dimensional int32 array, `digest` its prompt_hash, `row` its row in the source."""
        self._rows.append((row_id, turn, messages, tools, ids, digest, row))
        self._bytes += len(messages) + len(tools or "") + 4 * len(ids) + 64
        if self._bytes >= _ROW_GROUP:
            self._flush()

    def _flush(self) -> None:
        names, turns, messages, tools, ids, digests, rows = zip(*self._rows, strict=True)
        columns = [
            _strings(names),
            _integers(turns, pa.int32()),
            _strings(messages),
            _strings(tools),
            pa.ListArray.from_arrays(_offsets(ids), _integers(np.concatenate(ids), pa.int32())),
            _strings(digests),
            _integers(rows, pa.int64()),
        ]
        table = pa.Table.from_arrays(columns, schema=SCHEMA)
        self._writer.write_table(table, row_group_size=len(self._rows))
        self._rows, self._bytes = [], 0

    def finish(self, metadata: dict) -> None:
        """Completes the file with `metadata` as JSON under the key "tokenfill", and moves it to its name."""
        if self._rows:
            self._flush()
        self._writer.add_key_value_metadata({METADATA: json.dumps(metadata, sort_keys=True)})
        self._writer.close()
        os.replace(self._part, self._path)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._writer.close()
        self._part.unlink(missing_ok=True)


# Arrays are made of buffers, since pyarrow.array imports pandas wherever it is installed: a second and 40 MB.


def _integers(values, kind: pa.DataType) -> pa.Array:
    data = np.ascontiguousarray(values, dtype=kind.to_pandas_dtype())
    return pa.Array.from_buffers(kind, len(data), [None, pa.py_buffer(data)])


def _offsets(values) -> pa.Array:
    return _integers(np.cumsum([0, *map(len, values)]), pa.int32())


def _strings(values: tuple[str | None, ...]) -> pa.Array:
    texts = [(value or "").encode() for value in values]
    valid = np.packbits([value is not None for value in values], bitorder="little")
    buffers = [pa.py_buffer(valid), _offsets(texts).buffers()[1], pa.py_buffer(b"".join(texts))]
    return pa.Array.from_buffers(pa.string(), len(texts), buffers)


def read_metadata(path: Path) -> dict:
    """What `tokenize_prompts` noted of the prompts in `path`."""
    return json.loads(pq.read_metadata(path).metadata[METADATA])


def prompt_hashes(path: Path) -> np.ndarray:
    """The prompt hashes of a table as uint64."""
    column = pq.read_table(path, columns=["prompt_hash"])["prompt_hash"]
    return np.array([int(digest.as_py(), 16) for digest in column], dtype=np.uint64)
