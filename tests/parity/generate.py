#!/usr/bin/env python3
"""Computes with transformers what our models must reproduce: logits, gradients and a short training run.

Usage: generate.py OUT_DIR

Writes, for each architecture, OUT_DIR/<arch>/ as a Hugging Face model directory (config.json, model.safetensors,
float32) of a small model with random weights, and OUT_DIR/<arch>/expected.safetensors with these tensors, B = 2,
S = 100:

    tokens, targets               int64 [B, S]; targets are the next tokens, some of them -100 (no loss)
    logits_f32, logits_f64        [B, S, vocab], the same float32 weights run in either precision (f64 throughout, where
                                  transformers itself would compute norms, softmax and rotary angles in float32)
    loss_f32, loss_f64            scalar: mean token loss over the targets that are not -100
    grad_f32.<name>, grad_f64.<name>   its gradient, by parameter name
    tokens_steps, targets_steps   int64 [20, B, S]: one batch a step
    step_f32.<name>, step_f64.<name>   the weights after one step of the run below
    losses_f32, losses_f64        [20]: the loss of each step, before its update, from the weights above, with AdamW
                                  (lr 1e-3, betas 0.9 and 0.95, eps 1e-8, decay 0.1 on matrices alone, clip norm 1.0)

Deterministic: everything is drawn from fixed seeds. Nothing is rewritten when OUT_DIR holds the output of this very
file already, so repeated test runs cost only the imports. Exits with 77 where a package is not installed.
"""

import hashlib
import math
import pathlib
import sys

try:
    import torch
    import transformers
    from safetensors.torch import save_file
except ImportError as error:
    print(f"{error}; `make setup` installs what is missing")
    sys.exit(77)

# The sequence is more than one block of 64 positions, which is how Copus's attention works, and no whole number of
# them.
BATCH, SEQUENCE, STEPS = 2, 100, 20
IGNORED_TARGET = -100

SHAPE = dict(
    vocab_size=199,
    hidden_size=64,
    intermediate_size=144,
    num_hidden_layers=3,
    max_position_embeddings=128,
    rms_norm_eps=1e-5,
    attn_implementation="eager",
)


def llama() -> transformers.LlamaConfig:
    """Grouped queries, untied head, llama3 rope scaling whose three frequency bands all occur."""
    rope = dict(
        rope_type="llama3",
        rope_theta=10000.0,
        factor=4.0,
        low_freq_factor=1.0,
        high_freq_factor=4.0,
        original_max_position_embeddings=32,
    )
    return transformers.LlamaConfig(
        **SHAPE, num_attention_heads=4, num_key_value_heads=2, tie_word_embeddings=False, rope_parameters=rope
    )


def llama_biases() -> transformers.LlamaConfig:
    """Biases on all projections."""
    rope = dict(rope_type="default", rope_theta=10000.0)
    return transformers.LlamaConfig(
        **SHAPE,
        num_attention_heads=4,
        num_key_value_heads=2,
        attention_bias=True,
        mlp_bias=True,
        tie_word_embeddings=False,
        rope_parameters=rope,
    )


def qwen2() -> transformers.Qwen2Config:
    """Biases on queries, keys and values; one key/value head for all queries; tied head; another rope base."""
    rope = dict(rope_type="default", rope_theta=1000000.0)
    return transformers.Qwen2Config(
        **SHAPE, num_attention_heads=4, num_key_value_heads=1, tie_word_embeddings=True, rope_parameters=rope
    )


def mistral() -> transformers.MistralConfig:
    """A head size other than hidden_size / heads, no sliding window."""
    rope = dict(rope_type="default", rope_theta=10000.0)
    return transformers.MistralConfig(
        **SHAPE,
        num_attention_heads=4,
        num_key_value_heads=4,
        head_dim=24,
        sliding_window=None,
        tie_word_embeddings=False,
        rope_parameters=rope,
    )


def mistral_window() -> transformers.MistralConfig:
    """A window that is shorter than the sequence and ends within a block."""
    config = mistral()
    config.sliding_window = 37
    return config


def qwen3() -> transformers.Qwen3Config:
    """Norms of query and key heads, whose size is not hidden_size / heads; tied head."""
    rope = dict(rope_type="default", rope_theta=1000000.0)
    return transformers.Qwen3Config(
        **SHAPE, num_attention_heads=4, num_key_value_heads=2, head_dim=24, tie_word_embeddings=True, rope_parameters=rope
    )


def smollm3() -> transformers.SmolLM3Config:
    """No rotary embeddings in the second of three layers."""
    rope = dict(rope_type="default", rope_theta=5000000.0)
    return transformers.SmolLM3Config(
        **SHAPE,
        num_attention_heads=4,
        num_key_value_heads=2,
        no_rope_layer_interval=2,
        tie_word_embeddings=True,
        rope_parameters=rope,
        pad_token_id=None,
    )


