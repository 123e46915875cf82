"""The stage from its settings file, as the workflow calls it."""

import json
import os
from pathlib import Path

from tokenfill.prompts.tokenize import tokenize_prompts

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")  # it warns of a missing torch that nothing here needs


def run(settings: Path, out: Path, log: Path, earlier: list[Path] = ()) -> None:
    """Tokenizes what `settings` (a settings/prompts.json) asks for into `out`; the account goes to `log` as well."""
    responses = settings.with_name("responses.json")  # only to say how many rows its budget can use
    budget = json.loads(responses.read_text())["budget"] if responses.exists() else None
    with open(log, "a", encoding="utf-8") as file:
        tokenize_prompts(json.loads(settings.read_text()), out, earlier=earlier, budget=budget, log=file)
