"""The project in a folder of its own, the real `snakemake` command, and a scripted server to ask."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
import yaml
from scripted_server import ThreadedServer
from tiny_tokenizer import make_model_folder

ROOT = Path(__file__).parents[2]
PARTS = ("Snakefile", "rules", "scripts", "schemas", "profiles", "envs")
SNAKEMAKE = [sys.executable, "-m", "snakemake"]
RULES_BY_MESSAGE = {"tokenizing prompts": "tokenize_prompts", "building training records": "build_records"}
# So that no key, proxy or plug-in of whoever runs the tests has a say in them.
ENVIRONMENT = {key: os.environ[key] for key in ("PATH", "HOME", "TMPDIR", "LANG") if key in os.environ} | {
    "PYTHONDONTWRITEBYTECODE": "1",
    "HF_HUB_OFFLINE": "1",
}


def rows(number: int, topic: str) -> str:
    """JSONL of prompts that differ."""
    lines = ({"id": f"{topic}-{n}", "messages": [{"role": "user", "content": f"{topic} {n}?"}]} for n in range(number))
    return "".join(json.dumps(line) + "\n" for line in lines)


class Project:
    """A working directory with a copy of the project, two small datasets and a config."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.config: dict = {}
        self.environment = dict(ENVIRONMENT)

    @classmethod
    def new(cls, folder: Path, server_url: str) -> "Project":
        project = cls(folder)
        folder.mkdir(parents=True, exist_ok=True)
        for part in PARTS:
            copy = shutil.copytree if (ROOT / part).is_dir() else shutil.copy2
            copy(ROOT / part, folder / part)
        make_model_folder(folder / "model")
        for name in ("chat", "code"):
            (folder / f"{name}.jsonl").write_text(rows(40, name))
        project.configure(
            model="model",
            budget=200,
            max_new_tokens=64,
            datasets={"chat": {"source": "chat.jsonl"}, "code": {"source": "code.jsonl", "budget": 100}},
            engine={"api": "sglang", "servers": [server_url], "concurrency": 4, "outage_patience": "20s"},
        )
        return project

    def copied_to(self, folder: Path, server_url: str) -> "Project":
        """The same, times and all, in another folder and with another server."""
        shutil.copytree(self.folder, folder)
        project = Project(folder)
        project.config = json.loads(json.dumps(self.config))
        project.config["engine"]["servers"] = [server_url]
        project.configure()
        return project

    def configure(self, **changes) -> None:
        """Change keys of the config; None takes one out. A dict is laid over the dict that is there."""
        for key, value in changes.items():
            if value is None:
                self.config.pop(key, None)
            elif isinstance(value, dict) and isinstance(self.config.get(key), dict):
                self.config[key] = self.config[key] | value
            else:
                self.config[key] = value
        self.path("config.yaml").write_text(yaml.safe_dump(self.config, sort_keys=False))

    def path(self, name: str) -> Path:
        return self.folder / name

    def start(self, *arguments: str) -> subprocess.Popen:
        """snakemake in a process group of its own, as a shell starts it; what it prints goes to output.txt."""
        with self.path("output.txt").open("ab") as output:
            return subprocess.Popen(
                [*SNAKEMAKE, *arguments],
                cwd=self.folder,
                env=self.environment,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def run(self, *arguments: str, status: int | None = 0, timeout: float = 120) -> str:
        """snakemake to its end; gives what it printed, and fails where it ends with another status."""
        self.path("output.txt").unlink(missing_ok=True)
        process = self.start(*arguments)
        try:
            process.wait(timeout)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            raise AssertionError(f"still running after {timeout} s:\n{self.output()}") from None
        output = self.output()
        assert status is None or process.returncode == status, output
        return output

    def output(self) -> str:
        return self.path("output.txt").read_text(errors="replace")

    def plan(self) -> dict[str, set[str]]:
        """What a dry run would do: {rule: datasets}; {} for nothing."""
        plan: dict[str, set[str]] = {}
        for dataset, message in re.findall(r"^Job \d+: ([\w-]+): (.*)$", self.run("-n"), re.MULTILINE):
            rule = RULES_BY_MESSAGE.get(message, "generate_responses")
            plan.setdefault(rule, set()).add(dataset)
        return plan

    def is_finished(self) -> bool:
        """Whether a dry run has nothing to do."""
        return "Nothing to be done" in self.run("-n")

    def complete(self, dataset: str) -> dict:
        return json.loads(self.path(f"results/{dataset}/complete").read_bytes())

    def journal(self, dataset: str) -> list[dict]:
        """The whole lines of a journal; a torn last one is passed over."""
        path = self.path(f"results/{dataset}/raw_responses.jsonl")
        raw = path.read_bytes() if path.exists() else b""
        return [json.loads(line) for line in raw.split(b"\n")[:-1]]

    def records(self, dataset: str) -> list[dict]:
        return [json.loads(line) for line in self.path(f"results/{dataset}/records.jsonl").open()]

    def doubled(self, dataset: str) -> list:
        """Journal keys that stand twice."""
        names = ("id", "prompt_hash", "sample", "turn", "part")
        keys = Counter(tuple(line[name] for name in names) for line in self.journal(dataset))
        return [key for key, times in keys.items() if times > 1]

    def workers(self) -> list[int]:
        """Process ids of this folder's running filling jobs."""
        return [
            int(process.name)
            for process in Path("/proc").iterdir()
            if process.name.isdigit() and is_worker(process, self.folder)
        ]

    def wait_for(self, condition, seconds: float = 60) -> None:
        """Wait until `condition()` holds."""
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, f"waited {seconds} s in vain:\n{self.output()}"
            time.sleep(0.05)


def is_worker(process: Path, folder: Path) -> bool:
    """Whether a folder of /proc is a filling job of the project in `folder`."""
    try:
        command = process.joinpath("cmdline").read_bytes()
        return b"generate_responses.py" in command and process.joinpath("cwd").resolve() == folder.resolve()
    except OSError:
        return False


@pytest.fixture(scope="session")
def new_project():
    """new_project(folder, url="") gives a project that has not run yet."""
    return lambda folder, url="http://127.0.0.1:9": Project.new(folder, url)


@pytest.fixture(scope="session")
def finished_project(tmp_path_factory) -> Project:
    """A project whose datasets are filled. Not to be changed: tests take a copy."""
    with ThreadedServer({"length": {"fixed": 20}}) as server:
        project = Project.new(tmp_path_factory.mktemp("finished") / "project", server.url)
        project.run()
    return project


@pytest.fixture
def server():
    """A server whose answers have 20 ids."""
    with ThreadedServer({"length": {"fixed": 20}}) as server:
        yield server


@pytest.fixture
def new(tmp_path, server) -> Project:
    """A project that has not run yet."""
    return Project.new(tmp_path / "project", server.url)


@pytest.fixture
def finished(finished_project, tmp_path, server) -> Project:
    """A copy of the finished project; `server` has not seen a request."""
    return finished_project.copied_to(tmp_path / "project", server.url)
