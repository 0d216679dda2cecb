"""The model shapes of the comparison with PyTorch, and the work per token of each."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Shape:
    """A Llama and its micro-batch. The field names are the options of `copus bench step`."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    ffn: int
    vocab: int
    sequence_length: int
    micro_batch: int

    @classmethod
    def of_config(cls, config: dict, sequence_length: int, micro_batch: int) -> "Shape":
        """The shape of a Hugging Face config.json."""
        assert config.get("head_dim", config["hidden_size"] // config["num_attention_heads"]) * config[
            "num_attention_heads"] == config["hidden_size"]
        return cls(
            layers=config["num_hidden_layers"],
            hidden=config["hidden_size"],
            heads=config["num_attention_heads"],
            kv_heads=config["num_key_value_heads"],
            ffn=config["intermediate_size"],
            vocab=config["vocab_size"],
            sequence_length=sequence_length,
            micro_batch=micro_batch,
        )

    def options(self) -> list[str]:
        pairs = dataclasses.asdict(self).items()
        return [word for name, value in pairs for word in ("--" + name.replace("_", "-"), str(value))]

    def tokens_per_step(self) -> int:
        return self.sequence_length * self.micro_batch

    def training_flops_per_token(self) -> float:
        """The formula of training_flops_per_token in copus/description/model_description.h."""
        query_width = self.hidden
        kv_width = self.hidden // self.heads * self.kv_heads
        layer = 2 * self.hidden * query_width + 2 * self.hidden * kv_width + 3 * self.hidden * self.ffn
        attention = 12 * self.layers * query_width * self.sequence_length
        return 6 * (self.layers * layer + self.vocab * self.hidden) + attention


SHAPES = {
    "a": Shape(layers=8, hidden=512, heads=8, kv_heads=4, ffn=1408, vocab=8192, sequence_length=512, micro_batch=4),
    "b": Shape(layers=6, hidden=256, heads=4, kv_heads=4, ffn=704, vocab=256, sequence_length=128, micro_batch=16),
}
