// The Python module copus._core. It gives Python access to the room `adviser`, to the fits of short branches, and to
// noise scales in dual norms. Results are plain Python types.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <filesystem>

#include "copus/adviser/adviser.h"
#include "copus/base/error.h"
#include "copus/base/process/standard_descriptors.h"
#include "python/core/branches.h"
#include "python/core/dual_noise.h"
#include "python/core/settings.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace copus {

namespace {

nb::dict dict_of(const Advice& advice) {
  nb::dict dict;
  dict["step"] = advice.step;
  dict["batch"] = advice.batch;
  dict["micro_batches"] = advice.micro_batches;
  dict["learning_rate_factor"] = advice.learning_rate_factor;
  dict["gain"] = advice.gain;
  dict["gain_low"] = advice.gain_low;
  dict["gain_high"] = advice.gain_high;
  dict["noise_scale"] = advice.noise_scale;
  dict["noise_scale_low"] = advice.noise_scale_low;
  dict["noise_scale_high"] = advice.noise_scale_high;
  dict["critical_batch"] = advice.critical_batch;
  dict["reason"] = advice.reason;
  return dict;
}

std::optional<nb::dict> take_step(Adviser& adviser, int64_t samples, double seconds, double gradient_norm,
                                  std::optional<double> small_batch, std::optional<double> small_squared_norm,
                                  std::optional<double> learning_rate, std::optional<double> loss,
                                  std::optional<int64_t> loss_tokens) {
  const std::optional<Advice> advice = adviser.step({.samples = samples,
                                                     .seconds = seconds,
                                                     .gradient_norm = gradient_norm,
                                                     .small_batch = small_batch,
                                                     .small_squared_norm = small_squared_norm,
                                                     .learning_rate = learning_rate,
                                                     .loss = loss,
                                                     .loss_tokens = loss_tokens});
  return advice ? std::optional(dict_of(*advice)) : std::nullopt;
}

std::optional<nb::dict> noise_of(const Adviser& adviser) {
  const std::optional<NoiseScale> noise = adviser.noise();
  if (!noise) return std::nullopt;
  nb::dict dict;
  dict["value"] = noise->value;
  dict["low"] = noise->low;
  dict["high"] = noise->high;
  return dict;
}

std::optional<std::pair<double, double>> expected_step_of(const Adviser& adviser, int64_t samples) {
  const std::optional<Corrected> step = adviser.expected_step(samples);
  return step ? std::optional(std::pair(step->seconds, step->relative_deviation)) : std::nullopt;
}

void add_errors(nb::module_& module) {
  nb::exception<UserError> user_error(module, "UserError", PyExc_ValueError);
  user_error.attr("__module__") = "copus";
  nb::register_exception_translator([](const std::exception_ptr& thrown, void*) {
    try {
      std::rethrow_exception(thrown);
    } catch (const std::filesystem::filesystem_error& error) {  // no permission, a name too long, a disk that is gone
      PyErr_SetString(PyExc_OSError, error.what());
    }
  });
}

void add_adviser(nb::module_& module) {
  // Raises UserError for settings that Adviser would refuse, before a job begins.
  module.def(
      "check_settings", [](const nb::dict& settings) { Adviser(adviser_settings_of(settings), {}); }, "settings"_a);
  nb::class_<Adviser>(module, "Adviser")
      .def(
          "__init__",
          [](Adviser* self, const nb::dict& settings, std::optional<std::string> directory,
             std::optional<int64_t> after_step, std::optional<std::string> state) {
            open_standard_descriptors();  // the program may have become a daemon since the import
            new (self) Adviser(adviser_settings_of(settings), {std::move(directory), after_step, std::move(state)});
          },
          "settings"_a, "directory"_a = nb::none(), "after_step"_a = nb::none(), "state"_a = nb::none())
      .def("step", take_step, "samples"_a, "seconds"_a, "grad_norm"_a, "small_batch"_a = nb::none(),
           "small_squared_norm"_a = nb::none(), "lr"_a = nb::none(), "loss"_a = nb::none(),
           "loss_tokens"_a = nb::none())
      .def("noise", noise_of)
      .def("forget_noise", &Adviser::forget_noise)
      .def("log_unmeasured", &Adviser::log_unmeasured, "reason"_a)
      .def("expected_step_seconds", expected_step_of, "samples"_a)
      .def("state", &Adviser::state)
      .def("close", &Adviser::close)
      .def_prop_ro("steps", &Adviser::steps)
      .def_prop_ro("batch", &Adviser::batch)
      .def_prop_ro("consumed_samples", &Adviser::consumed_samples)
      .def_prop_ro("notes", &Adviser::take_notes);
}

}  // namespace

}  // namespace copus

NB_MODULE(_core, module) {
  copus::open_standard_descriptors();
  module.attr("__version__") = COPUS_VERSION;
  copus::add_errors(module);
  copus::add_adviser(module);
  copus::add_branches(module);
  copus::add_dual_noise(module);
}
