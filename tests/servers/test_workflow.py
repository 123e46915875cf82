"""The whole workflow, by its real command, against each real server: budgets, refusals, crashes, aborts, Ctrl-C."""

import asyncio
import json
import os
import re
import signal
import subprocess
import time
from collections import defaultdict
from pathlib import Path

import pytest
import yaml
from servers import running
from servers.running import API, CONTEXT_LENGTH, KEY, MODEL
from servers.talk import Talk, prompt
from tiny_tokenizer import ENDOFTEXT, IM_END, VOCAB_SIZE
from workflow.conftest import ENVIRONMENT, ROOT, SNAKEMAKE, Project, rows

STOPS = {IM_END, ENDOFTEXT}
LONGEST = 300
KEY_VARIABLE = "TINY_SERVERS_KEY"


class RealProject(Project):
    """A project whose servers want a key."""

    key: str | None = KEY

    def start(self, *arguments: str) -> subprocess.Popen:
        with self.path("output.txt").open("ab") as output:
            return subprocess.Popen(
                [*SNAKEMAKE, *arguments],
                cwd=self.folder,
                env=ENVIRONMENT | ({KEY_VARIABLE: self.key} if self.key else {}),
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def answers(self, dataset: str) -> dict[str, list[dict]]:
        """The journal's lines by prompt, parts in order."""
        by_id = defaultdict(list)
        for line in self.journal(dataset):
            by_id[line["id"]].append(line)
        return {key: sorted(lines, key=lambda line: line["part"]) for key, lines in by_id.items()}

    def check(self, dataset: str) -> dict:
        """Every token rule that the files can show; gives `complete`."""
        complete, answers = self.complete(dataset), self.answers(dataset)
        assert not self.doubled(dataset)
        counted = 0
        for lines in answers.values():
            assert [line["part"] for line in lines] == list(range(len(lines)))
            assert all(line["finish_reason"] == "part" for line in lines[:-1])
            assert all(len(line["output_ids"]) == line["output_tokens"] > 0 for line in lines)
            ids = [token for line in lines for token in line["output_ids"]]
            last = lines[-1]["finish_reason"]
            assert STOPS.isdisjoint(ids[:-1])
            if last == "stop":
                assert ids[-1] in STOPS
            elif last == "length":
                assert len(ids) == lines[-1]["max_new_tokens"]
            if last != "part" and not lines[-1]["flags"]:
                counted += len(ids)
        assert counted == complete["tokens"] >= complete["budget"]
        return complete

    def check_records(self, dataset: str) -> None:
        """Records are prompt and answer with the mask between."""
        answers = self.answers(dataset)
        records = self.records(dataset)
        assert len(records) == self.complete(dataset)["responses"]
        for record in records:
            ids = [token for line in answers[record["id"]] for token in line["output_ids"]]
            cut = record["prompt_len"]
            assert record["input_ids"][cut:] == ids
            assert record["loss_mask"] == [0] * cut + [1] * len(ids)


@pytest.fixture
def new(tmp_path: Path, model: Path):
    """Makes a project for a server: new(url, api, **config)."""

    def make(url: str, api: str, **changes) -> RealProject:
        project = RealProject.new(tmp_path / "project", url)
        for file in model.iterdir():
            if file.suffix in (".json", ".jinja"):
                (project.folder / "model" / file.name).write_bytes(file.read_bytes())
        for name in ("chat", "code"):
            project.path(f"{name}.jsonl").write_text(rows(400, name))
        project.configure(
            budget=3000,
            max_new_tokens=LONGEST,
            sampling={"temperature": 1.0},
            datasets={"chat": {"source": "chat.jsonl"}, "code": {"source": "code.jsonl"}},
            engine={"api": api, "servers": [url], "concurrency": 16, "api_key_env": KEY_VARIABLE},
        )
        project.configure(**changes)
        return project

    return make


ONE = {"chat": {"source": "chat.jsonl"}}


def test_two_datasets_from_prompts_to_records(lane, server, new):
    project = new(server.url, API[lane], engine={"part_tokens": 64})
    project.run(timeout=300)
    for dataset in ("chat", "code"):
        complete = project.check(dataset)
        assert complete["reason"] == "budget_met"
        assert complete["tokens"] < 3000 + 8 * LONGEST
        assert complete["failed"] == {}
        project.check_records(dataset)
        assert any(len(lines) > 1 for lines in project.answers(dataset).values())
    assert project.is_finished()
    assert KEY not in "".join(
        path.read_text(errors="replace") for path in project.path("results").rglob("*.json*") if path.is_file()
    )


def test_the_shipped_prompts_to_records(lane, server, new):
    shipped = yaml.safe_load((ROOT / "config.yaml").read_text())
    datasets = {
        name: {key: value for key, value in dataset.items() if key in ("source", "format", "columns")} | {"budget": 400}
        for name, dataset in shipped["datasets"].items()
    }
    assert datasets
    for dataset in datasets.values():
        dataset["source"] = str(ROOT / dataset["source"])
    project = new(server.url, API[lane], datasets=None)
    project.configure(datasets=datasets)
    project.run(timeout=300)
    for name in datasets:
        project.check(name)
        project.check_records(name)


def test_an_over_long_prompt_is_put_aside_unsent(lane, server, new):
    project = new(server.url, API[lane], datasets=None)
    longs = [
        {"id": f"long{size}", "messages": [{"role": "user", "content": "x" * size}]} for size in (1900, 2048, 9000)
    ]
    project.path("chat.jsonl").write_text("".join(json.dumps(row) + "\n" for row in longs) + rows(3, "short"))
    project.configure(datasets=ONE, budget=100_000)
    for name, key in (("config.json", "max_position_embeddings"), ("tokenizer_config.json", "model_max_length")):
        file = project.path(f"model/{name}")
        file.write_text(json.dumps(json.loads(file.read_text()) | {key: 8192}))  # the server has less
    project.run(timeout=300)
    complete, answers = project.complete("chat"), project.answers("chat")
    assert complete["reason"] == "prompts_exhausted"
    assert complete["failed"] == {"too_long": 1}
    assert set(answers) == {"long1900", "short-0", "short-1", "short-2"}
    line = answers["long1900"][0]
    assert line["max_new_tokens"] == min(
        LONGEST, Talk(server.url, API[lane]).protocol.room(CONTEXT_LENGTH, line["prompt_tokens"])
    )
    assert line["max_new_tokens"] < LONGEST
    failures = [json.loads(line) for line in project.path("results/chat/failures.jsonl").open()]
    assert [(failure["id"], failure["status"]) for failure in failures] == [("long2048", None)]


def test_an_id_outside_the_vocabulary_is_never_sent(lane, server, new):
    """One such id ends SGLang. The rows are tokenized already, so nothing else would keep it back."""
    project = new(server.url, API[lane], datasets=None)
    good = prompt("hello")
    prompts = {"good": good, "above": [*good, VOCAB_SIZE], "far": [999_999], "below": [-3, *good]}
    project.path("chat.jsonl").write_text(
        "".join(json.dumps({"id": name, "input_ids": ids}) + "\n" for name, ids in prompts.items())
    )
    project.configure(datasets={"chat": {"source": "chat.jsonl", "format": "tokenized"}}, budget=100_000)
    project.run(timeout=300)
    assert set(project.answers("chat")) == {"good"}
    assert server.process.poll() is None
    given_up = project.path("results/chat/prompts_skipped.jsonl"), project.path("results/chat/failures.jsonl")
    told = {json.loads(line)["id"] for file in given_up if file.exists() for line in file.open()}
    assert told == {"above", "far", "below"}


def test_a_budget_is_filled_although_the_server_is_over_capacity(lane, server, new):
    if lane == "llamacpp":
        pytest.skip("queues without a limit")
    engine = {"concurrency": 96, "adaptive": False, "outage_patience": "5m"}
    project = new(server.url, API[lane], datasets=None, engine=engine)
    project.configure(datasets=ONE, budget=12_000)
    project.run(timeout=300)
    complete = project.check("chat")
    assert complete["failed"] == {}


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"key": "guess"}, r"refuses the key.*engine\.api_key_env"),
        ({"api": True}, r"engine\.api"),
        ({"served_model": "another"}, r"hosts tiny.*another"),
    ],
)
def test_what_cannot_be_used_ends_in_one_sentence(lane, server, new, change, sentence):
    api = ({"sglang", "vllm", "llamacpp"} - {API[lane]}).pop() if "api" in change else API[lane]
    project = new(server.url, api, datasets=None)
    project.key = change.get("key", KEY)
    project.configure(datasets=ONE, engine={"served_model": change.get("served_model")})
    output = project.run(status=1, timeout=120)
    assert re.search(sentence, output)
    assert "Traceback" not in output
    assert project.journal("chat") == []


