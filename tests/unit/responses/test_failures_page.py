"""The table for readers is the table in the code."""

from pathlib import Path

from tokenfill.responses.failures import CLASSES, Decision

PAGE = Path(__file__).parents[3] / "docs/failures.md"


def test_the_page_and_the_code_agree():
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in PAGE.read_text().splitlines()]
    told = {row[0].strip("`"): row[2:] for row in rows if len(row) == 6 and row[0].startswith("`")}
    expected = {}
    for name, row in CLASSES.items():
        attempts = "\u2013" if row.decision is not Decision.RETRY else str(row.attempts or "no limit")
        words = {True: "yes", False: "no"}
        expected[name] = [row.decision.value, attempts, words[row.is_transient], words[row.takes_server_out]]
    assert told == expected
