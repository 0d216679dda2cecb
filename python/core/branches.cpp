#include "python/core/branches.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/vector.h>

#include "copus/base/error.h"
#include "copus/statistics/branch_calibration.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace copus {

namespace {

template <class Number>
Number number_of(const nb::dict& outcome, const char* key) {
  Number number = 0;
  if (!outcome.contains(key) || !nb::try_cast(nb::object(outcome[key]), number)) {
    throw UserError(concat("the outcome of a branch is ", nb::repr(outcome).c_str(), ", expected a dictionary of ",
                           "numbers: batch, rate_exponent, samples, repetition and loss; it has no ", key));
  }
  return number;
}

BranchEfficiencies efficiencies_of(const std::vector<nb::dict>& outcomes, double reference_batch) {
  std::vector<BranchOutcome> branches;
  for (const nb::dict& outcome : outcomes) {
    branches.push_back({.batch = number_of<double>(outcome, "batch"),
                        .rate_exponent = number_of<double>(outcome, "rate_exponent"),
                        .samples = number_of<double>(outcome, "samples"),
                        .repetition = number_of<int64_t>(outcome, "repetition"),
                        .loss = number_of<double>(outcome, "loss")});
    if (!(branches.back().batch > 0 && branches.back().samples > 0)) {
      throw UserError(
          concat("the outcome of a branch is ", nb::repr(outcome).c_str(), ", expected a batch and samples above 0"));
    }
  }
  if (!(reference_batch > 0)) throw UserError(concat("reference_batch is ", reference_batch, ", expected more than 0"));
  return branch_efficiencies(branches, reference_batch);
}

nb::dict dict_of(const Estimate& estimate) {
  nb::dict dict;
  dict["value"] = estimate.value;
  dict["low"] = estimate.low;
  dict["high"] = estimate.high;
  return dict;
}

std::optional<nb::dict> calibration(const std::vector<nb::dict>& outcomes, double reference_batch, double noise_scale,
                                    double consumed_samples, double updates, double alpha) {
  const BranchEfficiencies efficiencies = efficiencies_of(outcomes, reference_batch);
  if (!(noise_scale > 0)) throw UserError(concat("noise_scale is ", noise_scale, ", expected more than 0"));
  const auto fit = fit_calibration(efficiencies, reference_batch, {noise_scale, consumed_samples, updates}, alpha);
  if (!fit) return std::nullopt;
  nb::dict dict;
  dict["calibration"] = dict_of(fit->calibration);
  dict["free_calibration"] = dict_of(fit->free_calibration);
  dict["free_alpha"] = dict_of(fit->free_alpha);
  dict["deviation"] = fit->deviation;
  dict["outside"] = efficiencies.outside;
  return dict;
}

std::optional<nb::dict> rate_exponent(const std::vector<nb::dict>& outcomes, double reference_batch) {
  const std::optional<Estimate> best = best_rate_exponent(efficiencies_of(outcomes, reference_batch));
  return best ? std::optional(dict_of(*best)) : std::nullopt;
}

}  // namespace

void add_branches(nb::module_& module) {
  module.def("fit_calibration", calibration, "outcomes"_a, "reference_batch"_a, "noise_scale"_a, "consumed_samples"_a,
             "updates"_a = 0.0, "alpha"_a = 0.0);
  module.def("best_rate_exponent", rate_exponent, "outcomes"_a, "reference_batch"_a);
}

}  // namespace copus
