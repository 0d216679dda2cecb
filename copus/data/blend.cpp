#include "copus/data/blend.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <queue>
#include <unordered_map>
#include <utility>

#include "copus/base/error.h"
#include "copus/base/numbers/mix_bits.h"
#include "copus/data/permutation.h"

namespace copus {
namespace {

__extension__ using Product = unsigned __int128;

// Returns floor(m q + 1/2) for q = part 2^-64. Integer arithmetic makes the result the same on every machine.
uint64_t rounded_part(uint64_t m, uint64_t part) {
  return static_cast<uint64_t>((Product{m} * part + (Product{1} << 63)) >> 64);
}

uint64_t to_part(double fraction) {
  constexpr int bits = 64;
  const double scaled = std::ldexp(fraction, bits);
  return scaled >= std::ldexp(1.0, bits) ? ~uint64_t{0} : static_cast<uint64_t>(scaled);
}

}  // namespace

Blend::Blend(const std::vector<double>& weights, uint64_t seed) : seed_(seed) {
  COPUS_CHECK(!weights.empty(), "no sources");
  for (const double weight : weights) COPUS_CHECK(weight > 0 && std::isfinite(weight), "weight ", weight);
  // Divides all weights by the largest one first, so that the sum of huge weights stays finite.
  const double largest = *std::ranges::max_element(weights);
  double sum = 0;
  for (const double weight : weights) sum += weight / largest;
  for (const double weight : weights) shares_.push_back(weight / largest / sum);

  using Entry = std::pair<double, int64_t>;
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> open;
  const int64_t sources = std::ssize(shares_);
  for (int64_t source = 0; source < sources; ++source) open.emplace(shares_[source], source);
  while (open.size() > 1) {
    const Entry first = open.top();
    open.pop();
    const Entry second = open.top();
    open.pop();
    const int64_t node = sources + std::ssize(nodes_);
    const double both = first.first + second.first;
    // Both shares may underflow to 0; their quotient would then not be finite.
    nodes_.push_back({first.second, second.second, to_part(both > 0 ? first.first / both : 0.5)});
    open.emplace(both, node);
  }
}

SampleAddress Blend::locate_unshuffled(uint64_t sample) const {
  const int64_t sources = std::ssize(shares_);
  int64_t place = sources + std::ssize(nodes_) - 1;
  while (place >= sources) {
    const Node& node = nodes_[place - sources];
    const uint64_t before = rounded_part(sample, node.part_of_first);
    const bool is_first = rounded_part(sample + 1, node.part_of_first) > before;
    place = is_first ? node.first : node.second;
    sample = is_first ? before : sample - before;
  }
  return {place, sample};
}

std::vector<SampleAddress> Blend::block(uint64_t number) const {
  std::vector<int64_t> sources;
  std::unordered_map<int64_t, uint64_t> draws;  // the next draw of each source
  for (uint64_t i = 0; i < block_size; ++i) {
    const SampleAddress address = locate_unshuffled(number * block_size + i);
    sources.push_back(address.source);
    draws.try_emplace(address.source, address.draw);
  }
  const Permutation shuffled(extend_hash(seed_, number), block_size);
  std::vector<SampleAddress> addresses;
  for (uint64_t i = 0; i < block_size; ++i) {
    const int64_t source = sources[shuffled(i)];
    addresses.push_back({source, draws.at(source)++});
  }
  return addresses;
}

std::vector<SampleAddress> Blend::locate(uint64_t first, int64_t count) const {
  COPUS_CHECK(count >= 0, "count ", count);
  std::vector<SampleAddress> addresses;
  const uint64_t end = first + static_cast<uint64_t>(count);
  for (uint64_t number = first / block_size; number * block_size < end; ++number) {
    const std::vector<SampleAddress> all = block(number);
    const uint64_t begin = number * block_size;
    addresses.insert(addresses.end(), all.begin() + static_cast<int64_t>(std::max(first, begin) - begin),
                     all.begin() + static_cast<int64_t>(std::min(end, begin + block_size) - begin));
  }
  return addresses;
}

}  // namespace copus
