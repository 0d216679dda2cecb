#include "copus/config/step_schedule.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <sstream>

#include "copus/base/error.h"
#include "copus/base/text/units.h"
#include "copus/description/configuration_fields.h"

namespace copus {

StepSchedule parse_step_schedule(std::string_view text, int64_t sequence_length) {
  const auto fail = [](const std::string& piece, const std::string& what) -> void {
    throw UserError(concat("adapt.schedule: \"", piece, "\": ", what,
                           ". It is a list like \"0:768 250B:1536\": a batch from so many consumed samples on, or with "
                           "the suffix K, M, B or T from so many tokens on"));
  };
  StepSchedule schedule;
  double begin = 0;  // threshold of the previous piece
  std::istringstream pieces{std::string(text)};
  std::string piece;
  while (pieces >> piece) {
    const size_t colon = piece.find(':');
    if (colon == std::string::npos) fail(piece, "there is no \":\" between a threshold and its batch");
    std::istringstream left(piece.substr(0, colon)), right(piece.substr(colon + 1));
    double threshold = -1;
    if (!(left >> threshold)) threshold = -1;
    std::string suffix;
    left.clear();
    left >> suffix;
    constexpr std::string_view suffixes = "KMBT";
    const size_t thousands = suffix.size() == 1 ? suffixes.find(suffix) : std::string_view::npos;
    if (!(threshold >= 0) || (!suffix.empty() && thousands == std::string_view::npos)) {
      fail(piece, "the threshold is no number of samples, nor of tokens with a suffix");
    }
    if (!suffix.empty()) {
      threshold *= std::pow(1000, static_cast<double>(thousands + 1)) / static_cast<double>(sequence_length);
    }
    threshold = std::ceil(threshold);
    int64_t batch = 0;
    if (!(right >> batch) || !allowed_batches.contains(batch) ||
        right.peek() != std::istringstream::traits_type::eof()) {
      fail(piece, concat("the batch must be a whole number of samples, ", describe(allowed_batches)));
    }
    if (schedule.empty() && threshold != 0) fail(piece, "the first piece must begin at 0");
    if (!schedule.empty() && threshold <= begin) {
      fail(piece, concat("it must begin after the piece before it, which begins at ", format_number("%.4g", begin),
                         " samples"));
    }
    begin = threshold;
    if (schedule.empty() || schedule.back().second != batch) schedule.emplace_back(threshold, batch);
  }
  if (schedule.empty()) {
    throw UserError(
        "adapt.policy \"steps\" needs adapt.schedule, batches from so many consumed samples or tokens on: "
        "\"0:32 1M:64\"");
  }
  return schedule;
}

int64_t scheduled_batch(const StepSchedule& schedule, int64_t consumed_samples) {
  const auto after =
      std::upper_bound(schedule.begin(), schedule.end(), static_cast<double>(consumed_samples),
                       [](double samples, const std::pair<double, int64_t>& piece) { return samples < piece.first; });
  return std::prev(after)->second;
}

std::optional<std::string> why_too_short(const StepSchedule& schedule) {
  double consumed = 0;  // where the piece's steps begin; a double represents all thresholds exactly
  for (size_t i = 0; i + 1 < schedule.size(); ++i) {
    const auto& [begin, batch] = schedule[i];
    const double end = schedule[i + 1].first;
    const double steps = std::max(0.0, std::ceil((end - consumed) / static_cast<double>(batch)));
    consumed += steps * static_cast<double>(batch);
    if (steps >= 2) continue;
    return concat("adapt.schedule has batch ", batch, " from ", format_number("%.0f", begin), " to ",
                  format_number("%.0f", end), " consumed samples, which is ", format_number("%.0f", steps),
                  steps == 1 ? " step" : " steps",
                  "; a batch stays for two steps at least: let the next piece begin at ",
                  format_number("%.0f", consumed + (2 - steps) * static_cast<double>(batch)),
                  " samples or later, or leave this piece out");
  }
  return std::nullopt;
}

}  // namespace copus
