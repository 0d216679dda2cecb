#include "copus/simulate/hindsight.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "copus/base/error.h"

namespace copus {

namespace {

constexpr double never = std::numeric_limits<double>::infinity();

// A strategy, with its fastest layout options for each batch.
struct StrategyOption {
  struct Batch {
    Configuration configuration;
    double seconds_per_sample;
  };
  std::map<int64_t, Batch> batches;
};

std::vector<StrategyOption> options_of(const TrueSeconds& seconds) {
  std::map<ParallelStrategy, StrategyOption> by_strategy;
  for (const auto& [configuration, step] : seconds) {
    const StrategyOption::Batch batch{configuration, step / static_cast<double>(configuration.global_batch)};
    const auto [known, is_new] =
        by_strategy[configuration.strategy].batches.try_emplace(configuration.global_batch, batch);
    if (!is_new && batch.seconds_per_sample < known->second.seconds_per_sample) known->second = batch;
  }
  std::vector<StrategyOption> options;
  for (auto& [strategy, option] : by_strategy) options.push_back(std::move(option));
  return options;
}

// How a strategy passes through one interval.
struct PieceOption {
  double seconds_per_progress = never;
  const Configuration* configuration = nullptr;
};

// Finds, for each strategy, the batch with the most progress per second within the interval.
std::vector<PieceOption> best_in_piece(const Truth& truth, size_t piece, const std::vector<StrategyOption>& options) {
  std::map<int64_t, double> worths;
  std::vector<PieceOption> best(options.size());
  for (size_t i = 0; i < options.size(); ++i) {
    for (const auto& [batch, way] : options[i].batches) {
      const auto [worth, is_new] = worths.try_emplace(batch);
      if (is_new) worth->second = truth.worth(batch, piece);
      const double seconds = way.seconds_per_sample / worth->second;
      if (seconds < best[i].seconds_per_progress) best[i] = {seconds, &way.configuration};
    }
  }
  return best;
}

// The least seconds to the beginning of an interval, by the strategy used in the interval.
class ClairvoyantSearch {
 public:
  ClairvoyantSearch(const Truth& truth, const TrueSeconds& seconds, double pause)
      : truth_(truth), options_(options_of(seconds)), pause_(pause), entering_(options_.size(), 0) {}

  ClairvoyantRun run(const ScenarioEnd& end) {
    COPUS_CHECK(!options_.empty() && end.value > 0, options_.size(), ", ", end.value);
    ClairvoyantRun run;
    size_t last = 0;
    while (!ends_here(end, run, last)) leave_piece();
    follow_back(run, last);
    return run;
  }

 private:
  size_t piece() const { return ways_.size() - 1; }

  // If the run ends within this interval, continues to its end and sets `last` to the strategy there.
  bool ends_here(const ScenarioEnd& end, ClairvoyantRun& run, size_t& last) {
    ways_.push_back(best_in_piece(truth_, ways_.size(), options_));
    const double begin = truth_.pieces()[piece()].begin, border = truth_.end_of(piece());
    if (end.kind == ScenarioEnd::Kind::progress) {
      if (border < end.value) return false;
      run = {.seconds = never, .progress = end.value, .by_piece = {}, .relayouts = 0};
      for (size_t i = 0; i < options_.size(); ++i) {
        const double seconds = entering_[i] + (end.value - begin) * ways_.back()[i].seconds_per_progress;
        if (seconds < run.seconds) run.seconds = seconds, last = i;
      }
      return true;
    }
    run = {.seconds = end.value, .progress = 0, .by_piece = {}, .relayouts = 0};
    for (size_t i = 0; i < options_.size(); ++i) {
      const double progress = begin + (end.value - entering_[i]) / ways_.back()[i].seconds_per_progress;
      if (progress > run.progress) run.progress = progress, last = i;
    }
    return run.progress <= border;
  }

  void leave_piece() {
    const double length = truth_.end_of(piece()) - truth_.pieces()[piece()].begin;
    for (size_t i = 0; i < options_.size(); ++i) entering_[i] += length * ways_.back()[i].seconds_per_progress;
    const auto first = std::min_element(entering_.begin(), entering_.end());
    const auto from = static_cast<size_t>(first - entering_.begin());
    const double moved = *first + pause_;
    std::vector<size_t> came_from(options_.size());
    for (size_t i = 0; i < options_.size(); ++i) {
      came_from[i] = moved < entering_[i] ? from : i;
      entering_[i] = std::min(entering_[i], moved);
    }
    came_from_.push_back(std::move(came_from));
  }

  void follow_back(ClairvoyantRun& run, size_t last) const {
    size_t option = last;
    for (size_t at = ways_.size(); at-- > 0;) {
      run.by_piece.push_back(*ways_[at][option].configuration);
      if (at == 0) break;
      const size_t before = came_from_[at - 1][option];
      if (before != option) ++run.relayouts;
      option = before;
    }
    std::reverse(run.by_piece.begin(), run.by_piece.end());
  }

  const Truth& truth_;
  std::vector<StrategyOption> options_;
  double pause_;
  std::vector<double> entering_;                // seconds at the beginning of the latest piece, by option
  std::vector<std::vector<PieceOption>> ways_;  // by piece and option
  std::vector<std::vector<size_t>> came_from_;  // by border and by the option after it: the option before the border
};

}  // namespace

double static_seconds(const Truth& truth, const Configuration& configuration, double step_seconds, double progress) {
  return truth.samples_to(progress, configuration.global_batch) * step_seconds /
         static_cast<double>(configuration.global_batch);
}

StraightRun best_static(const Truth& truth, const TrueSeconds& seconds, const ScenarioEnd& end) {
  StraightRun best{.configuration = {}, .seconds = never, .progress = 0};
  std::map<int64_t, double> samples;  // to the end, by batch
  for (const auto& [configuration, step] : seconds) {
    const int64_t batch = configuration.global_batch;
    const double per_sample = step / static_cast<double>(batch);
    if (end.kind == ScenarioEnd::Kind::progress) {
      const auto [needed, is_new] = samples.try_emplace(batch);
      if (is_new) needed->second = truth.samples_to(end.value, batch);
      const double taken = needed->second * per_sample;
      if (taken < best.seconds) best = {configuration, taken, end.value};
    } else {
      TruthWalk walk(truth);
      walk.advance(end.value / per_sample, batch, never);
      if (walk.progress() > best.progress) best = {configuration, end.value, walk.progress()};
    }
  }
  return best;
}

ClairvoyantRun clairvoyant(const Truth& truth, const TrueSeconds& seconds, double pause_seconds,
                           const ScenarioEnd& end) {
  return ClairvoyantSearch(truth, seconds, pause_seconds).run(end);
}

}  // namespace copus
