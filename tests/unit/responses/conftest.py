"""One dataset and one server that answers it, for the tests of the worker as a whole."""

import pytest
from one_dataset import OneDataset
from scripted_server import ThreadedServer


@pytest.fixture
def server():
    """A server whose answers have 20 ids, the stop token included."""
    with ThreadedServer({"length": {"fixed": 20}}) as server:
        yield server


@pytest.fixture
def dataset(tmp_path, server):
    """40 prompts, a budget of 200 tokens, 4 requests in flight."""
    return OneDataset(tmp_path, [server.url])
