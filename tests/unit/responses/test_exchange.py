"""What a request asks and what its reply is in the journal, without a server."""

from types import SimpleNamespace

import pytest
from neutral_sampling import NEUTRAL
from tokenfill.responses.answers import PART
from tokenfill.responses.engines import Reply, llamacpp, sglang
from tokenfill.responses.exchange import Exchange
from tokenfill.responses.failures import Failure
from tokenfill.responses.prompt_table import Prompt
from tokenfill.responses.work import Ask

STOP = 2


def exchange(protocol=sglang, part_tokens=8, **sampling) -> Exchange:
    dataset = SimpleNamespace(
        name="chat",
        settings={"identity": {"sampling": NEUTRAL | {"seed": None} | sampling}},
        stop_token_ids=[STOP],
        prompts=SimpleNamespace(facts={"vocab_size": 100}),
        settings_digest="0123456789abcdef",
    )
    return Exchange(dataset, protocol, part_tokens)


@pytest.fixture
def ask():
    prompt = Prompt(id="row-1", prompt_hash="cd", turn=0, input_ids=[10, 11, 12])
    return Ask(prompt=prompt, sample=0, allowance=20)


def reply(ids: list[int], reason: str = "length", prompt_tokens: int | None = None) -> Reply:
    return Reply(
        output_ids=ids,
        text=None,
        finish_reason=reason,
        prompt_tokens=prompt_tokens,
        completion_tokens=len(ids),
        model=None,
    )


def test_an_answer_is_asked_for_in_parts_up_to_its_allowance(ask):
    asked = []
    while len(ask.generated) < ask.allowance:
        asked.append(exchange().most_tokens(ask))
        ask.go_on(ask.generated + [5] * asked[-1], "http://gpu1:30000")
    assert asked == [8, 8, 4]


@pytest.mark.parametrize("penalty", ["repetition_penalty", "presence_penalty", "frequency_penalty"])
def test_penalties_keep_an_answer_in_one_piece(ask, penalty):
    assert exchange(**{penalty: 1.5}).most_tokens(ask) == 20


def test_a_protocol_may_want_shorter_parts_but_never_parts_that_are_turned_off(ask):
    assert exchange(llamacpp, part_tokens=10**6).most_tokens(Ask(ask.prompt, 0, 10**6)) == llamacpp.PART_TOKENS
    assert exchange(llamacpp, part_tokens=0).most_tokens(Ask(ask.prompt, 0, 10**6)) == 10**6


def test_a_part_is_asked_for_with_what_was_generated_so_far(ask):
    ask.go_on([7, 8], "http://gpu1:30000")
    body = exchange().request(ask, 8, "name", None, stream=False)
    assert body["input_ids"] == [10, 11, 12, 7, 8]
    assert body["sampling_params"]["max_new_tokens"] == 8


@pytest.mark.parametrize(
    ("begun", "ids", "reason", "finish"),
    [
        (0, [5] * 8, "length", PART),
        (12, [5] * 8, "length", "length"),
        (0, [5] * 3 + [STOP], "stop", "stop"),
        (0, [5] * 7 + [STOP], "length", "stop"),  # the stop token came as the last one that was allowed
    ],
)
def test_how_a_reply_ends_its_answer(ask, begun, ids, reason, finish):
    ask.generated = [6] * begun
    answer, flags = exchange().checked(ask, 8, reply(ids, reason, prompt_tokens=3 + begun))
    assert flags == []
    assert exchange().finish(ask, 8, answer) == finish


def test_a_server_that_read_fewer_ids_than_were_sent_cuts_prompts(ask):
    ask.generated = [6] * 4
    with pytest.raises(Failure, match="cuts prompts"):
        exchange().checked(ask, 8, reply([5] * 8, prompt_tokens=3))


@pytest.mark.parametrize(
    ("ids", "can"), [([], False), ([5], True), ([5, STOP], False), ([5, 100], False), ([5] * 8, False)]
)
def test_what_an_abort_brought_back_goes_on_only_where_it_is_sound(ask, ids, can):
    assert exchange().can_go_on(8, reply(ids, "abort")) is can
    assert not exchange(part_tokens=0).can_go_on(20, reply(ids, "abort"))


def test_a_cycle_is_seen_over_the_parts_of_an_answer(ask):
    ask.generated = [5, 6] * 200
    assert exchange().line(ask, reply([5, 6] * 60), "length", [])["flags"] == ["cycle"]
    assert exchange().line(ask, reply([5, 6] * 60), PART, [])["flags"] == []


def test_a_seed_belongs_to_its_part(ask):
    first = exchange(seed=7).line(ask, reply([5]), PART, [])["seed"]
    again = exchange(seed=7).request(ask, 8, "name", None, stream=False)["sampling_params"]["sampling_seed"]
    ask.go_on([5], "http://gpu1:30000")
    second = exchange(seed=7).line(ask, reply([5]), PART, [])["seed"]
    assert first == again != second
    assert exchange().line(ask, reply([5]), PART, [])["seed"] is None
