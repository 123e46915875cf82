"""The queue: fixed order, unfinished first, every answer handed out once."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tokenfill.errors import UserError
from tokenfill.responses.answers import Counting, fold
from tokenfill.responses.failures import Failure, Ledger
from tokenfill.responses.prompt_table import PromptTable
from tokenfill.responses.work import Limits, Work

VOCAB = 50


@pytest.fixture
def table(tmp_path):
    def build(lengths=(3, 4, 5, 6), group=2):
        rows = pa.table(
            {
                "id": [f"p{number}" for number in range(len(lengths))],
                "turn": pa.array([0] * len(lengths), pa.int32()),
                "prompt_hash": [f"h{number}" for number in range(len(lengths))],
                "input_ids": pa.array([[7] * length for length in lengths], pa.list_(pa.int32())),
            }
        ).replace_schema_metadata({"tokenfill": json.dumps({"vocab_size": VOCAB})})
        pq.write_table(rows, tmp_path / "prompts.parquet", row_group_size=group)
        return PromptTable(tmp_path / "prompts.parquet")

    return build


def line(number, part=0, finish="stop", sample=0):
    return {
        "id": f"p{number}",
        "prompt_hash": f"h{number}",
        "sample": sample,
        "turn": 0,
        "part": part,
        "output_ids": [1, 2],
        "finish_reason": finish,
        "prompt_tokens": 3,
        "max_new_tokens": 100,
        "server": "http://a",
    }


def work(table, tmp_path, lines=(), room=lambda prompt_tokens: None, reached=(), **counting):
    answers = {}
    for place, each in enumerate(lines):
        fold(answers, each, place)
    limits = Limits(Counting(max_new_tokens=100, **counting), 1, VOCAB, room)
    ledger = Ledger(tmp_path / "failures.jsonl", "s")
    return Work(table, answers, limits, ledger, lambda answer: [1, 2] * len(answer.places), dict(reached)), ledger


def drained(queue):
    asks = []
    while True:
        ask = queue.owed(0.0, crashes=0, suspects_allowed=True, only_begun=False)
        if ask is None:
            if queue.peek_fresh() is None:
                return [f"{ask.prompt.id}.{ask.sample}.{ask.part}" for ask in asks]
            ask = queue.take_fresh()
        asks.append(ask)


def test_prompts_come_in_the_order_of_the_table(table, tmp_path):
    queue, _ = work(table(), tmp_path)
    assert drained(queue) == ["p0.0.0", "p1.0.0", "p2.0.0", "p3.0.0"]


def test_answered_prompts_are_not_asked_again_and_unfinished_go_first(table, tmp_path):
    queue, _ = work(table(), tmp_path, [line(0), line(2, finish="part"), line(2, 1, "part"), line(3)])
    assert queue.waiting_count() == 1
    ask = queue.owed(0.0, crashes=0, suspects_allowed=True, only_begun=False)
    assert (ask.prompt.id, ask.part, ask.generated, ask.stay_with) == ("p2", 2, [1, 2, 1, 2], "http://a")
    assert drained(queue) == ["p1.0.0"]


def test_all_prompts_once_before_any_twice(table, tmp_path):
    queue, _ = work(table((3, 3)), tmp_path, [line(1, sample=1)], samples_per_prompt=2)
    assert drained(queue) == ["p0.0.0", "p1.0.0", "p0.1.0"]


def test_a_broken_answer_is_given_up_and_neither_joined_nor_doubled(table, tmp_path):
    queue, ledger = work(table((3, 3)), tmp_path, [line(0, 0, "part"), line(0, 2, "part")])
    assert drained(queue) == ["p1.0.0"]
    assert ledger.counts() == {"broken_answer": 1}


def test_prompts_that_no_server_may_be_sent_are_put_aside_by_name(table, tmp_path):
    queue, ledger = work(table((3, 0, 61, 3)), tmp_path, context_length=60)
    assert drained(queue) == ["p0.0.0", "p3.0.0"]
    assert ledger.counts() == {"bad_token_ids": 1, "too_long": 1}


def test_a_server_may_refuse_prompts_that_the_context_would_hold(table, tmp_path):
    queue, ledger = work(table((3, 9)), tmp_path, room=lambda prompt_tokens: 0 if prompt_tokens > 5 else 10)
    assert drained(queue) == ["p0.0.0"]
    assert ledger.counts() == {"too_long": 1}


def test_answers_are_allowed_what_the_context_leaves(table, tmp_path):
    queue, _ = work(table((30,)), tmp_path, context_length=60)
    assert queue.peek_fresh().allowance == 30


def test_retries_wait_until_they_are_ripe(table, tmp_path):
    queue, _ = work(table((3, 3)), tmp_path)
    first, second = (queue.peek_fresh() and queue.take_fresh() for _ in range(2))
    queue.retry_at(5.0, first)
    queue.retry_at(3.0, second)
    assert queue.owed(2.0, crashes=0, suspects_allowed=True, only_begun=False) is None
    assert queue.next_retry() == 3.0
    assert queue.owed(6.0, crashes=0, suspects_allowed=True, only_begun=False) is second
    assert queue.waiting_count() == 1


def test_once_the_budget_is_met_only_begun_answers_are_finished(table, tmp_path):
    queue, _ = work(table((3, 3)), tmp_path)
    fresh, begun = (queue.peek_fresh() and queue.take_fresh() for _ in range(2))
    begun.generated = [1]
    queue.retry_at(0.0, fresh)
    queue.retry_at(0.0, begun)
    assert queue.owed(1.0, crashes=0, suspects_allowed=True, only_begun=True) is begun
    assert queue.owed(1.0, crashes=0, suspects_allowed=True, only_begun=True) is None
    assert queue.waiting_count() == 0


def test_suspects_of_a_crash_go_out_one_at_a_time(table, tmp_path):
    queue, _ = work(table((3,)), tmp_path)
    suspect = queue.peek_fresh() and queue.take_fresh()
    suspect.crashes = 1
    queue.retry_at(0.0, suspect)
    assert queue.owed(1.0, crashes=0, suspects_allowed=False, only_begun=False) is None
    assert queue.owed(2.0, crashes=0, suspects_allowed=True, only_begun=False) is suspect


def test_a_death_that_shows_after_the_connection_broke_still_makes_a_suspect(table, tmp_path):
    queue, _ = work(table((3,)), tmp_path)
    ask = queue.peek_fresh() and queue.take_fresh()
    ask.lost_at = 2  # deaths that were known when the request was sent
    queue.retry_at(0.0, ask)
    assert queue.owed(1.0, crashes=2, suspects_allowed=False, only_begun=False) is ask
    queue.retry_at(0.0, ask)
    assert queue.owed(1.0, crashes=3, suspects_allowed=False, only_begun=False) is None
    assert queue.owed(2.0, crashes=4, suspects_allowed=True, only_begun=False) is ask
    assert ask.crashes == 1


def test_a_file_that_is_no_table_of_ours_is_refused_by_name(tmp_path):
    path = tmp_path / "prompts.parquet"
    path.write_bytes(b"PAR1 nonsense")
    with pytest.raises(UserError, match=r"prompts\.parquet is no table of prompts"):
        PromptTable(path)


def test_given_up_prompts_are_skipped_in_this_run(table, tmp_path):
    queue, ledger = work(table((3, 3)), tmp_path)
    ledger.give_up(("p1", "h1", 0, 0), Failure("malformed", "cut"), 6)
    assert drained(queue) == ["p0.0.0"]


def test_what_a_kill_threw_back_goes_first_and_once(table, tmp_path):
    reached = {"h2/0": 40, "h1/0": 7, "h9/0": 3, "h0/5": 1}
    queue, _ = work(table(), tmp_path, [line(1)], reached=reached.items())
    assert [(ask.prompt.id, ask.reached) for ask in queue.waiting()] == [("p2", 40)]
    assert drained(queue) == ["p2.0.0", "p0.0.0", "p3.0.0"]


def test_what_a_kill_threw_back_is_let_go_once_the_budget_is_met(table, tmp_path):
    queue, _ = work(table(), tmp_path, reached={"h2/0": 40}.items())
    assert queue.owed(0.0, crashes=0, suspects_allowed=True, only_begun=True) is None
