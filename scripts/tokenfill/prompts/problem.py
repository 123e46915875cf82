"""Why a row gives no prompt: one exception with a reason to count by and a detail to read."""


class RowProblem(Exception):
    """A row is put aside. `reason` is a word in snake_case that is counted, `detail` says more where there is more."""

    def __init__(self, reason: str, detail: str = ""):
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason, self.detail = reason, detail
