#include "copus/report/drawn/watch_view.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <limits>
#include <utility>
#include <variant>

#include "copus/base/error.h"
#include "copus/base/files/durable_file.h"
#include "copus/base/files/regular_file.h"
#include "copus/base/text/printable.h"
#include "copus/base/text/units.h"
#include "copus/description/configuration_text.h"
#include "copus/report/drawn/page_history.h"
#include "copus/report/logs/run_log.h"
#include "copus/report/progress/progress.h"
#include "copus/report/progress/progress_line.h"

namespace copus {

namespace {

namespace fs = std::filesystem;

constexpr size_t label_columns = 10;
constexpr size_t most_events = 4;
constexpr size_t most_lines_of_a_reason = 3;
constexpr double seconds_worth_telling = 10;  // show the time since the last step only from here on

bool begins_character(char byte) { return (static_cast<unsigned char>(byte) & 0xC0) != 0x80; }

// Width of UTF-8 text in columns, counting one per character.
size_t columns_of(std::string_view text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), begins_character));
}

// The beginning of the text, at most this many columns.
std::string_view first_columns(std::string_view text, size_t columns) {
  size_t bytes = 0;
  for (size_t seen = 0; bytes < text.size(); ++bytes) {
    if (begins_character(text[bytes]) && seen++ == columns) break;
  }
  return text.substr(0, bytes);
}

std::string clipped(const std::string& text, size_t columns) {
  if (columns_of(text) <= columns) return text;
  constexpr size_t dots = 3;
  if (columns <= dots) return std::string(first_columns(text, columns));
  return concat(first_columns(text, columns - dots), "...");
}

std::string on_one_line(std::string_view text) {
  std::string line = printable(text);
  std::replace_if(line.begin(), line.end(), [](char c) { return c == '\n' || c == '\t'; }, ' ');
  return line;
}

// Whether this space separates a number from its unit, as in "4.2 %".
bool is_before_unit(std::string_view text, size_t space) {
  constexpr size_t longest_unit = 2;
  const bool after_digit = space > 0 && text[space - 1] >= '0' && text[space - 1] <= '9';
  return after_digit && std::min(text.find(' ', space + 1), text.size()) - space - 1 <= longest_unit;
}

// Breaks text at spaces into lines of at most this many columns. Truncates what does not fit into the last line.
std::vector<std::string> wrapped(std::string_view text, size_t columns, size_t most_lines) {
  std::vector<std::string> lines;
  while (columns_of(text) > columns && lines.size() + 1 < most_lines) {
    size_t space = text.rfind(' ', first_columns(text, columns + 1).size() - 1);
    while (space != std::string_view::npos && is_before_unit(text, space)) space = text.rfind(' ', space - 1);
    const bool at_space = space != std::string_view::npos && space > 0;
    const size_t end = at_space ? space : first_columns(text, columns).size();
    lines.emplace_back(text.substr(0, end));
    text.remove_prefix(at_space ? end + 1 : end);
  }
  lines.push_back(clipped(std::string(text), columns));
  return lines;
}

// The frame under construction: labels on the left, values next to them.
class Frame {
 public:
  explicit Frame(int width) : width_(static_cast<size_t>(std::max(width, 1))) {}

  size_t value_columns() const { return width_ > label_columns ? width_ - label_columns : 1; }
  void line(const std::string& text) { lines_.push_back(clipped(on_one_line(text), width_)); }
  void value(const std::string& label, const std::string& text, size_t most_lines = 1) {
    std::string left = label;
    for (const std::string& part : wrapped(on_one_line(text), value_columns(), most_lines)) {
      left.resize(label_columns, ' ');
      line(left + part);
      left.clear();
    }
  }
  std::vector<std::string> lines() { return std::move(lines_); }

 private:
  size_t width_;
  std::vector<std::string> lines_;
};

std::string state_of(const WatchedRun& run) {
  if (!run.is_running) return run.summary ? concat("ended: ", run.summary->ended) : "not running, and has not ended";
  if (run.records.empty()) return "running, no step yet";
  if (run.seconds_since_step < seconds_worth_telling) return "running";
  return concat("running, the last step was ", format_duration(std::floor(run.seconds_since_step)), " ago");
}

