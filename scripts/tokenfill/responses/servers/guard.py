"""A process between the job and the server it launched, so that the server ends with the job, however that ends.

    python guard.py PATIENCE COMMAND...

Its stdin is a pipe that the job alone holds: at its end the server's whole process group gets TERM, and KILL after
PATIENCE seconds. Its stdout tells the job `started PID`, `ended STATUS` or `failed REASON`. Started as a file, not as
a module: it needs the standard library alone and is up at once.
"""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time


def main(patience: float, command: list[str]) -> None:
    """Hold one server from its start to its end."""
    try:
        server = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=sys.stderr, start_new_session=True)
    except OSError as error:
        _tell(f"failed {error.strerror}")
        return

    def end(*_) -> None:
        threading.Thread(target=_end_group, args=(server.pid, patience), daemon=True).start()

    def wait_for_the_job() -> None:
        while os.read(0, 1 << 10):
            pass
        end()

    signal.signal(signal.SIGTERM, end)
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # a Ctrl-C is the job's to answer: it still drains
    _tell(f"started {server.pid}")
    threading.Thread(target=wait_for_the_job, daemon=True).start()
    # Seen but not yet reaped, so that the group's id is still its own when the rest of the group is ended.
    os.waitid(os.P_PID, server.pid, os.WEXITED | os.WNOWAIT)
    _signal_group(server.pid, signal.SIGKILL)
    _tell(f"ended {server.wait()}")


def _end_group(group: int, patience: float) -> None:
    _signal_group(group, signal.SIGTERM)
    time.sleep(patience)
    _signal_group(group, signal.SIGKILL)


def _signal_group(group: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def _tell(line: str) -> None:
    with contextlib.suppress(OSError):  # the job may be gone
        os.write(1, f"{line}\n".encode())


if __name__ == "__main__":
    main(float(sys.argv[1]), sys.argv[2:])
