#include "copus/performance/stragglers.h"

#include <algorithm>
#include <numeric>

#include "copus/base/error.h"

namespace copus {

namespace {

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

double total(const PartSeconds& seconds) { return std::accumulate(seconds.begin(), seconds.end(), 0.0); }

template <class Measure>
double median_of(const std::vector<PartSeconds>& step, const std::vector<int64_t>& ranks, const Measure& measure) {
  std::vector<double> values;
  for (const int64_t rank : ranks) values.push_back(measure(step[rank]));
  return median(values);
}

std::vector<int64_t> peers_of(int64_t rank, const std::vector<int64_t>& stages) {
  std::vector<int64_t> peers;
  for (int64_t other = 0; other < static_cast<int64_t>(stages.size()); ++other) {
    if (other != rank && stages[other] == stages[rank]) peers.push_back(other);
  }
  return peers;
}

}  // namespace

std::string_view to_string(StepPart part) {
  switch (part) {
    case StepPart::forward:
      return "forward";
    case StepPart::backward:
      return "backward";
    case StepPart::optimizer:
      return "optimizer";
  }
  return {};
}

std::vector<Straggler> find_stragglers(std::span<const std::vector<PartSeconds>> steps,
                                       const std::vector<int64_t>& stages) {
  const auto recent = steps.last(std::min<size_t>(steps.size(), straggler_window));
  for (const auto& step : recent) COPUS_CHECK(step.size() == stages.size());

  std::vector<Straggler> stragglers;
  for (int64_t rank = 0; rank < static_cast<int64_t>(stages.size()); ++rank) {
    const auto peers = peers_of(rank, stages);
    if (peers.empty()) continue;
    std::vector<double> ratios;
    PartSeconds lost{};
    for (const auto& step : recent) {
      const double usual = median_of(step, peers, total);
      const double own = total(step[rank]);
      if (own <= straggler_ratio * usual) continue;
      ratios.push_back(own / usual);
      for (size_t part = 0; part < lost.size(); ++part) {
        const auto seconds_of_part = [&](const PartSeconds& seconds) { return seconds[part]; };
        lost[part] += step[rank][part] - median_of(step, peers, seconds_of_part);
      }
    }
    if (static_cast<int64_t>(ratios.size()) < straggler_steps) continue;
    const auto part = std::max_element(lost.begin(), lost.end()) - lost.begin();
    stragglers.push_back({rank, static_cast<StepPart>(part), median(ratios)});
  }
  return stragglers;
}

}  // namespace copus
