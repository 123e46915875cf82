"""From the config to what each stage is asked for, and its digests. The checks are in config_check.py."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import yaml

from tokenfill.config_check import checked, refuse_contradictions
from tokenfill.errors import UserError
from tokenfill.quantities import parse_count

__all__ = [
    "DatasetSettings",
    "Settings",
    "content_digests",
    "digest",
    "engine_of",
    "load",
    "parse_count",
    "read_schema",
]

# What shapes the ids of a prompt, the chat template apart.
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "tiktoken.model",
    "tekken.json",
    "spiece.model",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "added_tokens.json",
    "special_tokens_map.json",
)
# What else of a model's folder is read: the template, the stop ids, the vocabulary's size.
MODEL_FILES = (*TOKENIZER_FILES, "chat_template.jinja", "generation_config.json", "config.json")


@dataclass(frozen=True)
class DatasetSettings:
    """One dataset's settings. `prompts`, `responses` and `records` are what stands in its settings/*.json."""

    name: str
    prompts: dict
    responses: dict
    records: dict
    engine: dict


@dataclass(frozen=True)
class Settings:
    """The whole config, canonical. `engine` is what stands in results/engine.json."""

    datasets: dict[str, DatasetSettings]
    engine: dict


def read_schema(file: Path) -> dict:
    """The schema that `load` takes."""
    with file.open(encoding="utf-8") as text:
        return yaml.load(text, yaml.CSafeLoader)


def load(config: dict, schema: dict, where: str = "config.yaml") -> Settings:
    """Check `config` against `schema` and give every dataset its settings.

    UserError: one sentence that names the file `where`, the key and the remedy.
    """
    config = checked(config, schema, where)
    shared = {key: node for key, node in schema["properties"].items() if key != "datasets"}
    node = schema["properties"]["datasets"]["additionalProperties"]
    general = _with_defaults({"properties": shared}, config)
    engine = {
        "engine": general["engine"],
        "datasets": {name: own["engine"] for name, own in config["datasets"].items() if own.get("engine")},
    }
    datasets = {}
    for name, own in config["datasets"].items():
        values = _overlaid({"properties": shared}, general, own) | {"source": own["source"]}
        values["engine"] = engine_of(engine, name)
        key = f"datasets.{name}.engine" if own.get("engine") else "engine"
        refuse_contradictions(name, values, key, where)
        datasets[name] = _dataset_settings(name, values, node)
    return Settings(datasets, engine)


def engine_of(engine: dict, dataset: str) -> dict:
    """The engine settings of one dataset, from the content of results/engine.json.

    A dataset's own `servers` stand in place of a general `launch`, and the other way round.
    """
    own = engine["datasets"].get(dataset, {})
    merged = {**engine["engine"], **own}
    if own.get("servers") and "launch" not in own:
        merged["launch"] = None
    if own.get("launch") and "servers" not in own:
        merged["servers"] = []
    return merged


def keys_of_class(schema: dict, name: str) -> list[str]:
    """The dotted keys of the schema's class `name`, as they stand in a dataset."""
    node = schema["properties"]["datasets"]["additionalProperties"]
    return [".".join(path) for path, leaf in leaves(node) if leaf["class"] == name]


def leaves(node: dict, path: tuple = ()):
    """Yield (path, schema) for every key of a schema node that holds a value of its own."""
    for key, child in node["properties"].items():
        if "properties" in child:
            yield from leaves(child, (*path, key))
        else:
            yield (*path, key), child


