// For tests: the base configuration of experiments, as text. Arms change its steps, batch and learning rate.
#pragma once

namespace copus {

inline constexpr const char* experiment_base = R"(
[model]
vocab_size = 256
hidden_size = 32
intermediate_size = 64
num_hidden_layers = 2
num_attention_heads = 4
[data]
train = "corpus.txt"
[train]
sequence_length = 32
global_batch = 8
micro_batch = 4
max_steps = 20
)";

}  // namespace copus
