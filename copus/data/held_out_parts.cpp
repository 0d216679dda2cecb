#include "copus/data/held_out_parts.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "copus/base/error.h"

namespace copus {

namespace {

// Returns the unrounded number of samples of each source, in proportion to `shares` (relative), but at least `least`
// and at most the source's size. A source whose proportional number exceeds a bound gets the bound.
std::vector<double> proportional_parts(const std::vector<int64_t>& sizes, const std::vector<double>& shares,
                                       double samples, double least) {
  constexpr double smallest_share = 1e-30;  // a share may have been rounded to zero
  std::vector<double> parts(sizes.size());
  const auto parts_sum = [&](double scale) {
    double sum = 0;
    for (size_t i = 0; i < sizes.size(); ++i) {
      parts[i] = std::clamp(scale * std::max(shares[i], smallest_share), least, static_cast<double>(sizes[i]));
      sum += parts[i];
    }
    return sum;
  };
  // Finds the factor on the shares by bisection; the total grows with it. 64 halvings reach the last bit of a double.
  double low = 0, high = 1;
  while (parts_sum(high) < samples) high *= 2;
  for (int i = 0; i < 64; ++i) {
    const double middle = low + (high - low) / 2;
    (parts_sum(middle) < samples ? low : high) = middle;
  }
  parts_sum(high);
  return parts;
}

}  // namespace

std::vector<HeldOutPart> held_out_parts(const std::vector<int64_t>& sizes, const std::vector<double>& shares,
                                        int64_t samples) {
  COPUS_CHECK(sizes.size() == shares.size());
  const int64_t all = std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
  samples = std::min(samples, all);
  std::vector<HeldOutPart> parts;
  if (samples <= 0) return parts;
  const double share_sum = std::accumulate(shares.begin(), shares.end(), 0.0);
  const bool is_whole = samples == all;
  const double least = samples >= std::ssize(sizes) ? 1 : 0;
  std::vector<double> wanted(sizes.begin(), sizes.end());
  if (!is_whole) wanted = proportional_parts(sizes, shares, static_cast<double>(samples), least);

  // Rounds the running sum, so each source is off by less than one sample, and the total is exact.
  double sum = 0, weights = 0;
  int64_t given = 0;
  for (size_t i = 0; i < sizes.size(); ++i) {
    sum += wanted[i];
    const int64_t until = i + 1 == sizes.size() ? samples : std::min<int64_t>(samples, std::llround(sum));
    const int64_t mine = std::clamp<int64_t>(until - given, static_cast<int64_t>(least), sizes[i]);
    given += mine;
    if (mine == 0) continue;
    // A source that is read with probability `wanted` also represents unread ones (Horvitz and Thompson 1952).
    const double weight = shares[i] / share_sum / std::min(1.0, wanted[i]);
    parts.push_back({static_cast<int64_t>(i), mine, weight});
    weights += weight;
  }
  for (HeldOutPart& part : parts) part.weight /= weights;
  return parts;
}

}  // namespace copus
