"""What every protocol module claims of its server, tried on it: ids, counts, fields, limits, aborts, refusals."""

import asyncio
import json
import re

import pytest
from servers.running import CONTEXT_LENGTH, MODEL
from servers.talk import GREEDY, SAMPLED, Talk, prompt
from tiny_tokenizer import END_THINK, ENDOFTEXT, IM_END, VOCAB_SIZE
from tokenfill.responses.engines import KeyRefused, NotAnAnswer, WrongProtocol, error_message, protocol, wrong_model

STOPS = {IM_END, ENDOFTEXT}
ENDLESS = GREEDY | {"stop_token_ids": []}
QUESTIONS = [prompt(f"question {number}?") for number in range(40)]


async def all_replies(talk, session, prompts, most, sampling=GREEDY, **options) -> list:
    return await asyncio.gather(*(talk.reply(session, ids, most, sampling, **options) for ids in prompts))


def test_the_answer_is_ids_that_agree_with_the_servers_count(talk, chat):
    async def steps(session):
        return await all_replies(talk, session, QUESTIONS[:16], 200, SAMPLED)

    replies = chat(steps)
    for ids, reply in zip(QUESTIONS, replies, strict=False):
        assert reply.completion_tokens == len(reply.output_ids) > 0
        assert reply.prompt_tokens == len(ids)
        assert all(0 <= token < VOCAB_SIZE for token in reply.output_ids)


def test_a_stop_ends_at_a_stop_id_and_a_length_at_what_was_asked(talk, chat):
    async def steps(session):
        return await all_replies(talk, session, QUESTIONS[:32], 120, SAMPLED)

    replies = chat(steps)
    assert {reply.finish_reason for reply in replies} == {"stop", "length"}
    for reply in replies:
        assert STOPS.isdisjoint(reply.output_ids[:-1])
        if reply.finish_reason == "stop":
            assert reply.output_ids[-1] in STOPS
        else:
            assert len(reply.output_ids) == 120


def test_greedy_answers_are_the_same_alone_and_under_32_in_flight(talk, chat):
    async def steps(session):
        alone = [await talk.reply(session, ids, 60) for ids in QUESTIONS[:8]]
        together = await all_replies(talk, session, QUESTIONS[:8] + QUESTIONS[8:32], 60)
        return alone, together[:8]

    alone, together = chat(steps)
    assert [reply.output_ids for reply in alone] == [reply.output_ids for reply in together]
    assert len({tuple(reply.output_ids) for reply in alone}) > 4  # the prompt matters


def test_an_answer_in_parts_equals_the_answer_in_one_piece(talk, chat):
    async def steps(session):
        wholes, joined = [], []
        for ids in QUESTIONS[:10]:
            wholes.append((await talk.reply(session, ids, 240)).output_ids)
            parts = []
            while len(parts) < 240 and not STOPS.intersection(parts[-1:]):
                parts += (await talk.reply(session, ids + parts, 60)).output_ids
            joined.append(parts)
        return wholes, joined

    wholes, joined = chat(steps)
    assert joined == wholes
    assert any(len(ids) == 240 for ids in wholes)


def test_the_samplings_of_the_models_own_file_do_not_apply(talk, chat):
    """generation_config.json says temperature 0.7, top_k 20 and a repetition penalty of 1.3."""

    async def steps(session):
        greedy = await talk.reply(session, QUESTIONS[3], 60)
        again = await talk.reply(session, QUESTIONS[3], 60)
        drawn = await all_replies(talk, session, [QUESTIONS[3]] * 32, 1, SAMPLED)
        more = await all_replies(talk, session, [QUESTIONS[3]] * 32, 1, SAMPLED)
        return greedy, again, [reply.output_ids[0] for reply in drawn + more]

    greedy, again, drawn = chat(steps)
    assert greedy.output_ids == again.output_ids
    assert len(set(drawn)) > 20  # more than top_k 20 lets through


@pytest.mark.parametrize("narrow", [{"top_k": 1}, {"top_p": 1e-6}, {"min_p": 1.0}, {"temperature": 1e-4}])
def test_each_narrowing_field_arrives(talk, chat, narrow):
    async def steps(session):
        greedy = await talk.reply(session, QUESTIONS[3], 40)
        hot = SAMPLED | {"temperature": 1.5}
        free = await talk.reply(session, QUESTIONS[3], 40, hot)
        held = await talk.reply(session, QUESTIONS[3], 40, hot | narrow)
        return greedy.output_ids, free.output_ids, held.output_ids

    greedy, free, held = chat(steps)
    assert held == greedy
    assert free != greedy


