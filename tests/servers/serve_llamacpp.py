"""llama.cpp's own server, from the project's environment: serve_llamacpp.py GGUF PORT SLOTS CONTEXT [KEY]."""

import signal
import sys

import xllamacpp


def main(model: str, port: str, slots: str, context: str, key: str = "") -> None:
    """Serve until a signal ends the process. `context` is for all slots together."""
    params = xllamacpp.CommonParams()
    params.model.path = model
    params.model_alias = {"tiny"}
    params.hostnames = ["127.0.0.1"]
    params.port = int(port)
    params.n_parallel = int(slots)
    params.n_ctx = int(context)
    params.n_gpu_layers = 0
    params.cpuparams.n_threads = 1
    params.cache_ram_mib = 0
    params.special = True
    if key:
        params.api_keys = [key]
    server = xllamacpp.Server(params)
    print(server.listening_address, flush=True)
    signal.sigwait({signal.SIGTERM, signal.SIGINT})


if __name__ == "__main__":
    main(*sys.argv[1:])