def olmo2() -> transformers.Olmo2Config:
    """Norms of both blocks' outputs, and of whole projections of queries and keys, which have other widths."""
    rope = dict(rope_type="default", rope_theta=500000.0)
    return transformers.Olmo2Config(
        **SHAPE, num_attention_heads=4, num_key_value_heads=2, head_dim=24, rope_parameters=rope, pad_token_id=None
    )


def olmo3() -> transformers.Olmo3Config:
    """Windows in two of three layers, which have another rotary base; YaRN in the third."""
    yarn = dict(rope_type="yarn", rope_theta=10000.0, factor=4.0, original_max_position_embeddings=32)
    return transformers.Olmo3Config(
        **SHAPE,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=24,
        sliding_window=37,
        layer_types=["sliding_attention", "sliding_attention", "full_attention"],
        rope_parameters=dict(
            full_attention=yarn, sliding_attention=dict(rope_type="default", rope_theta=500000.0)
        ),
        pad_token_id=None,
    )


def granite() -> transformers.GraniteConfig:
    """Multipliers of embedding, residuals, scores and logits; tied head."""
    return transformers.GraniteConfig(
        **SHAPE,
        num_attention_heads=4,
        num_key_value_heads=2,
        embedding_multiplier=12.0,
        residual_multiplier=0.22,
        attention_multiplier=0.15,
        logits_scaling=6.0,
        tie_word_embeddings=True,
        rope_parameters=dict(rope_type="default", rope_theta=10000.0),
        pad_token_id=None,
    )


def phi3() -> transformers.Phi3Config:
    """Fused projections, of which those of queries, keys and values have other widths; heads that rotate in part."""
    return transformers.Phi3Config(
        **SHAPE,
        num_attention_heads=4,
        num_key_value_heads=2,
        rope_parameters=dict(rope_type="default", rope_theta=10000.0, partial_rotary_factor=0.75),
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )


def gemma3_text() -> transformers.Gemma3TextConfig:
    """Norms of blocks' inputs and outputs and of heads, which add 1 to their weights; gated GELU; windows."""
    return transformers.Gemma3TextConfig(
        **SHAPE,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=24,
        query_pre_attn_scalar=30,
        sliding_window=37,
        layer_types=["sliding_attention", "sliding_attention", "full_attention"],
        rope_parameters=dict(
            full_attention=dict(rope_type="linear", rope_theta=1000000.0, factor=8.0),
            sliding_attention=dict(rope_type="default", rope_theta=10000.0),
        ),
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )


def gemma2() -> transformers.Gemma2Config:
    """Soft-caps that scores and logits reach; windows in the first and third layer."""
    return transformers.Gemma2Config(
        **SHAPE,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=24,
        query_pre_attn_scalar=1,
        sliding_window=37,
        attn_logit_softcapping=2.0,
        final_logit_softcapping=0.5,
        rope_parameters=dict(rope_type="default", rope_theta=10000.0),
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )


def gpt_neox() -> transformers.GPTNeoXConfig:
    """A parallel residual, exact GELU, heads that rotate in part, projections fused head by head."""
    shape = {name: value for name, value in SHAPE.items() if name != "rms_norm_eps"}
    return transformers.GPTNeoXConfig(
        **shape,
        num_attention_heads=4,
        layer_norm_eps=1e-5,
        rope_parameters=dict(rope_type="default", rope_theta=10000.0, partial_rotary_factor=0.5),
        bos_token_id=None,
        eos_token_id=None,
    )


def phi3_longrope() -> transformers.Phi3Config:
    """LongRoPE in sequences that are longer than the original context."""
    return transformers.Phi3Config(
        **SHAPE,
        num_attention_heads=4,
        num_key_value_heads=2,
        original_max_position_embeddings=32,
        rope_parameters=dict(
            rope_type="longrope",
            rope_theta=10000.0,
            short_factor=[1.0, 1.05, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6],
            long_factor=[1.0, 1.3, 1.7, 2.2, 2.9, 3.8, 4.9, 6.4],
        ),
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )


def gpt2() -> transformers.GPT2Config:
    """Learned positions, LayerNorm, a feed-forward without a gate, fused and transposed projections."""
    return transformers.GPT2Config(
        vocab_size=SHAPE["vocab_size"],
        n_embd=64,
        n_layer=3,
        n_head=4,
        n_inner=144,
        n_positions=128,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=None,
        eos_token_id=None,
        attn_implementation="eager",
    )