@pytest.mark.parametrize(
    "penalty", [{"repetition_penalty": 2.0}, {"presence_penalty": 2.0}, {"frequency_penalty": 2.0}]
)
def test_each_penalty_arrives(talk, chat, penalty):
    async def steps(session):
        plain = await talk.reply(session, QUESTIONS[3], 200, ENDLESS)
        held = await talk.reply(session, QUESTIONS[3], 200, ENDLESS | penalty)
        return plain.output_ids, held.output_ids

    plain, held = chat(steps)
    repeated = [len(ids) - len(set(ids)) for ids in (plain, held)]
    assert repeated[1] / len(held) < repeated[0] / len(plain)


def test_stop_ids_of_our_own_are_obeyed(talk, chat):
    async def steps(session):
        whole = await talk.reply(session, QUESTIONS[3], 40)
        own = GREEDY | {"stop_token_ids": [*STOPS, whole.output_ids[5]]}
        return whole, await talk.reply(session, QUESTIONS[3], 40, own), set(own["stop_token_ids"])

    from tokenfill.responses.engines import cut_at_stop

    whole, stopped, stops = chat(steps)
    if not talk.protocol.STOPS_AT_IDS:
        stopped = cut_at_stop(stopped, stops)
    expected = whole.output_ids[: whole.output_ids.index(whole.output_ids[5]) + 1]
    assert (stopped.output_ids, stopped.finish_reason) == (expected, "stop")


def test_a_seed_is_taken(talk, chat):
    async def steps(session):
        return [(await talk.reply(session, QUESTIONS[1], 30, SAMPLED, seed=seed)).output_ids for seed in (7, 7, 8)]

    first, second, other = chat(steps)
    assert first != other
    if talk.api != "sglang":  # needs --enable-deterministic-inference there
        assert first == second


def test_the_text_shows_special_tokens(talk, chat):
    async def steps(session):
        return await all_replies(talk, session, QUESTIONS[:32], 200, SAMPLED)

    ended = [reply for reply in chat(steps) if reply.output_ids[-1] == IM_END]
    assert ended
    assert all(reply.text.endswith("<|im_end|>") for reply in ended)
    thought = [reply for reply in ended if END_THINK in reply.output_ids]
    assert all("</think>" in reply.text for reply in thought)


def test_the_longest_prompt_that_room_allows_is_answered_in_full(talk, chat):
    room = talk.protocol.room
    longest = max(size for size in range(CONTEXT_LENGTH) if room(CONTEXT_LENGTH, size) > 0)

    async def steps(session):
        told = []
        for size in (longest, longest - 20):
            ids = (QUESTIONS[0] * 100)[:size]
            most = room(CONTEXT_LENGTH, size)
            told.append((most, await talk.reply(session, ids, most, ENDLESS)))
        return told

    for most, reply in chat(steps):
        assert reply.finish_reason == "stop" or len(reply.output_ids) == most


def test_a_prompt_that_room_forbids_is_refused_by_the_server(talk, chat):
    longest = max(size for size in range(CONTEXT_LENGTH) if talk.protocol.room(CONTEXT_LENGTH, size) > 0)

    async def steps(session):
        return await talk.post(session, talk.body((QUESTIONS[0] * 100)[: longest + 1], 1))

    status, text = chat(steps)
    assert status == 400
    assert "context" in error_message(status, text).lower() or "length" in text or "max_tokens" in text


def test_the_facts_are_the_servers(lane, talk, chat):
    facts = chat(talk.facts)
    assert facts.models == (MODEL,)
    assert facts.context_length == CONTEXT_LENGTH
    assert facts.capacity == {"llamacpp": 32, "sglang": 32, "vllm": None, "router": 64}[lane]
    assert facts.vocab_size == (VOCAB_SIZE if lane == "llamacpp" else None)
    assert facts.piece == (None if lane == "llamacpp" else "abort")
    assert len(facts.workers) == (2 if lane == "router" else 0)
    assert facts.version
    assert "sesame" not in repr(facts)
    assert "hosts tiny" in wrong_model(facts, "another")


