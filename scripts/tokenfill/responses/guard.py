"""Holds a launched server and ends it when the job that asked for it is gone, however it went. A program of its own.

Usage: python guard.py LOG COMMAND…, with a pipe from the job as standard input. Its end ends the server's whole group.
Exits with the server's own status.
"""

import contextlib
import os
import signal
import subprocess
import sys
import threading

GRACE_SECONDS = 5.0


def main(log: str, command: list[str]) -> int:
    """Run `command` with its output appended to `log`, until it ends or standard input does."""
    with open(log, "ab") as output:
        server = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
        )
    threading.Thread(target=_end_with_the_job, args=(server,), daemon=True).start()
    status = server.wait()
    _signal_group(server.pid, signal.SIGKILL)  # what it may have left of its own
    return status if status >= 0 else 128 - status


def _end_with_the_job(server: subprocess.Popen) -> None:
    while os.read(0, 4096):
        pass
    _signal_group(server.pid, signal.SIGTERM)
    try:
        server.wait(GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        _signal_group(server.pid, signal.SIGKILL)


def _signal_group(group: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, number)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
