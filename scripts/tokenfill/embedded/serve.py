"""llama.cpp's own HTTP server over the GGUF of a model folder: its settings and its end. Started by `engine.launch`.

python -m tokenfill.embedded.serve MODEL_FOLDER PORT [--slots 8] [--context 2048] [--threads N]
"""

import argparse
import os
import signal
import sys
from pathlib import Path

from tokenfill.errors import UserError

HOST = "127.0.0.1"
MOST_THREADS = 8  # a model this small only loses time at the barriers of more


def main(arguments: list[str] | None = None) -> int:
    """Serve until a signal ends the process; 1 if the server can't start."""
    asked = _parser().parse_args(arguments)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)  # ends at once, also while the model loads: nobody waits for an answer
    try:
        server = start(asked.model, asked.port, asked.slots, asked.context, asked.threads or cores())
    except UserError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"serving {asked.model} on {server.listening_address}, {asked.slots} slots", flush=True)
    while True:
        signal.pause()


def start(model: Path, port: int, slots: int, context: int, threads: int):
    """The running server (xllamacpp.Server) for `slots` requests at a time of `context` tokens each, prompt included.

    Raises UserError if the folder has no GGUF or the server can't start on the port.
    """
    gguf = only_gguf(model)
    # libgomp reads this once, when it is loaded: threads that spin at barriers collapse beside any other load.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    from xllamacpp import CommonParams, Server

    params = CommonParams()
    params.model.path = str(gguf)
    params.hostnames = [HOST]
    params.port = port
    params.n_parallel = slots
    params.n_ctx = slots * context  # the server divides it among the slots
    params.kv_unified = False
    params.n_gpu_layers = 0
    params.cpuparams.n_threads = threads
    params.cpuparams_batch.n_threads = threads
    params.cache_ram_mib = 0  # the default keeps up to 8 GiB of old prompts
    params.endpoint_metrics = True
    params.special = True  # the text shows special tokens
    params.model_alias = {gguf.name.split(".")[0]}  # the same wherever the folder lies
    params.ui = False
    try:
        return Server(params)
    except RuntimeError as error:
        raise UserError(f"The server can't serve {gguf} on {HOST}:{port}: {error}") from error


def only_gguf(model: Path) -> Path:
    """The one GGUF file of a model folder. Raises UserError if there is none or more than one."""
    found = sorted(model.glob("*.gguf"))
    if len(found) != 1:
        raise UserError(
            f"{model} must hold exactly one .gguf file to be served, and holds {len(found)}: "
            "let the rule fetch_embedded_model fill it, or name a folder that has one."
        )
    return found[0]


def cores(cpu_max: Path = Path("/sys/fs/cgroup/cpu.max")) -> int:
    """Threads worth starting: the CPUs this process may use, by its affinity and its cgroup's quota, at most 8."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = map(int, cpu_max.read_text().split())
        usable = min(usable, round(quota / period))
    except (OSError, ValueError):
        pass  # no quota, or none that can be read
    return max(1, min(usable, MOST_THREADS))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tokenfill.embedded.serve", description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path, help="folder with one .gguf file")
    parser.add_argument("port", type=int, help=f"port on {HOST}; 0 takes a free one")
    parser.add_argument("--slots", type=int, default=8, help="requests answered at a time")
    parser.add_argument("--context", type=int, default=2048, help="tokens per request, prompt included")
    parser.add_argument("--threads", type=int, default=None, help="the default is the CPUs this process may use")
    return parser


if __name__ == "__main__":
    sys.exit(main())
