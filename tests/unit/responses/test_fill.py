"""The worker as a whole against a scripted server: what it asks, what it keeps, what counts, where it goes on."""

import itertools
import json

import pytest
from one_dataset import OneDataset, meanwhile, prompt
from scripted_server import ThreadedServer
from tokenfill.errors import TemporaryFailure, UserError
from tokenfill.responses.replies import seed_of


def replies(server) -> list[dict]:
    return [entry for entry in server.log if entry["status"] == 200]


# -- the budget ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("api", ["sglang", "vllm", "llamacpp"])
def test_answers_of_one_length_meet_the_budget_exactly(dataset, server, api):
    dataset.configure(engine={"api": api})
    complete = dataset.fill()
    assert (complete["reason"], complete["tokens"], complete["responses"]) == ("budget_met", 200, 10)
    assert sum(line["output_tokens"] for line in dataset.lines()) == 200
    assert all(line["output_tokens"] == len(line["output_ids"]) == 20 for line in dataset.lines())
    assert len(server.log) == 10
    assert complete["journal"] == {"raw_responses.jsonl": dataset.journal_path.stat().st_size}


def test_more_places_than_the_budget_needs_ask_for_no_more(dataset, server):
    server.update(delay=0.1)
    dataset.configure(engine={"concurrency": 64})
    dataset.fill()
    assert len(server.log) == len(dataset.lines())  # what was asked was waited for and kept
    assert dataset.complete()["tokens"] == 200


def test_prompts_are_answered_in_the_order_of_the_table(dataset):
    dataset.fill()
    assert {line["id"] for line in dataset.lines()} == {f"row-{n}" for n in range(10)}


def test_a_met_budget_asks_no_server(dataset, server):
    first = dataset.fill()
    server.down()
    assert dataset.fill() == first
    assert len(server.log) == 10


def test_a_raised_budget_asks_only_what_is_missing(dataset, server):
    dataset.fill()
    before = dataset.journal_path.read_bytes()
    dataset.configure(budget=300)
    assert dataset.fill()["tokens"] == 300
    assert dataset.journal_path.read_bytes().startswith(before)
    assert len(server.log) == len({entry["prompt"] for entry in server.log}) == 15


def test_counting_the_prompts_too_needs_fewer_answers(dataset, server):
    dataset.configure(budget=350, budget_counts="total")
    complete = dataset.fill()
    both = sum(line["prompt_tokens"] + line["output_tokens"] for line in dataset.lines())
    assert complete["tokens"] == both >= 350
    assert len(server.log) < 10


def test_each_prompt_is_asked_once_before_any_is_asked_twice(tmp_path, server):
    dataset = OneDataset(tmp_path, [server.url], prompts=4, samples_per_prompt=3, engine={"concurrency": 1})
    dataset.fill()
    asked = [line["sample"] for line in dataset.lines()]
    assert asked == [0] * 4 + [1] * 4 + [2] * 2
    assert len(dataset.answers()) == 10


def test_prompts_that_run_out_are_said_aloud_and_not_asked_again(tmp_path, server, capsys):
    dataset = OneDataset(tmp_path, [server.url], prompts=5, budget=10_000)
    first = dataset.fill()
    assert (first["reason"], first["tokens"]) == ("prompts_exhausted", 100)
    assert "its prompts are exhausted at 100 of 10,000 tokens" in capsys.readouterr().err
    server.down()
    assert dataset.fill() == first


def test_a_budget_raised_while_the_run_goes_on_is_filled_in_the_same_run(dataset, server):
    server.update(delay=0.05)
    raised = meanwhile(lambda: len(server.log) > 4, lambda: dataset.configure(budget=400))
    assert dataset.fill()["tokens"] == 400
    raised.join()
    assert dataset.complete()["budget"] == 400
    assert len(server.log) == 20


