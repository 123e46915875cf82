"""The stage as a whole, on small sources: what becomes a prompt, what does not, and that it is all accounted for."""

import hashlib
import json
import random
import struct

import numpy as np
import pyarrow.parquet as pq
import pytest
from tiny_tokenizer import ENDOFTEXT, IM_END, IM_START, VOCAB_SIZE
from tokenfill.errors import UserError
from tokenfill.prompts import accounts, pipeline, table
from tokenfill.prompts.exclude import Excluded, Seen
from tokenfill.prompts.progress import Progress
from tokenfill.prompts.table import prompt_hash, read_metadata


def user(text, **columns) -> dict:
    """A row with one question."""
    return {"messages": [{"role": "user", "content": text}], **columns}


def test_a_prompt_as_it_is_stored(tokenized, decoded):
    tool = {"type": "function", "function": {"name": "f"}}
    done = tokenized([user("An élan?", id=7, tools=[tool])])
    (prompt,) = done.prompts
    assert prompt["id"] == "7" and prompt["turn"] == 0 and prompt["source_row"] == 0
    assert json.loads(prompt["messages"]) == [{"role": "user", "content": "An élan?"}]
    assert json.loads(prompt["tools"]) == [tool]
    assert decoded(prompt["input_ids"]).endswith("<|im_start|>user\nAn élan?<|im_end|>\n<|im_start|>assistant\n")
    assert prompt["prompt_hash"] == prompt_hash(np.array(prompt["input_ids"]))


def test_the_hash_is_over_little_endian_int32():
    ids = [1, 256, 70000]
    assert prompt_hash(np.array(ids, dtype=np.int64)) == hashlib.sha256(struct.pack("<3i", *ids)).hexdigest()[:16]


def test_the_metadata(tokenized):
    done = tokenized([user("a"), user("a"), user("b"), {"x": 1}])
    metadata = pq.ParquetFile(done.out).schema_arrow.metadata[b"tokenfill"]
    assert json.loads(metadata) == done.metadata == read_metadata(done.out)
    assert set(done.metadata["content"]) == {"tokenizer", "template"}
    assert done.metadata["vocab_size"] == VOCAB_SIZE
    assert done.metadata["stop_token_ids"] == sorted([IM_END, ENDOFTEXT])
    assert done.metadata["think_open"] is False and done.metadata["source_revision"] is None
    assert (done.metadata["rows_read"], done.metadata["prompts"]) == (4, 2)
    assert done.metadata["skipped"] == {"duplicate": 1, "no_prompt_column": 1}
    assert done.metadata["prompt_tokens"] == sum(len(prompt["input_ids"]) for prompt in done.prompts)


def test_every_row_is_a_prompt_or_named(tokenized):
    rows = [user("a", id="a"), {"id": "b"}, user("", id="c"), {"id": "d", "messages": []}, user("a", id="e")]
    done = tokenized([*rows, [1]])
    assert done.ids == ["a"]
    assert done.reasons == {
        "b": "no_prompt_column",
        "c": "empty_prompt",
        "d": "no_messages",
        "e": "duplicate",
        5: "not_an_object",
    }
    assert {line["line"] for line in done.skipped} == {2, 3, 4, 5, 6}


def test_ids_stay_apart(tokenized):
    ids = [0, 1, "1", "01", 1.0, True, None, "", 9007199254740993]
    done = tokenized([user(f"question {n}", id=given) for n, given in enumerate(ids)])
    assert len(set(done.ids)) == len(ids)
    assert done.ids[:2] == ["0", "1"] and done.ids[3:6] == ["01", "1.0", "true"] and done.ids[-1] == "9007199254740993"
    assert done.ids[2].startswith("1#")


def test_ids_without_a_source_id_come_from_what_is_asked(tokenized):
    one, other = tokenized([user("a"), user("b")]), tokenized([user("b", score=3), user("a")])
    assert one.ids == other.ids[::-1]


def test_rows_that_share_an_id_are_all_asked_and_the_same_on_each_run(tokenized):
    rows = [user("a", id="0"), user("b", id="0"), user("c", id="0"), user("c", id="0")]
    done = tokenized(rows, order="shuffled")
    assert sorted(done.questions) == ["a", "b", "c"] and len(set(done.ids)) == 3
    assert done.ids == tokenized(rows, order="shuffled", out="again").ids
    assert [line["reason"] for line in done.skipped] == ["duplicate"]


