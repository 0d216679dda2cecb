#include "copus/report/logs/decision_log.h"

#include <algorithm>
#include <utility>

#include "copus/base/error.h"
#include "copus/base/files/durable_file.h"
#include "copus/report/logs/line_search.h"

namespace copus {
namespace {

DecisionEvent event_from_line(const std::string& line) {
  try {
    return decision_event_from_line(line);
  } catch (const UserError& error) {
    throw UserError(concat(error.what(), ". Expected one JSON object for each event of a run that adapts."));
  }
}

// Recognizes a decision not to switch by the text of its line, in exactly the form in which Copus writes it. All other
// lines count as other events.
bool is_held(std::string_view line) {
  return line.starts_with(R"({"event":"decision",)") && line.find(R"(,"moves":false,)") != std::string_view::npos;
}

bool is_state(std::string_view line) { return line.starts_with(R"({"event":"state",)"); }

bool is_begin(std::string_view line) { return line.starts_with(R"({"event":"begin",)"); }

bool is_resumed(std::string_view line) { return line.starts_with(R"({"event":"resumed",)"); }

bool is_command(std::string_view line) { return line.starts_with(R"({"event":"command",)"); }

// Returns nothing if the line is damaged, which a later reader of all lines reports.
std::optional<ControllerState> whole_state_in(const std::string& line) {
  try {
    return std::get<ControllerState>(event_from_line(line));
  } catch (const UserError&) {
    return std::nullopt;
  }
}

// The step boundary of an event, from the text of its line. Empty if the line is not in the form that Copus writes.
std::optional<int64_t> boundary_in(std::string_view line) {
  const auto step = number_in(line, "step");
  return step ? step : number_in(line, "after_step");
}

}  // namespace

std::string policy_file_text(const JobConfig& config) {
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

// Opens the log without its own lock: the process that writes it holds the lock on run.jsonl.
DecisionLog::DecisionLog(const std::filesystem::path& run_dir, std::optional<int64_t> resume_after_step)
    : lines_(
          run_dir / "decisions.jsonl", resume_after_step,
          [order = StepOrder(StepOrder::Lines::any_number_a_step)](const std::string& line, bool) mutable {
            const int64_t step = step_of(event_from_line(line));
            order.add(step);
            return step;
          },
          LineLog::Lock::none, boundary_in) {}

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

std::vector<DecisionEvent> read_decisions_to_resume(const std::filesystem::path& path, int64_t last_step) {
  constexpr int64_t places_looked_at = 4;  // a boundary lacks a state if the run was resumed or lost ranks there
  if (!std::filesystem::exists(path)) return {};
  LineSearch search(path);
  const auto latest_at = [&](int64_t boundary, const auto& is_wanted) {
    std::optional<LineSearch::Line> latest;
    auto line = search.line_from(search.first_at_least(boundary, boundary_in));
    for (; line && boundary_in(line->text) == boundary; line = search.line_from(line->end())) {
      if (is_wanted(line->text)) latest = line;
    }
    return latest;
  };
  const int64_t last_place = last_step / steps_between_states;
  for (int64_t place = last_place; place > std::max<int64_t>(0, last_place - places_looked_at); --place) {
    const auto line = latest_at(place * steps_between_states, is_state);
    if (!line) continue;
    const std::optional<ControllerState> state = whole_state_in(line->text);
    if (!state) continue;
    const auto begin = latest_at(state->begin_step, is_begin);
    if (!begin) continue;
    std::vector<DecisionEvent> events{event_from_line(begin->text)};
    StepOrder order(StepOrder::Lines::any_number_a_step, state->step);
    for_each_line_from(line->begin, path, [&](const std::string& text) {
      DecisionEvent event = event_from_line(text);
      order.add(step_of(event));
      if (step_of(event) > last_step) return false;
      events.push_back(std::move(event));
      return true;
    });
    return events;
  }
  return read_decision_log(path, last_step);
}

bool is_run_paused(const std::filesystem::path& path) {
  constexpr uint64_t most_bytes_read = uint64_t{16} << 20;
  if (!std::filesystem::exists(path)) return false;
  bool is_paused = false;
  const auto visit = [&](const std::string& text) {
    if (is_begin(text) || is_resumed(text)) is_paused = false;
    if (!is_command(text)) return true;
    const Command::Kind kind = std::get<LoggedCommand>(event_from_line(text)).command.kind;
    if (kind == Command::Kind::pause || kind == Command::Kind::resume) is_paused = kind == Command::Kind::pause;
    return true;
  };
  for_each_line(path, visit, most_bytes_read);
  return is_paused;
}

std::vector<DecisionEvent> read_decisions_to_show(const std::filesystem::path& path, size_t most_held) {
  constexpr uint64_t most_bytes_parsed_whole = uint64_t{16} << 20;
  std::error_code error;
  const uint64_t bytes = std::filesystem::file_size(path, error);
  if (error || bytes <= most_bytes_parsed_whole) return read_decision_log(path);
  struct Line {
    std::string text;
    bool is_held = false;
  };
  // Of the decisions not to switch, every stride-th decision is kept. Once twice as many as wanted are kept, every
  // other one is dropped and the stride is doubled.
  std::vector<Line> lines;
  size_t seen = 0, kept = 0, stride = 1;
  for_each_line(path, [&](const std::string& text) {
    if (is_state(text)) return true;
    const bool holds = is_held(text);
    if (holds && seen++ % stride != 0) return true;
    lines.push_back({text, holds});
    kept += holds ? 1 : 0;
    if (kept <= 2 * most_held) return true;
    size_t index = 0;
    std::erase_if(lines, [&](const Line& line) { return line.is_held && index++ % 2 != 0; });
    kept = (kept + 1) / 2;
    stride *= 2;
    return true;
  });
  std::vector<DecisionEvent> events;
  StepOrder order(StepOrder::Lines::any_number_a_step);
  for (const Line& line : lines) {
    try {
      events.push_back(event_from_line(line.text));
      order.add(step_of(events.back()));
    } catch (const UserError& damage) {
      throw UserError(concat(path.string(), ": damaged: ", damage.what()));
    }
  }
  return events;
}

}  // namespace copus
