"""The first run fills every dataset, and the second has nothing to do."""

import json
import time

from tiny_tokenizer import IM_END


def test_a_first_run_fills_every_dataset(finished_project):
    project = finished_project
    for dataset, budget in (("chat", 200), ("code", 100)):
        complete, journal = project.complete(dataset), project.journal(dataset)
        assert complete["reason"] == "budget_met"
        assert budget <= complete["tokens"] < budget + 20 * 4
        assert complete["tokens"] == sum(line["output_tokens"] for line in journal)
        assert (
            complete["journal"]["raw_responses.jsonl"]
            == project.path(f"results/{dataset}/raw_responses.jsonl").stat().st_size
        )
        assert not project.doubled(dataset)


def test_records_hold_the_ids_that_were_sent_and_sampled(finished_project):
    project = finished_project
    for dataset in ("chat", "code"):
        by_id = {line["id"]: line for line in project.journal(dataset)}
        records = project.records(dataset)
        assert len(records) == len(by_id) == project.complete(dataset)["responses"]
        for record in records:
            line, cut = by_id[record["id"]], record["prompt_len"]
            assert record["input_ids"][cut:] == line["output_ids"]
            assert record["input_ids"][-1] == IM_END
            assert record["loss_mask"] == [0] * cut + [1] * len(line["output_ids"])
            assert cut == line["prompt_tokens"]
            assert record["dataset"] == dataset


def test_again_there_is_nothing_to_do(finished, server):
    started = time.process_time()
    assert "Nothing to be done" in finished.run()
    assert time.process_time() - started < 3
    assert server.log == []


def test_the_dry_run_says_how_far_each_dataset_is(new, finished_project):
    assert "chat: 0 of 200 tokens, 0 responses" in new.run("-n")
    folder = new.path("results/chat")
    progress = json.loads(finished_project.path("results/chat/progress.json").read_bytes())
    (folder / "progress.json").write_text(json.dumps(progress | {"tokens": 140, "responses": 7}))
    assert "chat: 140 of 200 tokens, 7 responses" in new.run("-n")


def test_the_last_line_says_what_was_done(finished_project):
    assert "2 of 2 datasets are done" in finished_project.output()


def test_the_profile_is_found_from_elsewhere(finished, tmp_path):
    """`snakemake -s …/Snakefile` in another folder uses the config there, and its results go there."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for name in ("config.yaml", "model", "chat.jsonl", "code.jsonl"):
        (elsewhere / name).symlink_to(finished.path(name))
    output = finished.run("-n", "-s", str(finished.path("Snakefile")), "--directory", str(elsewhere))
    assert "generate_responses" in output
    assert (elsewhere / "results/engine.json").exists()