def test_other_sampling_while_the_run_goes_on_ends_it_without_a_sentinel(dataset, server):
    server.update(delay=0.05)
    changed = meanwhile(lambda: len(server.log) > 4, lambda: dataset.configure(sampling={"temperature": 0.1}))
    with pytest.raises(TemporaryFailure, match=r"sampling.temperature was 0.8 and is 0.1"):
        dataset.fill()
    changed.join()
    assert not dataset.complete_path.exists()
    assert len(dataset.lines()) == 10


def test_servers_changed_while_the_run_goes_on_are_taken_up(dataset, server):
    server.update(delay=0.1)
    dataset.configure(budget=800, engine={"concurrency": 1})
    with ThreadedServer({"length": {"fixed": 20}, "delay": 0.1}) as other:
        changed = meanwhile(
            lambda: len(server.log) > 2, lambda: dataset.configure(engine={"servers": [other.url], "concurrency": 8})
        )
        assert dataset.fill()["tokens"] == 800
        changed.join()
        assert len(server.log) + len(other.log) == 40
        assert len(other.log) > len(server.log)


# -- where it goes on ------------------------------------------------------------------------------------------


def test_a_resume_asks_what_is_missing_wherever_it_is(dataset, server):
    complete = dataset.fill()
    lines = dataset.lines()
    kept = [lines[n] for n in (7, 0, 5, 3)]
    dataset.write(kept)
    before = dataset.journal_path.read_bytes()
    assert dataset.fill()["tokens"] == complete["tokens"]
    asked = [entry["prompt"] for entry in server.log[10:]]
    assert sorted(asked) == sorted(line["prompt_hash"] for line in lines if line not in kept)
    assert dataset.journal_path.read_bytes().startswith(before)


@pytest.mark.parametrize(
    "tail",
    [
        b'{"v":1,"id":"row-3","prompt_ha',
        b'{"v":1,"id":"row-3","prompt_ha\n\n',
        '{"v":1,"text":"\u6cb3'.encode()[:-1],
        b"\0" * 4096,
        b"\n\n\n",
    ],
)
def test_a_torn_tail_costs_one_answer_and_no_other(dataset, server, tail, capsys):
    dataset.fill()
    whole = dataset.journal_path.read_bytes()
    cut = whole[: whole.rindex(b"\n", 0, -1) + 1]
    dataset.journal_path.write_bytes(cut + tail)
    assert dataset.fill()["tokens"] == 200
    assert len(server.log) == 11
    assert len(dataset.answers()) == 10
    assert dataset.journal_path.read_bytes().startswith(cut)
    assert ("bytes are no whole line; cut off" in capsys.readouterr().err) == bool(tail.strip())


def test_unreadable_lines_in_the_middle_are_named_and_asked_again(dataset, server, capsys):
    dataset.fill()
    lines = dataset.journal_path.read_bytes().splitlines(keepends=True)
    lines[3:5] = [lines[3][:40] + b"\n", b"null\n", b"[]\n", b"{}\n"]
    dataset.journal_path.write_bytes(b"".join(lines))
    assert dataset.fill()["tokens"] == 200
    assert len(server.log) == 12
    assert "4 lines cannot be read and do not count (line 4, 5, 6, 7)" in capsys.readouterr().err
    assert dataset.fill()["tokens"] == 200
    assert len(server.log) == 12


def test_a_line_that_stands_twice_counts_once(dataset, server, capsys):
    dataset.fill()
    raw = dataset.journal_path.read_bytes()
    dataset.journal_path.write_bytes(raw + raw.splitlines(keepends=True)[2])
    dataset.configure(budget=220)
    complete = dataset.fill()
    assert (complete["tokens"], complete["responses"]) == (220, 11)
    assert "1 lines stand twice" in capsys.readouterr().err


def test_text_that_holds_line_separators_is_one_line(dataset, server):
    separators = "\u2028\u2029\x85\x0b\x0c\x1c\r"
    server.update(faults=[{"do": {"text": f"one{separators}two"}}])
    dataset.fill()
    dataset.configure(budget=400)
    assert dataset.fill()["responses"] == 20
    assert {line["text"] for line in dataset.lines()} == {f"one{separators}two"}
    assert len(server.log) == 20


