#include "copus/workshop/self_test/faults/fault_report.h"

#include <algorithm>
#include <iostream>
#include <map>
#include <regex>
#include <string>

#include "copus/base/error.h"
#include "copus/base/numbers/quantile.h"
#include "copus/base/text/text_distance.h"
#include "copus/base/text/units.h"
#include "copus/workshop/table.h"

namespace copus {

namespace {

constexpr int widths[] = {-10, -7, 0};

// "step 20, forward of micro-batch 1" as "forward of micro-batch": the place without step and micro-batch numbers.
std::string kind_of(const std::string& place) {
  static const std::regex numbers("^step [0-9]+, | [0-9]+");
  return std::regex_replace(place, numbers, "");
}

// "named after 0.012 s (worst 0.031)"; empty if nothing was measured.
std::string describe(const char* what, const std::vector<double>& seconds) {
  if (seconds.empty()) return "";
  return concat(", ", what, " ", format_number("%.3f", quantile(seconds, 0.5)), " s (worst ",
                format_number("%.3f", *std::ranges::max_element(seconds)), ")");
}

std::vector<double> measured(const std::vector<FaultOutcome>& outcomes, const FaultKind& kind,
                             std::optional<double> FaultOutcome::* seconds) {
  std::vector<double> found;
  for (const FaultOutcome& outcome : outcomes) {
    if (outcome.kind == &kind && outcome.*seconds) found.push_back(*(outcome.*seconds));
  }
  return found;
}

void set(nlohmann::json& object, const char* name, const std::optional<double>& seconds) {
  if (seconds) object[name] = *seconds;
}

nlohmann::json to_json(const FaultOutcome& outcome) {
  nlohmann::json object = {{"kind", outcome.kind->name},
                           {"place", outcome.place},
                           {"was_harmed", outcome.was_harmed},
                           {"failure", outcome.failure}};
  set(object, "named_seconds", outcome.named_seconds);
  set(object, "healed_seconds", outcome.healed_seconds);
  set(object, "gone_seconds", outcome.gone_seconds);
  return object;
}

}  // namespace

FaultReport::FaultReport(const FaultTestOptions& options, bool json) : json_(json), options_(options) {
  if (json_) return;
  print_cells(widths, std::vector<std::string>{
                          "faults", "",
                          concat(options.faults, " at jobs of ", options.ranks, " ranks; --seed ", options.seed)});
}

void FaultReport::add(const FaultOutcome& outcome) {
  outcomes_.push_back(outcome);
  if (outcome.failure.empty()) return;
  passed_ = false;
  tell("fault", false, concat(outcome.kind->name, " at \"", outcome.place, "\": ", outcome.failure));
}

void FaultReport::add(const FaultedRun& run) {
  runs_.push_back({{"layout", run.layout},
                   {"steps", run.steps},
                   {"relative_difference", run.relative_difference},
                   {"failure", run.failure}});
  passed_ = passed_ && run.failure.empty();
  tell("run", run.failure.empty(),
       run.failure.empty() ? concat(run.layout, ": ", run.steps, " steps, each once; losses differ by up to ",
                                    format_number("%.1e", run.relative_difference), " from those without faults; ",
                                    outcomes_.size(), " faults so far")
                           : concat(run.layout, ": ", run.failure));
}

void FaultReport::finish(double seconds) {
  if (json_) {
    nlohmann::json faults = nlohmann::json::array();
    for (const FaultOutcome& outcome : outcomes_) faults.push_back(to_json(outcome));
    std::cout << nlohmann::json({{"ranks", options_.ranks},
                                 {"seed", options_.seed},
                                 {"passed", passed_},
                                 {"seconds", seconds},
                                 {"faults", faults},
                                 {"runs", runs_}})
                     .dump()
              << std::endl;
    return;
  }
  for (const FaultKind& kind : fault_kinds()) {
    const auto of_kind = [&](const FaultOutcome& outcome) { return outcome.kind == &kind; };
    const int64_t count = std::ranges::count_if(outcomes_, of_kind);
    if (count == 0) continue;
    const int64_t harmed =
        std::ranges::count_if(outcomes_, [&](const auto& outcome) { return of_kind(outcome) && outcome.was_harmed; });
    const bool ok = std::ranges::all_of(
        outcomes_, [&](const auto& outcome) { return !of_kind(outcome) || outcome.failure.empty(); });
    tell("faults", ok,
         concat(kind.name, ": ", count, count == harmed ? "" : concat(", of which ", harmed, " did harm"),
                describe("named after", measured(outcomes_, kind, &FaultOutcome::named_seconds)),
                describe("training again after", measured(outcomes_, kind, &FaultOutcome::healed_seconds)),
                describe("all gone after", measured(outcomes_, kind, &FaultOutcome::gone_seconds))));
  }
  std::map<std::string, int64_t> places;
  for (const FaultOutcome& outcome : outcomes_) ++places[kind_of(outcome.place)];
  std::vector<std::string> counts;
  counts.reserve(places.size());
  for (const auto& [place, count] : places) counts.push_back(concat(place.empty() ? "start" : place, ": ", count));
  if (!json_) print_cells(widths, std::vector<std::string>{"places", "", join(counts, "; ")});
  tell("selftest", passed_, concat(outcomes_.size(), " faults, after ", format_duration(seconds)));
}

void FaultReport::tell(const char* what, bool ok, const std::string& text) const {
  if (json_) return;
  print_cells(widths, {what, ok ? "ok" : "FAILED", text});
  std::cout << std::flush;
}

}  // namespace copus
