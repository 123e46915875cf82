"""What a config may not say, each fault told in one sentence. What the values then mean is in settings.py."""

import contextlib
import difflib
import json
import re
from pathlib import Path

import yaml

from tokenfill.errors import UserError
from tokenfill.quantities import FORMS

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
RELATIONS = {
    "minimum": "at least",
    "exclusiveMinimum": "more than",
    "maximum": "at most",
    "exclusiveMaximum": "less than",
}


def checked(config: dict, schema: dict, where: str) -> dict:
    """`config` with every value in its one form, or UserError naming `where` and the key."""
    if not isinstance(config, dict):
        raise UserError(f"{where}: must be a mapping of key: value")
    refuse_bad_names(config.get("datasets"), where)
    config = _canonical(config, schema, where, "")
    _refuse_invalid(config, schema, where)
    for key, engine in _engines(config):
        _refuse_secrets(engine, f"{where}: {key}")
    return config


def refuse_bad_names(datasets, where: str) -> None:
    """Dataset names become folders: letters, digits, - and _, and no two that differ by case alone."""
    seen: dict[str, str] = {}
    for name in datasets if isinstance(datasets, dict) else ():
        if not isinstance(name, str):
            kinds = {bool: "true or false", int: "a number", float: "a number", type(None): "empty"}
            kind = kinds.get(type(name), "a date")
            raise UserError(f"{where}: datasets: YAML reads the name {name} as {kind}; put the name in quotes")
        if not DATASET_NAME.fullmatch(name):
            raise UserError(
                f"{where}: datasets: {name[:80]!r} cannot be a dataset's name; use 1 to 64 letters, digits, "
                "- and _, the first a letter or digit"
            )
        if name.lower() in RESERVED_NAMES:
            raise UserError(f"{where}: datasets: {name} is the name of another folder of results/; choose another")
        if (other := seen.setdefault(name.lower(), name)) != name:
            raise UserError(
                f"{where}: datasets: {other} and {name} differ by case alone and would share a folder "
                "on some disks; rename one"
            )


def refuse_doubled_keys(*files: Path | str) -> None:
    """YAML takes the last of two keys of one name without a word, and a dataset would be lost."""
    for file in files:
        with contextlib.suppress(OSError, UnicodeError, yaml.YAMLError):  # Snakemake tells of these
            text = Path(file).read_text(encoding="utf-8")
            _refuse_doubled_keys(yaml.compose(text, yaml.CSafeLoader), str(file), "")


def _refuse_doubled_keys(node, where: str, path: str) -> None:
    seen: dict[str, int] = {}
    for key, value in node.value if isinstance(node, yaml.MappingNode) else ():
        line = key.start_mark.line + 1
        if key.value in seen:
            raise UserError(
                f"{where}: {path}{key.value} stands twice, in lines {seen[key.value]} and {line}; rename one"
            )
        seen[key.value] = line
        _refuse_doubled_keys(value, where, f"{path}{key.value}.")


def refuse_contradictions(name: str, values: dict, engine_key: str, where: str) -> None:
    """What no single key of a dataset's `values` can tell: keys that need, exclude or outgrow each other."""
    for key in ("model", "budget"):
        if key not in values:
            raise UserError(f"{where}: {key} is missing; set it for all datasets or as datasets.{name}.{key}")
    if values["min_new_tokens"] > values["max_new_tokens"]:
        raise UserError(
            f"{where}: datasets.{name}: min_new_tokens {values['min_new_tokens']} is more than "
            f"max_new_tokens {values['max_new_tokens']}; lower it"
        )
    servers, launch = values["engine"]["servers"], values["engine"]["launch"]
    if not servers and not launch:
        raise UserError(
            f"{where}: {engine_key}: neither servers nor launch is set, so nothing can answer; list the "
            "servers' URLs or give a launch command"
        )
    if servers and launch:
        raise UserError(f"{where}: {engine_key}: both servers and launch are set; keep one and remove the other")
    if launch and "{port}" not in launch:
        raise UserError(
            f"{where}: {engine_key}.launch: {{port}} is missing, so the server cannot be told where to "
            "listen; put it where the command takes its port"
        )


def _engines(config: dict):
    """Every engine mapping of a config, with its key."""
    yield "engine", config.get("engine") or {}
    for name, own in config["datasets"].items():
        yield f"datasets.{name}.engine", own.get("engine") or {}


