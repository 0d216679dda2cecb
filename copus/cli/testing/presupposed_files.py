"""Files that the commands in the documentation expect their reader to have: text to train on, a Hugging Face model with
its tokenizer, and a run's configuration.
"""

import array
import functools
import json
import pathlib
import random
import struct

# A model with 257 tokens: bytes and the end of a document.
MODEL = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 257, "hidden_size": 32,
         "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4,
         "head_dim": 8, "max_position_embeddings": 2048, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
         "hidden_act": "silu", "tie_word_embeddings": False, "bos_token_id": 256, "eos_token_id": 256}
# Settings that make every documented run small.
SMALL_RUN = ["model.num_hidden_layers=2", "model.hidden_size=32", "model.intermediate_size=64",
             "train.sequence_length=64"]
END_OF_DOCUMENT = "<|end|>"
RUN_OF_FOUR_RANKS = """\
[model]
config = "config.json"
[data]
train = "my.txt"
[parallel]
data_parallel = 2
pipeline_parallel = 2
[train]
sequence_length = 256
global_batch = 8
micro_batch = 2
precision = "fp32"
max_steps = 4
threads = 1
[checkpoint]
interval = 2
"""


def sentences(characters: int, seed: int) -> str:
    chance = random.Random(seed)
    words = ["".join(chance.choices("aeiounrstlmd", k=chance.randint(2, 8))) for _ in range(500)]
    lines, length = [], 0
    while length < characters:
        lines.append(" ".join(chance.choices(words, k=9)).capitalize() + ".")
        length += len(lines[-1]) + 1
    return "\n".join(lines) + "\n"


@functools.cache
def documents(characters: int, seed: int) -> str:
    return "\n\n\n".join(sentences(characters // 100, seed + number) for number in range(100))


def articles(count: int) -> str:
    return "".join(json.dumps({"text": sentences(200, seed)}) + "\n" for seed in range(count))


def byte_tokenizer() -> dict:
    """A tokenizer.json with a token per byte, written with GPT-2's letters for bytes."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    letters = {byte: chr(byte) for byte in printable} | {byte: chr(256 + i) for i, byte in enumerate(others)}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    special = {"id": 256, "content": END_OF_DOCUMENT, "single_word": False, "lstrip": False, "rstrip": False,
               "normalized": False, "special": True}
    model = {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
             "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
             "vocab": {letter: byte for byte, letter in letters.items()} | {END_OF_DOCUMENT: 256}, "merges": []}
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [special], "normalizer": None,
            "pre_tokenizer": byte_level, "post_processor": None, "decoder": byte_level, "model": model}


def shapes_of_weights() -> dict[str, list[int]]:
    hidden, wide, vocabulary = MODEL["hidden_size"], MODEL["intermediate_size"], MODEL["vocab_size"]
    layer = {f"self_attn.{name}_proj": [hidden, hidden] for name in "qkvo"} | {
        "mlp.gate_proj": [wide, hidden], "mlp.up_proj": [wide, hidden], "mlp.down_proj": [hidden, wide],
        "input_layernorm": [hidden], "post_attention_layernorm": [hidden]}
    shapes = {f"model.layers.{number}.{name}.weight": shape
              for number in range(MODEL["num_hidden_layers"]) for name, shape in layer.items()}
    return shapes | {"model.embed_tokens.weight": [vocabulary, hidden], "lm_head.weight": [vocabulary, hidden],
                     "model.norm.weight": [hidden]}


def write_weights(path: pathlib.Path) -> None:
    chance = random.Random(1)
    header, data = {}, bytearray()
    for name, shape in shapes_of_weights().items():
        count = shape[0] * (shape[1] if len(shape) == 2 else 1)
        values = [chance.gauss(0, 0.02) if len(shape) == 2 else 1.0 for _ in range(count)]
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + 4 * count]}
        data += array.array("f", values).tobytes()
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def write_config(path: pathlib.Path, **others) -> None:
    path.write_text(json.dumps(MODEL | others))


def write_model(folder: pathlib.Path) -> None:
    """Writes the files that save_pretrained writes."""
    folder.mkdir()
    write_config(folder / "config.json")
    (folder / "tokenizer.json").write_text(json.dumps(byte_tokenizer()))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": END_OF_DOCUMENT}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    write_weights(folder / "model.safetensors")
