"""Between a rule's script and the library: how an error ends the job. Nothing here knows a rule."""

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tokenfill.errors import TemporaryFailure, UserError

MARK = "tokenfill: "  # how the sentence that ended a job begins in its log


@contextmanager
def one_sentence(log: str) -> Iterator[None]:
    """End the process with one sentence, on stderr and as the last line of `log`, when the job ends badly.

    Status 1 for what the user can mend and 75 for what asking again goes on with; anything else is a fault of
    ours, whose traceback goes to the log.
    """
    logging.basicConfig(filename=log, level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", force=True)
    try:
        yield
    except (UserError, TemporaryFailure) as error:
        _tell(str(error), log)
        sys.exit(TemporaryFailure.STATUS if isinstance(error, TemporaryFailure) else 1)
    except KeyboardInterrupt:  # where the job does not listen to signals itself
        _tell("stopped; the same command does this step again", log)
        sys.exit(130)
    except Exception as error:
        logging.exception("the job ended in a fault")
        _tell(f"{type(error).__name__}: {error} (a fault in tokenfill itself; the traceback is in {log})", log)
        sys.exit(1)


def last_sentence(log: Path) -> str | None:
    """The sentence that ended the job of this log, or None if it ended well, is running or was killed."""
    try:
        last = log.read_text(encoding="utf-8", errors="replace").rstrip("\n").rpartition("\n")[2]
    except OSError:
        return None
    return last.removeprefix(MARK) if last.startswith(MARK) else None


def _tell(sentence: str, log: str) -> None:
    """One line, whatever the sentence holds."""
    line = MARK + " ".join(sentence.split())
    print(line, file=sys.stderr, flush=True)
    with open(log, "a", encoding="utf-8") as file:
        file.write(line + "\n")
