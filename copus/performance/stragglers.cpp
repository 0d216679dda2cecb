#include "copus/performance/stragglers.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "copus/base/error.h"
#include "copus/base/quantile.h"
#include "copus/description/mesh.h"

namespace copus {

namespace {

double total(const PartSeconds& seconds) { return std::accumulate(seconds.begin(), seconds.end(), 0.0); }

template <class Measure>
double median_of(const std::vector<PartSeconds>& step, const std::vector<int64_t>& ranks, const Measure& measure) {
  std::vector<double> values;
  for (const int64_t rank : ranks) values.push_back(measure(step[rank]));
  return quantile(values, 0.5);
}

std::vector<int64_t> peers_of(int64_t rank, const std::vector<int64_t>& stages) {
  std::vector<int64_t> peers;
  for (int64_t other = 0; other < std::ssize(stages); ++other) {
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
  for (int64_t rank = 0; rank < std::ssize(stages); ++rank) {
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
    if (std::ssize(ratios) < straggler_steps) continue;
    const auto part = std::max_element(lost.begin(), lost.end()) - lost.begin();
    stragglers.push_back({rank, static_cast<StepPart>(part), quantile(ratios, 0.5)});
  }
  return stragglers;
}

StragglerNotes::StragglerNotes(const ParallelStrategy& strategy) { change_layout(strategy); }

void StragglerNotes::change_layout(const ParallelStrategy& strategy) {
  const Mesh mesh(strategy);
  stages_.clear();
  for (int64_t rank = 0; rank < mesh.size(); ++rank) stages_.push_back(mesh.coordinates(rank).pipeline);
  steps_.clear();
}

std::vector<std::string> StragglerNotes::add(int64_t step, const std::vector<PartSeconds>& seconds_by_rank) {
  if (std::ssize(steps_) == straggler_window) steps_.erase(steps_.begin());
  steps_.push_back(seconds_by_rank);
  std::vector<std::string> notes;
  for (const Straggler& straggler : find_stragglers(steps_, stages_)) {
    const auto [last, is_new] = last_slow_.try_emplace(straggler.rank, step);
    const bool has_kept_up = step - std::exchange(last->second, step) > steps_to_keep_up;
    if (!is_new && !has_kept_up) continue;
    notes.push_back(concat("straggler  rank ", straggler.rank, " computes ", std::round(straggler.ratio * 10) / 10,
                           " times as long as its peers, most of it in ", to_string(straggler.part)));
  }
  return notes;
}

}  // namespace copus
