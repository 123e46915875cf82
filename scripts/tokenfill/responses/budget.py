"""The token budget: the one measure of done, asked by resume, admission, sentinel, status and dry run alike."""

from collections.abc import Mapping


def is_met(tokens: float, budget: int) -> bool:
    """Whether a dataset with this many counted tokens is done."""
    return tokens >= budget


def contradiction(complete: Mapping, budget: int, journal_sizes: Mapping[str, int]) -> str | None:
    """Why a `complete` cannot be trusted, or None.

    `journal_sizes` are the bytes of each journal file on disk today; a journal that grew is no contradiction.
    """
    for name, size in complete["journal"].items():
        if journal_sizes.get(name, 0) < size:
            return f"{name} has {journal_sizes.get(name, 0):,} bytes where {size:,} were certified"
    if complete["reason"] == "budget_met" and not is_met(complete["tokens"], budget):
        return f"{complete['tokens']:,} tokens are certified, fewer than the budget of {budget:,}"
    return None
