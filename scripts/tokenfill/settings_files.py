"""The files through which the config reaches the jobs: each written whole, and only when its content changes."""

import json
from pathlib import Path

from tokenfill.errors import UserError
from tokenfill.files import replace
from tokenfill.preflight import RESULTS, journal_sizes, missing_sources, read_json, source_files
from tokenfill.responses.budget import contradiction
from tokenfill.settings import DatasetSettings, Settings


def write_all(settings: Settings) -> None:
    """Write results/engine.json and every dataset's settings/*.json. UserError where a file cannot be written."""
    for dataset in settings.datasets.values():
        folder = RESULTS / dataset.name / "settings"
        earlier = earlier_datasets(settings, dataset.name)
        write_if_changed(folder / "prompts.json", prompts_content(dataset, earlier))
        write_if_changed(folder / "responses.json", dataset.responses)
        write_if_changed(folder / "records.json", dataset.records)
        write_if_changed(folder / "journal.json", {"distrusted": distrusted(dataset)})
    write_if_changed(RESULTS / "engine.json", settings.engine)


def earlier_datasets(settings: Settings, name: str) -> list[str]:
    """The datasets whose prompts this one must not repeat: with dedupe: across, those named before it."""
    names = list(settings.datasets)
    return names[: names.index(name)] if settings.datasets[name].prompts["dedupe"] == "across" else []


def prompts_content(dataset: DatasetSettings, earlier: list[str]) -> dict:
    """The prompts' settings, with the files and earlier datasets that they depend on, so that one more makes them anew.

    Files that were there once and are gone change nothing: the prompts that came of them stay.
    """
    files = source_files(dataset)
    if missing_sources(dataset):
        files = (read_json(RESULTS / dataset.name / "settings/prompts.json") or {}).get("files", files)
    return {**dataset.prompts, "files": files, "earlier": earlier}


def distrusted(dataset: DatasetSettings) -> str | None:
    """The `finished` of the `complete` that is not to be believed, an input that makes the dataset pending again.

    Without `complete` the value stays, since the job that will read it is pending anyway.
    """
    folder = RESULTS / dataset.name
    value = (read_json(folder / "settings/journal.json") or {}).get("distrusted")
    if not (folder / "complete").exists():
        return value
    complete = read_json(folder / "complete")
    if not is_sentinel(complete):
        stamp = (folder / "complete").stat()
        return f"unreadable: {stamp.st_size} bytes of {stamp.st_mtime_ns}"
    if contradiction(complete, dataset.responses["budget"], journal_sizes(folder)):
        return complete["finished"]
    return None if value == complete["finished"] else value


def is_sentinel(complete) -> bool:
    """Whether a `complete` has what is asked of it."""
    return (
        isinstance(complete, dict)
        and complete.get("reason") in ("budget_met", "prompts_exhausted")
        and all(type(complete.get(key)) is int for key in ("tokens", "budget"))
        and isinstance(complete.get("journal"), dict)
        and all(type(size) is int for size in complete["journal"].values())
        and isinstance(complete.get("finished"), str)
    )


def write_if_changed(path: Path, content: dict) -> None:
    """Replace `path` in one step if its content is to change; its time stamp stays otherwise."""
    text = json.dumps(content, indent=1, ensure_ascii=False) + "\n"
    try:
        if path.exists() and path.read_text(encoding="utf-8") == text:
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        replace(path, text)
    except (OSError, UnicodeError) as error:
        raise UserError(f"{path} cannot be written: {error}; make room or set the folder's rights") from None
