#include "copus/orchestrator/loss_sentinel.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

#include "copus/base/error.h"

namespace copus {

namespace {

constexpr size_t most_bins = 256, least_bins = 16;
constexpr int64_t least_steps_before = 64, least_steps_since = 32;
constexpr double bump_share = 0.25;
// The forecast is made from this share of the way on, and is worth something until so many times as far.
constexpr double first_share = 0.5, last_share = 1.5;

double fall_at(double place) {
  constexpr double exponent = 0.28;
  return std::pow(place, -exponent);
}

}  // namespace

void LossSentinel::Stretch::add(double fall, double loss) {
  if (bins.empty() || bins.back().steps == steps_of_a_bin) {
    if (bins.size() == most_bins) {
      for (size_t i = 0; i < most_bins / 2; ++i) {
        const Bin &first = bins[2 * i], &second = bins[2 * i + 1];
        bins[i] = {first.steps + second.steps, (first.fall + second.fall) / 2, (first.loss + second.loss) / 2};
      }
      bins.resize(most_bins / 2);
      steps_of_a_bin *= 2;
    }
    bins.push_back({});
  }
  Bin& bin = bins.back();
  const auto share = 1 / static_cast<double>(++bin.steps);
  bin.fall += share * (fall - bin.fall);
  bin.loss += share * (loss - bin.loss);
}

int64_t LossSentinel::Stretch::steps() const {
  int64_t sum = 0;
  for (const Bin& bin : bins) sum += bin.steps;
  return sum;
}

void LossSentinel::observe(double place, double loss) {
  COPUS_CHECK(place > 0 && std::isfinite(loss), place, ", ", loss);
  (is_watching_ ? since_ : before_).add(fall_at(place), loss);
}

bool LossSentinel::batch_grew() {
  const Stretch since = std::exchange(since_, {});
  const bool is_forecast_kept = std::exchange(is_watching_, true) && since.steps() < least_steps_before;
  if (!is_forecast_kept && !since.bins.empty()) before_ = since;
  return !is_forecast_kept;
}

std::optional<LossSentinel::Excess> LossSentinel::excess() const {
  if (before_.bins.empty() || since_.steps() < least_steps_since) return std::nullopt;
  const double fall_then = before_.bins.back().fall;
  if (since_.bins.back().fall < fall_then * fall_at(last_share)) return std::nullopt;

  // Bins count by their steps, whose losses scatter alike.
  std::vector<Bin> fitted;
  std::copy_if(before_.bins.begin(), before_.bins.end(), std::back_inserter(fitted),
               [&](const Bin& bin) { return bin.fall <= fall_then * fall_at(first_share); });
  double count = 0, mean_fall = 0, mean_loss = 0;
  for (const Bin& bin : fitted) {
    const auto steps = static_cast<double>(bin.steps);
    count += steps;
    mean_fall += steps * bin.fall;
    mean_loss += steps * bin.loss;
  }
  // Where the place has jumped, few bins may be left of many steps.
  if (count < least_steps_before || fitted.size() < least_bins) return std::nullopt;
  mean_fall /= count;
  mean_loss /= count;
  double squares = 0, products = 0;
  for (const Bin& bin : fitted) {
    const double distance = bin.fall - mean_fall;
    squares += static_cast<double>(bin.steps) * distance * distance;
    products += static_cast<double>(bin.steps) * distance * (bin.loss - mean_loss);
  }
  const double slope = products / squares;
  const auto above_line = [&](const Bin& bin) { return bin.loss - mean_loss - slope * (bin.fall - mean_fall); };
  double residuals = 0;
  for (const Bin& bin : fitted) residuals += static_cast<double>(bin.steps) * above_line(bin) * above_line(bin);
  const double variance_of_a_step = residuals / static_cast<double>(std::ssize(fitted) - 2);

  double steps = 0, distance = 0, excess = 0, passed = 0;
  for (const Bin& bin : since_.bins) {
    const auto steps_of_bin = static_cast<double>(bin.steps);
    if ((passed += steps_of_bin) <= bump_share * static_cast<double>(since_.steps())) continue;
    steps += steps_of_bin;
    distance += steps_of_bin * (bin.fall - mean_fall);
    excess += steps_of_bin * above_line(bin);
  }
  distance /= steps;
  return Excess{excess / steps,
                std::sqrt(variance_of_a_step * (1 / steps + 1 / count + distance * distance / squares))};
}

}  // namespace copus
