// Draws the next token from a model's logits.
#pragma once

#include <cstdint>
#include <span>

namespace copus {

struct Sampling {
  double temperature = 0.8;  // 0: always the likeliest token
  int64_t top_k = 0;         // how many of the likeliest tokens to draw among; 0: all
  uint64_t seed = 0;
};

// The token at `position` of a text: a pure function of its arguments, from softmax(logits / temperature). Among equal
// logits the smaller token ids are the likelier ones. At least one logit must be finite.
int64_t sample_token(std::span<const float> logits, const Sampling& sampling, uint64_t position);

}  // namespace copus
