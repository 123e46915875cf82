"""What is checked against the disk before a run, and refused before anything is written. It only reads."""

import glob
import json
import shlex
from functools import cache
from pathlib import Path

from tokenfill.errors import UserError
from tokenfill.settings import MODEL_FILES, DatasetSettings, Settings, content_digests, differences, digest

RESULTS = Path("results")


def check(settings: Settings, where: str, made_by_rules: tuple[str, ...] = ()) -> None:
    """Refuse what would mix answers of different settings, or fail for want of a file; UserError says which.

    `made_by_rules` are model folders that the workflow makes itself.
    """
    refuse_changed_identity(settings, where)
    for dataset in settings.datasets.values():
        refuse_missing_source(dataset, where)
        if dataset.prompts["model"] not in made_by_rules:
            refuse_missing_model(dataset, where)


def source_files(dataset: DatasetSettings) -> list[str]:
    """The local files that prompts are read from, and those whose prompts are left out, sorted and each once."""
    found = {file for source in sources(dataset) for file in local_files(source)}
    return sorted(found.union(*map(local_files, dataset.prompts["exclude"])))


def sources(dataset: DatasetSettings) -> list[str]:
    """The source as a list, one entry a path, glob or hub address."""
    source = dataset.prompts["source"]
    return [source] if isinstance(source, str) else source


def local_files(source: str) -> list[str]:
    """The files that a path, a glob or a folder names; [] for a hub source or where none is there."""
    if is_remote(source):
        return []
    if Path(source).is_file():
        return [source]
    folder = Path(source.partition("?split=")[0])
    if folder.is_dir():
        return sorted(str(file) for file in folder.rglob("*") if file.is_file())
    return sorted(file for file in glob.glob(source, recursive=True) if Path(file).is_file())


def is_remote(source: str) -> bool:
    """Whether a source is not on this disk."""
    return "://" in source


def model_files(dataset: DatasetSettings) -> list[str]:
    """The files of a local model's folder that prompts are made with, and the chat template; [] for a hub model."""
    folder = Path(dataset.prompts["model"])
    files = [str(folder / name) for name in MODEL_FILES if (folder / name).is_file()]
    return files + template_files(dataset)


def template_files(dataset: DatasetSettings) -> list[str]:
    """The chat template that is used in place of the model's own, if there is one."""
    template = dataset.prompts["chat_template"]
    return [template] if template and Path(template).is_file() else []


def journal_sizes(folder: Path) -> dict[str, int]:
    """The bytes of each journal file of a dataset's folder, by file name."""
    return {file.name: file.stat().st_size for file in sorted(folder.glob("raw_responses*.jsonl"))}


def read_json(path: Path) -> dict | None:
    """A JSON object, or None where there is no file or another content: a kill may have left anything."""
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None


def refuse_changed_identity(settings: Settings, where: str) -> None:
    """Refuse settings that make other answers than those a journal already holds."""
    digests = cache(content_digests)  # the datasets share one model as a rule
    changed = {
        name: change for name, dataset in settings.datasets.items() if (change := changed_identity(dataset, digests))
    }
    if changed:
        name, change = next(iter(changed.items()))
        others = f" (and {len(changed) - 1} more: {', '.join([*changed][1:])})" if len(changed) > 1 else ""
        raise UserError(
            f"{where}: {change}, but {RESULTS / name}{others} holds answers made before; put it back, or move "
            f"the answers aside and start over: {way_out(list(changed))}"
        )


def changed_identity(dataset: DatasetSettings, digests=content_digests) -> str | None:
    """In what the settings differ from those that made the dataset's journal; None: in nothing, or no answers yet."""
    folder = RESULTS / dataset.name
    if not any(journal_sizes(folder).values()):
        return None
    identity, content = dataset.responses["identity"], local_content(dataset, digests)
    meta = read_json(folder / "raw_responses.meta.json")
    if meta is None or not isinstance(meta.get("identity"), dict) or not isinstance(meta.get("content"), dict):
        known = content and {"identity": identity, "content": content}
        if known and digest(known) == settings_of_first_line(folder):
            return None
        return f"{folder}/raw_responses.meta.json is missing or unreadable, so nothing tells what made the answers"
    found = differences(meta["identity"], identity)
    if not found and content:
        found = differences(meta["content"], content, "content.")
    return "; ".join(found) or None