def test_another_protocol_is_refused_in_one_sentence(talk, chat):
    for other in {"sglang", "vllm", "llamacpp"} - {talk.api}:
        pages = chat(Talk(talk.url, other).pages)
        with pytest.raises(WrongProtocol, match=r"engine\.api"):
            protocol(other).facts(pages)


def test_a_wrong_key_is_refused_in_one_sentence(talk):
    stranger = Talk(talk.url, talk.api, "guess")

    async def steps():
        async with stranger.session() as session:
            status, _ = await stranger.post(session, stranger.body(QUESTIONS[0], 4))
            return status, await stranger.pages(session)

    status, pages = asyncio.run(steps())
    assert status == 401
    with pytest.raises(KeyRefused, match=r"api_key_env"):
        stranger.protocol.facts(pages)


def test_a_model_it_does_not_host_is_refused_by_vllm(talk, chat):
    if talk.api != "vllm":
        pytest.skip("hosts one model, whatever the request names")

    async def steps(session):
        return await talk.post(session, talk.body(QUESTIONS[0], 4, model="another"))

    status, text = chat(steps)
    assert status == 404
    assert "another" in error_message(status, text)


def test_over_capacity_is_told_by_a_status_that_means_try_again(talk, chat):
    if talk.api == "llamacpp":
        pytest.skip("queues without a limit")

    async def steps(session):
        bodies = [talk.body(ids, 100, ENDLESS, request_id=f"{number:032}") for number, ids in enumerate(QUESTIONS * 4)]
        return await asyncio.gather(*(talk.post(session, body) for body in bodies))

    told = chat(steps)
    refused = {status for status, _ in told} - {200}
    assert refused
    assert refused <= {503, 408, 429}
    for status, text in told:
        if status == 200:
            assert len(talk.protocol.parse(json.loads(text)).output_ids) <= 100


def test_our_abort_brings_the_piece_back(talk, chat):
    if talk.protocol.abort("0") is None:
        pytest.skip("has no abort but a closed connection")

    async def steps(session):
        ids = await talk.long_prompt(session)
        whole = await talk.reply(session, ids, 1500)
        status, text = await talk.aborted(session, ids, 1500, after=0.2)
        return whole, status, text

    whole, status, text = chat(steps)
    assert status == 200
    with pytest.raises(NotAnAnswer) as told:
        talk.protocol.parse(json.loads(text))
    assert told.value.kind == "abort"
    piece = told.value.reply.output_ids
    assert 0 < len(piece) < len(whole.output_ids)
    assert piece == whole.output_ids[: len(piece)]


def test_a_closed_connection_ends_the_request(lane, talk, chat):
    """Seen from outside: 32 long requests are dropped, and a short one is answered at once."""

    async def steps(session):
        ids = await talk.long_prompt(session)
        calls = [asyncio.create_task(talk.post(session, talk.body(ids, 1900, ENDLESS))) for _ in range(32)]
        await asyncio.sleep(1.0)
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        await asyncio.sleep(6.0)
        begun = asyncio.get_running_loop().time()
        await talk.reply(session, QUESTIONS[0], 4)
        return asyncio.get_running_loop().time() - begun

    assert chat(steps) < 4.0


def test_a_streamed_answer_joins_to_the_same_ids_also_when_cut(talk, chat):
    if talk.api != "vllm":
        pytest.skip("does not stream ids that can be kept")

    async def steps(session):
        whole = await talk.reply(session, QUESTIONS[3], 150)
        _, events = await talk.post(session, talk.body(QUESTIONS[3], 150, stream=True))
        return whole, events.encode()

    whole, events = chat(steps)
    join, parse = talk.protocol.join, talk.protocol.parse
    assert parse(join(events)) == whole
    with pytest.raises(NotAnAnswer) as told:
        parse(join(events[: len(events) // 2]))
    piece = told.value.reply.output_ids
    assert piece == whole.output_ids[: len(piece)]


def test_errors_become_one_short_line(talk, chat):
    async def steps(session):
        return [
            await talk.post(session, talk.body([], 4)),
            await talk.post(session, {}),
            await talk.post(session, talk.body(QUESTIONS[0], 4), "/nowhere"),
        ]

    for status, text in chat(steps):
        assert status in (400, 404, 405, 422)
        line = error_message(status, text)
        assert 0 < len(line) <= 300
        assert not re.search(r"[\n{}]", line)
