"""The model that all servers of these tests run: random weights of a fixed seed, as a folder and as a GGUF.

Made with numpy, so that the project's own environment is enough. The tokenizer is tests/tiny_tokenizer.py's.
"""

import json
import sys
from pathlib import Path

import numpy as np
import tiny_tokenizer
from tiny_tokenizer import ENDOFTEXT, IM_END, VOCAB_SIZE

CONTEXT_LENGTH = 2048
LAYERS, HIDDEN, HEADS, KV_HEADS, HEAD_SIZE, FEED_FORWARD = (
    2,
    64,
    2,
    1,
    32,
    128,
)  # vLLM needs heads of 32 or more
SEED = 20250101
# How much likelier the stop token is than others: answers at temperature 1 are some 100 tokens long.
STOP_BIAS = 0.5
CONFIG = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "dtype": "float32",
    "vocab_size": VOCAB_SIZE,
    "hidden_size": HIDDEN,
    "intermediate_size": FEED_FORWARD,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": HEAD_SIZE,
    "hidden_act": "silu",
    "max_position_embeddings": CONTEXT_LENGTH,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "attention_dropout": 0.0,
    "use_sliding_window": False,
    "tie_word_embeddings": False,
    "bos_token_id": None,
    "eos_token_id": IM_END,
    "pad_token_id": ENDOFTEXT,
}
# The file's own sampling is nothing that a test asks for: what shows it was not overridden.
GENERATION_CONFIG = {
    "eos_token_id": [IM_END, ENDOFTEXT],
    "pad_token_id": ENDOFTEXT,
    "do_sample": True,
    "temperature": 0.7,
    "top_p": 0.8,
    "top_k": 20,
    "repetition_penalty": 1.3,
}


def weights() -> dict[str, np.ndarray]:
    """Name → float32 array, under the names of Hugging Face's Qwen2."""
    dice = np.random.default_rng(SEED)

    def matrix(rows: int, columns: int, scale: float) -> np.ndarray:
        return (dice.standard_normal((rows, columns)) * scale).astype(np.float32)

    embedding = matrix(VOCAB_SIZE, HIDDEN, 1.0)
    head = matrix(VOCAB_SIZE, HIDDEN, 0.25)
    # The first direction is the same for all tokens and in all layers, so that `head[:, 0]` acts as a bias.
    embedding[:, 0] = 4.0
    head[:, 0] = 0.0
    head[IM_END, 0] = STOP_BIAS
    head[ENDOFTEXT, 0] = -20.0
    head[len(tiny_tokenizer.tokenizer().get_vocab()) :, 0] = -20.0
    arrays = {
        "model.embed_tokens.weight": embedding,
        "model.norm.weight": np.ones(HIDDEN, np.float32),
        "lm_head.weight": head,
    }
    for layer in range(LAYERS):
        shapes = {
            "self_attn.q_proj": (HEADS * HEAD_SIZE, HIDDEN),
            "self_attn.k_proj": (KV_HEADS * HEAD_SIZE, HIDDEN),
            "self_attn.v_proj": (KV_HEADS * HEAD_SIZE, HIDDEN),
            "self_attn.o_proj": (HIDDEN, HEADS * HEAD_SIZE),
            "mlp.gate_proj": (FEED_FORWARD, HIDDEN),
            "mlp.up_proj": (FEED_FORWARD, HIDDEN),
            "mlp.down_proj": (HIDDEN, FEED_FORWARD),
        }
        for name, shape in shapes.items():
            arrays[f"model.layers.{layer}.{name}.weight"] = matrix(*shape, 0.15)
            if name.endswith(("o_proj", "down_proj")):
                arrays[f"model.layers.{layer}.{name}.weight"][0] = 0.0
        for name in ("q_proj", "k_proj", "v_proj"):
            size = shapes[f"self_attn.{name}"][0]
            arrays[f"model.layers.{layer}.self_attn.{name}.bias"] = np.zeros(size, np.float32)
        for name in ("input_layernorm", "post_attention_layernorm"):
            arrays[f"model.layers.{layer}.{name}.weight"] = np.ones(HIDDEN, np.float32)
    return arrays


def make_model(folder: Path) -> Path:
    """Write the Hugging Face folder, weights included."""
    from safetensors.numpy import save_file

    tiny_tokenizer.make_model_folder(folder, context_length=CONTEXT_LENGTH)
    for name, content in (("config.json", CONFIG), ("generation_config.json", GENERATION_CONFIG)):
        (folder / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    save_file(weights(), folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def make_gguf(path: Path) -> Path:
    """Write the same model as a GGUF."""
    import gguf

    writer = gguf.GGUFWriter(path, "qwen2")
    writer.add_name("tiny")
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    writer.add_vocab_size(VOCAB_SIZE)
    writer.add_context_length(CONTEXT_LENGTH)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(FEED_FORWARD)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_key_length(HEAD_SIZE)
    writer.add_value_length(HEAD_SIZE)
    writer.add_rope_dimension_count(HEAD_SIZE)
    writer.add_rope_freq_base(CONFIG["rope_theta"])
    writer.add_layer_norm_rms_eps(CONFIG["rms_norm_eps"])
    _add_tokenizer(writer)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.QWEN2, LAYERS)
    for name, array in weights().items():
        writer.add_tensor(names.get_name(name, try_suffixes=(".weight", ".bias")), array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_tokenizer(writer) -> None:
    from gguf import TokenType

    words = [*tiny_tokenizer.byte_alphabet(), *("".join(pair) for pair in tiny_tokenizer.MERGES)]
    types = [TokenType.NORMAL] * len(words)
    for special in tiny_tokenizer.SPECIALS:
        words.append(special)
        types.append(TokenType.USER_DEFINED if "think" in special else TokenType.CONTROL)
    unused = VOCAB_SIZE - len(words)
    words += [f"[unused{i}]" for i in range(unused)]
    types += [TokenType.UNUSED] * unused
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(words)
    writer.add_token_types(types)
    writer.add_token_merges([" ".join(pair) for pair in tiny_tokenizer.MERGES])
    writer.add_eos_token_id(IM_END)
    writer.add_pad_token_id(ENDOFTEXT)
    writer.add_add_bos_token(False)
    writer.add_chat_template(tiny_tokenizer.CHAT_TEMPLATE)


if __name__ == "__main__":
    target = Path(sys.argv[1])
    print(make_model(target), make_gguf(target / "tiny.gguf"))
