"""The wish for a place while other workers hold them all: looked after until it is granted or forgotten."""

import asyncio
import time
from collections.abc import Callable

POLL_SECONDS = 0.05
LOST_INTEREST = 0.5


class Wish:
    """Calls `look(True)` every POLL_SECONDS while the wish is renewed, and `look(False)` once after it no longer is."""

    def __init__(self, look: Callable[[bool], None]):
        self._look = look
        self._renewed_at = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def renew(self) -> None:
        """There was no place just now."""
        self._renewed_at = time.monotonic()
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(POLL_SECONDS, self._due)

    def drop(self) -> None:
        """Look no more."""
        if self._timer:
            self._timer.cancel()
            self._timer = None

    def _due(self) -> None:
        self._timer = None
        is_wanted = time.monotonic() - self._renewed_at <= LOST_INTEREST
        if is_wanted:
            self._timer = asyncio.get_running_loop().call_later(POLL_SECONDS, self._due)
        self._look(is_wanted)
