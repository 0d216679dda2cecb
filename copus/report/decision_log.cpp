#include "copus/report/decision_log.h"

#include <utility>

#include "copus/base/durable_file.h"
#include "copus/base/error.h"

namespace copus {
namespace {

DecisionEvent event_from_line(const std::string& line) {
  try {
    return decision_event_from_line(line);
  } catch (const UserError& error) {
    throw UserError(concat(error.what(), ". Expected one JSON object for each event of a run that adapts."));
  }
}

}  // namespace

std::string policy_file_text(const RunConfig& config) {
  return config.adapt.file.empty() ? "" : read_text_file(config.adapt.file);
}

int64_t step_of(const DecisionEvent& event) {
  return std::visit(
      [](const auto& alternative) {
        if constexpr (requires { alternative.step; }) {
          return alternative.step;
        } else {
          return alternative.after_step;
        }
      },
      event);
}

// Opens the log without a lock of its own: the process that writes it holds that of run.jsonl.
DecisionLog::DecisionLog(const std::filesystem::path& run_dir, std::optional<int64_t> resume_after_step)
    : lines_(
          run_dir / "decisions.jsonl", resume_after_step,
          [order = StepOrder(StepOrder::Lines::any_number_a_step)](const std::string& line, bool) mutable {
            const int64_t step = step_of(event_from_line(line));
            order.add(step);
            return step;
          },
          LineLog::Lock::none) {}

void DecisionLog::append(const DecisionEvent& event) {
  lines_.append(to_line(event), concat("what happened after step ", step_of(event)));
}

std::vector<DecisionEvent> read_decision_log(const std::filesystem::path& path, int64_t last_step) {
  std::vector<DecisionEvent> events;
  if (!std::filesystem::exists(path)) return events;
  StepOrder order(StepOrder::Lines::any_number_a_step);
  for_each_line(path, [&](const std::string& line) {
    DecisionEvent event = event_from_line(line);
    order.add(step_of(event));
    if (step_of(event) > last_step) return false;
    events.push_back(std::move(event));
    return true;
  });
  return events;
}

}  // namespace copus
