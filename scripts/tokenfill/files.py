"""Replacing a file in one step, so that no reader and no kill ever meets half of it."""

import contextlib
import os
from pathlib import Path


def replace(path: Path, text: str, is_durable: bool = True) -> None:
    """Write `text` to `path` by way of a file beside it, synced before it takes the name. Raises OSError.

    `is_durable=False` leaves the sync out, for what may be lost with the power.
    """
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with unfinished.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            if is_durable:
                os.fsync(file.fileno())
        os.replace(unfinished, path)
    except BaseException:
        with contextlib.suppress(OSError):
            unfinished.unlink()
        raise