def test_limit_takes_the_first_of_the_order(tokenized):
    rows = [user(f"question {n}", id=f"row-{n}") for n in range(60)]
    everything = tokenized(rows, order="shuffled")
    limited = tokenized(rows, order="shuffled", limit=20)
    assert limited.ids == everything.ids[:20] != sorted(everything.ids)[:20]
    assert tokenized(rows, limit=3).ids == ["row-0", "row-1", "row-2"]


def test_each_turn_is_a_prompt_of_its_own(tokenized, decoded):
    chat = [
        {"role": role, "content": text}
        for role, text in (("user", "q1"), ("assistant", "a1"), ("user", "q2"), ("assistant", "a2"))
    ]
    done = tokenized([{"id": "x", "messages": chat}], turns="each")
    assert [(prompt["id"], prompt["turn"]) for prompt in done.prompts] == [("x", 0), ("x", 1)]
    texts = [decoded(prompt["input_ids"]) for prompt in done.prompts]
    assert "a1" not in texts[0] and "a1" in texts[1] and "a2" not in texts[1]


def test_the_recorded_answer_is_no_part_of_the_prompt(tokenized, decoded):
    done = tokenized([{"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "SECRET"}]}])
    assert "SECRET" not in decoded(done.prompts[0]["input_ids"]) and "SECRET" not in done.prompts[0]["messages"]


def test_too_long_is_put_aside_and_not_cut(tokenized):
    done = tokenized([user("x" * 50, id="long"), user("x", id="short")], max_prompt_tokens=40)
    assert done.ids == ["short"] and done.reasons == {"long": "too_long"}


def test_the_models_context_is_the_limit_where_none_is_given(tokenized):
    done = tokenized([user("x" * 5000, id="long"), user("x", id="short")])
    assert done.ids == ["short"] and done.reasons == {"long": "too_long"}
    assert len(tokenized([user("x" * 5000)], max_prompt_tokens=6000, out="asked").prompts) == 1


def test_a_row_that_is_far_too_long_is_not_even_kept(tokenized, monkeypatch):
    kept = []
    monkeypatch.setattr(
        pipeline.Rendering, "_render", lambda self, messages, tools: kept.append(messages) or "<|im_start|>"
    )
    done = tokenized([user("word " * 500_000, id="long"), user("x", id="short")], max_prompt_tokens=100)
    assert done.reasons == {"long": "too_long"} and len(kept) == 1


def test_rows_of_ids(tokenized):
    rows = [[10, 20, IM_START], [10, VOCAB_SIZE], [-1, 5], [IM_START, IM_END], [10, 20, IM_START], [2**40, 1]]
    done = tokenized([{"id": str(n), "input_ids": ids} for n, ids in enumerate(rows)], format="tokenized")
    assert [prompt["input_ids"] for prompt in done.prompts] == [rows[0]]
    assert done.reasons == {
        "1": "id_outside_vocabulary",
        "2": "id_outside_vocabulary",
        "3": "empty_prompt",
        "4": "duplicate",
        "5": "id_outside_vocabulary",
    }


def test_refused_rows_do_not_stop_the_others(tokenized, tmp_path):
    template = tmp_path / "strict.jinja"
    template.write_text(
        "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}{{ messages[0].content }}"
    )
    system = {"role": "system", "content": "s"}
    done = tokenized(
        [{"id": "a", "messages": [system, *user("q")["messages"]]}, user("r", id="b")], chat_template=str(template)
    )
    assert done.ids == ["b"]
    assert done.skipped[0]["reason"] == "template_refused" and done.skipped[0]["detail"] == "no system"


def test_what_the_template_drops_is_noticed(tokenized, tmp_path, capsys):
    template = tmp_path / "deaf.jinja"
    template.write_text("{{ messages[-1].content }}<think>\n")
    rows = [
        {"messages": [{"role": "system", "content": "Be kind."}, *user("q")["messages"]], "tools": [{"name": "rain"}]}
    ]
    done = tokenized(rows, chat_template=str(template))
    table = capsys.readouterr().err
    assert "noticed: prompts without their system text, which the template drops: 1" in table
    assert "noticed: prompts without their tools, which the template does not know: 1" in table
    assert "noticed: prompts that open <think>, so that answers begin inside the thinking: 1" in table
    assert done.metadata["think_open"] is True


def test_special_tokens_in_the_text_are_counted_and_escaped_on_request(tokenized, capsys):
    rows = [user("a<|im_end|>b")]
    kept, escaped = tokenized(rows), tokenized(rows, special_tokens_in_text="escape", out="escaped")
    assert "rows whose text spells out special tokens: 1" in capsys.readouterr().err
    assert kept.prompts[0]["input_ids"].count(IM_END) == 2
    assert escaped.prompts[0]["input_ids"].count(IM_END) == 1
    assert escaped.questions == ["a<|im_end|>b"]


def test_lone_surrogates_become_replacement_characters(tokenized, capsys):
    done = tokenized([user("a\ud800b", id="\udfff")])
    assert done.questions == ["a\ufffdb"] and done.ids == ["\ufffd"]
    assert "lone surrogates, replaced by U+FFFD: 1" in capsys.readouterr().err


def test_line_separators_stay_in_one_record(tokenized):
    text = "a\u2028b\u2029c\u0085d\x0be\x0cf"
    assert tokenized([user(text), user("plain")]).questions == [text, "plain"]


def test_the_date_does_not_depend_on_the_day(tokenized, tmp_path):
    template = tmp_path / "dated.jinja"
    template.write_text("{{ strftime_now('%Y-%m-%d') }} {{ messages[0].content }}")
    early = tokenized([user("q")], chat_template=str(template))
    late = tokenized([user("q")], chat_template=str(template), template_date="2027-05-06", out="late")
    assert early.ids == late.ids
    assert early.prompts[0]["prompt_hash"] != late.prompts[0]["prompt_hash"]


def test_a_run_gives_the_same_bytes_again(tokenized):
    rows = [user(f"question {n} " * (n % 7 + 1), id=n) for n in range(300)]
    one, two = tokenized(rows, order="shuffled"), tokenized(rows, order="shuffled", out="again")
    assert one.out.read_bytes() == two.out.read_bytes()
    assert one.skipped == two.skipped


def test_batches_and_their_borders_change_nothing(tokenized, monkeypatch):
    rows = [user(f"question {n} " * (n % 7 + 1), id=n) for n in range(100)]
    expected = tokenized(rows, order="shuffled").prompts
    monkeypatch.setattr(pipeline, "_BATCH_ROWS", 3)
    monkeypatch.setattr(table, "_ROW_GROUP", 1000)
    done = tokenized(rows, order="shuffled", out="small")
    assert done.prompts == expected
    assert pq.ParquetFile(done.out).num_row_groups > 10


def test_integers_beyond_64_bits_cannot_be_rendered_faithfully(tokenized):
    call = {"function": {"name": "f", "arguments": '{"n": 123456789012345678901234567890}'}}
    chat = [*user("a")["messages"], {"role": "assistant", "tool_calls": [call]}, {"role": "tool", "content": "r"}]
    done = tokenized([{"id": "big", "messages": chat}, user("b", id="b")])
    assert done.ids == ["b"] and done.reasons == {"big": "bad_arguments"}


def test_row_groups_are_small(tmp_path):
    ids = np.random.default_rng(0).integers(0, 150_000, 20_000, dtype=np.int32)
    with table.PromptTable(tmp_path / "prompts.parquet") as written:
        for number in range(500):
            written.append(str(number), 0, "[]", None, np.roll(ids, number), f"{number:016x}", number)
        written.finish({"v": 1})
    file = pq.ParquetFile(tmp_path / "prompts.parquet").metadata
    sizes = [file.row_group(group).total_byte_size for group in range(file.num_row_groups)]
    assert len(sizes) > 1 and max(sizes) <= 16 << 20
    assert pq.read_table(tmp_path / "prompts.parquet")["source_row"].to_pylist() == list(range(500))


def test_excluded_prompts(tokenized, tmp_path):
    exam = "How many rivers of more than eight hundred kilometres cross the country?"
    (tmp_path / "exam.jsonl").write_text(json.dumps({"question": exam}) + "\n" + json.dumps({"prompt": "Why?"}))
    rows = [
        user("why?", id="short"),
        user("Why? Because.", id="longer"),
        user(f"Answer:  {exam.upper()} Thanks.", id="within"),
    ]
    rows.append(
        {
            "id": "history",
            "messages": [*user(exam)["messages"], {"role": "assistant", "content": "4"}, *user("And?")["messages"]],
        }
    )
    done = tokenized(rows, exclude=[str(tmp_path / "exam.jsonl")])
    assert done.ids == ["longer"]
    assert set(done.reasons.values()) == {"excluded"}


def test_a_file_to_exclude_without_prompts_is_an_error(tokenized, tmp_path):
    (tmp_path / "nothing.jsonl").write_text('{"x": 1}\n')
    with pytest.raises(UserError, match="exclude: no prompt was found"):
        tokenized([user("a")], exclude=[str(tmp_path / "nothing.jsonl")])


def test_prompts_of_earlier_datasets_are_not_repeated(tokenized):
    first = tokenized([user("a"), user("b")], out="first")
    second = tokenized([user("b", id="b"), user("c", id="c")], earlier=[first.out], dedupe="across")
    assert second.ids == ["c"] and second.reasons == {"b": "duplicate"}


def test_a_source_without_prompts_is_an_error(tokenized, tmp_path):
    with pytest.raises(UserError, match=r"gives no prompt in 2 rows, 2 of them for no_prompt_column \(columns: text\)"):
        tokenized([{"text": "a"}, {"text": "b"}])
    assert not (tmp_path / "run" / "prompts.parquet").exists()
    assert not list((tmp_path / "run").glob("*.part"))
    with pytest.raises(UserError, match="has no rows"):
        tokenized([])


def test_a_source_that_breaks_leaves_the_table_of_before(tokenized, tmp_path):
    before = tokenized([user("a")]).out.read_bytes()
    (tmp_path / "torn.jsonl").write_text(json.dumps(user("b")) + '\n{"messages": [')
    with pytest.raises(UserError, match=r"torn\.jsonl: line 2"):
        tokenized(str(tmp_path / "torn.jsonl"))
    assert (tmp_path / "run" / "prompts.parquet").read_bytes() == before


def test_far_more_rows_than_the_budget_can_use_are_said(tokenized, capsys):
    rows = [user(f"question {n}") for n in range(50)]
    tokenized(rows, budget=1000)
    assert "limit: 10 would spare" in capsys.readouterr().err
    tokenized(rows, budget=1000, limit=15)
    tokenized(rows, budget=10_000)
    assert "would spare" not in capsys.readouterr().err


def test_a_tokenizer_with_code_of_its_own_is_not_run(tokenized, model, tmp_path):
    folder = tmp_path / "coded"
    folder.mkdir()
    for file in set(model.iterdir()) - {model / "config.json"}:  # no model type, so no class of transformers' own
        (folder / file.name).write_bytes(file.read_bytes())
    config = json.loads((folder / "tokenizer_config.json").read_text())
    own = {"tokenizer_class": "OwnTokenizer", "auto_map": {"AutoTokenizer": ["own.OwnTokenizer", None]}}
    (folder / "tokenizer_config.json").write_text(json.dumps(config | own))
    (folder / "own.py").write_text(f"open({str(tmp_path / 'was_run')!r}, 'w')\nclass OwnTokenizer: pass\n")
    with pytest.raises(UserError, match="trust_remote_code: true"):
        tokenized([user("a")], model=str(folder))
    assert not (tmp_path / "was_run").exists()


def test_a_model_that_is_nowhere(tokenized, tmp_path, monkeypatch):
    import huggingface_hub

    def no_network(*_, **__):
        raise OSError("no network\nand more")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", no_network)
    with pytest.raises(UserError, match=r"model: owner/name is no local folder .*OSError: no network\)"):
        tokenized([user("a")], model="owner/name")
    with pytest.raises(UserError, match="is no folder"):
        tokenized([user("a")], model=str(tmp_path / "missing"))


def test_the_account_is_one_table(tokenized, capsys):
    tokenized([user("a"), user("a"), user("b"), {"x": 1}])
    said = capsys.readouterr().err
    assert "rows read               4" in said and "prompts made            2" in said
    assert "duplicate             1" in said and "no_prompt_column      1" in said
    assert "min" in said and "p99" in said


def test_quantiles_are_lengths_that_occur():
    assert accounts._quantiles(range(1, 101)) == "min 1 · median 50 · p90 90 · p99 99 · max 100"


def test_hashes_are_met_once():
    seen, draw = Seen(), random.Random(0)
    values = [draw.getrandbits(64) for _ in range(70_000)]
    assert all(map(seen.add, values))
    assert not any(map(seen.add, values[::1000]))
    seen.extend(np.array([5, 7], dtype=np.uint64))
    assert not seen.add(5) and seen.add(6)


def test_short_texts_are_excluded_only_as_a_whole():
    excluded = Excluded(["Say hi"])
    assert excluded.matches("  SAY\n hi ") and not excluded.matches("Please say hi") and bool(excluded)
    assert not Excluded([" "])


def test_progress_without_a_terminal_is_a_line_now_and_then(capsys):
    moments = iter([0.0, 10.0, 31.0, 32.0, 40.0, 70.0, 71.0])
    with Progress("reading", "rows", 1000, clock=lambda: next(moments)) as progress:
        for _ in range(4):
            progress.advance(100)
    assert capsys.readouterr().err == "reading: 200 of 1,000 rows\nreading: 400 of 1,000 rows\n"
