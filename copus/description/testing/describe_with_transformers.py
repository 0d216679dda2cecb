"""Prints how transformers reads config.json files: one JSON object per line of standard output and per argument.

Each argument is a directory with a config.json. The object holds what the model computes with (`rope_theta`,
`rope_type`, `head_dim`, ...) and `parameters`, a list of [name, shape] in the order of named_parameters(). Models are
built on the meta device: no memory, no time. Exits with 77 where transformers is not installed.
"""

import json
import os
import sys

os.environ["HF_HUB_OFFLINE"] = "1"

try:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM
except ImportError as error:
    print(error, file=sys.stderr)
    sys.exit(77)


def name_in_file(name: str) -> str:
    """The name of a parameter of `model` in its files."""
    return name.replace("lm_head.", "embed_out.") if model.config.model_type == "gpt_neox" else name


for directory in sys.argv[1:]:
    config = AutoConfig.from_pretrained(directory)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    rope = getattr(config, "rope_parameters", None) or {"rope_type": "none", "rope_theta": None}
    sliding = rope.get("sliding_attention")
    rope = rope.get("full_attention", rope)
    decoder, model_type = model.base_model, config.model_type
    layer_types = getattr(config, "layer_types", None) if sliding or model_type == "gemma2" else None
    if model_type == "gpt_neox":
        attention, norm = decoder.layers[0].attention, decoder.final_layer_norm
    elif hasattr(decoder, "layers"):
        attention, norm = decoder.layers[0].self_attn, decoder.norm
    else:
        attention, norm = decoder.h[0].attn, decoder.ln_f
    print(
        json.dumps(
            {
                "class": type(model).__name__,
                "rope_type": rope["rope_type"],
                "rope_theta": rope["rope_theta"],
                "rope_factor": rope.get("factor"),
                "partial_rotary_factor": rope.get("partial_rotary_factor") or 1.0,
                "rope_original": rope.get("original_max_position_embeddings"),
                "rope_lists": {name: rope.get(name) for name in ("short_factor", "long_factor")},
                "head_dim": attention.head_size if model_type == "gpt_neox" else attention.head_dim,
                "softcaps": [
                    getattr(config, name, None) for name in ("attn_logit_softcapping", "final_logit_softcapping")
                ],
                "parallel_residual": getattr(config, "use_parallel_residual", False),
                "norm_eps": norm.eps if hasattr(norm, "eps") else norm.variance_epsilon,
                "initializer_range": config.initializer_range,
                "max_position_embeddings": config.max_position_embeddings,
                "tie_word_embeddings": config.tie_word_embeddings,
                "sliding_window": getattr(attention, "sliding_window", None) or getattr(config, "sliding_window", None),
                # 0: sliding layers rotate as the others
                "sliding_rope_theta": sliding["rope_theta"] if sliding and sliding != rope else 0,
                "layer_types": layer_types,
                "scores": getattr(attention, "scaling", None),
                "embed_scale": getattr(getattr(decoder, "embed_tokens", None), "scalar_embed_scale", None),
                "multipliers": [
                    getattr(config, name, None)
                    for name in ("embedding_multiplier", "residual_multiplier", "attention_multiplier", "logits_scaling")
                ],
                "no_rope_layers": getattr(config, "no_rope_layers", None),
                "dtype": str(config.dtype),
                "parameters": [[name_in_file(name), list(value.shape)] for name, value in model.named_parameters()],
            }
        )
    )
