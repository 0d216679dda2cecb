#include "copus/workshop/bench/agreement_cost.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "copus/base/error.h"
#include "copus/performance/training_system.h"

namespace copus {

namespace {

// Returns the seconds of an exchange in which every rank sends a message of `bytes` to every other rank. All ranks do
// the same at the same time, so simulating one rank is enough.
double exchange_seconds(int64_t ranks, double bytes, const MessageCosts& costs) {
  std::vector<double> arrivals;
  double now = 0, connection_free = 0;
  for (int64_t i = 1; i < ranks; ++i) {
    now += costs.seconds_per_message;
    connection_free = std::max(now, connection_free) + bytes / costs.bytes_per_second;
    arrivals.push_back(connection_free + costs.latency_seconds);
  }
  for (const double arrival : arrivals) now = std::max(now, arrival) + costs.seconds_per_message;
  return now;
}

}  // namespace

AgreementCost cost_of_agreement_with_all(int64_t ranks, const MessageCosts& costs) {
  constexpr int64_t fixed_words = 229, words_per_rank = 6, word = sizeof(int64_t);
  const int64_t words = fixed_words + words_per_rank * ranks;
  const int64_t pairs = ranks * (ranks - 1);
  if (words * word <= small_all_reduce_bytes) {
    return {ranks, pairs, pairs * words * word, ranks - 1,
            exchange_seconds(ranks, static_cast<double>(words * word), costs)};
  }
  const int64_t longest_part = (words + ranks - 1) / ranks * word;
  return {ranks, 2 * pairs, 2 * (ranks - 1) * words * word, ranks - 1,
          2 * exchange_seconds(ranks, static_cast<double>(longest_part), costs)};
}

AgreementCost cost_of_agreement_by_rounds(int64_t ranks, const MessageCosts& costs) {
  using Received = ReductionRound::Received;
  ReductionSimulation<int64_t> simulation(costs, [](int64_t received, Received place, int64_t& value) {
    value = place == Received::instead ? received : value + received;
  });
  const auto sums = simulation.run(std::vector<int64_t>(ranks, 1), std::llround(copus_in_bf16().agreement_bytes));
  COPUS_CHECK(sums == std::vector<int64_t>(ranks, ranks), ranks, " ranks");
  simulation.run(sums, sizeof(double));
  return {ranks, simulation.messages(), simulation.bytes(), simulation.most_peers(), simulation.seconds()};
}

double seconds_by_doubling(std::span<const AgreementCost> costs) {
  const auto n = static_cast<double>(costs.size());
  const auto doublings = [](const AgreementCost& cost) { return std::log2(static_cast<double>(cost.ranks)); };
  double mean_doublings = 0, mean_seconds = 0;
  for (const AgreementCost& cost : costs) {
    mean_doublings += doublings(cost) / n;
    mean_seconds += cost.seconds / n;
  }
  double covariance = 0, variance = 0;
  for (const AgreementCost& cost : costs) {
    covariance += (doublings(cost) - mean_doublings) * (cost.seconds - mean_seconds);
    variance += std::pow(doublings(cost) - mean_doublings, 2);
  }
  COPUS_CHECK(variance > 0, costs.size(), " numbers of ranks");
  return covariance / variance;
}

}  // namespace copus
