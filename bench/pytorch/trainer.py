"""Runs training steps of a transformers model in PyTorch as a PyTorch user would, for comparisons with Copus on the CPU
(step_worker.py) and on a GPU (../gpu/worker.py)."""

import contextlib

import torch
import transformers

PRECISIONS = ("fp32", "bf16", "bf16-parameters")
SCOPES = ("none", "layers", "model")


class Trainer:
    """One step: zero_grad, then forward and backward for each micro-batch, clip, AdamW; random weights and tokens.

    precision: "bf16" computes under autocast, with parameters, gradients and moments in fp32. With "bf16-parameters"
    parameters, gradients and moments are bf16 too, which is a different training. compile_scope: "layers" compiles each
    decoder layer and the loss, "model" the whole model.
    """

    def __init__(
        self,
        config: transformers.PreTrainedConfig,
        sequence: int,
        micro_batch: int,
        micro_batches: int = 1,
        device: str = "cpu",
        precision: str = "fp32",
        compile_scope: str = "none",
    ):
        assert precision in PRECISIONS and compile_scope in SCOPES
        torch.manual_seed(0)
        self.device = torch.device(device)
        self.sequence, self.micro_batches = sequence, micro_batches
        self.autocast = precision == "bf16"
        dtype = torch.bfloat16 if precision == "bf16-parameters" else torch.float32
        with self.device:
            self.model = transformers.AutoModelForCausalLM.from_config(
                config, dtype=dtype, attn_implementation="sdpa"
            ).train()
        self.forward = torch.compile(self.model, dynamic=False) if compile_scope == "model" else self.model
        if compile_scope == "layers":
            for layer in self.model.model.layers:
                layer.compile(dynamic=False)
            self.model.loss_function = torch.compile(self.model.loss_function, dynamic=False)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, weight_decay=0.1, fused=True)
        self.set_micro_batch(micro_batch)

    def set_micro_batch(self, micro_batch: int) -> None:
        self.tokens = torch.randint(self.model.config.vocab_size, (micro_batch, self.sequence), device=self.device)

    def step(self) -> None:
        self.optimizer.zero_grad()
        for _ in range(self.micro_batches):
            with torch.autocast(self.device.type, torch.bfloat16) if self.autocast else contextlib.nullcontext():
                loss = self.forward(input_ids=self.tokens, labels=self.tokens).loss
            (loss if self.micro_batches == 1 else loss / self.micro_batches).backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
