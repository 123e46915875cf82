"""Prompts and their answers become training records, in the order of the prompts. A line is made in exporters/."""

import json
import logging
import os
from collections.abc import Iterator
from pathlib import Path

from tokenfill.errors import UserError
from tokenfill.records.exporters import pretokenized
from tokenfill.responses.answers import Answer, Counting, Key, fold
from tokenfill.responses.journal import NAME, read, read_lines
from tokenfill.responses.prompt_table import Prompt, PromptTable


def build(settings: Path, prompts: Path, complete: Path, records: Path) -> None:
    """Write every answer that counts to `records`, one JSON line each.

    `complete`: the sentinel beside the journal; only lines that it certifies are taken.
    UserError: the journal does not hold what `complete` says.
    """
    asked, certified = json.loads(settings.read_bytes()), json.loads(complete.read_bytes())
    journal = complete.with_name(NAME)
    counting = Counting.of(asked["counting"], _context_length(complete.with_name("raw_responses.meta.json")))
    answers = answers_up_to(journal, certified["journal"].get(NAME, 0))
    unfinished = records.with_name(f".{records.name}.{os.getpid()}")
    tokens = number = 0
    try:
        with unfinished.open("wb") as file:
            for prompt, answer in counted(PromptTable(prompts), answers, counting):
                output_ids = [token for part in read_lines(journal, answer.places) for token in part["output_ids"]]
                file.write(
                    pretokenized.line(
                        id=prompt.id,
                        sample=answer.sample,
                        turns=[prompt.turn],
                        prompt_ids=prompt.input_ids,
                        output_ids=output_ids,
                        finish_reason="length" if answer.is_cut else "stop",
                        dataset=asked["dataset"],
                    )
                )
                tokens += counting.tokens(answer)
                number += 1
        if tokens != certified["tokens"]:
            raise UserError(
                f"{journal} holds {tokens:,} counted tokens where {complete} certifies {certified['tokens']:,}; "
                "the settings or the journal changed meanwhile, so run snakemake again"
            )
        os.replace(unfinished, records)
    finally:
        unfinished.unlink(missing_ok=True)
    logging.info("%s: %d records of %d tokens", records, number, tokens)


def answers_up_to(journal: Path, size: int) -> dict[Key, Answer]:
    """The answers in the first `size` bytes of a journal; unreadable lines are passed over, as they were counted."""
    answers: dict[Key, Answer] = {}
    for place, line, _ in read(journal):
        if place >= size:
            break
        if line is not None:
            fold(answers, line, place)
    return answers


def counted(prompts: PromptTable, answers: dict[Key, Answer], counting: Counting) -> Iterator[tuple[Prompt, Answer]]:
    """Every answer that counts, with its prompt, in the order of prompts and then of samples."""
    answered = {(key[0], key[1], key[3]) for key in answers}
    for prompt in prompts.prompts(lambda *name: name in answered):
        for sample in range(counting.samples_per_prompt):
            answer = answers.get((prompt.id, prompt.prompt_hash, sample, prompt.turn))
            if answer is not None and counting.counts(answer):
                yield prompt, answer


def _context_length(meta: Path) -> int | None:
    """The context length that the answers were counted with."""
    try:
        return json.loads(meta.read_bytes()).get("context_length")
    except FileNotFoundError:
        return None
