"""A small config that is right, to be made wrong one key at a time."""

from pathlib import Path

import pytest
import yaml
from tokenfill.settings import load

PROJECT = Path(__file__).parents[3]
CONFIG = """
model: owner/name
budget: 2M
datasets:
  chat: {source: chat.jsonl}
  code: {source: code.jsonl, budget: 500k}
engine:
  servers: [http://127.0.0.1:30000]
"""


@pytest.fixture(scope="session")
def schema() -> dict:
    return yaml.safe_load((PROJECT / "schemas/config.schema.yaml").read_text())


@pytest.fixture
def loaded(schema):
    """loaded("a.b", value, ...) gives the settings of the small config with these keys changed; None takes one out."""

    def loaded(*changes):
        config = yaml.safe_load(CONFIG)
        for key, value in zip(changes[::2], changes[1::2], strict=True):
            *path, last = key.split(".")
            node = config
            for part in path:
                node = node.setdefault(part, {})
            if value is None:
                del node[last]
            else:
                node[last] = value
        return load(config, schema, "my.yaml")

    return loaded
