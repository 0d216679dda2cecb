#include "copus/orchestrator/policies/loss_sentinel.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <utility>

#include "copus/base/error.h"

namespace copus {

namespace {

constexpr size_t most_bins = 256, least_bins = 16;
constexpr int64_t least_steps_before = 64, least_steps_since = 32;
constexpr double bump_share = 0.25;
// The forecast uses the losses from first_share times `place_then` on, where `place_then` is the place (seconds or
// samples) of the last loss before the forecast. The forecast is valid until the run reaches last_share times
// `place_then`.
constexpr double first_share = 0.5, last_share = 1.25;
// From flatter than any published law to the steep beginnings of small models.
constexpr std::array exponents = {0.02, 0.1, 0.2, 0.28, 0.4, 0.5, 0.65, 0.8, 1.0, 1.2};
constexpr double likely_deviations = 2;

}  // namespace

void LossSentinel::Stretch::add(double place, double loss) {
  if (bins.empty() || bins.back().steps == steps_of_a_bin) {
    if (bins.size() == most_bins) {
      for (size_t i = 0; i < most_bins / 2; ++i) {
        const Bin &first = bins[2 * i], &second = bins[2 * i + 1];
        bins[i] = {first.steps + second.steps, (first.place + second.place) / 2, (first.loss + second.loss) / 2};
      }
      bins.resize(most_bins / 2);
      steps_of_a_bin *= 2;
    }
    bins.push_back({});
  }
  Bin& bin = bins.back();
  const auto share = 1 / static_cast<double>(++bin.steps);
  bin.place += share * (place - bin.place);
  bin.loss += share * (loss - bin.loss);
}

int64_t LossSentinel::Stretch::steps() const {
  int64_t sum = 0;
  for (const Bin& bin : bins) sum += bin.steps;
  return sum;
}

void LossSentinel::add(double place, double loss) {
  COPUS_CHECK(place > 0 && std::isfinite(loss), place, ", ", loss);
  (is_watching_ ? since_ : before_).add(place, loss);
}

bool LossSentinel::begin_watch() {
  const Stretch since = std::exchange(since_, {});
  const bool is_forecast_kept = std::exchange(is_watching_, true) && since.steps() < least_steps_before;
  if (!is_forecast_kept && !since.bins.empty()) before_ = since;
  return !is_forecast_kept;
}

std::optional<LossSentinel::Excess> LossSentinel::excess() const {
  const int64_t steps_since = since_.steps();
  if (before_.bins.empty() || steps_since < least_steps_since) return std::nullopt;
  const double place_then = before_.bins.back().place;
  if (since_.bins.back().place > last_share * place_then) return std::nullopt;

  std::vector<Bin> before, since;
  std::copy_if(before_.bins.begin(), before_.bins.end(), std::back_inserter(before),
               [&](const Bin& bin) { return bin.place >= first_share * place_then; });
  int64_t passed = 0, steps_before = 0;
  for (const Bin& bin : before) steps_before += bin.steps;
  for (const Bin& bin : since_.bins) {
    passed += bin.steps;
    if (static_cast<double>(passed) > bump_share * static_cast<double>(steps_since)) since.push_back(bin);
  }
  // After a jump of the place, the second half of the way may hold few bins.
  if (steps_before < least_steps_before || before.size() < least_bins) return std::nullopt;

  std::vector<LineExcess> lines;
  for (const double exponent : exponents) lines.push_back(excess_over_line(before, since, exponent));
  const double least_residuals = std::ranges::min_element(lines, {}, &LineExcess::residuals)->residuals;
  const double variance_of_a_step = least_residuals / static_cast<double>(std::ssize(before) - 2);
  const double likely_residuals = least_residuals + likely_deviations * likely_deviations * variance_of_a_step;
  std::optional<Excess> least;
  for (const LineExcess& line : lines) {
    if (line.residuals <= likely_residuals && (!least || line.excess.nats < least->nats)) least = line.excess;
  }
  return least;
}

// Each bin is weighted by its number of steps, because the losses of single steps have equal variances. Places are
// divided by the last place, to limit rounding errors.
LossSentinel::LineExcess LossSentinel::excess_over_line(const std::vector<Bin>& before, const std::vector<Bin>& since,
                                                        double exponent) {
  const double place_then = before.back().place;
  const auto fall_at = [&](const Bin& bin) { return std::pow(bin.place / place_then, -exponent); };
  double steps_before = 0, mean_fall = 0, mean_loss = 0;
  for (const Bin& bin : before) {
    const auto steps = static_cast<double>(bin.steps);
    steps_before += steps;
    mean_fall += steps * fall_at(bin);
    mean_loss += steps * bin.loss;
  }
  mean_fall /= steps_before;
  mean_loss /= steps_before;
  double squares = 0, products = 0;
  for (const Bin& bin : before) {
    const double distance = fall_at(bin) - mean_fall;
    squares += static_cast<double>(bin.steps) * distance * distance;
    products += static_cast<double>(bin.steps) * distance * (bin.loss - mean_loss);
  }
  const double slope = products / squares;
  const auto above_line = [&](const Bin& bin) { return bin.loss - mean_loss - slope * (fall_at(bin) - mean_fall); };
  double residuals = 0;
  for (const Bin& bin : before) residuals += static_cast<double>(bin.steps) * above_line(bin) * above_line(bin);
  const double variance_of_a_step = residuals / static_cast<double>(std::ssize(before) - 2);

  double steps_since = 0, distance = 0, excess = 0;
  for (const Bin& bin : since) {
    const auto steps = static_cast<double>(bin.steps);
    steps_since += steps;
    distance += steps * (fall_at(bin) - mean_fall);
    excess += steps * above_line(bin);
  }
  distance /= steps_since;
  const double per_step = 1 / steps_since + 1 / steps_before + distance * distance / squares;
  return {{excess / steps_since, std::sqrt(variance_of_a_step * per_step)}, residuals};
}

}  // namespace copus
