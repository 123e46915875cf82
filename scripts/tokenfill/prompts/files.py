"""Bytes of local files: compression, encodings, lines, JSON arrays. What a row means is not decided here."""

import codecs
import gzip
import io
import json
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import zstandard

from tokenfill.errors import UserError

GZIP, ZSTD, PARQUET = b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"PAR1"
_BOMS = (  # the longer first: a UTF-32 mark begins like a UTF-16 one
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_CHUNK = 1 << 20


class _ZstdReader(io.RawIOBase):
    """Decompressed bytes of one or more zstd frames; a frame that is cut off raises EOFError."""

    def __init__(self, raw: BinaryIO):
        self._raw, self._buffer, self._frame = raw, memoryview(b""), None

    def readable(self) -> bool:
        return True

    def readinto(self, target) -> int:
        while not self._buffer:
            if not self._refill():
                return 0
        taken = self._buffer[: len(target)]
        target[: len(taken)] = taken
        self._buffer = self._buffer[len(taken) :]
        return len(taken)

    def _refill(self) -> bool:
        rest = self._frame.unused_data if self._frame is not None and self._frame.eof else b""
        chunk = rest or self._raw.read(_CHUNK)
        if not chunk:
            if self._frame is not None and not self._frame.eof:
                raise EOFError("the last zstd frame is cut off")
            return False
        if self._frame is None or self._frame.eof:
            self._frame = zstandard.ZstdDecompressor(max_window_size=1 << 31).decompressobj()
        self._buffer = memoryview(self._frame.decompress(chunk))
        return True


def open_bytes(path: Path) -> BinaryIO:
    """The file's decompressed bytes, buffered. Compression is told by the first bytes, not by the name."""
    try:
        raw = open(path, "rb", buffering=_CHUNK)  # noqa: SIM115, the caller closes it
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); check `source`.") from None
    head = raw.peek(4)[:4]
    if head.startswith(GZIP):
        return io.BufferedReader(gzip.GzipFile(fileobj=raw), _CHUNK)
    if head.startswith(ZSTD):
        return io.BufferedReader(_ZstdReader(raw), _CHUNK)
    return raw


class cut_off:
    """Context: turns the errors of truncated or damaged compressed files into one sentence that names the file."""

    def __init__(self, path: Path):
        self.path = path

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace) -> bool:
        if isinstance(error, EOFError | zlib.error | gzip.BadGzipFile | zstandard.ZstdError):
            raise UserError(
                f"{self.path}: the compressed data is cut off or damaged ({error}); fetch the file again."
            ) from None
        return False


def seekable(stream: BinaryIO) -> BinaryIO:
    """`stream` itself if it is a plain file, else its whole content in an unnamed temporary file."""
    if not isinstance(getattr(stream, "raw", None), gzip.GzipFile | _ZstdReader):
        return stream
    spooled = tempfile.TemporaryFile()  # noqa: SIM115, it goes with its last reader
    while chunk := stream.read(_CHUNK):
        spooled.write(chunk)
    spooled.seek(0)
    return spooled


def utf8(stream: BinaryIO, path: Path) -> BinaryIO:
    """The stream without its byte order mark, recoded to UTF-8 if that mark says UTF-16 or UTF-32."""
    head = stream.peek(4)[:4]
    if head.startswith(codecs.BOM_UTF8):
        stream.read(len(codecs.BOM_UTF8))
        return stream
    for mark, encoding in _BOMS:
        if head.startswith(mark):
            return io.BufferedReader(_Recoded(stream, encoding, path), _CHUNK)
    if b"\0" in head:
        raise UserError(f"{path}: line 1 is not UTF-8 text; save the file as UTF-8.")
    return stream


class _Recoded(io.RawIOBase):
    """UTF-8 bytes of text that is stored in another encoding."""

    def __init__(self, stream: BinaryIO, encoding: str, path: Path):
        self._stream, self._path, self._buffer = stream, path, b""
        self._decoder = codecs.getincrementaldecoder(encoding)()

    def readable(self) -> bool:
        return True

    def readinto(self, target) -> int:
        while not self._buffer:
            chunk = self._stream.read(_CHUNK)
            try:
                text = self._decoder.decode(chunk, final=not chunk)
            except UnicodeDecodeError as error:
                raise UserError(f"{self._path}: damaged {error.encoding} text; save the file as UTF-8.") from None
            self._buffer = text.encode("utf-8", "surrogatepass")
            if not chunk:
                break
        taken = self._buffer[: len(target)]
        target[: len(taken)] = taken
        self._buffer = self._buffer[len(taken) :]
        return len(taken)


def starts_array(stream: BinaryIO) -> bool:
    """Whether the first byte that is not white space opens a JSON array."""
    return stream.peek(_CHUNK)[:_CHUNK].lstrip()[:1] == b"["


def lines(stream: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """(line number from 1, its bytes) of every line that is not blank. Only a line feed ends a line."""
    for number, line in enumerate(stream, 1):
        if not line.isspace():
            yield number, line


def array_items(stream: BinaryIO, path: Path) -> Iterator[tuple[int, object]]:
    """(line number from 1, item) of a JSON array, read piece by piece so that its size does not matter."""
    decoder = json.JSONDecoder()
    reader = codecs.getreader("utf-8")(stream, errors="surrogateescape")
    text, at, line, size = "", 0, 1, _CHUNK
    ended = False

    def refill() -> bool:
        nonlocal text, at, line, size, ended
        line += text.count("\n", 0, at)
        more = reader.read(size)
        ended = not more
        text, at = text[at:] + more, 0
        return bool(more)

    def skip_space() -> str:
        nonlocal at
        while True:
            while at < len(text) and text[at] in " \t\r\n":
                at += 1
            if at < len(text) or not refill():
                return text[at : at + 1]

    def refuse(what: str):
        number = line + text.count("\n", 0, at)
        return UserError(f"{path}: line {number}: {what}; fetch or write the file again.")

    skip_space()
    at += 1
    while True:
        mark = skip_space()
        if mark == "]":
            return
        if mark == ",":
            at += 1
            continue
        if not mark:
            raise refuse("the JSON array is cut off")
        while True:
            try:
                item, end = decoder.raw_decode(text, at)
                # a number that touches the end of the text may go on in the next piece
                if end < len(text) or ended or not refill():
                    break
            except json.JSONDecodeError as error:
                complete = error.pos < len(text) - 16 and not error.msg.startswith("Unterminated string")
                size = min(size * 2, 1 << 28)
                if complete or not refill():
                    what = "the JSON array is cut off" if ended else f"not valid JSON ({error.msg})"
                    raise refuse(what) from None
        size = _CHUNK
        yield line + text.count("\n", 0, at), item
        at = end
