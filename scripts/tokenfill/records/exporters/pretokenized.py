"""One JSON line a record, with ids and mask: what SpecForge reads as `prompts_path` and speculators as `--data`."""

import orjson

from tokenfill.records.loss_mask import joined


def line(*, id: str, sample: int, turns: list[int], prompt_ids: list[int], output_ids: list[int], **others) -> bytes:
    """A record of one answer as a JSON line. `others`: finish_reason and dataset, written as they are."""
    input_ids, loss_mask = joined(prompt_ids, output_ids)
    record = {
        "id": id,
        "sample": sample,
        "turns": turns,
        "input_ids": input_ids,
        "loss_mask": loss_mask,
        "prompt_len": len(prompt_ids),
        **others,
    }
    return orjson.dumps(record) + b"\n"