def digest(value) -> str:
    """First 16 hex digits of sha256 over the canonical JSON of `value`."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return sha256(text.encode()).hexdigest()[:16]


def differences(then: Mapping, now: Mapping, prefix: str = "") -> list[str]:
    """Every value that differs between two nested mappings: ["sampling.temperature was 0.8 and is 0.2"]."""
    found = []
    for key in sorted({*then, *now}):
        old, new = then.get(key), now.get(key)
        if isinstance(old, dict) and isinstance(new, dict):
            found += differences(old, new, f"{prefix}{key}.")
        elif old != new:
            found.append(f"{prefix}{key} was {json.dumps(old)} and is {json.dumps(new)}")
    return found


def content_digests(folder: Path, chat_template: Path | None = None) -> dict[str, str]:
    """The sha256 of what shapes prompt ids in a model's folder: {"tokenizer": hex, "template": hex}.

    The template is the file `chat_template` if given, else the folder's own.
    UserError: the folder has no tokenizer, or a file of it cannot be read.
    """
    folder = Path(folder)
    files = [folder / name for name in TOKENIZER_FILES if (folder / name).is_file()]
    if not files:
        raise UserError(
            f"{folder}: has no tokenizer ({', '.join(TOKENIZER_FILES[:3])}, …); set model to a folder that has one"
        )
    files += sorted(folder.glob("tokenization_*.py"))
    tokenizer, template = sha256(), None
    for file in files:
        content = file.read_bytes()
        if file.name == "tokenizer_config.json":
            fields = _read_json_object(file, content)
            template = fields.pop("chat_template", None)
            content = json.dumps(fields, sort_keys=True).encode()
        tokenizer.update(f"{file.name} {len(content)}\n".encode() + content)
    jinja = Path(chat_template) if chat_template else folder / "chat_template.jinja"
    if chat_template or jinja.is_file():
        try:
            template = jinja.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise UserError(f"chat_template: {jinja} cannot be read as UTF-8 text ({error})") from None
    text = template if isinstance(template, str) else json.dumps(template, sort_keys=True)
    return {"tokenizer": tokenizer.hexdigest(), "template": sha256(text.encode()).hexdigest()}


def _read_json_object(file: Path, content: bytes) -> dict:
    try:
        fields = json.loads(content)
    except ValueError as error:
        raise UserError(f"{file}: not valid JSON ({error}); fetch the model's files again") from None
    if not isinstance(fields, dict):
        raise UserError(f"{file}: not a JSON object; fetch the model's files again")
    return fields


def _dataset_settings(name: str, values: dict, node: dict) -> DatasetSettings:
    """Sort a dataset's merged values into its stages by the schema's `read_by` and `class`."""

    def part(stage: str, wanted=lambda leaf: True) -> dict:
        chosen: dict = {}
        for path, leaf in leaves(node):
            if stage in leaf.get("read_by", ()) and wanted(leaf):
                value, place = values, chosen
                for key in path[:-1]:
                    value, place = value[key], place.setdefault(key, {})
                place[path[-1]] = value[path[-1]]
        return chosen

    identity = part("responses", lambda leaf: leaf["class"] == "identity")
    identity["sampling"]["stop_token_ids"] = sorted(set(identity["sampling"]["stop_token_ids"]))
    extent = part("responses", lambda leaf: leaf["class"] == "extent")
    return DatasetSettings(
        name=name,
        prompts={"dataset": name, **part("prompts")},
        responses={"dataset": name, "identity": identity, **extent},
        records={"dataset": name, "counting": part("records")},
        engine=values["engine"],
    )


def _with_defaults(node: dict, values: dict) -> dict:
    """`values` with the schema's defaults where nothing is said; a key without default stays out."""
    filled = {}
    for key, child in node["properties"].items():
        if "properties" in child:
            filled[key] = _with_defaults(child, values.get(key) or {})
        elif key in values or "default" in child:
            filled[key] = values.get(key, child.get("default"))
    return filled


def _overlaid(node: dict, general: dict, own: dict) -> dict:
    """A dataset's own values over the general ones, mappings with named keys key by key."""
    merged = dict(general)
    for key, child in node["properties"].items():
        if key in own:
            merged[key] = _overlaid(child, general[key], own[key]) if "properties" in child else own[key]
    return merged