def _refuse_secrets(engine: dict, key: str) -> None:
    """Settings are written to results/, so a key in them would be, too. The value is never shown."""
    if any("@" in url.split("//", 1)[1].split("/", 1)[0] for url in engine.get("servers", ())):
        raise UserError(
            f"{key}.servers: a URL holds a user name or password; take it out and name the environment "
            "variable with the server's key in api_key_env"
        )
    if re.search(r"--api[-_]key[= ]", engine.get("launch") or ""):
        raise UserError(f"{key}.launch: holds an API key; take it out, a launched server listens on this machine alone")


def _canonical(value, node: dict, where: str, path: str):
    """`value` with every number, duration, date and URL in its one form, unknown keys refused."""
    if "form" in node and not (value is None and "null" in node["type"]):
        try:
            return FORMS[node["form"]](value)
        except ValueError as error:
            raise UserError(f"{where}: {path}: {error}") from None
    if isinstance(value, list) and "form" in node.get("items", ()):
        return [_canonical(item, node["items"], where, f"{path}[{index}]") for index, item in enumerate(value)]
    if isinstance(value, dict) and isinstance(any_key := node.get("additionalProperties"), dict):
        if "properties" in any_key:
            return {name: _canonical(child, any_key, where, f"{path}.{name}") for name, child in value.items()}
    elif isinstance(value, dict) and "properties" in node:
        prefix = f"{path}." if path else ""
        for name in value:
            if name not in node["properties"]:
                raise UserError(f"{where}: {prefix}{name} is not a known key; {_suggestion(name, node, prefix)}")
        children = ((name, child, node["properties"][name]) for name, child in value.items())
        return {name: _canonical(child, sub, where, prefix + name) for name, child, sub in children}
    return _plain(value, where, path)


def _plain(value, where: str, key: str):
    """`value` as JSON can hold it; a key that is no text or a value that is no JSON is refused."""
    if isinstance(value, dict):
        for name in value:
            if not isinstance(name, str):
                raise UserError(f"{where}: {key}: YAML reads the key {name} as no text; put it in quotes")
        return {name: _plain(child, where, f"{key}.{name}") for name, child in value.items()}
    if isinstance(value, list):
        return [_plain(child, where, f"{key}[{index}]") for index, child in enumerate(value)]
    if value is None or isinstance(value, str | bool | int) or (isinstance(value, float) and value - value == 0):
        return value
    raise UserError(
        f"{where}: {key}: YAML reads {value} as a {type(value).__name__}; put it in quotes if text is meant"
    )


def _suggestion(name, node: dict, prefix: str) -> str:
    """How an unknown key may have been meant: the nearest one here or one level down, else all there are."""
    known = {key: key for key in node["properties"]}
    for key, sub in node["properties"].items():
        known = {child: f"{key}.{child}" for child in sub.get("properties", ())} | known
    near = difflib.get_close_matches(str(name), known, n=1)
    return f"did you mean {prefix}{known[near[0]]}?" if near else f"known are {', '.join(sorted(node['properties']))}"


def _refuse_invalid(config: dict, schema: dict, where: str) -> None:
    from jsonschema import Draft202012Validator  # here: the names above are refused without its import

    errors = sorted(Draft202012Validator(schema).iter_errors(config), key=lambda error: [*map(str, error.path)])
    if errors:
        parts = (f"[{part}]" if isinstance(part, int) else f".{part}" for part in errors[0].path)
        key = "".join(parts).lstrip(".")
        raise UserError(f"{where}: {key + ': ' if key else ''}{_complaint(errors[0])}")


def _complaint(error) -> str:
    """One of jsonschema's errors as half a sentence, without the value where that may be a secret."""
    node, value, limit = error.schema, error.instance, error.validator_value
    if error.validator == "required":
        missing = next(name for name in limit if name not in value)
        return f"the key {missing} is missing ({node['properties'][missing]['description'].rstrip('.')})"
    if error.validator == "type":
        types = [limit] if isinstance(limit, str) else limit
        shown = " or ".join(SHOWN_TYPES[name] for name in types)
        return f"must be {shown}, not {'empty' if value is None else json.dumps(value, ensure_ascii=False)}"
    if error.validator == "enum":
        return f"must be one of {', '.join(map(str, limit))}, not {value}"
    if error.validator == "pattern":
        return "must be the name of an environment variable, such as SGLANG_API_KEY, and never the key itself"
    if error.validator in RELATIONS:
        return f"must be {RELATIONS[error.validator]} {limit}, not {value}"
    if error.validator in ("minProperties", "minLength", "minItems"):
        return f"is empty ({node['description'].rstrip('.')})"
    if error.validator == "uniqueItems":
        return "names one thing twice; leave one out"
    if error.validator == "not":
        return f"must not be {value} ({node['description'].rstrip('.')})"
    return error.message
