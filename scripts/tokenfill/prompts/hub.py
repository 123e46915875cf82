"""Rows of dataset folders and hub datasets, through the `datasets` library, which is imported only here."""

import re
from collections.abc import Iterator
from pathlib import Path

from tokenfill.errors import UserError
from tokenfill.prompts.rows import Row, Source, without_nulls


def dataset_rows(source: Source, wanted: set[str]) -> Iterator[Row]:
    """Every row of a dataset, streamed, with only its wanted columns.

    Errors: UserError where there is no such dataset, or no hub that answers.
    """
    datasets = _library()
    name = _name(source)
    try:
        data = _open(datasets, source)
        columns = data.column_names
        if columns is not None:
            known = [column for column in columns if column in wanted]
            if not known:
                raise UserError(
                    f"{name}: no column that holds prompts among {', '.join(columns)}; name it under columns."
                )
            data = data.select_columns(known)
        for value in data:
            yield Row(name, None, without_nulls(value))
    except UserError:
        raise
    except Exception as error:
        raise UserError(_sentence(name, error)) from None


def _open(datasets, source: Source):
    folder = Path(source.dataset)
    if (folder / "dataset_dict.json").exists() or (folder / "state.json").exists():
        saved = datasets.load_from_disk(str(folder))
        if not isinstance(saved, datasets.DatasetDict):
            return saved
        split = source.split or "train"
        if split not in saved:
            raise UserError(f"source: {folder} has no split {split}; add ?split= with one of {', '.join(saved)}.")
        return saved[split]
    return datasets.load_dataset(
        source.dataset, name=source.config, split=source.split or "train", revision=source.revision, streaming=True
    )


def commit(source: Source) -> str:
    """The commit of a hub dataset that its branch or tag names now. Errors: UserError where no hub answers."""
    from huggingface_hub import HfApi

    try:
        return HfApi().dataset_info(source.dataset, revision=source.revision).sha
    except Exception as error:
        raise UserError(_sentence(_name(source), error)) from None


def _library():
    try:
        import datasets
    except ImportError:
        raise UserError("source: dataset folders and hf:// need the package datasets; install it.") from None
    datasets.disable_progress_bars()
    return datasets


def _name(source: Source) -> str:
    return source.dataset if Path(source.dataset).exists() else f"hf://{source.dataset}"


def _sentence(name: str, error: Exception) -> str:
    reason = re.sub(r"\s+", " ", str(error)).strip()[:300].rstrip(".")
    if name.startswith("hf://"):
        return (
            f"source: the hub did not give {name} ({type(error).__name__}: {reason}); check the name, its config, "
            "split and revision, the network and your access, or download it and give its files."
        )
    return f"source: {name} cannot be read as a dataset ({type(error).__name__}: {reason}); give its files as a glob."
