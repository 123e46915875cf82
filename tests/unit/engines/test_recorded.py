"""The protocol modules on answers of the real servers, as tests/servers/record_answers.py wrote them down."""

import json
from pathlib import Path

import pytest
from tokenfill.responses.engines import (
    KeyRefused,
    NotAnAnswer,
    WrongProtocol,
    behind,
    error_message,
    protocol,
)

RECORDED = {path.stem: json.loads(path.read_text()) for path in (Path(__file__).parent / "recorded").glob("*.json")}
API = {"llamacpp": "llamacpp", "sglang": "sglang", "vllm": "vllm", "router": "sglang"}
IM_END = 274


def test_all_four_lanes_are_recorded():
    assert RECORDED.keys() == API.keys()


@pytest.fixture(params=API)
def lane(request):
    return request.param


@pytest.fixture
def speaks(lane):
    return protocol(API[lane])


@pytest.fixture
def answers(lane):
    return RECORDED[lane]["answers"]


def pages(lane: str, of: str = "server") -> dict:
    return {path: tuple(page) for path, page in RECORDED[lane]["facts"][of].items()}


def test_an_answer_of_the_length_asked_for(lane, speaks, answers):
    reply = speaks.parse(answers["length"][1])
    assert len(reply.output_ids) == reply.completion_tokens == 12
    assert reply.finish_reason == "length"
    assert reply.prompt_tokens == len(RECORDED[lane]["asked"]["ids"])


def test_the_same_ids_from_every_server():
    greedy = [protocol(API[lane]).parse(told["answers"]["length"][1]).output_ids for lane, told in RECORDED.items()]
    assert all(ids == greedy[0] for ids in greedy)


def test_a_stop_id_ends_the_answer_and_is_in_it(lane, speaks, answers):
    reply = speaks.parse(answers["stop_id"][1])
    if speaks.STOPS_AT_IDS:
        assert reply.output_ids[-1] == RECORDED[lane]["asked"]["stop_id"]
        assert len(reply.output_ids) == 3
        assert reply.finish_reason == "stop"
    else:
        assert len(reply.output_ids) == 12


def test_the_end_of_turn_token_is_in_the_ids_and_in_the_text(speaks, answers):
    reply = speaks.parse(answers["end_of_turn"][1])
    assert reply.finish_reason == "stop"
    assert reply.output_ids[-1] == IM_END
    assert IM_END not in reply.output_ids[:-1]
    assert reply.text.endswith("<|im_end|>")
    assert reply.completion_tokens == len(reply.output_ids)


def test_an_aborted_answer_is_none_and_its_piece_is_kept(lane, speaks, answers):
    if lane == "llamacpp":
        assert speaks.abort("x") is None
        return
    status, body = answers["abort"]
    assert status == 200
    with pytest.raises(NotAnAnswer) as told:
        speaks.parse(body)
    assert told.value.kind == "abort"
    assert told.value.reply.completion_tokens == len(told.value.reply.output_ids) > 0


def test_errors_are_one_line_that_says_what_is_wrong(lane, answers):
    expected = {
        "too_long": (400, ("context", "maximum")),
        "no_ids": (400, ("empty", "prompt", "at least one")),
        "unknown_id": (400, ("vocabulary", "invalid tokens")),
        "wrong_model": (404, ("other",)),
        "wrong_protocol": (404, ("Not Found", "without a message")),
        "wrong_key": (401, ("Unauthorized", "Invalid", "without a message")),
    }
    for name in expected.keys() & answers.keys():
        status, words = expected[name]
        got, body = answers[name]
        line = error_message(got, body)
        assert got == status, name
        assert any(word.lower() in line.lower() for word in words), (name, line)
        assert "\n" not in line


def test_what_the_servers_say_of_themselves():
    facts = {lane: protocol(API[lane]).facts(pages(lane)) for lane in API}
    assert {lane: told.models for lane, told in facts.items()} == dict.fromkeys(API, ("tiny",))
    assert {lane: told.context_length for lane, told in facts.items()} == {
        "llamacpp": 2048,
        "sglang": 2048,
        "vllm": 2048,
        "router": None,
    }
    assert (facts["llamacpp"].capacity, facts["llamacpp"].vocab_size) == (32, 320)
    assert (facts["sglang"].capacity, facts["sglang"].version) == (32, "0.5.23")
    assert (facts["vllm"].capacity, facts["vllm"].version) == (None, "0.32.0")
    assert [facts[lane].piece for lane in API] == [None, "abort", "abort", None]
    assert facts["sglang"].arguments["dtype"] == "float32"


def test_a_routers_facts_are_filled_in_by_its_workers():
    speaks = protocol("sglang")
    router, worker = speaks.facts(pages("router")), speaks.facts(pages("router", "worker"))
    assert router.workers == ("http://127.0.0.1:30001", "http://127.0.0.1:30002")
    whole = behind(router, [worker, worker])
    assert (whole.context_length, whole.capacity, whole.version) == (2048, 64, "0.5.23")
    assert whole.piece == "abort"
    assert whole.workers == router.workers


def test_no_key_is_among_the_facts(lane, speaks):
    assert "sesame" not in repr(speaks.facts(pages(lane)))


@pytest.mark.parametrize("asked", ["sglang", "vllm", "llamacpp"])
def test_another_servers_facts_are_refused_with_the_remedy(lane, asked):
    """Asked in the wrong protocol, a server has only the pages it has."""
    if asked == API[lane]:
        return
    speaks = protocol(asked)
    own = {path: page for path, page in pages(lane).items() if path in speaks.FACTS_PATHS}
    told = {path: own.get(path, (404, {"detail": "Not Found"})) for path in speaks.FACTS_PATHS}
    with pytest.raises(WrongProtocol, match=r"engine\.api"):
        speaks.facts(told)


def test_a_refused_key_is_told_from_a_wrong_protocol(speaks):
    with pytest.raises(KeyRefused, match=r"engine\.api_key_env"):
        speaks.facts(dict.fromkeys(speaks.FACTS_PATHS, (401, '{"error":"Unauthorized"}')))


class TestStreaming:
    """vLLM's streamed answers."""

    speaks = protocol("vllm")
    events = property(lambda self: RECORDED["vllm"]["answers"]["stream"].encode())

    def test_the_whole_stream_is_an_answer(self):
        reply = self.speaks.parse(self.speaks.join(self.events))
        assert reply.completion_tokens == len(reply.output_ids) > 12
        assert reply.output_ids[:12] == self.speaks.parse(RECORDED["vllm"]["answers"]["length"][1]).output_ids

    def test_cut_anywhere_it_is_a_piece_of_that_answer(self):
        whole = self.speaks.parse(self.speaks.join(self.events))
        lengths = set()
        for end in range(0, self.events.index(b'finish_reason": "') if b'finish_reason": "' in self.events else 400, 7):
            with pytest.raises(NotAnAnswer) as told:
                self.speaks.parse(self.speaks.join(self.events[:end]))
            piece = told.value.reply.output_ids if told.value.reply else []
            assert piece == whole.output_ids[: len(piece)]
            lengths.add(len(piece))
        assert 0 in lengths
        assert max(lengths) >= 1