def test_aborts_from_outside_are_asked_again_and_never_kept(lane, server, new):
    if API[lane] != "sglang":
        pytest.skip("nobody but the sender can name a request there")
    project = new(server.url, API[lane], datasets=None)
    project.configure(datasets=ONE, budget=8000)
    process = project.start()

    async def abort_all(times: int) -> None:
        talk = Talk(server.url, API[lane])
        async with talk.session() as session:
            for _ in range(times):
                await asyncio.sleep(0.3)
                for at in server.workers or [server]:
                    await talk.post(session, {"abort_all": True}, "/abort_request", at.url)

    project.wait_for(lambda: len(project.journal("chat")) > 2, 120)
    asyncio.run(abort_all(4))
    assert process.wait(300) == 0, project.output()
    project.check("chat")
    assert not any(line["finish_reason"] == "part" for line in project.journal("chat"))
    assert any(line["attempt"] > 1 for line in project.journal("chat"))


def test_ctrl_c_keeps_the_pieces_and_ends_the_requests_at_the_server(lane, server, new):
    interrupt(new(server.url, API[lane], datasets=None), lane, server)


def test_ctrl_c_keeps_what_a_vllm_without_aborts_had_streamed(lane, model, tmp_path, new):
    if lane != "vllm":
        pytest.skip("for vLLM alone")
    own = running.vllm(model, tmp_path / "own.log")  # without --enable-scale-out
    try:
        interrupt(new(own.url, "vllm", datasets=None), lane, own)
    finally:
        own.stop()


