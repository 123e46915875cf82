"""A GGUF file's metadata to the files that transformers reads: tokenizer, chat template, config. No weights."""

import json
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

from tokenfill.errors import UserError

CONTROL = 3  # gguf's TokenType.CONTROL: a special token
NUMBER = r"\p{N}"


def model_files(gguf: Path) -> dict[str, str]:
    """The texts of a model folder, by file name: what a GGUF file says of tokenizer, template, end tokens and sizes.

    Raises UserError if its tokenizer is of a kind that is not known here.
    """
    facts = metadata(gguf)
    return {
        "tokenizer.json": tokenizer(facts).to_str(),
        "tokenizer_config.json": _json(_tokenizer_config(facts)),
        "chat_template.jinja": facts["tokenizer.chat_template"],
        "generation_config.json": _json(_generation_config(facts)),
        "config.json": _json(_config(facts)),
    }


def metadata(gguf: Path) -> dict:
    """Every key of a GGUF file with its value. Raises UserError if the file is no GGUF."""
    from gguf import GGUFReader

    try:
        return {key: field.contents() for key, field in GGUFReader(gguf).fields.items()}
    except (OSError, ValueError, IndexError) as error:
        raise UserError(f"{gguf} can't be read as GGUF ({error}): delete it and fetch it again.") from error


def tokenizer(facts: dict) -> Tokenizer:
    """The byte-level BPE tokenizer that llama.cpp builds from the same metadata."""
    kind = (facts["tokenizer.ggml.model"], facts["tokenizer.ggml.pre"])
    if kind != ("gpt2", "smollm"):
        raise UserError(f"The GGUF's tokenizer is of kind {'/'.join(kind)}, and only gpt2/smollm can be derived here.")
    tokens = facts["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in facts["tokenizer.ggml.merges"]]
    made = Tokenizer(models.BPE(vocab={token: n for n, token in enumerate(tokens)}, merges=merges))
    # Each digit by itself, then the words of GPT-2.
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(NUMBER), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    made.decoder = decoders.ByteLevel()
    kinds = facts["tokenizer.ggml.token_type"]
    special = [token for token, kind in zip(tokens, kinds, strict=True) if kind == CONTROL]
    made.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in special])
    return made


def _tokenizer_config(facts: dict) -> dict:
    tokens = facts["tokenizer.ggml.tokens"]
    roles = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}
    named = {f"{role}_token": tokens[facts[f"tokenizer.ggml.{key}_token_id"]] for role, key in roles.items()}
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **named,
        "add_bos_token": facts["tokenizer.ggml.add_bos_token"],
        "clean_up_tokenization_spaces": False,
        "model_max_length": facts["llama.context_length"],
    }


def _generation_config(facts: dict) -> dict:
    return {
        "bos_token_id": facts["tokenizer.ggml.bos_token_id"],
        "eos_token_id": [facts["tokenizer.ggml.eos_token_id"]],
        "pad_token_id": facts["tokenizer.ggml.padding_token_id"],
    }


def _config(facts: dict) -> dict:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": facts["general.architecture"],
        "vocab_size": facts["llama.vocab_size"],
        "max_position_embeddings": facts["llama.context_length"],
        "hidden_size": facts["llama.embedding_length"],
        "intermediate_size": facts["llama.feed_forward_length"],
        "num_hidden_layers": facts["llama.block_count"],
        "num_attention_heads": facts["llama.attention.head_count"],
        "num_key_value_heads": facts["llama.attention.head_count_kv"],
        "rms_norm_eps": float(f"{facts['llama.attention.layer_norm_rms_epsilon']:.6g}"),  # float32 in the file
        "rope_theta": facts["llama.rope.freq_base"],
        "tie_word_embeddings": True,
        "bos_token_id": facts["tokenizer.ggml.bos_token_id"],
        "eos_token_id": facts["tokenizer.ggml.eos_token_id"],
        "pad_token_id": facts["tokenizer.ggml.padding_token_id"],
    }


def _json(content: dict) -> str:
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"
