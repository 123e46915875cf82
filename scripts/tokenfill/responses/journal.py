"""The append-only journal of one dataset: who may write it, how a torn tail is mended, how lines go to disk."""

import base64
import contextlib
import fcntl
import json
import os
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import orjson

from tokenfill.errors import TemporaryFailure, UserError
from tokenfill.responses.answers import is_well_formed

NAME = "raw_responses.jsonl"


def parse(raw: bytes) -> dict | None:
    """One journal line, or None where the bytes are no line of ours."""
    try:
        line = orjson.loads(raw)
    except orjson.JSONDecodeError:
        return None
    return line if is_well_formed(line) else None


def read(path: Path) -> Iterator[tuple[int, dict | None, bytes]]:
    """(byte offset, line or None, raw bytes) of every line that is not blank; nothing if there is no file."""
    with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
        offset = 0
        for raw in file:
            if not raw.isspace():
                yield offset, parse(raw), raw
            offset += len(raw)


def read_lines(path: Path, places: tuple[int, ...]) -> list[dict]:
    """The lines that stand at these byte offsets, as `read` gave them."""
    with path.open("rb") as file:
        lines = []
        for place in places:
            file.seek(place)
            lines.append(orjson.loads(file.readline()))
    return lines


class Journal:
    """A journal held for writing. Exactly one process holds it at a time.

    Opening it takes the lock and, while reading all lines, mends the end of the file: what a kill left of the
    last line is copied aside and cut off, so that the next line starts on a line of its own.
    """

    def __init__(self, folder: Path, say: Callable[[str], None]):
        self.path = folder / NAME
        self.unreadable = folder / "raw_responses.unreadable.txt"
        self._say = say
        try:
            self._lock = _lock(folder / "raw_responses.lock")
            self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        except OSError as error:
            raise UserError(f"{error.filename or folder} cannot be written: {error.strerror}.") from error
        self._synced = self.size = os.fstat(self._file).st_size

    def load(self) -> Iterator[tuple[int, dict]]:
        """Every whole line with its byte offset. What cannot be read is named, copied aside and passed over."""
        bad: list[tuple[int, int, bytes]] = []
        last_good = number = 0
        for number, (offset, line, raw) in enumerate(read(self.path), 1):
            if line is None:
                bad.append((number, offset, raw))
                continue
            last_good = offset + len(raw)
            is_whole = raw.endswith(b"\n")
            yield offset, line
        try:
            if last_good and not is_whole:
                os.write(self._file, b"\n")
                last_good += 1
            self.size = last_good
            self._put_aside(bad)
            if os.fstat(self._file).st_size > last_good:
                os.ftruncate(self._file, last_good)
        except OSError as error:
            raise self._unwritable(error) from error
        self._synced = -1

    def _put_aside(self, bad: list[tuple[int, int, bytes]]) -> None:
        """Copy unreadable lines to a file of their own, once each, and say what they were."""
        torn = [raw for _, offset, raw in bad if offset >= self.size]
        middle = [number for number, offset, _ in bad if offset < self.size]
        if torn:
            self._say(
                f"{self.path}: the last {sum(map(len, torn))} bytes are no whole line; cut off, "
                f"kept in {self.unreadable.name}"
            )
        if middle:
            numbers = ", ".join(map(str, middle[:20])) + (", …" if len(middle) > 20 else "")
            self._say(
                f"{self.path}: {len(middle)} lines cannot be read and do not count (line {numbers}); "
                f"copied to {self.unreadable.name}"
            )
        if bad:
            entries = [orjson.dumps({"offset": at, "base64": base64.b64encode(raw).decode()}) for _, at, raw in bad]
            with self.unreadable.open("a+b") as aside:
                aside.seek(0)
                known = aside.read().split(b"\n")
                torn_before = [b""] if known[-1] else []
                new = [entry for entry in entries if entry not in set(known)]
                aside.write(b"".join(line + b"\n" for line in torn_before + new))

    def append(self, line: dict) -> int:
        """Write one line whole and return its byte offset. On a full disk the file ends where it ended before.

        Raises TemporaryFailure with the reason where the file cannot be written.
        """
        raw = orjson.dumps(line) + b"\n"
        place = self.size
        try:
            written = os.write(self._file, raw)
            while written < len(raw):
                written += os.write(self._file, raw[written:])
        except OSError as error:
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, place)
            raise self._unwritable(error) from error
        self.size += len(raw)
        return place

    def sync(self) -> None:
        """Have the disk hold every line written so far. Raises TemporaryFailure where it cannot."""
        if self._synced == self.size:
            return
        size = self.size
        try:
            os.fdatasync(self._file)
        except OSError as error:
            raise self._unwritable(error) from error
        self._synced = size

    def _unwritable(self, error: OSError) -> TemporaryFailure:
        return TemporaryFailure(
            f"{error.filename or self.path} cannot be written: {error.strerror}. Every line before this one is kept; "
            "make room or mend the disk and run again."
        )

    def close(self) -> None:
        """Sync, and let the next writer in."""
        self.sync()
        os.close(self._file)
        os.close(self._lock)


def _lock(path: Path) -> int:
    """Take the lock for this process's life, or refuse by naming who holds it.

    The kernel holds it, so that no kill can leave it behind; the file only tells people whose it is.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        with os.fdopen(descriptor, "rb") as file:
            try:
                holder = json.loads(file.read())
                who = f"process {holder['pid']} on {holder['host']}"
            except (ValueError, KeyError, TypeError):
                who = "another process"
        raise UserError(
            f"{path.parent} is being filled by {who}; wait for it to end, or stop it, and run again."
        ) from None
    holder = {"host": socket.gethostname(), "pid": os.getpid(), "started": time.time()}
    with contextlib.suppress(OSError):  # it is for people; a full disk is told of by the journal
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps(holder).encode(), 0)
    return descriptor