void add_progress(const WatchedRun& run, Frame& frame) {
  const StepRecord& last = run.records.back();
  const TrainConfig& limits = run.limits;
  const double done = share_done(limits, last.consumed_tokens, last.elapsed_seconds);
  const double left = last.seconds_left.value_or(std::numeric_limits<double>::infinity());
  std::string text = concat("step ", last.step, ", ", format_duration(last.elapsed_seconds), " of training");
  if (std::isfinite(left) && run.is_running) text += concat(", ", time_left_text(left), " left");
  if (std::isfinite(left)) {
    text = concat(format_number("%.0f%%", std::floor(100 * done)), "  ", text);
    constexpr size_t space = 2, least_bar = 10, largest_bar = 60;
    const size_t room = frame.value_columns() + label_columns;
    const size_t needed = columns_of(text) + space;
    const size_t bar = std::min(room > needed ? room - needed : 0, largest_bar) / 10 * 10;
    if (bar >= least_bar) text = concat(progress_bar(done, bar), "  ", text);
  }
  frame.line(text);
}

void add_losses(const std::vector<StepRecord>& records, Frame& frame) {
  constexpr double steps_of_mean = 20;  // as in the run's progress line
  SmoothedValue mean(steps_of_mean);
  std::vector<double> losses;
  std::optional<StepRecord> evaluated;
  for (const StepRecord& record : records) {
    mean.add(record.loss);
    if (std::isfinite(record.loss)) losses.push_back(record.loss);
    if (record.held_out_loss) evaluated = record;
  }
  if (losses.empty()) {
    frame.value("loss", "not known");
  } else {
    const auto [low, high] = std::minmax_element(losses.begin(), losses.end());
    const std::string before = format_number("%.3f  ", *mean.value());
    const std::string after =
        concat("  ", std::ssize(records) < records.back().step ? "last " : "", counted(std::ssize(losses), "step"),
               format_number(", %.3f", *low), format_number(" to %.3f nats", *high));
    const size_t needed = before.size() + after.size();
    const size_t room = frame.value_columns() > needed ? frame.value_columns() - needed : 1;
    frame.value("loss", concat(before, sparkline(losses, room), after));
  }
  if (evaluated) {
    frame.value("held-out",
                concat(format_number("%.3f nats/token", *evaluated->held_out_loss), " after step ", evaluated->step));
    for (const auto& [source, loss] : evaluated->held_out_losses) {
      frame.value("", concat(format_number("%.3f ", loss), source));
    }
  }
}

void add_speed(const WatchedRun& run, Frame& frame) {
  const StepRecord& last = run.records.back();
  frame.value("batch",
              concat("B=", last.global_batch, ", b=", last.micro_batch, "  learning rate ",
                     format_number("%.2e", last.lr), "  gradient norm ", format_number("%.3g", last.grad_norm)));
  frame.value("layout", to_string(run.records.back().strategy));
  frame.value("speed", concat(format_rate(last.tokens_per_second, "tokens"), "  ",
                              format_number("%.3g s a step", last.step_seconds), "  ",
                              format_count(static_cast<double>(last.consumed_tokens)), " tokens so far"));
  if (last.skipped_samples > 0) frame.value("skipped", concat(last.skipped_samples, " samples so far"));
}

void add_noise_scale(const StepRecord& last, Frame& frame) {
  const std::string phi = noise_scale_text(last);
  frame.value("phi",
              phi.empty()
                  ? "not known"
                  : concat(phi, " samples",
                           last.critical_batch ? concat("  critical batch ", samples_text(*last.critical_batch)) : ""));
  if (!last.goodput || !last.statistical_efficiency) return;
  frame.value("Goodput", concat(format_rate(*last.goodput, "samples"), "  statistical efficiency ",
                                format_number("%.0f%%", 100 * *last.statistical_efficiency)));
}