class DoubleRMSNorm(torch.nn.Module):
    """RMSNorm without transformers' detour through float32."""

    def __init__(self, original: torch.nn.Module):
        super().__init__()
        self.weight, self.adds_one = original.weight, type(original).__name__.startswith("Gemma")
        self.epsilon = original.eps if self.adds_one else original.variance_epsilon

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight = 1 + self.weight if self.adds_one else self.weight
        return weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.epsilon)


class DoubleRotaryEmbedding(torch.nn.Module):
    """Rotary angles in float64; Llama 3.1's are rescaled as in `apply_scaling` of Meta's reference code."""

    def __init__(self, config: transformers.PretrainedConfig):
        super().__init__()
        self.config, self.length = config, 0

    def rotation(self, rope: dict, head_dim: int) -> tuple[torch.Tensor, float]:
        """The frequencies, and the factor of cosines and sines."""
        head_dim = int(head_dim * rope.get("partial_rotary_factor", 1))
        frequencies = rope["rope_theta"] ** (-torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim)
        if rope["rope_type"] == "llama3":
            return torch.stack([self.rescaled(frequency, rope) for frequency in frequencies]), 1.0
        if rope["rope_type"] == "yarn":
            factor = rope.get("attention_factor") or 0.1 * math.log(rope["factor"]) + 1
            return self.interpolated(frequencies, rope, head_dim), factor
        if rope["rope_type"] == "longrope":
            context = rope["original_max_position_embeddings"]
            growth = self.config.max_position_embeddings / context
            factor = rope.get("attention_factor") or math.sqrt(1 + math.log(growth) / math.log(context))
            factors = rope["long_factor" if self.length > context else "short_factor"]
            return frequencies / torch.tensor(factors, dtype=torch.float64), factor
        return frequencies / (rope["factor"] if rope["rope_type"] == "linear" else 1), 1.0

    @staticmethod
    def interpolated(frequencies: torch.Tensor, rope: dict, head_dim: int) -> torch.Tensor:
        """YaRN's ramp between the pairs that turn often and seldom within the original context."""

        def pair_that_turns(times: float) -> float:
            wavelength = rope["original_max_position_embeddings"] / times
            return head_dim * math.log(wavelength / (2 * math.pi)) / (2 * math.log(rope["rope_theta"]))

        first = max(math.floor(pair_that_turns(rope.get("beta_fast") or 32)), 0)
        last = min(math.ceil(pair_that_turns(rope.get("beta_slow") or 1)), head_dim - 1)
        width = last - first or 0.001
        share_slowed = ((torch.arange(head_dim // 2, dtype=torch.float64) - first) / width).clamp(0, 1)
        return frequencies * (1 - share_slowed) + frequencies / rope["factor"] * share_slowed

    @staticmethod
    def rescaled(frequency: torch.Tensor, rope: dict) -> torch.Tensor:
        turns = rope["original_max_position_embeddings"] * frequency / (2 * math.pi)
        low, high = rope["low_freq_factor"], rope["high_freq_factor"]
        share_kept = ((turns - low) / (high - low)).clamp(0, 1)
        return share_kept * frequency + (1 - share_kept) * frequency / rope["factor"]

    def forward(
        self, x: torch.Tensor, position_ids: torch.Tensor, layer_type: str | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        self.length = int(position_ids.max()) + 1
        head_dim = getattr(self.config, "head_dim", None) or (
            self.config.hidden_size // self.config.num_attention_heads
        )
        ropes = self.config.rope_parameters
        frequencies, factor = self.rotation(ropes if layer_type is None else ropes[layer_type], head_dim)
        angles = position_ids[..., None].double() * frequencies
        angles = torch.cat((angles, angles), dim=-1)
        return factor * angles.cos(), factor * angles.sin()


def attention_float64(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor,
    scaling: float | None = None,
    softcap: float | None = None,
    **_unused,
) -> tuple[torch.Tensor, None]:
    """Attention whose softmax is not in float32, as it is in transformers' eager one. SDPA has no soft-caps."""
    key, value = (x.repeat_interleave(query.shape[1] // x.shape[1], dim=1) for x in (key, value))
    scores = query @ key.transpose(2, 3) * (query.shape[-1] ** -0.5 if scaling is None else scaling)
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    return ((scores + attention_mask).softmax(-1) @ value).transpose(1, 2).contiguous(), None


transformers.AttentionInterface.register("float64", attention_float64)
transformers.AttentionMaskInterface.register("float64", transformers.masking_utils.eager_mask)


def load_float64(folder: pathlib.Path) -> transformers.PreTrainedModel:
    """The model of `folder` in float64 throughout."""
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float64, attn_implementation="float64"
    )
    if hasattr(model.base_model, "rotary_emb"):
        model.base_model.rotary_emb = DoubleRotaryEmbedding(model.config)
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child).__name__.endswith("RMSNorm"):
                setattr(parent, name, DoubleRMSNorm(child))
    return model


def load_float32(folder: pathlib.Path) -> transformers.PreTrainedModel:
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")


def randomise_weights(model: transformers.PreTrainedModel, generator: torch.Generator) -> None:
    """Fresh models have norms of one and biases of zero, which would hide that one of them is ignored."""
    adds_one = type(model).__name__.startswith("Gemma")  # to the weights of norms
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        if name.endswith(".weight") and ("norm" in name or ".ln_" in name):
            parameter.data = 0.1 * noise + (0 if adds_one else 1)
        elif name.endswith(".bias"):
            parameter.data = 0.1 * noise
        else:
            parameter.data = 0.05 * noise


def draw_batch(generator: torch.Generator, vocab_size: int) -> tuple[torch.Tensor, torch.Tensor]:
    # Small ids are far more frequent: there is something to learn, and the optimizer's settings show in the loss.
    uniform = torch.rand((BATCH, SEQUENCE + 1), generator=generator)
    text = (vocab_size * uniform**4).long()
    targets = text[:, 1:].clone()
    targets[torch.rand(targets.shape, generator=generator) < 0.15] = IGNORED_TARGET
    return text[:, :-1].contiguous(), targets


def mean_loss(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED_TARGET)


def name_in_file(model: transformers.PreTrainedModel, name: str) -> str:
    return name.replace("lm_head.", "embed_out.") if model.config.model_type == "gpt_neox" else name


def train(
    model: transformers.PreTrainedModel, tokens: torch.Tensor, targets: torch.Tensor
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """The loss of every step, and the weights after the first."""
    parameters = list(model.parameters())
    groups = [
        dict(params=[p for p in parameters if p.dim() > 1], weight_decay=0.1),
        dict(params=[p for p in parameters if p.dim() == 1], weight_decay=0.0),
    ]
    optimizer = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.95), eps=1e-8)
    losses, after_one_step = [], {}
    for step_tokens, step_targets in zip(tokens, targets):
        loss = mean_loss(model(step_tokens).logits, step_targets)
        losses.append(loss.detach())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        if not after_one_step:
            after_one_step = {name_in_file(model, name): p.detach().clone() for name, p in model.named_parameters()}
    return torch.stack(losses), after_one_step


def write_reference(folder: pathlib.Path, config: transformers.PretrainedConfig, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager")
    randomise_weights(model, generator)
    model.save_pretrained(folder)

    tokens, targets = draw_batch(generator, config.vocab_size)
    steps = [draw_batch(generator, config.vocab_size) for _ in range(STEPS)]
    tokens_steps, targets_steps = (torch.stack(tensors) for tensors in zip(*steps))
    expected = dict(tokens=tokens, targets=targets, tokens_steps=tokens_steps, targets_steps=targets_steps)

    for suffix, load in (("f32", load_float32), ("f64", load_float64)):
        model = load(folder)
        logits = model(tokens).logits
        loss = mean_loss(logits, targets)
        loss.backward()
        expected[f"logits_{suffix}"] = logits.detach()
        expected[f"loss_{suffix}"] = loss.detach()
        for name, parameter in model.named_parameters():
            expected[f"grad_{suffix}.{name_in_file(model, name)}"] = parameter.grad.clone()
        expected[f"losses_{suffix}"], after_one_step = train(model, tokens_steps, targets_steps)
        for name, weight in after_one_step.items():
            expected[f"step_{suffix}.{name}"] = weight
    save_file({name: tensor.contiguous() for name, tensor in expected.items()}, folder / "expected.safetensors")


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit("usage: generate.py OUT_DIR")
    out = pathlib.Path(sys.argv[1])
    stamp = out / "generated_by.sha256"
    versions = f"{torch.__version__} {transformers.__version__}".encode()
    wanted = hashlib.sha256(pathlib.Path(__file__).read_bytes() + versions).hexdigest()
    if stamp.exists() and stamp.read_text(encoding="utf-8") == wanted:
        print(f"{out} is up to date")
        return
    stamp.unlink(missing_ok=True)

    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    architectures = (
        *(llama, qwen2, mistral, mistral_window, qwen3, smollm3, olmo2, llama_biases),
        *(gpt2, olmo3, granite, phi3, gemma3_text, gemma2, gpt_neox, phi3_longrope),
    )
    for seed, make_config in enumerate(architectures):
        write_reference(out / make_config.__name__, make_config(), seed)
        print(f"wrote {out / make_config.__name__}")
    stamp.write_text(wanted, encoding="utf-8")


if __name__ == "__main__":
    main()
