#include "copus/data/blend.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "copus/base/error.h"
#include "copus/base/mix_bits.h"
#include "copus/data/permutation.h"

namespace copus {
namespace {

// Computes integers proportional to `weights` that sum to `total`: the rounded-down shares, and one more for the
// largest remainders (the first source wins a tie).
std::vector<int64_t> apportion(const std::vector<double>& weights, int64_t total) {
  // Scales by the largest weight first, so that the sum of huge weights is finite.
  const double largest = *std::max_element(weights.begin(), weights.end());
  double sum = 0;
  for (const double weight : weights) sum += weight / largest;
  std::vector<int64_t> counts;
  std::vector<double> remainders;
  for (const double weight : weights) {
    const double share = weight / largest / sum * static_cast<double>(total);
    counts.push_back(static_cast<int64_t>(std::floor(share)));
    remainders.push_back(share - std::floor(share));
  }
  std::vector<std::size_t> by_remainder(weights.size());
  std::iota(by_remainder.begin(), by_remainder.end(), std::size_t{0});
  std::stable_sort(by_remainder.begin(), by_remainder.end(),
                   [&](std::size_t a, std::size_t b) { return remainders[a] > remainders[b]; });
  const int64_t missing = total - std::accumulate(counts.begin(), counts.end(), int64_t{0});
  COPUS_CHECK(missing >= 0 && missing <= static_cast<int64_t>(counts.size()), missing, " missing");
  for (int64_t i = 0; i < missing; ++i) ++counts[by_remainder[static_cast<std::size_t>(i)]];
  return counts;
}

}  // namespace

Blend::Blend(const std::vector<double>& weights, uint64_t seed) : seed_(seed) {
  COPUS_CHECK(!weights.empty(), "no sources");
  for (const double weight : weights) COPUS_CHECK(weight > 0 && std::isfinite(weight), "weight ", weight);
  counts_ = apportion(weights, block_size);
  for (std::size_t source = 0; source < counts_.size(); ++source)
    source_of_slot_.insert(source_of_slot_.end(), static_cast<std::size_t>(counts_[source]),
                           static_cast<int64_t>(source));
}

std::vector<SampleAddress> Blend::locate(uint64_t first, int64_t count) const {
  COPUS_CHECK(count >= 0, "count ", count);
  const uint64_t end = first + static_cast<uint64_t>(count);
  std::vector<SampleAddress> addresses;
  addresses.reserve(static_cast<std::size_t>(count));
  if (counts_.size() == 1) {
    for (uint64_t sample = first; sample < end; ++sample) addresses.push_back({0, sample});
    return addresses;
  }
  constexpr uint64_t block_length = block_size;
  for (uint64_t block = first / block_length; block * block_length < end; ++block) {
    const Permutation shuffled(extend_hash(extend_hash(seed_, 0), block), block_length);
    std::vector<uint64_t> draws;  // of each source before the current slot
    for (const int64_t per_block : counts_) draws.push_back(block * static_cast<uint64_t>(per_block));
    for (uint64_t sample = block * block_length; sample < std::min(end, (block + 1) * block_length); ++sample) {
      const int64_t source = source_of_slot_[shuffled(sample % block_length)];
      const uint64_t draw = draws[static_cast<std::size_t>(source)]++;
      if (sample >= first) addresses.push_back({source, draw});
    }
  }
  return addresses;
}

}  // namespace copus
