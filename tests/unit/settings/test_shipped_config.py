"""config.yaml, the schema, the requirements and the environments say the same."""

import ast
import re
import sys
from pathlib import Path

import yaml
from tokenfill.settings import leaves, load

PROJECT = Path(__file__).parents[3]
CONFIG = (PROJECT / "config.yaml").read_text()


def shown() -> dict[str, str]:
    """Every key that config.yaml sets or shows, {key: its value as text}; a key of a mapping by its own name."""
    found = re.findall(r"^ *(?:# )?(\w+): (\S.*?)(?: # .*)?$", CONFIG.partition("datasets:\n")[0], re.MULTILINE)
    engine = CONFIG.partition("\nengine:\n")[2]
    return dict(found) | dict(re.findall(r"^ +(?:# )?(\w+): (\S.*?)(?: # .*)?$", engine, re.MULTILINE))


def commented() -> dict[str, str]:
    """The keys that config.yaml shows without setting them."""
    return dict(re.findall(r"^ *# (\w+): (\S+?|\S.*?)(?: # .*)?$", CONFIG, re.MULTILINE))


def test_the_shipped_config_is_right(schema):
    settings = load(yaml.safe_load(CONFIG), schema)
    assert len(settings.datasets) == 3


def test_the_config_shows_every_key_of_the_schema(schema):
    keys = {path[-1] for path, _ in leaves({"properties": schema["properties"] | {"datasets": {"properties": {}}}})}
    assert keys - {"source"} == set(shown()) & keys
    assert set(shown()) <= keys | {"datasets", "engine", "sampling"}


def test_a_value_shown_in_a_comment_is_the_default(schema, loaded):
    node = schema["properties"]["datasets"]["additionalProperties"]
    paths = {path[-1]: (".".join(path), leaf) for path, leaf in leaves(node)}
    assert len(commented()) > 25
    for key, text in commented().items():
        (path, leaf), value = paths[key], yaml.safe_load(text)
        if value is None or value == []:
            assert leaf["default"] == value, key
        else:
            assert loaded(f"datasets.chat.{path}", value) == loaded(f"datasets.chat.{path}", leaf["default"]), key


def pins(text: str) -> dict[str, str]:
    return dict(re.findall(r"([\w.-]+)==([\w.]+)", text))


def test_requirements_and_environments_agree():
    required = pins((PROJECT / "requirements.txt").read_text())
    environments = list((PROJECT / "envs").glob("*.yaml"))
    assert environments
    named = {}
    for path in environments:
        for name, version in pins(path.read_text()).items():
            assert required.get(name) == version, f"{path.name}: {name}"
            named[name] = version
    assert set(required) - set(named) == {"snakemake"}


def test_every_requirement_is_pinned_and_has_a_reason():
    lines = [line for line in (PROJECT / "requirements.txt").read_text().splitlines() if not line.startswith("#")]
    reasons = (PROJECT / "docs/dependencies.md").read_text()
    for line in lines:
        name, _, version = line.partition("==")
        assert version, line
        assert f"| {name} |" in reasons, name


def test_everything_that_is_imported_is_required():
    found = set()
    for path in (PROJECT / "scripts").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) else []
            found |= {name.partition(".")[0] for name in names}
    packages = {"yaml": "pyyaml"}
    code = {packages.get(name, name) for name in found - set(sys.stdlib_module_names) - {"tokenfill"}}
    unused = {"snakemake"}
    assert code == set(pins((PROJECT / "requirements.txt").read_text())) - unused


def test_every_environment_is_used_and_every_used_one_is_there():
    rules = "".join(path.read_text() for path in (PROJECT / "rules").glob("*.smk"))
    used = set(re.findall(r'"\.\./envs/([\w.-]+)"', rules))
    assert used == {path.name for path in (PROJECT / "envs").glob("*.yaml")}
