"""Rows of a source: files, globs, dataset folders, the hub. What a row means is not decided here."""

import glob
import json
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qsl

import orjson

from tokenfill.errors import UserError
from tokenfill.prompts import files, hub
from tokenfill.prompts.rows import Row, Source, without_nulls

_QUERY = re.compile(r"\?(?=(?:config|split|revision)=)")
_GLOB = re.compile(r"[*?\[]")


def parse_source(source: str | list[str]) -> list[Source]:
    """The sources that the config names, in its order; globs sorted. Errors: nothing matches; bad query."""
    names = [source] if isinstance(source, str) else source
    return [_parse_one(name) for name in names]


def pinned(source: Source) -> Source:
    """The source with the commit that its branch or tag names now, if it is the hub's."""
    if source.dataset is None or Path(source.dataset).exists():
        return source
    return source._replace(revision=hub.commit(source))


def revision_read(parts: list[Source]) -> str | None:
    """The commits of the hub datasets among pinned sources; None where there is none."""
    return ", ".join(part.revision for part in parts if part.revision is not None) or None


def _parse_one(name: str) -> Source:
    if name.startswith("hf://"):
        return _dataset(name.removeprefix("hf://"), name)
    path = _QUERY.split(name, maxsplit=1)[0]
    if Path(path).is_dir():
        return _dataset(name, name)
    if Path(name).is_file() or not _GLOB.search(name):
        found = [Path(name)] if Path(name).is_file() else []
    else:
        found = sorted(Path(match) for match in glob.glob(name, recursive=True) if Path(match).is_file())
    if not found:
        raise UserError(f"source: {name} matches no file; give a path, a glob, a dataset folder or hf://owner/name.")
    return Source(found)


def _dataset(spec: str, name: str) -> Source:
    path, *query = _QUERY.split(spec, maxsplit=1)
    options = dict(parse_qsl(query[0])) if query else {}
    if unknown := set(options) - {"config", "split", "revision"}:
        raise UserError(f"source: {name} has an unknown option {min(unknown)}; known are config, split, revision.")
    if not path or ("?" in path and not Path(path).exists()):
        raise UserError(f"source: {name} cannot be read; write hf://owner/name?config=…&split=…&revision=….")
    return Source([], path, **options)


def read_rows(source: Source, wanted: set[str]) -> Iterator[Row]:
    """Every row of `source`. Of Parquet and datasets only the columns in `wanted` are read.

    Errors: UserError for a file that is cut off, damaged, or of no known form.
    """
    if source.dataset is not None:
        yield from hub.dataset_rows(source, wanted)
        return
    for path in source.files:
        with files.cut_off(path), files.open_bytes(path) as stream:
            head = stream.peek(8)[:4]
            if head == files.PARQUET:
                yield from _parquet_rows(path, stream, wanted)
                continue
            text = files.utf8(stream, path)
            if files.starts_array(text):
                for line, item in files.array_items(text, path):
                    yield Row(str(path), line, item)
            else:
                yield from _json_lines(path, text)


def _json_lines(path: Path, stream) -> Iterator[Row]:
    for line, content in files.lines(stream):
        try:
            yield Row(str(path), line, loads(content))
        except ValueError as error:
            if not content.endswith(b"\n"):  # no newline: the file ends here, in the middle of a row
                raise UserError(
                    f"{path}: line {line}, the last one, is not a whole JSON value ({error}); "
                    "fetch the file again, or delete that line."
                ) from None
            yield Row(str(path), line, None, f"{error}")


def loads(content: bytes) -> object:
    """One JSON value. NaN, lone surrogates and integers of any size are read; of equal keys the last one counts.

    Errors: ValueError with a short reason.
    """
    try:
        value = orjson.loads(content)
    except orjson.JSONDecodeError:
        try:
            return json.loads(content.decode("utf-8", "surrogatepass"))
        except UnicodeDecodeError:
            raise ValueError("not UTF-8") from None
        except json.JSONDecodeError as error:
            raise ValueError(f"{error.msg} at column {error.colno}") from None
        except RecursionError:
            raise ValueError("nested too deeply") from None
    if isinstance(value, dict) and isinstance(value.get("id"), float):
        return json.loads(content)  # the fast parser makes a float of an integer beyond 64 bits
    return value


def _parquet_rows(path: Path, stream, wanted: set[str]) -> Iterator[Row]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.ParquetFile(files.seekable(stream), pre_buffer=False, buffer_size=1 << 20)
    except (pa.ArrowInvalid, OSError) as error:
        reason = str(error).split("\n", 1)[0].rstrip(".")
        raise UserError(f"{path}: not a whole Parquet file ({reason}); fetch it again.") from None
    names = table.schema_arrow.names
    columns = [name for name in names if name in wanted]
    if names and not columns:
        raise UserError(f"{path}: no column that holds prompts among {', '.join(names)}; name it under `columns`.")
    try:
        for batch in table.iter_batches(batch_size=256, columns=columns):
            for value in batch.to_pylist():
                yield Row(str(path), None, without_nulls(value))
    except (pa.ArrowException, OSError) as error:
        reason = str(error).split("\n", 1)[0].rstrip(".")
        raise UserError(f"{path}: damaged Parquet data ({reason}); fetch the file again.") from None