def test_answers_to_prompts_of_another_day_are_kept_and_not_counted(dataset, server, capsys):
    dataset.fill()
    dataset.lay_prompts([*map(prompt, range(4)), *map(prompt, range(104, 140))])
    complete = dataset.fill()
    assert (complete["stale"], complete["tokens"], len(dataset.lines())) == (6, 200, 16)
    assert "6 responses answer prompts that are not among today's" in capsys.readouterr().err


@pytest.mark.parametrize("harm", ["sampling", "tokenizer", "no meta"])
def test_answers_of_other_settings_never_mix(dataset, server, harm):
    dataset.fill()
    dataset.configure(budget=400)
    before = dataset.journal_path.read_bytes()
    match harm:
        case "sampling":
            dataset.configure(sampling={"temperature": 0.1})
            expected = r"identity.sampling.temperature was 0.8 and is 0.1"
        case "tokenizer":
            dataset.lay_prompts([prompt(n) for n in range(40)], content="b")
            expected = r'content.template was "a" and is "b"'
        case "no meta":
            (dataset.results / "raw_responses.meta.json").unlink()
            dataset.configure(sampling={"temperature": 0.1})
            expected = "made with other settings"
    with pytest.raises(UserError, match=expected):
        dataset.fill()
    assert dataset.journal_path.read_bytes() == before
    assert dataset.complete()["tokens"] == 200
    assert len(server.log) == 10


# -- parts -----------------------------------------------------------------------------------------------------


def test_parts_joined_are_the_one_piece(tmp_path, server):
    server.update(length={"list": [1, 7, 30, 31, 60, 90, 150]})
    whole = OneDataset(tmp_path / "whole", [server.url], budget=3000)
    parts = OneDataset(tmp_path / "parts", [server.url], budget=3000, engine={"part_tokens": 30})
    whole.fill()
    parts.fill()
    common = whole.answers().keys() & parts.answers().keys()
    assert len(common) >= 30
    assert all(whole.answers()[key] == parts.answers()[key] for key in common)
    assert {line["part"] for line in parts.lines()} == {0, 1, 2, 3, 4}
    assert all((line["finish_reason"] == "part") == (line["output_ids"][-1] < 256) for line in parts.lines())


def test_an_unfinished_answer_goes_on_where_it_stopped(dataset, server):
    server.update(length={"fixed": 90})
    dataset.configure(budget=450, engine={"part_tokens": 40})
    dataset.fill()
    whole = dataset.answers()
    dataset.write([line for line in dataset.lines() if not (line["id"] == "row-2" and line["part"] == 2)])
    server.update(faults=[])
    asked = len(server.log)
    assert dataset.fill()["tokens"] == 450
    assert [(entry["position"], entry["answer_len"]) for entry in server.log[asked:]] == [(80, 10)]
    assert dataset.answers() == whole


def test_penalties_leave_an_answer_in_one_piece(dataset, server):
    server.update(length={"fixed": 90})
    dataset.configure(budget=450, sampling={"presence_penalty": 0.5}, engine={"part_tokens": 40})
    dataset.fill()
    assert [line["part"] for line in dataset.lines()] == [0] * 5
    assert {entry["asked"]["sampling_params"]["presence_penalty"] for entry in server.log} == {0.5}


def test_a_raised_max_new_tokens_lets_cut_answers_go_on(dataset, server):
    server.update(length={"fixed": 90})
    dataset.configure(budget=200, max_new_tokens=50)
    first = dataset.fill()
    assert (first["tokens"], first["truncated"]) == (200, 4)
    dataset.configure(max_new_tokens=120, budget=360)
    second = dataset.fill()
    assert (second["tokens"], second["truncated"], second["responses"]) == (360, 0, 4)
    assert [(entry["position"], entry["answer_len"]) for entry in server.log[4:]] == [(50, 40)] * 4
    assert {len(ids) for ids in dataset.answers().values()} == {90}


