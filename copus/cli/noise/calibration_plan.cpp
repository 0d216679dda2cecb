#include "copus/cli/noise/calibration_plan.h"

#include <algorithm>
#include <array>

#include "copus/base/error.h"

namespace copus {

namespace {

constexpr std::array<int64_t, 3> multiples = {2, 4, 8};
constexpr int64_t fewest_updates = 32;

// Branches of several lengths in the reference batch form a ladder, against which branches in other batches are
// compared. These are the lengths of its rungs, in eighths of the samples of the largest batch's branch. Every branch
// in another batch is as long as some rung. The highest rung is longer than all of them, so that their losses lie
// within the ladder even if noise makes a batch appear more efficient than the reference batch.
constexpr std::array<int64_t, 5> rungs = {1, 2, 4, 8, 12};
constexpr int64_t eighth = 8;

constexpr int64_t needed_repetitions = 2;

// Returns the number of samples of a branch. A branch of the largest batch has fewest_updates updates. A branch of a
// smaller batch has half as many samples, to keep the calibration short; this is still at least fewest_updates updates.
int64_t samples_at(int64_t multiple, int64_t reference_batch) {
  return fewest_updates * std::max(multiple, multiples.back() / 2) * reference_batch;
}

}  // namespace

double CalibrationPlan::samples_of(int64_t first, int64_t count) const {
  double sum = 0;
  for (int64_t i = first; i < first + count; ++i) sum += branches[static_cast<size_t>(i)].samples;
  return sum;
}

CalibrationPlan plan_calibration(int64_t reference_batch, int64_t repetitions) {
  COPUS_CHECK(reference_batch > 0 && repetitions >= needed_repetitions, reference_batch, ", ", repetitions);
  CalibrationPlan plan;
  plan.largest_batch_samples = samples_at(multiples.back(), reference_batch);
  const auto add = [&](int64_t multiple, double exponent, int64_t samples, int64_t repetition) {
    plan.branches.push_back({.batch = static_cast<double>(multiple * reference_batch),
                             .rate_exponent = exponent,
                             .samples = static_cast<double>(samples),
                             .repetition = repetition});
  };
  const auto add_all = [&](double exponent, int64_t repetition) {
    for (const int64_t multiple : multiples) add(multiple, exponent, samples_at(multiple, reference_batch), repetition);
  };
  const auto add_square_root = [&](int64_t repetition) {
    for (const int64_t rung : rungs) add(1, 0.5, plan.largest_batch_samples * rung / eighth, repetition);
    add_all(0.5, repetition);
  };
  for (int64_t repetition = 0; repetition < needed_repetitions; ++repetition) add_square_root(repetition);
  plan.needed = std::ssize(plan.branches);
  for (int64_t repetition = 0; repetition < repetitions; ++repetition) {
    if (repetition >= needed_repetitions) add_square_root(repetition);
    for (const double exponent : {0.25, 0.0}) add_all(exponent, repetition);
  }
  return plan;
}

int64_t skipped_samples(const CalibrationPlan& plan, int64_t repetition) {
  return repetition * plan.largest_batch_samples * rungs.back() / eighth;
}

}  // namespace copus
