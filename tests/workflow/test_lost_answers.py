"""Answers, sentinels and records that vanish: what is done again, and what is not."""

import pytest


@pytest.mark.parametrize("harm", ["delete", "shorten"])
def test_a_journal_that_shrank_is_refilled(finished, server, harm):
    journal = finished.path("results/chat/raw_responses.jsonl")
    whole = journal.read_bytes()
    kept = whole.splitlines(keepends=True)[:4]
    journal.unlink() if harm == "delete" else journal.write_bytes(b"".join(kept))
    for _ in range(2):
        assert finished.plan()["generate_responses"] == {"chat"}
    finished.run()
    assert finished.complete("chat")["tokens"] == 200
    assert len(server.log) == (10 if harm == "delete" else 6)
    assert not finished.doubled("chat")
    assert finished.is_finished()


def test_a_journal_put_back_in_time_leaves_nothing_to_do(finished, server):
    journal = finished.path("results/chat/raw_responses.jsonl")
    aside = journal.rename(finished.path("aside.jsonl"))
    assert "chat" in finished.plan()["generate_responses"]
    aside.rename(journal)
    assert finished.is_finished()
    finished.run()
    assert server.log == []


def test_lost_records_alone_are_rebuilt(finished, server):
    records = finished.path("results/chat/records.jsonl")
    before = records.read_bytes()
    records.unlink()
    assert finished.plan() == {"build_records": {"chat"}}
    finished.run()
    assert records.read_bytes() == before
    assert server.log == []


def test_a_lost_sentinel_is_certified_again_to_the_byte(finished, server):
    complete = finished.path("results/chat/complete")
    before = complete.read_bytes()
    complete.unlink()
    finished.run()
    assert complete.read_bytes() == before
    assert server.log == []


def test_a_sentinel_cut_short_is_not_believed(finished, server):
    complete = finished.path("results/chat/complete")
    before = complete.read_bytes()
    complete.write_bytes(before[:40])
    finished.run()
    assert complete.read_bytes() == before
    assert finished.is_finished()
    assert server.log == []


def test_a_torn_last_line_is_asked_again_and_no_other(finished, server):
    journal = finished.path("results/chat/raw_responses.jsonl")
    whole = journal.read_bytes()
    journal.write_bytes(whole[:-30])
    finished.run()
    assert journal.read_bytes().startswith(whole[: whole.rindex(b"\n", 0, -1) + 1])
    assert len(server.log) == 1
    assert finished.complete("chat")["tokens"] == 200