# -- what counts -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("policy", "responses", "truncated", "dropped"), [("keep", 4, 4, 0), ("drop", 0, 0, 10)])
def test_answers_that_were_cut_count_by_policy(tmp_path, server, policy, responses, truncated, dropped):
    server.update(length={"fixed": 90})
    dataset = OneDataset(tmp_path, [server.url], prompts=10, max_new_tokens=50, truncated=policy)
    complete = dataset.fill()
    assert (complete["responses"], complete["truncated"], complete["dropped"]) == (responses, truncated, dropped)
    assert {line["finish_reason"] for line in dataset.lines()} == {"length"}


def test_a_dropped_answer_is_not_asked_again(tmp_path, server):
    server.update(length={"fixed": 90})
    dataset = OneDataset(tmp_path, [server.url], prompts=10, max_new_tokens=50, truncated="drop")
    assert dataset.fill()["reason"] == "prompts_exhausted"
    dataset.complete_path.unlink()
    dataset.fill()
    assert len(server.log) == 10
    dataset.configure(truncated="keep")
    assert dataset.fill()["responses"] == 10
    assert len(server.log) == 10


@pytest.mark.parametrize(("policy", "counted"), [("drop", 2), ("keep", 4)])
def test_answers_that_go_in_a_circle_are_kept_and_count_by_policy(tmp_path, server, policy, counted):
    server.update(faults=[{"when": {"nth": [1, 3]}, "do": {"fault": "cycle"}}])
    dataset = OneDataset(
        tmp_path, [server.url], prompts=4, budget=5000, max_new_tokens=600, cycles=policy, engine={"concurrency": 1}
    )
    complete = dataset.fill()
    assert (complete["responses"], complete["flagged"], complete["dropped"]) == (counted, 2, 4 - counted)
    assert [line["flags"] for line in dataset.lines()] == [["cycle"], [], ["cycle"], []]


def test_a_stop_without_its_token_is_kept_with_a_flag(dataset, server):
    server.update(faults=[{"do": {"ids": [65, 66, 67], "finish": "stop"}}])
    dataset.configure(budget=9)
    complete = dataset.fill()
    assert (complete["tokens"], complete["flagged"], complete["responses"]) == (9, 3, 3)
    assert {tuple(line["flags"]) for line in dataset.lines()} == {("no_stop_token",)}


# -- seeds -----------------------------------------------------------------------------------------------------


def test_no_seed_is_sent_unless_it_is_set(dataset, server):
    dataset.fill()
    assert not any("sampling_seed" in entry["asked"]["sampling_params"] for entry in server.log)
    assert {line["seed"] for line in dataset.lines()} == {None}


def test_seeds_follow_from_the_prompt_sample_and_part_alone(tmp_path, server):
    server.update(length={"fixed": 90})
    sent = []
    for run in ("one", "two"):
        options = {"prompts": 6, "budget": 1080, "samples_per_prompt": 2, "sampling": {"seed": 7}}
        dataset = OneDataset(tmp_path / run, [server.url], **options, engine={"part_tokens": 40})
        dataset.fill()
        sent.append({(line["id"], line["sample"], line["part"]): line["seed"] for line in dataset.lines()})
    assert sent[0] == sent[1]
    assert len(set(sent[0].values())) == len(sent[0]) == 36
    assert all(seed == seed_of(7, "forum", id_, sample, 0, part) for (id_, sample, part), seed in sent[0].items())
    assert {entry["asked"]["sampling_params"]["sampling_seed"] for entry in server.log} == set(sent[0].values())


def test_every_line_says_what_it_was_made_with(dataset, server):
    dataset.configure(engine={"part_tokens": 8})
    dataset.fill()
    meta = json.loads((dataset.results / "raw_responses.meta.json").read_text())
    for line, part in zip(sorted(dataset.lines(), key=lambda x: (x["id"], x["part"])), itertools.cycle(range(3))):
        assert line["settings"] == meta["settings"]
        assert (line["part"], line["server"], line["model"]) == (part, server.url, "tiny")
        assert line["max_new_tokens"] == 200
    assert meta["servers"][server.url]["context_length"] == 4096