def interrupt(project: RealProject, lane: str, server: running.Server) -> None:
    """Ctrl-C in the middle; pieces are kept, the server is left idle, and the next run goes on from there."""
    project.configure(
        datasets=ONE,
        budget=100_000,
        max_new_tokens=1200,
        sampling={"temperature": 0.1},
        engine={"drain_patience": 0},
    )
    process = project.start()
    project.wait_for(lambda: len(project.journal("chat")) > 2, 120)
    begun = time.monotonic()
    os.killpg(process.pid, signal.SIGINT)
    process.wait(60)
    assert time.monotonic() - begun < 30
    assert process.returncode != 0
    kept = project.journal("chat")
    if lane != "llamacpp":
        assert any(line["finish_reason"] == "part" for line in kept)
    until = time.monotonic() + 10
    while running_requests(lane, server):
        assert time.monotonic() < until, "the server still works on requests that nobody waits for"
        time.sleep(0.3)
    project.configure(budget=sum(line["output_tokens"] for line in kept) + 500)
    project.run(timeout=300)
    project.check("chat")
    assert project.journal("chat")[: len(kept)] == kept


def running_requests(lane: str, server: running.Server) -> int:
    """How many requests the server itself says it works on."""

    async def count() -> int:
        talk = Talk(server.url, API[lane])
        async with talk.session() as session:
            if lane == "llamacpp":
                async with session.get(server.url + "/slots") as response:
                    return sum(slot["is_processing"] for slot in await response.json())
            if lane == "vllm":
                async with session.get(server.url + "/metrics") as response:
                    told = re.findall(
                        r"^vllm:num_requests_(?:running|waiting)\{.*\} ([\d.]+)", await response.text(), re.M
                    )
                    return int(sum(map(float, told)))
            total = 0
            for at in server.workers or [server]:
                async with session.get(at.url + "/v1/loads") as response:
                    loads = (await response.json())["loads"]
                    total += sum(load["num_running_reqs"] + load["num_waiting_reqs"] for load in loads)
            return total

    return asyncio.run(count())


def test_a_server_killed_and_started_again_loses_nothing(lane, model, tmp_path, new):
    if lane == "router":
        pytest.skip("its own test kills a worker")
    own = running.LANES[lane](model, tmp_path / "own.log")
    try:
        project = new(own.url, API[lane], datasets=None, engine={"outage_patience": "5m"})
        project.configure(datasets=ONE, budget=20_000)
        process = project.start()
        project.wait_for(lambda: len(project.journal("chat")) > 5, 120)
        own.kill()
        kept = project.journal("chat")
        own = own.start_again()
        assert process.wait(300) == 0, project.output()
    finally:
        own.stop()
    complete = project.check("chat")
    assert complete["failed"] == {}
    assert project.journal("chat")[: len(kept)] == kept


def test_a_routers_worker_killed_under_load_loses_nothing(lane, server, new):
    if lane != "router":
        pytest.skip("has no workers behind it")
    project = new(server.url, API[lane], datasets=None)
    project.configure(datasets=ONE, budget=20_000)
    process = project.start()
    project.wait_for(lambda: len(project.journal("chat")) > 5, 120)
    second = server.workers[1]
    second.kill()
    try:
        assert process.wait(300) == 0, project.output()
        assert project.check("chat")["failed"] == {}
    finally:
        server.workers[1] = second.start_again()


def test_the_model_is_known_by_its_served_name(lane, server, new):
    project = new(server.url, API[lane], datasets=None)
    project.configure(datasets=ONE, budget=100, engine={"served_model": MODEL})
    project.run(timeout=120)
    assert project.check("chat")["responses"] > 0
