"""Places on one server, shared by every worker on it: byte-range locks that the kernel drops when a holder dies.

One file per server; locking byte i is holding place i. A worker that is killed in any way leaves nothing behind. Which
servers there are, and how many places are good for each, is not known here.
"""

import errno
import fcntl
import hashlib
import heapq
import os
import re
import struct
from pathlib import Path
from urllib.parse import urlsplit

# Beyond any number of places: byte WANTED + r is held by the worker of rank r while it waits for a place.
WANTED = 1 << 40
_FLOCK = "hhqqi4x"  # struct flock of 64-bit Linux: type, whence, start, length, pid


class NoLocks(OSError):
    """The file system has no byte-range locks."""


class Places:
    """This process's share of one server's places.

    A process must hold one object per file at most, since closing any descriptor of a file drops all of the process's
    locks on it. `rank`: whoever has the lower one is served first.
    """

    def __init__(self, path: Path, rank: int):
        """Raises NoLocks where the file system cannot lock, OSError where the file cannot be made."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        self._rank = rank
        self._held: set[int] = set()
        self._returned: list[int] = []  # places below the frontier that are free, as far as we know
        self._frontier = 0  # all below were ours or somebody else's when we looked
        self._is_waiting = False
        try:
            self._blocker(0, 1)
        except OSError as error:
            os.close(self._file)
            raise NoLocks(error.errno, error.strerror, str(path)) from error

    @property
    def held(self) -> int:
        """Places that this worker holds."""
        return len(self._held)

    def take(self, limit: int) -> int | None:
        """A place below `limit`, or None: all are taken, or a worker of lower rank waits for one.

        What others gave back since we looked is only seen after `has_free`.
        """
        if len(self._held) >= limit or self._older_one_waits():
            return None
        while self._returned and self._returned[0] < limit:
            place = heapq.heappop(self._returned)
            if place not in self._held and self._lock(fcntl.F_WRLCK, place):
                self._held.add(place)
                return place
        while self._frontier < limit:
            place = self._frontier
            if place in self._held:
                self._frontier += 1
            elif self._lock(fcntl.F_WRLCK, place):
                self._frontier += 1
                self._held.add(place)
                return place
            elif blocker := self._blocker(place, 1):
                self._frontier = blocker[1]
        return None

    def give_back(self, place: int) -> None:
        """Free a place for whoever asks next."""
        self._held.remove(place)
        self._lock(fcntl.F_UNLCK, place)
        heapq.heappush(self._returned, place)

    def wait(self) -> None:
        """Ask workers of higher rank to take no new places until `stop_waiting`."""
        if not self._is_waiting:
            self._is_waiting = self._lock(fcntl.F_WRLCK, WANTED + self._rank)

    def stop_waiting(self) -> None:
        """Let workers of higher rank take places again."""
        if self._is_waiting:
            self._lock(fcntl.F_UNLCK, WANTED + self._rank)
            self._is_waiting = False

    def has_free(self, limit: int) -> bool:
        """Whether `take` would find a place now, without taking it."""
        if len(self._held) >= limit or self._older_one_waits():
            return False
        place = 0
        while place < limit:
            if place in self._held:
                place += 1
            elif blocker := self._blocker(place, 1):
                place = blocker[1]
            else:
                self._frontier = place
                return True
        return False

    def held_by_others(self, limit: int) -> int:
        """Places below `limit` that other workers hold."""
        count = 0
        pending = [(0, limit)]
        while pending:
            start, end = pending.pop()
            blocker = self._blocker(start, end - start) if start < end else None
            if blocker:
                first, past = max(start, blocker[0]), min(end, blocker[1])
                count += past - first
                pending += [(start, first), (past, end)]
        return count

    def close(self) -> None:
        """Give everything back."""
        os.close(self._file)
        self._held.clear()

    def _older_one_waits(self) -> bool:
        return self._rank > 0 and self._blocker(WANTED, self._rank) is not None

    def _blocker(self, start: int, length: int) -> tuple[int, int] | None:
        """[start, end) of a lock of another worker in a range, or None."""
        asked = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, start, length, 0)
        kind, _, first, span, _ = struct.unpack(_FLOCK, fcntl.fcntl(self._file, fcntl.F_GETLK, asked))
        return None if kind == fcntl.F_UNLCK else (first, first + span if span else WANTED * 2)

    def _lock(self, kind: int, place: int) -> bool:
        try:
            fcntl.fcntl(self._file, fcntl.F_SETLK, struct.pack(_FLOCK, kind, os.SEEK_SET, place, 1, 0))
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EACCES):
                return False
            raise
        return True


class PrivatePlaces:
    """The same for a worker that shares with nobody."""

    def __init__(self) -> None:
        self.held = 0

    def take(self, limit: int) -> int | None:
        if self.held >= limit:
            return None
        self.held += 1
        return self.held

    def give_back(self, place: int) -> None:
        self.held -= 1

    def has_free(self, limit: int) -> bool:
        return self.held < limit

    def held_by_others(self, limit: int) -> int:
        return 0

    def wait(self) -> None:
        """There is nobody to ask."""

    stop_waiting = close = wait


def places_file(folder: Path, url: str) -> Path:
    """The file of a server's places: readable, without user and password, and one for each server and path."""
    parts = urlsplit(url)
    address = f"{parts.hostname}:{parts.port or (443 if parts.scheme == 'https' else 80)}{parts.path.rstrip('/')}"
    readable = re.sub(r"[^A-Za-z0-9.-]+", "_", address)[:80]
    return folder / f"{readable}-{hashlib.sha256(address.encode()).hexdigest()[:8]}.places"
