#include "copus/performance/measured/stragglers.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "copus/base/error.h"
#include "copus/base/numbers/quantile.h"
#include "copus/description/mesh.h"

namespace copus {

namespace {

double total(const PartSeconds& seconds) { return std::accumulate(seconds.begin(), seconds.end(), 0.0); }

// The sorted values of a stage's ranks, from which the median over any rank's peers follows directly.
class SortedValues {
 public:
  explicit SortedValues(std::vector<double> values) : values_(std::move(values)) {
    std::sort(values_.begin(), values_.end());
  }

  // Returns the median without one value `own`; at least two values.
  double median_without(double own) const {
    const auto gap = std::lower_bound(values_.begin(), values_.end(), own) - values_.begin();
    const auto at = [&](int64_t i) { return values_[i < gap ? i : i + 1]; };
    const int64_t others = std::ssize(values_) - 1;
    return quantile({at((others - 1) / 2), at(others / 2)}, 0.5);
  }

 private:
  std::vector<double> values_;
};

// One step of the ranks of one stage.
class StageStep {
 public:
  StageStep(const std::vector<PartSeconds>& step, const std::vector<int64_t>& ranks)
      : totals_(values(step, ranks, total)) {
    for (size_t part = 0; part < num_step_parts; ++part) {
      parts_.push_back(values(step, ranks, [&](const PartSeconds& seconds) { return seconds[part]; }));
    }
  }

  double usual_total(const PartSeconds& own) const { return totals_.median_without(total(own)); }
  double usual(size_t part, const PartSeconds& own) const { return parts_[part].median_without(own[part]); }

 private:
  template <class Measure>
  static SortedValues values(const std::vector<PartSeconds>& step, const std::vector<int64_t>& ranks,
                             const Measure& measure) {
    std::vector<double> values;
    for (const int64_t rank : ranks) values.push_back(measure(step[rank]));
    return SortedValues(std::move(values));
  }

  SortedValues totals_;
  std::vector<SortedValues> parts_;
};

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

  std::map<int64_t, std::vector<int64_t>> ranks_by_stage;
  for (int64_t rank = 0; rank < std::ssize(stages); ++rank) ranks_by_stage[stages[rank]].push_back(rank);

  std::vector<Straggler> stragglers;
  for (const auto& [stage, ranks] : ranks_by_stage) {
    if (ranks.size() == 1) continue;
    std::vector<StageStep> usual;
    for (const auto& step : recent) usual.emplace_back(step, ranks);
    for (const int64_t rank : ranks) {
      std::vector<double> ratios;
      PartSeconds lost{};
      for (size_t i = 0; i < recent.size(); ++i) {
        const PartSeconds& own = recent[i][rank];
        const double usual_total = usual[i].usual_total(own);
        if (total(own) <= straggler_ratio * usual_total) continue;
        ratios.push_back(total(own) / usual_total);
        for (size_t part = 0; part < lost.size(); ++part) lost[part] += own[part] - usual[i].usual(part, own);
      }
      if (std::ssize(ratios) < straggler_steps) continue;
      const auto part = std::max_element(lost.begin(), lost.end()) - lost.begin();
      stragglers.push_back({rank, static_cast<StepPart>(part), quantile(ratios, 0.5)});
    }
  }
  std::sort(stragglers.begin(), stragglers.end(),
            [](const Straggler& a, const Straggler& b) { return a.rank < b.rank; });
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
