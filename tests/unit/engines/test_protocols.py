"""The protocol modules on what no recording holds: neutral fields, odd bodies, numbers at the edges."""

import contextlib
import copy

import pytest
from neutral_sampling import NEUTRAL
from tokenfill.errors import UserError
from tokenfill.responses import engines
from tokenfill.responses.engines import NAMES, NotAnAnswer, Reply, ServerFacts, error_message, protocol, wrong_model

ASKED_FOR = NEUTRAL | {"temperature": 0.8, "stop_token_ids": [7, 9]}


def asked(name: str, *, seed=None, model=None, stream=False, most=5, **sampling) -> dict:
    return protocol(name).request(
        [1, 2, 3],
        max_new_tokens=most,
        sampling=ASKED_FOR | sampling,
        seed=seed,
        request_id="r" * 8,
        model=model,
        stream=stream,
    )


def body_of(name: str, ids, finish, *, count=None, prompt=3) -> dict:
    """An answer as each server spells it."""
    count = len(ids or []) if count is None else count
    if name == "sglang":
        meta = {"finish_reason": finish, "prompt_tokens": prompt, "completion_tokens": count}
        return {"text": "t", "output_ids": ids, "meta_info": meta}
    if name == "vllm":
        usage = {"prompt_tokens": prompt, "completion_tokens": count}
        return {"choices": [{"text": "t", "token_ids": ids, "finish_reason": finish}], "usage": usage}
    return {"content": "t", "tokens": ids, "stop_type": finish, "tokens_predicted": count, "tokens_evaluated": prompt}


FINISH = {
    "sglang": {"stop": {"type": "stop", "matched": 7}, "length": {"type": "length", "length": 2}},
    "vllm": {"stop": "stop", "length": "length"},
    "llamacpp": {"stop": "eos", "length": "limit"},
}


def kind_of(name: str, body) -> str:
    with pytest.raises(NotAnAnswer) as told:
        protocol(name).parse(body)
    return told.value.kind


def test_the_protocols_are_the_files():
    assert NAMES == ("llamacpp", "sglang", "vllm")
    with pytest.raises(UserError, match=r"engine\.api.*'tgi'.*sglang"):
        protocol("tgi")


@pytest.mark.parametrize("name", NAMES)
def test_a_protocol_has_all_that_the_others_have(name):
    parts = (
        "COMPLETION_PATH READY_PATH FACTS_PATHS CONTEXT_MARGIN PART_TOKENS STOPS_AT_IDS request parse abort room facts"
    )
    assert all(hasattr(protocol(name), part) for part in parts.split())


