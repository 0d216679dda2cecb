#include "python/core/dual_noise.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <tuple>
#include <vector>

#include "copus/base/error.h"
#include "copus/description/muon.h"
#include "copus/statistics/dual_noise.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace copus {

namespace {

// In Python, an average is a dictionary of its members, which a checkpoint can store. An empty dictionary is a new
// average.
DualNoiseAverage average_of(const nb::dict& members) {
  DualNoiseAverage average;
  if (nb::len(members) == 0) return average;
  visit_dual_noise_average(average, [&](const char* name, double& value) {
    if (!members.contains(name) || !nb::try_cast(nb::object(members[name]), value)) {
      throw UserError(
          concat("an average of noise scales has no number ", name, ": expected what state_dict() returned"));
    }
  });
  return average;
}

nb::dict observe_dual_noise(const nb::dict& average, double noise, double signal, double batch, double mean_variance) {
  const DualNoiseAverage observed =
      observe(average_of(average), {.noise = noise, .signal = signal, .batch = batch, .mean_variance = mean_variance});
  nb::dict members;
  visit_dual_noise_average(observed, [&](const char* name, double value) { members[name] = value; });
  return members;
}

using Interval = std::tuple<std::optional<double>, double, std::optional<double>>;

std::optional<Interval> noise_scale_of(const nb::dict& average) {
  const std::optional<DualNoiseScale> scale = dual_noise_scale(average_of(average));
  return scale ? std::optional<Interval>({scale->value, scale->low, scale->high}) : std::nullopt;
}

std::vector<std::tuple<double, double, double>> polar_express_polynomials(int64_t steps) {
  std::vector<std::tuple<double, double, double>> polynomials;
  for (const auto& [a, b, c] : newton_schulz_polynomials(NewtonSchulz::polar_express, steps)) {
    polynomials.emplace_back(a, b, c);
  }
  return polynomials;
}

}  // namespace

void add_dual_noise(nb::module_& module) {
  module.def("observe_dual_noise", observe_dual_noise, "average"_a, "noise"_a, "signal"_a, "batch"_a,
             "mean_variance"_a);
  module.def("dual_noise_scale", noise_scale_of, "average"_a);
  module.def("polar_express_polynomials", polar_express_polynomials, "steps"_a);
}

}  // namespace copus
