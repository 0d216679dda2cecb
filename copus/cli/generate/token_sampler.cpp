#include "copus/cli/generate/token_sampler.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "copus/base/numbers/philox.h"

namespace copus {

namespace {

// Draws uniformly from [0, 1), with the full 53 bits of a double.
double uniform(uint64_t seed, uint64_t position) {
  const auto block = philox(stream_key(seed, "generate"), 0, position);
  const uint64_t bits = (uint64_t{block[0]} << 32) | block[1];
  return static_cast<double>(bits >> 11) * 0x1p-53;
}

}  // namespace

int64_t sample_token(std::span<const float> logits, const Sampling& sampling, uint64_t position) {
  std::vector<int64_t> tokens(logits.size());
  std::iota(tokens.begin(), tokens.end(), 0);
  const auto likelier = [&](int64_t a, int64_t b) { return logits[a] != logits[b] ? logits[a] > logits[b] : a < b; };
  const auto vocabulary = static_cast<int64_t>(logits.size());
  const int64_t wanted = sampling.temperature == 0 ? 1 : sampling.top_k > 0 ? sampling.top_k : vocabulary;
  const int64_t count = std::min(wanted, vocabulary);
  std::partial_sort(tokens.begin(), tokens.begin() + count, tokens.end(), likelier);
  if (count == 1) return tokens[0];

  std::vector<double> cumulative(count);
  double sum = 0;
  for (int64_t i = 0; i < count; ++i) {
    sum += std::exp((double{logits[tokens[i]]} - double{logits[tokens[0]]}) / sampling.temperature);
    cumulative[i] = sum;
  }
  const double drawn = uniform(sampling.seed, position) * sum;
  const auto found = std::upper_bound(cumulative.begin(), cumulative.end(), drawn);
  return tokens[std::min<int64_t>(found - cumulative.begin(), count - 1)];
}

}  // namespace copus
