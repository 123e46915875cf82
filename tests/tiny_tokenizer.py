"""A tiny but real model folder for tests: tokenizer, chat template and configs of byte-level BPE. No weights.

Ids below 256 are bytes, so the text of most ids can be read off without a tokenizer; then come the merges,
then the special tokens. The folder is the same bytes each time it is made.
"""

import json
import sys
from pathlib import Path

# each one's halves stand before it
MERGES = [
    ("t", "h"),
    ("th", "e"),
    ("i", "n"),
    ("o", "u"),
    ("e", "r"),
    ("a", "n"),
    ("an", "d"),
    ("in", "g"),
    ("Ġ", "the"),
    ("Ġ", "a"),
    ("y", "ou"),
    ("Ġ", "you"),
    ("Ġ", "and"),
    ("l", "l"),
    ("Ġ", "w"),
    ("a", "t"),
]
SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>"]
ENDOFTEXT, IM_START, IM_END, THINK, END_THINK = range(256 + len(MERGES), 256 + len(MERGES) + len(SPECIALS))
ASSISTANT_HEADER = [IM_START, *b"assist", 256 + 5, *b"t\n"]  # what the chat template ends a prompt with
VOCAB_SIZE = 320  # as models do: a little more than the tokenizer's own
CONTEXT_LENGTH = 4096

CHAT_TEMPLATE = """\
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n' }}{%- endif %}
    {{- 'Tools:' }}
    {%- for tool in tools %}{{- '\\n' + (tool | tojson) }}{%- endfor %}
    {{- '<|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role != 'system' or not loop.first %}
        {{- '<|im_start|>' + message.role + '\\n' + (message.content or '') }}
        {%- for call in message.tool_calls or [] %}
            {{- '\\n' + call.function.name + ' ' + (call.function.arguments | tojson) }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and not enable_thinking %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}
"""


def byte_alphabet() -> list[str]:
    """The character that byte-level BPE writes for each byte, in the order of the bytes."""
    shown = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    hidden = iter(range(256, 512))
    return [chr(byte) if byte in shown else chr(next(hidden)) for byte in range(256)]


def tokenizer():
    """The `tokenizers.Tokenizer` itself."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    words = [*byte_alphabet(), *("".join(pair) for pair in MERGES)]
    made = Tokenizer(models.BPE(vocab={word: i for i, word in enumerate(words)}, merges=MERGES))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken(word, special=True, normalized=False) for word in SPECIALS[:3]])
    made.add_tokens([AddedToken(word, special=False, normalized=False) for word in SPECIALS[3:]])
    return made


def make_model_folder(folder: Path, chat_template: str = CHAT_TEMPLATE, context_length: int = CONTEXT_LENGTH) -> Path:
    """Write the tokenizer, its config, the chat template, the generation config and the config."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer().save(str(folder / "tokenizer.json"))
    (folder / "chat_template.jinja").write_text(chat_template, encoding="utf-8")
    files = {
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": "<|im_end|>",
            "pad_token": "<|endoftext|>",
            "additional_special_tokens": ["<|im_start|>"],
            "model_max_length": context_length,
            "clean_up_tokenization_spaces": False,
        },
        "generation_config.json": {
            "eos_token_id": [IM_END, ENDOFTEXT],
            "do_sample": True,
            "temperature": 0.7,
            "top_k": 20,
        },
        "config.json": {
            "model_type": "qwen2",
            "architectures": ["Qwen2ForCausalLM"],
            "vocab_size": VOCAB_SIZE,
            "max_position_embeddings": context_length,
            "eos_token_id": IM_END,
        },
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    return folder


if __name__ == "__main__":
    print(make_model_folder(Path(sys.argv[1])))
