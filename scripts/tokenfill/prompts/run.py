"""The stage from its settings file, as the workflow calls it."""

import errno
import json
import os
from pathlib import Path

from tokenfill.errors import UserError
from tokenfill.prompts.tokenize import tokenize_prompts

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")  # it warns of a missing torch that nothing here needs


def run(settings: Path, out: Path, log: Path, earlier: list[Path] = ()) -> None:
    """Tokenizes what `settings` (a settings/prompts.json) asks for into `out`; the account goes to `log` as well.

    Errors: UserError, also for a full disk.
    """
    responses = settings.with_name("responses.json")  # only to say how many rows its budget can use
    budget = json.loads(responses.read_text())["budget"] if responses.exists() else None
    with open(log, "a", encoding="utf-8") as file:
        try:
            tokenize_prompts(json.loads(settings.read_text()), out, earlier=earlier, budget=budget, log=file)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            raise UserError(
                f"{out.parent}: no space left; sorting the prompts takes about twice the size of the source."
            ) from None
