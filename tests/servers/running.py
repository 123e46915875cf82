"""Starts and stops the real servers, each in a process group of its own, and waits until they answer."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from servers.installs import python_of

HERE = Path(__file__).parent
MODEL = "tiny"  # the name the servers give the model
KEY = "sesame"
CONTEXT_LENGTH = 2048
START_SECONDS = 240  # on two busy cores; on idle ones 15 to 40


@dataclass
class Server:
    """A server that was started: `url`, and what it takes to end it. `workers` are the servers behind it."""

    url: str
    process: subprocess.Popen
    log: Path
    workers: list["Server"] = field(default_factory=list)
    command: list[str] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)
    ready_path: str = "/health"

    def kill(self) -> None:
        """SIGKILL to the server and all it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(10)

    def stop(self) -> None:
        """End the server, and those behind it."""
        self.kill()
        for worker in self.workers:
            worker.stop()

    def start_again(self) -> "Server":
        """The same command on the same port, after `kill`."""
        return _start(self.command, self.url, self.log, self.environment, self.ready_path, self.workers)


def free_port() -> int:
    """A loopback port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _start(command, url, log, environment, ready_path, workers=()) -> Server:
    with log.open("ab") as out:
        process = subprocess.Popen(
            [str(word) for word in command],
            stdout=out,
            stderr=subprocess.STDOUT,
            env={**os.environ, **environment},
            start_new_session=True,
            cwd=log.parent,
        )
    server = Server(url, process, log, list(workers), command, environment, ready_path)
    try:
        _wait(server)
    except BaseException:
        server.kill()
        raise
    return server


def _wait(server: Server) -> None:
    until = time.monotonic() + START_SECONDS
    request = urllib.request.Request(server.url + server.ready_path, headers={"Authorization": f"Bearer {KEY}"})
    while time.monotonic() < until:
        if server.process.poll() is not None:
            raise RuntimeError(f"the server ended with status {server.process.returncode}:\n{_tail(server.log)}")
        try:
            with urllib.request.urlopen(request, timeout=10):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)
    raise RuntimeError(f"the server did not answer in {START_SECONDS} s:\n{_tail(server.log)}")


def _tail(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-40:])


def llamacpp(model: Path, log: Path, *, key: str | None = KEY, slots: int = 32) -> Server:
    """llama.cpp's server from the project's own environment, on the model's GGUF."""
    port = free_port()
    command = [
        sys.executable,
        HERE / "serve_llamacpp.py",
        model / "tiny.gguf",
        port,
        slots,
        slots * CONTEXT_LENGTH,
    ]
    command += [key] if key else []
    return _start(command, f"http://127.0.0.1:{port}", log, {"OMP_WAIT_POLICY": "passive"}, "/health")


def sglang(model: Path, log: Path, *extra: str, key: str | None = KEY) -> Server:
    """SGLang on the CPU, with a capped cache: it would take most of the memory otherwise."""
    port = free_port()
    options = {
        "--model-path": model,
        "--served-model-name": MODEL,
        "--device": "cpu",
        "--host": "127.0.0.1",
        "--port": port,
        "--attention-backend": "torch_native",
        "--sampling-backend": "pytorch",
        "--grammar-backend": "none",
        "--dtype": "float32",
        "--max-total-tokens": 65536,
        "--max-running-requests": 32,
        "--max-queued-requests": 32,
        "--context-length": CONTEXT_LENGTH,
    }
    if key:
        options["--api-key"] = key
    command = [
        python_of("sglang"),
        "-m",
        "sglang.launch_server",
        *_flat(options),
        "--disable-overlap-schedule",
    ]
    environment = {
        "HF_HUB_OFFLINE": "1",
        "SGLANG_USE_CPU_ENGINE": "1",
        "PYTHONPATH": str(HERE / "stand_ins"),
        "OMP_NUM_THREADS": "1",
    }
    return _start([*command, *extra], f"http://127.0.0.1:{port}", log, environment, "/health")


def vllm(model: Path, log: Path, *extra: str, key: str | None = KEY) -> Server:
    """vLLM on the CPU. `--enable-scale-out` is what makes aborts bring back the ids so far."""
    port = free_port()
    options = {
        "--model": model,
        "--served-model-name": MODEL,
        "--host": "127.0.0.1",
        "--port": port,
        "--dtype": "float32",
        "--max-model-len": CONTEXT_LENGTH,
        "--max-num-seqs": 32,
        "--max-num-queued-reqs": 32,
    }
    if key:
        options["--api-key"] = key
    command = [
        python_of("vllm"),
        "-m",
        "vllm.entrypoints.openai.api_server",
        *_flat(options),
        "--enforce-eager",
    ]
    environment = {
        "HF_HUB_OFFLINE": "1",
        "VLLM_TARGET_DEVICE": "cpu",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "VLLM_PLUGINS": "",
    }
    return _start([*command, *extra], f"http://127.0.0.1:{port}", log, environment, "/health")


def router(model: Path, log: Path, *extra: str, key: str | None = KEY) -> Server:
    """sglang-router in front of two SGLang servers."""
    logs = [log.with_name(f"{log.stem}-worker{number}.log") for number in range(2)]
    with ThreadPoolExecutor() as pool:
        starting = [pool.submit(sglang, model, worker_log, *extra, key=key) for worker_log in logs]
    workers = [start.result() for start in starting if start.exception() is None]
    try:
        for start in starting:
            start.result()
        return router_before(workers, log, key=key)
    except BaseException:
        for worker in workers:
            worker.stop()
        raise


def router_before(workers: list[Server], log: Path, *, key: str | None = KEY) -> Server:
    """sglang-router in front of servers that run. /health answers before it knows of any; /readiness does not."""
    port = free_port()
    options = {
        "--host": "127.0.0.1",
        "--port": port,
        "--policy": "round_robin",
        "--prometheus-host": "127.0.0.1",
        "--prometheus-port": free_port(),
        "--max-concurrent-requests": 48,
        "--queue-size": 8,
    }
    if key:
        options["--api-key"] = key
    urls = [worker.url for worker in workers]
    command = [
        python_of("router"),
        "-m",
        "sglang_router.launch_router",
        *_flat(options),
        "--worker-urls",
        *urls,
    ]
    return _start(command, f"http://127.0.0.1:{port}", log, {}, "/readiness", workers)


def _flat(options: dict) -> list:
    return [word for pair in options.items() for word in pair]


LANES = {"llamacpp": llamacpp, "sglang": sglang, "vllm": vllm, "router": router}
API = {"llamacpp": "llamacpp", "sglang": "sglang", "vllm": "vllm", "router": "sglang"}
NEEDS = {"llamacpp": (), "sglang": ("sglang",), "vllm": ("vllm",), "router": ("sglang", "router")}
