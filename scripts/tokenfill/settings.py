"""From the config to what each stage is asked for: checks, canonical values, digests. Nothing here touches results/."""

import difflib
import json
import re
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from tokenfill.errors import UserError
from tokenfill.quantities import FORMS, parse_count

DATASET_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
RESERVED_NAMES = {"report"}  # folders of results/ that belong to no dataset
SHOWN_TYPES = {
    "object": "a mapping of key: value",
    "array": "a list",
    "string": "text",
    "boolean": "true or false",
    "integer": "a whole number",
    "number": "a number",
    "null": "null",
}
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


def load(config: dict, schema: dict, where: str = "config.yaml") -> Settings:
    """Check `config` against `schema` and give every dataset its settings; UserError names `where` and the key."""
    _refuse_bad_names(config.get("datasets"), where)
    config = _canonical(config, schema, where, ())
    _validate(config, schema, where)
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
        _refuse_contradictions(name, values, key, where)
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


def content_digests(folder: Path, chat_template: Path | None = None) -> dict[str, str]:
    """The sha256 of what shapes prompt ids, {"tokenizer": hex, "template": hex}, from a model's folder.

    The template is the file `chat_template` if given, else the folder's own. UserError: no tokenizer there, or unreadable.
    """
    folder = Path(folder)
    files = [folder / name for name in TOKENIZER_FILES if (folder / name).is_file()]
    if not files:
        raise UserError(
            f"{folder}: no tokenizer is there (looked for {', '.join(TOKENIZER_FILES[:3])}, …); set `model` to a folder that has one"
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


def _canonical(value, node: dict, where: str, path: tuple):
    """`value` with every number, duration and date in its one form, unknown keys refused."""
    key = ".".join(path)
    if isinstance(value, dict) and "properties" in node:
        for name in value:
            if name not in node["properties"]:
                raise UserError(
                    f"{where}: {'.'.join((*path, str(name)))} is not a known key{_suggestion(name, node)}"
                )
        return {
            name: _canonical(child, node["properties"][name], where, (*path, name))
            for name, child in value.items()
        }
    if isinstance(value, dict) and "properties" in (node.get("additionalProperties") or {}):
        child_node = node["additionalProperties"]
        return {name: _canonical(child, child_node, where, (*path, name)) for name, child in value.items()}
    if "form" in node and not (value is None and "null" in node["type"]):
        try:
            return FORMS[node["form"]](value)
        except ValueError as error:
            raise UserError(f"{where}: {key}: {error}") from None
    return _plain(value, where, key)


def _plain(value, where: str, key: str):
    """`value` as JSON can hold it; a key that is no text or a value that is no JSON is refused."""
    if isinstance(value, dict):
        for name in value:
            if not isinstance(name, str):
                raise UserError(f"{where}: {key}: YAML reads the key {name!r} as no text; put it in quotes")
        return {name: _plain(child, where, f"{key}.{name}") for name, child in value.items()}
    if isinstance(value, list):
        return [_plain(child, where, f"{key}[{index}]") for index, child in enumerate(value)]
    if (
        value is None
        or isinstance(value, str | bool | int)
        or (isinstance(value, float) and value - value == 0)
    ):
        return value
    raise UserError(
        f"{where}: {key}: YAML reads {value} as a {type(value).__name__}; put it in quotes if text is meant"
    )


def _suggestion(name, node: dict) -> str:
    """How an unknown key may have been meant: the nearest one here or one level down."""
    known = {
        child: f"{key}.{child}"
        for key, sub in node["properties"].items()
        for child in sub.get("properties", ())
    }
    known |= {key: key for key in node["properties"]}
    near = difflib.get_close_matches(str(name), known, n=1)
    return (
        f"; did you mean {known[near[0]]}?"
        if near
        else f"; known are {', '.join(sorted(node['properties']))}"
    )


def _validate(config: dict, schema: dict, where: str) -> None:
    from jsonschema import Draft202012Validator  # here, so that a bad name is told without its import

    errors = sorted(
        Draft202012Validator(schema).iter_errors(config), key=lambda error: [str(p) for p in error.path]
    )
    if errors:
        error = errors[0]
        key = "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in error.path).lstrip(".")
        raise UserError(f"{where}: {key + ': ' if key else ''}{_complaint(error)}")


def _complaint(error) -> str:
    """One of jsonschema's errors as half a sentence. The value of `api_key_env` is never shown: it may be the key itself."""
    node, value, limit = error.schema, error.instance, error.validator_value
    if error.validator == "required":
        missing = next(name for name in limit if name not in value)
        return f"the key {missing} is missing; {node['properties'][missing]['description']}"
    if error.validator == "type":
        types = [limit] if isinstance(limit, str) else limit
        shown = " or ".join(SHOWN_TYPES[name] for name in types)
        return f"must be {shown}, not {'empty' if value is None else json.dumps(value, ensure_ascii=False)}"
    if error.validator == "enum":
        return f"must be one of {', '.join(map(str, limit))}, not {value}"
    if error.validator == "pattern":
        if error.path and error.path[-1] == "api_key_env":
            return "must be the name of an environment variable, such as SGLANG_API_KEY, never the key itself"
        return "must be a URL such as http://127.0.0.1:30000"
    if error.validator in ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"):
        relation = {
            "minimum": "at least",
            "exclusiveMinimum": "more than",
            "maximum": "at most",
            "exclusiveMaximum": "less than",
        }
        return f"must be {relation[error.validator]} {limit}, not {value}"
    if error.validator in ("minProperties", "minLength"):
        return f"is empty; {node['description']}"
    return error.message


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


def _refuse_bad_names(datasets, where: str) -> None:
    """Dataset names become folders: letters, digits, - and _, and no two that differ by case alone."""
    seen: dict[str, str] = {}
    for name in datasets if isinstance(datasets, dict) else ():
        if not isinstance(name, str):
            kind = {bool: "true or false", int: "a number", float: "a number", type(None): "empty"}.get(
                type(name), "a date"
            )
            raise UserError(
                f"{where}: datasets: YAML reads the name {name} as {kind}; put the name in quotes"
            )
        if not DATASET_NAME.fullmatch(name):
            raise UserError(
                f"{where}: datasets: {name[:80]!r} cannot be a dataset's name; use 1 to 64 letters, digits, - and _, the first a letter or digit"
            )
        if name.lower() in RESERVED_NAMES:
            raise UserError(
                f"{where}: datasets: the name {name} is taken by a folder of results/; choose another"
            )
        if name.lower() in seen:
            raise UserError(
                f"{where}: datasets: {seen[name.lower()]} and {name} differ by case alone and would share a folder on some disks; rename one"
            )
        seen[name.lower()] = name


def _refuse_contradictions(name: str, values: dict, engine_key: str, where: str) -> None:
    """What no single key can tell: keys that need, exclude or outgrow each other."""
    for key in ("model", "budget"):
        if key not in values:
            raise UserError(f"{where}: {key} is missing; set it for all datasets or as datasets.{name}.{key}")
    if values["min_new_tokens"] > values["max_new_tokens"]:
        raise UserError(
            f"{where}: datasets.{name}: min_new_tokens {values['min_new_tokens']} is more than max_new_tokens {values['max_new_tokens']}; lower it"
        )
    servers, launch = values["engine"]["servers"], values["engine"]["launch"]
    if not servers and not launch:
        raise UserError(
            f"{where}: {engine_key}: neither servers nor launch is set, so nothing can answer; list the servers' URLs or give a launch command"
        )
    if servers and launch:
        raise UserError(
            f"{where}: {engine_key}: both servers and launch are set; keep one and remove the other"
        )
    if launch and "{port}" not in launch:
        raise UserError(
            f"{where}: {engine_key}.launch: {{port}} is missing, so the job cannot tell the server where to listen; add it"
        )
