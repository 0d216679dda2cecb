// For tests: a small model with padding in every bucket, grouped key/value heads and biases.
#pragma once

#include "copus/description/model_description.h"

namespace copus {

inline ModelDescription odd_model() {
  ModelDescription model;
  model.architecture = Architecture::qwen2;
  model.vocab_size = 37;
  model.hidden_size = 12;
  model.intermediate_size = 20;
  model.num_layers = 2;
  model.num_heads = 3;
  model.num_kv_heads = 1;
  model.head_dim = 6;
  model.qkv_bias = true;
  return model;
}

}  // namespace copus
