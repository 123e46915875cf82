"""What the model's folder says: where it is, its vocabulary, context length and stop ids. No text is tokenized here."""

import json
from dataclasses import dataclass
from pathlib import Path

from tokenfill.errors import UserError

FILES = ["*.json", "*.jinja", "*.model", "*.tiktoken", "*.txt"]


@dataclass(frozen=True)
class ModelFacts:
    """`context_length` in tokens, None where no file tells it; `stop_token_ids` sorted."""

    vocab_size: int
    context_length: int | None
    stop_token_ids: list[int]


def model_folder(model: str, revision: str | None, trust_remote_code: bool = False) -> Path:
    """The local folder of a model: itself, or the hub's files but the weights.

    Errors: UserError where there is neither such a folder nor a hub that answers.
    """
    folder = Path(model)
    if folder.is_dir():
        return folder
    if folder.exists() or model.startswith(("/", "./", "../")) or model.count("/") != 1:
        raise UserError(f"model: {model} is no folder; give the folder of the tokenizer, or a hub id owner/name.")
    from huggingface_hub import snapshot_download

    try:
        patterns = [*FILES, "*.py"] if trust_remote_code else FILES
        return Path(snapshot_download(model, revision=revision, allow_patterns=patterns))
    except Exception as error:
        reason = str(error).strip().split("\n", 1)[0].rstrip(".")
        raise UserError(
            f"model: {model} is no local folder and the hub did not give it ({type(error).__name__}: {reason}); "
            "give a local folder, or check the name, the network and your access."
        ) from None


def model_facts(folder: Path, tokenizer) -> ModelFacts:
    """Facts from config.json and generation_config.json, and from the tokenizer where they are silent."""
    config = _json(folder / "config.json")
    text = config.get("text_config") if isinstance(config.get("text_config"), dict) else {}
    stop = _ids(_json(folder / "generation_config.json").get("eos_token_id"))
    stop |= _ids(tokenizer.eos_token_id)
    vocab = config.get("vocab_size") or text.get("vocab_size") or len(tokenizer)
    context = config.get("max_position_embeddings") or text.get("max_position_embeddings")
    if not context and isinstance(tokenizer.model_max_length, int) and tokenizer.model_max_length < 1 << 40:
        context = tokenizer.model_max_length
    return ModelFacts(int(vocab), int(context) if context else None, sorted(stop))


def _ids(value: object) -> set[int]:
    return {token for token in (value if isinstance(value, list) else [value]) if isinstance(token, int)}


def _json(path: Path) -> dict:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot be read as JSON ({error}); fetch the model's files again.") from None
    return value if isinstance(value, dict) else {}