def local_content(dataset: DatasetSettings, digests) -> dict | None:
    """The digests of a local model's tokenizer and template; None for a hub model or a folder not made yet."""
    folder, template = Path(dataset.prompts["model"]), dataset.prompts["chat_template"]
    if not any((folder / name).is_file() for name in MODEL_FILES) or (template and not Path(template).is_file()):
        return None
    return digests(folder, template and Path(template))


def settings_of_first_line(folder: Path) -> str | None:
    """The digest of settings in a journal's first line, or None."""
    for name in journal_sizes(folder):
        with (folder / name).open("rb") as file:
            try:
                return json.loads(file.readline())["settings"]
            except (ValueError, KeyError, TypeError):
                continue
    return None


def way_out(names: list[str]) -> str:
    """The command that moves the answers of these datasets aside, each into a folder that is not there yet."""
    commands = []
    for name in names:
        folder = RESULTS / name
        number = next(n for n in range(1, 10**6) if not (folder / f"answers.{n}").exists())
        files = [*sorted(folder.glob("raw_responses*")), folder / "failures.jsonl", folder / "complete"]
        moved = shlex.join(str(file) for file in files if file.exists())
        aside = folder / f"answers.{number}"
        commands.append(f"mkdir {aside} && mv {moved} {aside}/")
    return " && ".join(commands)


def missing_sources(dataset: DatasetSettings) -> list[str]:
    """The sources, and the files of prompts to leave out, that name no file on this disk."""
    named = [*sources(dataset), *dataset.prompts["exclude"]]
    return [source for source in named if not is_remote(source) and not local_files(source)]


def why_tokenized(dataset: DatasetSettings) -> str | None:
    """Why the dataset's prompts are to be made, or made again, by its settings alone; None: they are as asked."""
    folder = RESULTS / dataset.name
    if not (folder / "prompts.parquet").exists():
        return "its prompts are not made yet"
    then = read_json(folder / "settings/prompts.json") or {}
    change = differences({key: then.get(key) for key in dataset.prompts}, dataset.prompts)
    return "; ".join(change) or None


def refuse_missing_source(dataset: DatasetSettings, where: str) -> None:
    """A source may go once its prompts are made, but not while they are still to be made, or made again."""
    missing = missing_sources(dataset)
    if missing and (reason := why_tokenized(dataset)):
        key = "source" if missing[0] in sources(dataset) else "exclude"
        raise UserError(
            f"{where}: datasets.{dataset.name}.{key}: {missing[0]}: no such file, and it is needed since {reason}; "
            "check the path or bring the file back"
        )


def refuse_missing_model(dataset: DatasetSettings, where: str) -> None:
    """A path that names no folder is told apart from a hub id by its form or by a first part that is here."""
    model, template = dataset.prompts["model"], dataset.prompts["chat_template"]
    if not (reason := why_tokenized(dataset)):
        return
    if template and not Path(template).is_file():
        raise UserError(f"{where}: chat_template: {template}: no such file, and it is needed since {reason}")
    first, *others = Path(model).parts
    is_path = model.startswith(("/", ".", "~")) or len(others) > 1 or (others and Path(first).is_dir())
    if is_path and not Path(model).is_dir():
        raise UserError(
            f"{where}: model: {model}: no such folder, and it is needed since {reason}; check the path, or "
            "name a hub model as owner/name"
        )
    if Path(model).is_dir() and not model_files(dataset):
        raise UserError(f"{where}: model: {model}: holds no tokenizer.json; point it at the model's own folder")
