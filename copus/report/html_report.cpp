#include "copus/report/html_report.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "copus/base/durable_file.h"
#include "copus/base/error.h"
#include "copus/base/escape_html.h"
#include "copus/base/units.h"
#include "copus/description/configuration_text.h"
#include "copus/report/decision_log.h"
#include "copus/report/report_page.h"
#include "copus/report/run_log.h"
#include "copus/report/run_summary.h"

namespace copus {
namespace {

constexpr size_t most_points = 2000;
constexpr double smoothed_share = 0.01;  // of the run: reach of the smoothed curve to either side

// Fills in the parts in one pass, so that inserted text is never taken for a name.
std::string fill_in(std::string_view page, const std::map<std::string_view, std::string>& parts) {
  std::string out;
  for (size_t open = 0; (open = page.find("{{")) != std::string_view::npos;) {
    const size_t close = page.find("}}", open);
    COPUS_CHECK(close != std::string_view::npos, "report_page.html");
    out.append(page.substr(0, open));
    out.append(parts.at(page.substr(open + 2, close - open - 2)));
    page.remove_prefix(close + 2);
  }
  return out.append(page);
}

// ---- curves ----

struct Point {
  const StepRecord* record;
  double value;
  double smoothed;
};

// Reduces the points to most_points: the first, the last, and the lowest and highest of equally many steps each, so
// that no spike is lost.
std::vector<Point> decimate(std::vector<Point> points) {
  if (points.size() <= most_points) return points;
  std::vector<Point> kept{points.front()};
  constexpr size_t buckets = most_points / 2 - 1;
  const size_t inner = points.size() - 2;
  for (size_t bucket = 0; bucket < buckets; ++bucket) {
    const auto first = points.begin() + static_cast<ptrdiff_t>(1 + inner * bucket / buckets);
    const auto last = points.begin() + static_cast<ptrdiff_t>(1 + inner * (bucket + 1) / buckets);
    auto [low, high] = std::minmax_element(first, last, [](auto& a, auto& b) { return a.value < b.value; });
    if (high < low) std::swap(low, high);
    kept.push_back(*low);
    if (high != low) kept.push_back(*high);
  }
  kept.push_back(points.back());
  return kept;
}

// Smooths by averages with weights that fall off exponentially to both sides: unlike an average over earlier steps
// alone it does not lag behind a falling curve.
void smooth(std::vector<Point>& points) {
  const double window = std::max(1.0, smoothed_share * static_cast<double>(points.size()));
  const double decay = 1 - 1 / window;
  std::vector<double> weights(points.size(), 0);
  double sum = 0;
  double weight = 0;
  for (size_t i = 0; i < points.size(); ++i) {
    sum = decay * sum + points[i].value;
    weight = decay * weight + 1;
    points[i].smoothed = sum;
    weights[i] = weight;
  }
  sum = 0;
  weight = 0;
  for (size_t i = points.size(); i-- > 0;) {
    points[i].smoothed = (points[i].smoothed + sum) / (weights[i] + weight);
    sum = decay * (sum + points[i].value);
    weight = decay * (weight + 1);
  }
}

// Shortens a number to six digits, which are more than a screen shows.
double shortened(double value) { return std::strtod(format_number("%.6g", value).c_str(), nullptr); }

// Points of the steps with a known value, not smoothed yet.
std::vector<Point> points_of(const std::vector<StepRecord>& records,
                             const std::function<std::optional<double>(const StepRecord&)>& value_of) {
  std::vector<Point> points;
  for (const StepRecord& record : records) {
    if (const auto value = value_of(record); value && std::isfinite(*value)) points.push_back({&record, *value, 0});
  }
  return points;
}

// Position of a step on each of the axes: [step, tokens, seconds].
nlohmann::json position(const StepRecord& record) {
  return {record.step, record.consumed_tokens, shortened(record.elapsed_seconds)};
}

// A list of [step, tokens, seconds, value, smoothed value].
nlohmann::json curve(const std::vector<StepRecord>& records,
                     const std::function<std::optional<double>(const StepRecord&)>& value_of) {
  std::vector<Point> points = points_of(records, value_of);
  smooth(points);
  auto rows = nlohmann::json::array();
  for (const Point& point : decimate(std::move(points))) {
    nlohmann::json row = position(*point.record);
    row.push_back(shortened(point.value));
    row.push_back(shortened(point.smoothed));
    rows.push_back(std::move(row));
  }
  return rows;
}

// A list of [step, tokens, seconds, noise scale, low, high, critical batch, global batch]; while there is only a lower
// bound, the noise scale, its upper end and the critical batch are null. Bounds of zero carry no information and are
// left out.
nlohmann::json noise_scale_rows(const std::vector<StepRecord>& records) {
  const auto known = [](const std::optional<double>& value) {
    return value && std::isfinite(*value) ? nlohmann::json(shortened(*value)) : nlohmann::json();
  };
  const auto value_or_bound = [](const StepRecord& record) -> std::optional<double> {
    if (record.noise_scale) return record.noise_scale;
    return record.noise_scale_low > 0 ? record.noise_scale_low : std::nullopt;
  };
  auto rows = nlohmann::json::array();
  for (const Point& point : decimate(points_of(records, value_or_bound))) {
    const StepRecord& record = *point.record;
    nlohmann::json row = position(record);
    row.insert(row.end(), {known(record.noise_scale), known(record.noise_scale_low), known(record.noise_scale_high),
                           known(record.critical_batch), record.global_batch});
    rows.push_back(std::move(row));
  }
  return rows;
}

// ---- what changed on the way ----

struct Switch {
  SwitchReport report;
  std::optional<double> predicted_gain;  // empty where a user asked for the switch
  std::optional<Realised> realised;      // set once enough steps have run
};

std::vector<Switch> switches_of(const std::vector<DecisionEvent>& events) {
  std::vector<Switch> switches;
  std::optional<double> predicted_gain;
  for (const DecisionEvent& event : events) {
    if (const auto* decision = std::get_if<Decision>(&event); decision && decision->moves) {
      predicted_gain = decision->choice.predicted_gain;
    } else if (const auto* report = std::get_if<SwitchReport>(&event)) {
      switches.push_back({*report, std::exchange(predicted_gain, std::nullopt), std::nullopt});
    } else if (const auto* logged = std::get_if<LoggedRealised>(&event)) {
      const auto found = std::find_if(switches.rbegin(), switches.rend(), [&](const Switch& candidate) {
        return candidate.report.from == logged->realised.from && candidate.report.to == logged->realised.to &&
               candidate.report.outcome == SwitchReport::Outcome::moved;
      });
      if (found != switches.rend()) found->realised = logged->realised;
    }
  }
  return switches;
}

// A list of [step, tokens, seconds, change in words], of the switches that moved.
nlohmann::json switch_marks(const std::vector<Switch>& switches, const std::vector<StepRecord>& records) {
  auto rows = nlohmann::json::array();
  for (const Switch& one : switches) {
    if (one.report.outcome != SwitchReport::Outcome::moved) continue;
    const auto record = std::lower_bound(records.begin(), records.end(), one.report.after_step,
                                         [](const StepRecord& a, int64_t step) { return a.step < step; });
    if (record == records.end()) continue;
    nlohmann::json row = position(*record);
    row.push_back(describe_change(one.report.from, one.report.to));
    rows.push_back(std::move(row));
  }
  return rows;
}

std::string percent(double share) { return std::isfinite(share) ? format_number("%+.1f %%", 100 * share) : "-"; }

std::string outcome_of(const SwitchReport& report) {
  switch (report.outcome) {
    case SwitchReport::Outcome::moved:
      return format_number("paused %.3g ms", 1000 * report.pause_seconds);
    case SwitchReport::Outcome::vetoed:
      return concat("refused: ", report.reason);
    case SwitchReport::Outcome::rolled_back:
      return concat("moved back: ", report.reason);
  }
  fail_check("known outcome", __FILE__, __LINE__, "");
}

// The switches as an HTML table; empty for a run that has not changed.
std::string switch_table(const std::vector<Switch>& switches) {
  if (switches.empty()) return "";
  std::string rows;
  for (const Switch& one : switches) {
    rows += concat("<tr><td>", one.report.after_step, "</td><td>",
                   escape_html(describe_change(one.report.from, one.report.to)), "</td><td>",
                   one.predicted_gain ? percent(*one.predicted_gain) : "-", "</td><td>",
                   one.realised ? percent(one.realised->realised_gain) : "-", "</td><td>",
                   one.realised ? concat(format_number("%.3g s", one.realised->predicted_step_seconds), " / ",
                                         format_number("%.3g s", one.realised->realised_step_seconds))
                                : "-",
                   "</td><td>", escape_html(outcome_of(one.report)), "</td></tr>\n");
  }
  return concat("<details class=\"card\" open><summary>Changes on the way</summary><div class=\"table\"><table><thead>",
                "<tr><th>after step</th><th>change</th><th>Goodput predicted</th><th>realised</th>",
                "<th>step predicted / realised</th><th>outcome</th></tr></thead><tbody>\n", rows,
                "</tbody></table></div></details>\n");
}

std::string curves(const std::vector<StepRecord>& records, const std::vector<Switch>& switches) {
  const nlohmann::json data{
      {"switches", switch_marks(switches, records)},
      {"loss", curve(records, [](const StepRecord& record) { return record.loss; })},
      {"held_out_loss", curve(records, [](const StepRecord& record) { return record.held_out_loss; })},
      {"lr", curve(records, [](const StepRecord& record) { return record.lr; })},
      {"grad_norm", curve(records, [](const StepRecord& record) { return record.grad_norm; })},
      {"tokens_per_second", curve(records, [](const StepRecord& record) { return record.tokens_per_second; })},
      {"noise_scale", noise_scale_rows(records)}};
  return data.dump();
}

// ---- the head of the page ----

std::string plural(int64_t count, const char* noun) { return concat(count, " ", noun, count == 1 ? "" : "s"); }

// Summarises a run that has not written its summary yet.
RunSummary summary_so_far(const std::vector<StepRecord>& records) {
  RunSummary summary;
  summary.ended = "not ended";
  if (records.empty()) return summary;
  const StepRecord& last = records.back();
  summary.steps = last.step;
  summary.consumed_samples = last.consumed_samples;
  summary.consumed_tokens = last.consumed_tokens;
  summary.train_seconds = last.elapsed_seconds;
  if (last.elapsed_seconds > 0) {
    summary.tokens_per_second = static_cast<double>(last.consumed_tokens) / last.elapsed_seconds;
  }
  summary.skipped_steps =
      std::count_if(records.begin(), records.end(), [](const StepRecord& record) { return record.skipped(); });
  for (const StepRecord& record : records) {
    if (record.held_out_loss) summary.held_out_loss = record.held_out_loss;
  }
  return summary;
}

std::string subtitle(const RunSummary& summary, const std::vector<StepRecord>& records) {
  std::string text = summary.ended;
  if (summary.parameters > 0)
    text += concat(", ", format_count(static_cast<double>(summary.parameters)), " parameters");
  if (!records.empty()) {
    const StepRecord& last = records.back();
    text += concat(", ", todays_spelling(last.strategy).value_or(last.strategy), ",B=", last.global_batch,
                   ",b=", last.micro_batch);
  }
  return text;
}

std::string tile(std::string_view name, std::string_view value, std::string_view detail) {
  return concat("<div class=\"tile card\"><div class=\"name\">", escape_html(name), "</div><div class=\"value\">",
                escape_html(value), "</div><div class=\"detail\">", escape_html(detail), "</div></div>\n");
}

std::string tiles(const RunSummary& summary) {
  const bool evaluated = summary.held_out_loss && std::isfinite(*summary.held_out_loss);
  std::string out;
  out += tile(
      "Held-out loss, nats/token", evaluated ? format_number("%.4f", *summary.held_out_loss) : "-",
      evaluated ? concat("perplexity ", format_number("%.3g", std::exp(*summary.held_out_loss))) : "not evaluated");
  out += tile("Steps", std::to_string(summary.steps),
              summary.skipped_steps > 0 ? concat(summary.skipped_steps, " skipped: not finite") : "none skipped");
  out += tile("Tokens", format_count(static_cast<double>(summary.consumed_tokens)),
              concat(format_count(static_cast<double>(summary.consumed_samples)), " sequences"));
  out += tile("Training time", format_duration(summary.train_seconds), "evaluation not counted");
  out += tile("Throughput", format_count(summary.tokens_per_second), "tokens per second");
  if (summary.relayouts + summary.batch_changes > 0) {
    double paused = 0;
    for (const double seconds : summary.relayout_pause_seconds) paused += seconds;
    out += tile("Changes on the way", plural(summary.relayouts, "re-layout"),
                concat(plural(summary.batch_changes, "batch change"), ", ", format_duration(paused), " paused"));
  }
  return out;
}

// Escapes the end of a script element, which the browser sees at the next "</script", wherever that is.
std::string escape_json_in_html(const std::string& json) {
  std::string out;
  for (const char c : json) out += c == '<' ? "\\u003c" : std::string(1, c);
  return out;
}

std::string configuration(const std::filesystem::path& run_dir) {
  const std::filesystem::path path = run_dir / "config.toml";
  if (!std::filesystem::exists(path)) return "";
  return concat("<details class=\"card\"><summary>Configuration</summary><pre>", escape_html(read_text_file(path)),
                "</pre></details>\n");
}

}  // namespace

void write_html_report(const std::filesystem::path& run_dir) {
  const std::vector<StepRecord> records = read_run_log(run_dir / "run.jsonl");
  const RunSummary summary = read_summary(run_dir).value_or(summary_so_far(records));
  const std::vector<Switch> switches = switches_of(read_decision_log(run_dir / "decisions.jsonl"));
  const std::string name = std::filesystem::canonical(run_dir).filename().string();
  write_file_durably(run_dir / "report.html",
                     fill_in(report_page(), {{"title", escape_html(name)},
                                             {"subtitle", escape_html(subtitle(summary, records))},
                                             {"tiles", tiles(summary)},
                                             {"switches", switch_table(switches)},
                                             {"configuration", configuration(run_dir)},
                                             {"data", escape_json_in_html(curves(records, switches))}}));
}

}  // namespace copus
