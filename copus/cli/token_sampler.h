// Draws the next token from a model's logits.
#pragma once

#include <cstdint>
#include <span>

namespace copus {

struct Sampling {
  double temperature = 0.8;  // 0: always the likeliest token
  int64_t top_k = 0;         // number of likeliest tokens to draw among; 0: all
  uint64_t seed = 0;
};

// Draws the token at `position` of a text: a pure function of its arguments, from softmax(logits / temperature). Of
// tokens with equal logits the smaller ids rank first. At least one logit must be finite.
int64_t sample_token(std::span<const float> logits, const Sampling& sampling, uint64_t position);

}  // namespace copus
