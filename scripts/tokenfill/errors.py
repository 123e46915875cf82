"""How a run ends badly: the two errors that reach the user, each as one sentence."""


class UserError(Exception):
    """Something the user can mend. The message is one sentence that names file, key or line, and the remedy."""


class TemporaryFailure(Exception):
    """The run stopped early with everything kept; asking again goes on. The process ends with `STATUS`."""

    STATUS = 75  # EX_TEMPFAIL of sysexits.h