def test_neutral_values_are_sent_in_each_servers_own_terms():
    params = asked("sglang")["sampling_params"]
    expected = {"temperature": 0.8, "top_p": 1.0, "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0}
    assert expected.items() <= params.items()
    assert {"max_new_tokens": 5, "stop_token_ids": [7, 9], "ignore_eos": False, "n": 1}.items() <= params.items()
    assert (expected | {"top_k": 0, "max_tokens": 5}).items() <= asked("vllm").items()
    llama = asked("llamacpp")
    assert {
        "top_k": 0,
        "repeat_penalty": 1.0,
        "n_predict": 5,
        "cache_prompt": True,
        "seed": -1,
    }.items() <= llama.items()


@pytest.mark.parametrize("name", NAMES)
def test_top_k_zero_and_minus_one_both_mean_all(name):
    assert asked(name, top_k=0) == asked(name, top_k=-1)


def test_the_seed_is_sent_where_there_is_one():
    assert "sampling_seed" not in asked("sglang")["sampling_params"]
    assert asked("sglang", seed=5)["sampling_params"]["sampling_seed"] == 5
    assert (asked("vllm")["seed"], asked("vllm", seed=5)["seed"]) == (None, 5)
    assert asked("llamacpp", seed=0)["seed"] == 0


def test_the_model_is_named_where_a_server_can_host_several():
    assert "model" not in asked("vllm")
    assert asked("vllm", model="m")["model"] == "m"
    assert "model" not in asked("sglang", model="m")


def test_llamacpp_looks_back_over_everything_only_when_penalties_ask_for_it():
    assert asked("llamacpp")["repeat_last_n"] == 0
    assert asked("llamacpp", presence_penalty=0.5)["repeat_last_n"] == 3 + 5


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("reason", ["stop", "length"])
def test_an_answer(name, reason):
    reply = protocol(name).parse(body_of(name, [4, 7], FINISH[name][reason]))
    assert reply == Reply([4, 7], "t", reason, 3, 2)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("ids", [None, []])
def test_no_ids_are_no_answer(name, ids):
    assert kind_of(name, body_of(name, ids, FINISH[name]["length"])) == "empty"


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("ids", ["text", [1, "2"], [1, None], [True], [1.0], {"0": 1}])
def test_ids_of_another_type_are_malformed(name, ids):
    assert kind_of(name, body_of(name, ids, FINISH[name]["length"], count=1)) == "malformed"


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("finish", [None, "", "error", "none", "repetition", {"type": "other"}, 3, [], {}])
def test_an_unknown_finish_is_malformed(name, finish):
    assert kind_of(name, body_of(name, [4, 7], finish)) == "malformed"


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("body", [None, [], "x", 3, {}, {"error": "x"}, {"choices": []}, {"meta_info": None}])
def test_another_body_is_malformed(name, body):
    assert kind_of(name, body) == "malformed"


def mangled(body, odd=(None, True, -1, 1.5, "", "stop", [], [None], {}, {"a": []})):
    """The body with each of its parts, at any depth, replaced by each odd value."""
    yield from odd
    parts = body.items() if isinstance(body, dict) else enumerate(body) if isinstance(body, list) else ()
    for key, part in parts:
        for other in mangled(part):
            whole = copy.copy(body)
            whole[key] = other
            yield whole


@pytest.mark.parametrize("name", NAMES)
def test_no_body_raises_anything_else(name):
    bodies = list(mangled(body_of(name, [4, 7], FINISH[name]["stop"])))
    assert len(bodies) > 50
    for body in bodies:
        with contextlib.suppress(NotAnAnswer):
            reply = protocol(name).parse(body)
            assert set(map(type, reply.output_ids)) == {int}
            assert isinstance(reply.text, str)


def test_nan_at_sglang_is_a_failure_although_it_says_stop():
    finish = {"type": "stop", "matched": "NaN happened"}
    assert kind_of("sglang", body_of("sglang", [4, 7], finish)) == "nan"


def test_an_abort_before_the_first_id_has_no_piece():
    with pytest.raises(NotAnAnswer) as told:
        protocol("sglang").parse(body_of("sglang", [], {"type": "abort", "message": "Aborted"}))
    assert (told.value.kind, told.value.reply) == ("abort", None)


def test_an_abort_names_the_request_as_the_server_does():
    assert protocol("sglang").abort("ab") == ("/abort_request", {"rid": "ab"})
    assert protocol("vllm").abort("ab") == ("/inference/v1/abort_requests", {"request_ids": ["cmpl-ab-0"]})


@pytest.mark.parametrize(
    ("name", "prompt_tokens", "room"),
    [
        ("sglang", 93, 5),  # the longest that is not refused
        ("sglang", 94, 0),
        ("vllm", 99, 1),
        ("vllm", 100, 0),
        ("llamacpp", 99, 1),
        ("llamacpp", 120, 0),
    ],
)
def test_room_at_a_context_of_100(name, prompt_tokens, room):
    assert protocol(name).room(100, prompt_tokens) == room
    assert protocol(name).room(None, prompt_tokens) is None


@pytest.mark.parametrize(
    ("ids", "expected", "reason"),
    [([4, 7, 5, 9], [4, 7], "stop"), ([4, 7], [4, 7], "stop"), ([4, 5], [4, 5], "length"), ([9, 9], [9], "stop")],
)
def test_cut_at_stop(ids, expected, reason):
    cut = engines.cut_at_stop(Reply(ids, "text", "length", 3, len(ids)), {7, 9})
    assert (cut.output_ids, cut.finish_reason, cut.completion_tokens) == (expected, reason, len(expected))
    assert cut.text == ("text" if ids == expected else "")


def test_cut_at_stop_hides_no_wrong_count():
    cut = engines.cut_at_stop(Reply([4, 7, 5], "", "length", 3, 5), {7})
    assert len(cut.output_ids) != cut.completion_tokens


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('{"error": "Unauthorized"}', "Unauthorized"),
        ('{"error": {"message": "too long", "code": 400}}', "too long"),
        ('{"object": "error", "message": "The request queue is full.", "code": 503}', "The request queue is full."),
        ('{"detail": "Not Found"}', "Not Found"),
        ('{"detail": [{"loc": ["body"], "msg": "x"}]}', '[{"loc": ["body"], "msg": "x"}]'),
        ("plain\n  text", "plain text"),
        ("<html><body>502 Bad Gateway</body></html>", "an HTML page"),
        ("", "HTTP 502 without a message"),
        ("{}", "HTTP 502 without a message"),
        (None, "HTTP 502 without a message"),
        ({"message": "parsed already"}, "parsed already"),
        ("null", "HTTP 502 without a message"),
    ],
)
def test_error_messages_of_all_shapes(text, line):
    assert error_message(502, text) == line


