#include "copus/simulate/worth.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>

#include "copus/base/error.h"

namespace copus {

namespace {

// Efficiencies of larger batches. They were measured by 75 short branches of a run of 0.87 million parameters on bytes
// of English, at 4096 and at 12288 samples. A branch's efficiency is the number of samples that a batch of 8 needs to
// reach the branch's held-out loss, divided by the number of samples that the branch read. The learning rate follows
// the square-root rule. The scatter of one branch is 3 to 5 %. The noise scales phi at the two points were 22.7 and 35.
// All values are relative to a batch of 8. By the fit, the efficiency of a batch of 8 itself is 1 / (1 + 8 / (4.7
// phi)).
struct MeasuredStage {
  double noise_scale;
  std::array<double, 5> efficiency;
};
constexpr std::array<double, 5> measured_batches = {8, 16, 32, 64, 128};
constexpr MeasuredStage measured_stages[] = {{22.7, {1, .912, .787, .648, .495}}, {35, {1, .913, .805, .752, .615}}};

double hyperbola(double ratio) { return 1 / (1 + ratio); }

// Returns the efficiency at `ratio` = B / phi. Between the measured points, ln(efficiency) is linear in ln(ratio).
// Beyond the last point the last slope continues. Before the first point the efficiency follows the hyperbola through
// that point.
double measured_at(const MeasuredStage& stage, double ratio) {
  const double batch = ratio * stage.noise_scale;
  if (batch <= measured_batches.front()) return hyperbola(ratio / measured_calibration);
  const auto above = std::upper_bound(measured_batches.begin() + 1, measured_batches.end() - 1, batch);
  const auto i = static_cast<size_t>(above - measured_batches.begin());
  const double share =
      std::log(batch / measured_batches[i - 1]) / std::log(measured_batches[i] / measured_batches[i - 1]);
  const double first = hyperbola(measured_batches.front() / (measured_calibration * stage.noise_scale));
  return first * std::exp(std::lerp(std::log(stage.efficiency[i - 1]), std::log(stage.efficiency[i]), share));
}

constexpr double earliest_share = 0.01;  // before it, power laws are constant; they would begin at 0
constexpr double least_saturated = 0.03;
constexpr double fall_share = 0.04;  // the initial excess falls to 1/e within this share
constexpr double decay_share = 0.8;  // the learning rate begins to decay here

}  // namespace

double worth_of(WorthShape shape, double batch, double critical, double maturity) {
  COPUS_CHECK(batch > 0 && critical > 0, batch, ", ", critical);
  const double ratio = batch / critical;
  switch (shape) {
    case WorthShape::hyperbola:
      return hyperbola(ratio);
    case WorthShape::root:
      return std::sqrt(hyperbola(ratio));
    case WorthShape::measured:
      return std::lerp(measured_at(measured_stages[0], measured_calibration * ratio),
                       measured_at(measured_stages[1], measured_calibration * ratio), maturity);
  }
  fail_check("a shape", __FILE__, __LINE__, "");
}

double Growth::at(double share) const {
  const double power = std::pow((share + earliest_share) / (1 + earliest_share), exponent);
  switch (family) {
    case GrowthFamily::power:
      return power;
    case GrowthFamily::saturating:
      return std::max(least_saturated, std::expm1(-share / time_constant) / std::expm1(-1 / time_constant));
    case GrowthFamily::falling_first:
      return power * (1 + excess * std::exp(-share / fall_share));
    case GrowthFamily::decay_jump:
      return power * (share > decay_share ? jump : 1);
  }
  fail_check("a growth", __FILE__, __LINE__, "");
}

double kaplan_critical_batch(double share, double tokens) {
  const auto loss = [](double seen) {
    return std::min(std::log(32000.0), least_loss + data_loss / std::pow(seen, data_exponent));
  };
  return std::pow(loss(tokens) / loss(std::max(share * tokens, 1.0)), critical_batch_exponent);
}

double olmo_critical_batch(double share, double tokens) {
  constexpr double half = 168e9, plateau = 503e9;  // tokens
  static const double exponent = std::numbers::ln2 / std::log(plateau / half);
  return std::pow(std::clamp(share * tokens / plateau, 1e-4, 1.0), exponent);
}

}  // namespace copus
