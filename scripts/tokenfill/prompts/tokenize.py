"""The stage as a whole: rows of a source to prompts.parquet, with an account of every row."""

from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TextIO

from tokenfill.errors import UserError
from tokenfill.prompts.accounts import Accounts, skipped_path
from tokenfill.prompts.encode import Encoder, longest_token
from tokenfill.prompts.escape import Escape
from tokenfill.prompts.exclude import Seen
from tokenfill.prompts.gather import Reading, excluded_texts, gather, unpacked
from tokenfill.prompts.model import model_facts, model_folder
from tokenfill.prompts.pipeline import Keeping, Prompt, Rendering, batches, encoded
from tokenfill.prompts.progress import Progress
from tokenfill.prompts.sources import parse_source, pinned, revision_read
from tokenfill.prompts.spool import Spool
from tokenfill.prompts.table import PromptTable, prompt_hashes
from tokenfill.prompts.template import Renderer, SpecialTexts, load_tokenizer, special_ids
from tokenfill.settings import content_digests

_DEFAULT_LIMIT = 131_072  # tokens, where neither the config nor the model says one
_SHORT_ANSWER = 100  # tokens: no budget needs more prompts than answers of this length fill it


def tokenize_prompts(
    settings: dict, out: Path, *, earlier: Iterable[Path] = (), budget: int | None = None, log: TextIO | None = None
) -> dict:
    """Writes `out` and, beside it, prompts_skipped.jsonl; returns the metadata that `out` carries.

    `settings` is the content of settings/prompts.json; `earlier` are prompt tables whose prompts are not repeated;
    `budget` in tokens only serves to say how many rows would do.
    Errors: UserError for a bad source, model or template, and where no row gives a prompt.
    """
    template = Path(settings["chat_template"]) if settings["chat_template"] else None
    folder = model_folder(settings["model"], settings["revision"], settings["trust_remote_code"])
    content = content_digests(folder, template)
    tokenizer = load_tokenizer(folder, template, settings["trust_remote_code"])
    facts = model_facts(folder, tokenizer)
    limit = settings["max_prompt_tokens"] or (facts.context_length or _DEFAULT_LIMIT + 1) - 1
    escape = Escape(tokenizer) if settings["special_tokens_in_text"] == "escape" else None
    renderer = Renderer(tokenizer, settings["template_date"], settings["template_kwargs"])
    encoder = Encoder(tokenizer, escape)
    reading, excluded = Reading(settings), excluded_texts(settings["exclude"])
    parts = [pinned(part) for part in parse_source(settings["source"])]
    out.parent.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        skipped = skipped_path(out)
        accounts = Accounts(stack.enter_context(open(skipped, "w", encoding="utf-8")), log)
        spool = stack.enter_context(Spool(out.parent, _seed(settings)))
        longest = limit * longest_token(tokenizer)
        gather(reading, parts, spool, accounts, longest=longest, excluded=excluded)
        order, repeated, renamed = spool.arrange()
        for payload in spool.payloads(repeated):
            header, _ = unpacked(payload)
            accounts.skip("duplicate", row=header.row, row_id=header.id, file=header.file, line=header.line)
        _advise(len(order), settings["limit"], budget, accounts)
        numbers = order[: settings["limit"]]
        accounts.limited = len(order) - len(numbers)

        seen = Seen()
        for path in earlier:
            seen.extend(prompt_hashes(path))
        table = stack.enter_context(PromptTable(out))
        rendering = Rendering(renderer, SpecialTexts(tokenizer), escape, accounts)
        keeping = Keeping(table, accounts, seen, facts, special_ids(tokenizer), limit)
        progress = stack.enter_context(Progress(f"{settings['dataset']}: tokenizing", "rows", len(numbers)))

        def prompts() -> Iterator[Prompt]:
            for number, payload in zip(numbers, spool.payloads(numbers), strict=True):
                yield from rendering.prompts(payload, renamed[number])
                progress.advance()

        for group, ids in encoded(batches(prompts()), lambda texts: encoder.encode(texts, limit)):
            keeping.keep(group, ids)
        accounts.say(accounts.table(f"{settings['dataset']}: prompts from {_named(settings['source'])}"))
        if not accounts.lengths:
            raise UserError(_no_prompts(settings, accounts, skipped))
        metadata = {
            "v": 1,
            "content": content,
            "vocab_size": facts.vocab_size,
            "stop_token_ids": facts.stop_token_ids,
            "think_open": accounts.notices["think_open"] > 0,
            "source_revision": revision_read(parts),
            "rows_read": accounts.rows,
            "prompts": len(accounts.lengths),
            "skipped": dict(sorted(accounts.skipped.items())),
            "prompt_tokens": accounts.prompt_tokens,
        }
        table.finish(metadata)
    return metadata


def _named(source: str | list[str]) -> str:
    return source if isinstance(source, str) else ", ".join(source)


def _seed(settings: dict) -> int | None:
    return settings["order_seed"] if settings["order"] == "shuffled" else None


def _advise(rows: int, limit: int | None, budget: int | None, accounts: Accounts) -> None:
    plenty = -(-budget // _SHORT_ANSWER) if budget else None
    if plenty and min(rows, limit or rows) > 2 * plenty:
        accounts.say(
            f"The source gives {rows:,} rows, while {plenty:,} fill the budget even if answers have only "
            f"{_SHORT_ANSWER} tokens: limit: {plenty} would spare tokenizing the rest."
        )


def _no_prompts(settings: dict, accounts: Accounts, skipped: Path) -> str:
    source = _named(settings["source"])
    if not accounts.rows:
        return f"source: {source} has no rows."
    reason, count = accounts.skipped.most_common(1)[0]
    example = accounts.examples[reason]
    return (
        f"source: {source} gives no prompt in {accounts.rows} rows, {count} of them for {reason}"
        f"{f' ({example})' if example else ''}; {skipped} names each row, and format and columns say how rows are read."
    )
