#include "copus/cli/noise/gns_report.h"

#include <nlohmann/json.hpp>

#include "copus/base/error.h"
#include "copus/base/text/json_text.h"
#include "copus/base/text/units.h"

namespace copus {

namespace {

std::string four_digits(double value) { return format_number("%.4g", value); }

std::string with_error(const MeanEstimate& mean) {
  return concat(four_digits(mean.value), " +- ", format_number("%.2g", mean.standard_error));
}

// Formats the noise scale and its interval in another unit; `unit` is the factor from samples to this unit.
std::string noise_scale_line(const NoiseScale& noise, double unit, const char* unit_name) {
  const auto number = [&](double samples) { return four_digits(samples * unit); };
  if (!noise.value) return concat("at least ", number(noise.low), " ", unit_name);
  return concat(number(*noise.value), " ", unit_name, " (95 % interval: ", number(noise.low), " to ",
                number(*noise.high), ")");
}

}  // namespace

std::string to_table(const GnsReport& report) {
  const NoiseScale& noise = report.noise;
  const auto length = static_cast<double>(report.sequence_length);
  std::string text =
      concat("noise scale   ", noise_scale_line(noise, 1, "sequences"), '\n', "              ",
             noise_scale_line(noise, length, "tokens"), '\n', "|G|^2         ", with_error(noise.squared_gradient),
             '\n', "tr(Sigma)     ", with_error(noise.trace), " of a sequence\n", "measured on   ", report.batches,
             " batches of ", report.large_batch, " sequences of ", report.sequence_length, " tokens");
  if (report.step) text += concat(", after step ", *report.step);
  text += concat(", in ", format_duration(report.seconds), '\n');
  if (!noise.value) {
    text +=
        "|G|^2 is not significantly above 0, so there is no more than a lower bound: give more --batches, or a "
        "larger --large-batch\n";
  }
  return text;
}

std::string to_json(const GnsReport& report) {
  const auto optional = [](const auto& value) {
    return value ? nlohmann::ordered_json(*value) : nlohmann::ordered_json(nullptr);
  };
  const NoiseScale& noise = report.noise;
  const nlohmann::ordered_json object{{"noise_scale", optional(noise.value)},
                                      {"noise_scale_low", noise.low},
                                      {"noise_scale_high", optional(noise.high)},
                                      {"squared_gradient", noise.squared_gradient.value},
                                      {"squared_gradient_error", noise.squared_gradient.standard_error},
                                      {"trace", noise.trace.value},
                                      {"trace_error", noise.trace.standard_error},
                                      {"batches", report.batches},
                                      {"small_batch", 1},
                                      {"large_batch", report.large_batch},
                                      {"step", optional(report.step)},
                                      {"consumed_samples", optional(report.consumed_samples)},
                                      {"sequence_length", report.sequence_length},
                                      {"seconds", report.seconds}};
  return json_text(object);
}

}  // namespace copus
