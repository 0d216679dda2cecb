// Draws the next token from a model's logits.
#pragma once

#include <cstdint>
#include <span>

namespace copus {

struct Sampling {
  double temperature = 0.8;  // 0: always the most likely token
  int64_t top_k = 0;         // number of most likely tokens to draw from; 0: all
  uint64_t seed = 0;
};

// Draws the token at `position` of a text from softmax(logits / temperature). The result depends only on the arguments.
// Among tokens with equal logits, smaller ids rank first. At least one logit must be finite.
int64_t sample_token(std::span<const float> logits, const Sampling& sampling, uint64_t position);

}  // namespace copus
