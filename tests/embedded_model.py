"""The embedded model for tests: fetched once into the folder where the workflow keeps it, and used from there."""

from functools import cache
from pathlib import Path

from tokenfill.embedded.fetch import GGUF, fetch

FOLDER = Path(__file__).parents[1] / "resources" / "SmolLM2-135M-Instruct"
PROMPTS = FOLDER.parent / "prompts"


@cache
def folder() -> Path:
    """The model's folder. Raises tokenfill's UserError if the model is neither there nor to be had."""
    if not all((FOLDER / name).is_file() for name in (GGUF, "tokenizer.json", "config.json")):
        fetch(FOLDER)
    return FOLDER