def test_a_long_error_message_is_cut():
    assert len(error_message(400, "x" * 5000)) == 300


def test_wrong_model():
    facts = ServerFacts(models=("a", "b"))
    assert wrong_model(facts, "b") is None
    assert wrong_model(facts, None) is None
    assert wrong_model(ServerFacts(), "c") is None
    assert wrong_model(facts, "c") == "hosts a, b, not engine.served_model 'c'."


def test_a_router_whose_workers_tell_nothing_knows_nothing():
    facts = engines.behind(ServerFacts(workers=("u",)), [ServerFacts(), ServerFacts(capacity=4)])
    assert (facts.context_length, facts.capacity, facts.piece) == (None, None, None)


def test_sglang_keeps_to_the_smaller_of_context_and_cache():
    pages = {
        "/v1/models": (200, {"data": [{"id": "m", "owned_by": "sglang", "max_model_len": 4096}]}),
        "/server_info": (200, {"context_length": 4096, "max_req_input_len": 994, "api_key": "sesame"}),
    }
    facts = protocol("sglang").facts(pages)
    assert facts.context_length == 1000
    assert "sesame" not in repr(facts)


def test_sglang_counts_every_data_parallel_rank():
    info = {"max_running_requests": 8, "dp_size": 2}
    assert protocol("sglang").facts({"/server_info": (200, info)}).capacity == 16
    info["internal_states"] = [{"effective_max_running_requests_per_dp": 6}] * 2
    assert protocol("sglang").facts({"/server_info": (200, info)}).capacity == 12


def test_a_vllm_without_scale_out_can_stream_its_pieces():
    models = {"/v1/models": (200, {"data": [{"id": "m", "owned_by": "vllm", "max_model_len": 64}]})}
    schema = {"CompletionRequest": {"properties": {"stream_interval": {}}}}
    new = {"/openapi.json": (200, {"paths": {}, "components": {"schemas": schema}})}
    old = {"/openapi.json": (200, {"paths": {"/v1/completions": {}}})}
    piece = [protocol("vllm").facts(models | pages).piece for pages in (new, old, {})]
    assert piece == ["stream", None, "abort"]


@pytest.mark.parametrize(
    "events",
    [
        b"<html>502</html>",
        b'{"error": "x"}',
        b"data: {\n\ndata: [DONE]\n\n",
        b"data: 3\n\n",
        b'data: {"choices": [3]}\n\n',
        b'data: {"choices": [{"token_ids": 3}]}\n\n',
    ],
)
def test_a_stream_that_is_none_is_malformed(events):
    assert kind_of("vllm", protocol("vllm").join(events)) == "malformed"


def test_a_stream_that_breaks_off_before_the_first_id_has_no_piece():
    with pytest.raises(NotAnAnswer) as told:
        protocol("vllm").parse(protocol("vllm").join(b'data: {"choi'))
    assert (told.value.kind, told.value.reply) == ("abort", None)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("page", [None, [], "x", {"data": None}, {"data": [None, {"id": None}]}, {"data": {}}])
def test_facts_of_odd_pages_are_unknown(name, page):
    told = dict.fromkeys(protocol(name).FACTS_PATHS, (200, page))
    facts = protocol(name).facts(told)
    assert (facts.model, facts.context_length, facts.capacity) == (None, None, None)
