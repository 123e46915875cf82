"""The real embedded model behind its real server: same ids as the derived tokenizer, same template, right answers."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import unicodedata
import urllib.request

import embedded_model
import pytest
from tokenfill.prompts.template import load_tokenizer
from tokenfill.responses.servers.launch import SCRIPTS, free_port

TEXTS = [
    "The capital of France is Paris.",
    "It's you're we'll I'm they'd I've can't, IT'S YOU'RE \u2019s \u2019re",
    "  two  spaces   three\tone tab\n\n\ntwo blank lines   \n trailing   ",
    "\r\nwindows\r\n\r\nlines\r",
    "0 7 42 365 1984 12345678901234567890 3.14159 1,000,000.00 -17 1e-9 0x1F 2026-01-01T09:30:00Z",
    "½ ¾ ² ³ ① Ⅷ ᛮ 一二三 १२३ ٤٥٦ ௧௨ a1b2c3 v2beta10",
    "def f(x: int) -> int:\n    if x <= 1:\n        return x\n    return f(x - 1) + f(x - 2)  # slow",
    '{"name": "get_forecast", "arguments": {"place": "Bergen", "days": 2}}',
    "<div class='a'>&nbsp;&amp;</div><!-- --><br/>",
    "Größe Übermaß naïve façade coöperate señor žluťoučký kůň İstanbul ǅ ﬁ",
    "cafe\u0301 e\u0301\u0302 \u1100\u1161\u11a8 n\u0303 \u200b\u200d\ufeff\u00a0\u2003\u3000x",
    "Москва не сразу строилась. Ελληνικά. עברית שלום. العربية مرحبا. हिन्दी नमस्ते. ไทยสวัสดี.",
    "東京は日本の首都です。北京是中国的首都。서울은 한국의 수도입니다.",
    "🙂 👩‍👩‍👧‍👦 🇫🇷 👍🏽 ❤️ 🏴󠁧󠁢󠁥󠁮󠁧󠁿 \U0001d54f 𐍈 𓀀",
    "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n",
    "<|endoftext|><repo_name>a/b<file_sep><filename>x.py<gh_stars>7<empty_output>",
    "text with <|im_end|>inside, <|im_end |> nearly, and <|im_start|><|im_start|> twice",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa " * 4,
    "?!...---___***///\\\\\\~~~```$$$%%%^^^ #hash @at",
    "\x01\x02\x1b[31mred\x1b[0m\x7f\x85",
    "x",
    " ",
    "\n",
]


@pytest.fixture(scope="module")
def model():
    return embedded_model.folder()


@pytest.fixture(scope="module")
def tokenizer(model):
    return load_tokenizer(model)


@pytest.fixture(scope="module")
def ask(model, tmp_path_factory):
    """Asks a page of the embedded server, which ends with the module."""
    port, log = free_port(), tmp_path_factory.mktemp("serve") / "server.log"
    with open(log, "wb") as output:
        server = subprocess.Popen(
            [sys.executable, "-m", "tokenfill.embedded.serve", str(model), str(port), "--slots", "2"],
            env=os.environ | {"PYTHONPATH": str(SCRIPTS)},
            stdout=output,
            stderr=output,
        )

    def ask(path: str, body: dict | None = None) -> dict:
        data = None if body is None else json.dumps(body).encode()
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", data, timeout=300) as answer:
            return json.load(answer)

    end = time.monotonic() + 120
    while True:
        assert server.poll() is None and time.monotonic() < end, log.read_text(errors="replace")[-2000:]
        try:
            ask("/health")
            break
        except OSError:
            time.sleep(0.1)
    yield ask
    server.send_signal(signal.SIGTERM)
    assert server.wait(20) == -signal.SIGTERM


def server_ids(ask, text: str) -> list[int]:
    return ask("/tokenize", {"content": text, "add_special": False, "parse_special": True})["tokens"]


def rendered(tokenizer, messages: list[dict]) -> str:
    return tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)


def shipped_chats() -> list[list[dict]]:
    lines = (embedded_model.PROMPTS / "chat.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line)["messages"] for line in lines]


@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
def test_the_derived_tokenizer_gives_the_servers_ids(ask, tokenizer, text):
    assert tokenizer(text, add_special_tokens=False)["input_ids"] == server_ids(ask, text)


def test_it_does_so_for_characters_of_every_kind(ask, tokenizer):
    characters = [chr(n) for n in [*range(0x20, 0x3000), *range(0x1F300, 0x1F700)] if unicodedata.name(chr(n), "")]
    for start in range(0, len(characters), 400):
        block = characters[start : start + 400]
        for text in ("".join(block), " ".join(block), "a1".join(block)):
            assert tokenizer(text, add_special_tokens=False)["input_ids"] == server_ids(ask, text)


def test_it_does_so_for_the_shipped_prompts_in_their_template(ask, tokenizer):
    for messages in shipped_chats():
        text = rendered(tokenizer, messages)
        assert text == ask("/apply-template", {"messages": messages})["prompt"]
        assert tokenizer(text, add_special_tokens=False)["input_ids"] == server_ids(ask, text)


def test_ids_and_text_go_there_and_back(tokenizer):
    for text in TEXTS:
        assert tokenizer.decode(tokenizer(text, add_special_tokens=False)["input_ids"]) == text


def test_asked_greedily_for_the_capital_of_france_it_says_paris(ask, tokenizer):
    asked = next(messages for messages in shipped_chats() if "capital of France" in messages[-1]["content"])
    ids = tokenizer(rendered(tokenizer, asked), add_special_tokens=False)["input_ids"]
    answer = ask("/completion", {"prompt": ids, "n_predict": 24, "temperature": 0, "return_tokens": True})
    assert "Paris" in answer["content"]
    assert answer["tokens"][-1] == tokenizer.eos_token_id
    assert answer["content"].endswith("<|im_end|>") and tokenizer.decode(answer["tokens"]) == answer["content"]


def test_the_server_says_what_it_serves(ask, model):
    facts = ask("/props")
    assert facts["total_slots"] == 2 and facts["default_generation_settings"]["n_ctx"] == 2048
    assert ask("/v1/models")["data"][0]["id"] == "SmolLM2-135M-Instruct"


def test_the_files_agree_with_each_other(model, tokenizer):
    config = json.loads((model / "config.json").read_text())
    assert config["vocab_size"] == len(tokenizer) == 49152 and config["max_position_embeddings"] == 8192
    assert json.loads((model / "generation_config.json").read_text())["eos_token_id"] == [tokenizer.eos_token_id]
    assert "Apache License" in (model / "LICENSE").read_text()


def test_a_port_that_is_taken_is_told_in_one_sentence(model):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        command = [sys.executable, "-m", "tokenfill.embedded.serve", str(model), str(port)]
        environment = os.environ | {"PYTHONPATH": str(SCRIPTS)}
        ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert ran.returncode == 1
    assert f"on 127.0.0.1:{port}" in ran.stderr.strip().splitlines()[-1] and "Traceback" not in ran.stderr