void add_decision(const std::vector<DecisionEvent>& events, Frame& frame) {
  const auto found = std::find_if(events.rbegin(), events.rend(),
                                  [](const DecisionEvent& event) { return std::holds_alternative<Decision>(event); });
  if (found == events.rend()) return;
  const auto& decision = std::get<Decision>(*found);
  const std::string change =
      decision.choice.target ? concat(" ", describe_change(decision.current, *decision.choice.target)) : "";
  // The reason of a decision not to switch already says so.
  const std::string what = decision.moves           ? concat("moves", change, ": ")
                           : decision.choice.target ? concat("advises", change, ": ")
                                                    : "";
  frame.value("decision", concat("after step ", decision.step, ": ", what, decision.choice.reason),
              most_lines_of_a_reason);
}

// Adds the latest switches, and the latest changes of the job's ranks: lost or additional ranks.
void add_events(const std::vector<DecisionEvent>& events, Frame& frame) {
  std::vector<std::pair<int64_t, std::string>> lines;
  for (const DecisionEvent& event : events) {
    if (const auto* report = std::get_if<SwitchReport>(&event)) {
      lines.emplace_back(report->after_step,
                         concat(describe_change(report->from, report->to), ", ", outcome_of(*report)));
    } else if (const auto* change = std::get_if<RanksChanged>(&event)) {
      lines.emplace_back(change->after_step, concat("goes on ", change_of_ranks(*change), "; ", change->reason));
    }
  }
  for (size_t i = lines.size() - std::min(lines.size(), most_events); i < lines.size(); ++i) {
    frame.value(i + most_events <= lines.size() || i == 0 ? "events" : "",
                concat("after step ", lines[i].first, ": ", lines[i].second));
  }
}

}  // namespace

WatchedRun read_watched_run(const fs::path& directory) {
  const fs::path config = directory / "config.toml";
  if (!fs::exists(config)) throw UserError(concat("there is no run in ", directory.string(), " (no config.toml)"));
  const fs::path log = directory / "run.jsonl";
  WatchedRun run;
  run.name = directory.string();
  run.is_running = is_file_locked(directory / "checkpoints" / ".lock") || is_file_locked(log);
  run.summary = read_current_summary(directory);
  run.limits = job_of(parse_any_config(read_text_file(config), config.string())).train;
  const auto read = [](const fs::path& path, const auto& add) {
    if (!fs::exists(path)) return;
    for_each_line(
        path,
        [&](const std::string& line) {
          add(line);
          return true;
        },
        end_of_log_bytes);
  };
  read(log, [&](const std::string& line) {
    StepRecord record = step_record_from_line(line);
    if (!run.records.empty() && completes(run.records.back(), record)) run.records.pop_back();
    run.records.push_back(std::move(record));
  });
  read(directory / "decisions.jsonl",
       [&](const std::string& line) { run.events.push_back(decision_event_from_line(line)); });
  if (fs::exists(log)) {
    const auto since = fs::file_time_type::clock::now() - fs::last_write_time(log);
    run.seconds_since_step = std::chrono::duration<double>(since).count();
  }
  return run;
}

std::string sparkline(const std::vector<double>& values, size_t columns) {
  static constexpr std::array<const char*, 8> blocks{"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
  columns = std::min(columns, values.size());
  std::vector<double> means(columns);
  for (size_t i = 0; i < columns; ++i) {
    const size_t begin = i * values.size() / columns, end = (i + 1) * values.size() / columns;
    for (size_t k = begin; k < end; ++k) means[i] += values[k] / static_cast<double>(end - begin);
  }
  const auto [low, high] = std::minmax_element(means.begin(), means.end());
  std::string text;
  for (const double mean : means) {
    const double height = *high > *low ? (mean - *low) / (*high - *low) : 0.5;
    text += blocks[static_cast<size_t>(std::min(height * blocks.size(), blocks.size() - 1.0))];
  }
  return text;
}

std::vector<std::string> watch_lines(const WatchedRun& run, int width) {
  Frame frame(width);
  frame.line(concat(run.name, "  ", state_of(run)));
  if (!run.records.empty()) {
    add_progress(run, frame);
    add_losses(run.records, frame);
    add_speed(run, frame);
    add_noise_scale(run.records.back(), frame);
  }
  add_decision(run.events, frame);
  add_events(run.events, frame);
  return frame.lines();
}

}  // namespace copus
