#include "copus/report/drawn/html_report.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

#include "copus/base/error.h"
#include "copus/base/files/durable_file.h"
#include "copus/base/text/escape_html.h"
#include "copus/base/text/json_text.h"
#include "copus/base/text/units.h"
#include "copus/config/experiment.h"
#include "copus/description/configuration_text.h"
#include "copus/page/web_page.h"
#include "copus/report/drawn/page_comparison.h"
#include "copus/report/drawn/page_curves.h"
#include "copus/report/drawn/page_history.h"
#include "copus/report/drawn/run_page_script.h"
#include "copus/report/files/run_summary.h"
#include "copus/report/logs/decision_log.h"
#include "copus/report/logs/run_log.h"

namespace copus {

namespace {

namespace fs = std::filesystem;

constexpr size_t most_runs = 24;             // the number of pairs of a colour and a dash
constexpr size_t most_held_decisions = 500;  // in the tables of a page

// A run as its page shows it.
struct ReportedRun {
  std::string name;
  fs::path directory;
  std::vector<StepRecord> records;
  bool has_all_records = true;
  std::vector<DecisionEvent> events;
  std::vector<ReportedSwitch> switches;
  RunSummary summary;
};

// Summarises a run that has not written its summary yet.
RunSummary summary_so_far(const ReportedRun& run) {
  const std::vector<StepRecord>& records = run.records;
  RunSummary summary;
  summary.ended = "not ended";
  count_switches(run.events, summary);
  if (records.empty()) return summary;
  const StepRecord& last = records.back();
  summary.steps = last.step;
  summary.consumed_samples = last.consumed_samples;
  summary.consumed_tokens = last.consumed_tokens;
  summary.train_seconds = last.elapsed_seconds;
  if (last.elapsed_seconds > 0) {
    summary.tokens_per_second = static_cast<double>(last.consumed_tokens) / last.elapsed_seconds;
  }
  if (run.has_all_records) {
    summary.missing_steps = count_steps(missing_steps(records, 0, last.step));
    summary.skipped_steps =
        std::count_if(records.begin(), records.end(), [](const StepRecord& record) { return record.skipped(); });
  }
  for (const StepRecord& record : records) {
    if (record.held_out_loss) summary.held_out_loss = record.held_out_loss;
  }
  return summary;
}

std::vector<DecisionEvent> events_in(const fs::path& directory) {
  return read_decisions_to_show(directory / "decisions.jsonl");
}

// The steps at which the run's configuration or ranks changed; steps around them are shown too.
std::vector<int64_t> steps_of_changes(const std::vector<DecisionEvent>& events) {
  std::vector<int64_t> steps;
  for (const DecisionEvent& event : events) {
    if (!std::holds_alternative<SwitchReport>(event) && !std::holds_alternative<RanksChanged>(event)) continue;
    steps.push_back(step_of(event));
    steps.push_back(step_of(event) + 1);
  }
  return steps;
}

// Returns the run's settings for evaluations, which show at which steps to look for one. Returns the defaults if
// config.toml is missing or damaged, or if another program trains the job.
EvaluateConfig evaluation_of(const fs::path& directory) {
  const fs::path config = directory / "config.toml";
  try {
    return parse_run_config(read_text_file(config), config.string()).evaluate;
  } catch (const UserError&) {
    return {};
  }
}

ReportedRun read_run(const fs::path& directory, std::string name, std::vector<DecisionEvent> events) {
  ChosenRecords chosen = choose_records(directory / "run.jsonl", steps_of_changes(events), evaluation_of(directory));
  ReportedRun run{std::move(name), directory, std::move(chosen.records), chosen.is_all, std::move(events), {}, {}};
  run.switches = switches_of(run.events);
  const std::optional<RunSummary> summary = read_current_summary(directory);
  run.summary = summary ? *summary : summary_so_far(run);
  return run;
}

// ---- the script's data ----

nlohmann::json data_of(const ReportedRun& run, size_t runs) {
  const size_t most_points = most_points_of_a_curve(runs);
  nlohmann::json marks = switch_marks(run.switches, run.records);
  for (nlohmann::json& mark : rank_marks(run.events, run.records)) marks.push_back(std::move(mark));
  return {{"name", run.name},
          {"curves", curves_of(run.records, most_points)},
          {"switches", std::move(marks)},
          {"held", held_decisions(run.events, run.records, most_points)}};
}

nlohmann::json data_of(const std::vector<ReportedRun>& runs) {
  nlohmann::json data{{"runs", nlohmann::json::array()}, {"comparison", nlohmann::json::array()}};
  for (const ReportedRun& run : runs) data["runs"].push_back(data_of(run, runs.size()));
  return data;
}

// ---- the head of the page ----

std::string heading(std::string_view title, std::string_view subtitle) {
  return concat("<h1>", escape_html(title), "</h1>\n<p class=\"subtitle\">", escape_html(subtitle), "</p>\n");
}

std::string subtitle_of(const ReportedRun& run) {
  std::string text = run.summary.ended;
  if (run.summary.parameters > 0) {
    text += concat(", ", format_count(static_cast<double>(run.summary.parameters)), " parameters");
  }
  if (!run.records.empty()) {
    const StepRecord& last = run.records.back();
    text += concat(", ", to_string(last.strategy), ",B=", last.global_batch, ",b=", last.micro_batch);
    if (!run.has_all_records) text += concat("; drawn from ", run.records.size(), " of ", last.step, " steps");
  }
  return text;
}

double seconds_paused(const ReportedRun& run) {
  double paused = 0;
  for (const StepRecord& record : run.records) paused += record.switch_seconds.value_or(0);
  return paused;
}

std::string tile(std::string_view name, std::string_view value, std::string_view detail) {
  return concat("<div class=\"tile card\"><div class=\"name\">", escape_html(name), "</div><div class=\"value\">",
                escape_html(value), "</div><div class=\"detail\">", escape_html(detail), "</div></div>\n");
}

// The number of skipped steps, or of skipped sequences if not all records were read and steps were not counted.
std::string skipped_in(const ReportedRun& run) {
  if (run.summary.skipped_steps > 0 || run.records.empty()) return std::to_string(run.summary.skipped_steps);
  const int64_t sequences = run.records.back().skipped_samples;
  return sequences > 0 ? counted(sequences, "sequence") : "0";
}

std::string tiles_of(const ReportedRun& run) {
  const RunSummary& summary = run.summary;
  const bool evaluated = summary.held_out_loss && std::isfinite(*summary.held_out_loss);
  const int64_t missing = summary.missing_steps;
  std::string out = "<section class=\"tiles\" aria-label=\"Summary\">\n";
  out += tile(
      "Held-out loss, nats/token", evaluated ? format_number("%.4f", *summary.held_out_loss) : "-",
      evaluated ? concat("perplexity ", format_number("%.3g", std::exp(*summary.held_out_loss))) : "not evaluated");
  out += tile("Steps", std::to_string(summary.steps),
              concat(skipped_in(run) == "0" ? "none skipped" : concat(skipped_in(run), " skipped: not finite"),
                     missing > 0 ? concat("; ", missing, " missing from run.jsonl") : ""));
  out += tile("Tokens", format_count(static_cast<double>(summary.consumed_tokens)),
              concat(format_count(static_cast<double>(summary.consumed_samples)), " sequences"));
  out += tile("Training time", format_duration(summary.train_seconds), "evaluation not counted");
  out += tile("Throughput", format_count(summary.tokens_per_second), "tokens per second");
  if (summary.relayouts + summary.batch_changes > 0) {
    out += tile(
        "Changes on the way", counted(summary.relayouts, "re-layout"),
        concat(counted(summary.batch_changes, "batch change"), ", ", format_duration(seconds_paused(run)), " paused"));
  }
  return out + "</section>\n";
}

std::string table_of(const std::vector<ReportedRun>& runs) {
  WebTable table{{{"run"},
                  {"ended"},
                  {"held-out loss, nats/token"},
                  {"steps"},
                  {"skipped"},
                  {"tokens"},
                  {"training time"},
                  {"tokens/s"},
                  {"switches"},
                  {"paused"}},
                 {}};
  for (const ReportedRun& run : runs) {
    const RunSummary& summary = run.summary;
    const bool evaluated = summary.held_out_loss && std::isfinite(*summary.held_out_loss);
    table.rows.push_back(
        {escape_html(run.name), escape_html(summary.ended),
         evaluated ? format_number("%.4f", *summary.held_out_loss) : "-", std::to_string(summary.steps),
         skipped_in(run), format_count(static_cast<double>(summary.consumed_tokens)),
         format_duration(summary.train_seconds), format_count(summary.tokens_per_second),
         std::to_string(std::count_if(
             run.switches.begin(), run.switches.end(),
             [](const ReportedSwitch& one) { return one.report.outcome == SwitchReport::Outcome::moved; })),
         format_duration(seconds_paused(run))});
  }
  return concat("<section class=\"card block\"><h2>Runs</h2>", to_html(table), "</section>\n");
}

// Where the script puts the charts.
constexpr const char* place_of_charts = R"(<div class="controls" id="controls"></div>
<section class="charts" id="charts" aria-label="Curves"><noscript>The curves are drawn by a script in this page; it is
switched off.</noscript></section>
<p class="quiet" id="lacking"></p>
)";

std::string details(std::string_view title, bool open, std::string_view content) {
  return concat("<details class=\"card\"", open ? " open" : "", "><summary>", escape_html(title), "</summary>", content,
                "</details>\n");
}

// A configuration's text, without its middle if it lists many thousands of files.
std::string without_middle(const std::string& text) {
  constexpr size_t most_bytes = size_t{128} << 10;
  if (text.size() <= most_bytes) return text;
  const size_t head = text.rfind('\n', most_bytes / 2), tail = text.find('\n', text.size() - most_bytes / 2);
  if (head == std::string::npos || tail == std::string::npos) return "It is too long to be shown here.\n";
  const auto lines = std::count(text.begin() + static_cast<std::ptrdiff_t>(head) + 1,
                                text.begin() + static_cast<std::ptrdiff_t>(tail) + 1, '\n');
  return concat(text.substr(0, head + 1), "# ... ", lines, " lines of config.toml are left out here ...\n",
                text.substr(tail + 1));
}

// The tables below the charts. `of`: names the run, if there are several.
std::string history_of(const ReportedRun& run, const std::string& of, size_t runs) {
  std::string html;
  if (!run.switches.empty()) html += details(concat("Switches", of), true, to_html(switch_table(run.switches)));
  const WebTable decisions = decision_table(run.events, most_held_decisions / runs);
  if (!decisions.rows.empty()) html += details(concat("All decisions", of), false, to_html(decisions));
  const fs::path config = run.directory / "config.toml";
  if (fs::exists(config)) {
    const std::string text = without_middle(read_text_file(config));
    html += details(concat("Configuration", of), false, concat("<pre>", escape_html(text), "</pre>"));
  }
  return html;
}

std::string body_of(const std::vector<ReportedRun>& runs, const std::string& head) {
  std::string body = concat(head, place_of_charts);
  for (const ReportedRun& run : runs) {
    body += history_of(run, runs.size() == 1 ? "" : concat(": ", run.name), runs.size());
  }
  return body +
         "<footer>Made by Copus from run.jsonl, decisions.jsonl, summary.json and config.toml of the run "
         "directories. Drag over a chart to zoom, double-click to see everything; a name in a legend hides its curve. "
         "In long runs charts show the lowest and highest of neighbouring steps; where run.jsonl has more than 16 MiB, "
         "of those that are read.</footer>\n";
}

void write_page(const fs::path& file, const std::string& title, const std::string& body, const nlohmann::json& data) {
  // The name of a directory may be invalid UTF-8.
  const std::string text = json_text(data);
  write_file_durably(file, to_html({.title = title, .body = body, .data = text, .script = run_page_js}));
}

void write_run_page(ReportedRun run, const fs::path& file) {
  const std::string title = concat(run.name, " - Copus run");
  const std::string head = concat(heading(run.name, subtitle_of(run)), tiles_of(run));
  const std::vector runs{std::move(run)};
  write_page(file, title, body_of(runs, head), data_of(runs));
}

// The shortest endings of the paths that are all different. They serve as names of the runs.
std::vector<std::string> names_of(const std::vector<fs::path>& directories) {
  for (int parts = 1;; ++parts) {
    std::vector<std::string> names;
    for (const fs::path& directory : directories) {
      fs::path name = directory.filename();
      fs::path above = directory.parent_path();
      for (int i = 1; i < parts && above.has_filename(); ++i, above = above.parent_path()) {
        name = above.filename() / name;
      }
      names.push_back(name.string());
    }
    if (std::set<std::string>(names.begin(), names.end()).size() == names.size()) return names;
  }
}

fs::path directory_of(const fs::path& path) {
  std::error_code error;
  const fs::path canonical = fs::canonical(path, error);
  return error ? path : canonical;  // opening the files then reports the error
}

// ---- experiments ----

// The run to show for an arm: the run with the first of these seeds for which one has started.
std::optional<fs::path> run_of(const fs::path& experiment, const std::string& arm, const std::vector<int64_t>& seeds) {
  for (const int64_t seed : seeds) {
    fs::path directory = experiment / "runs" / arm / concat("seed-", seed);
    if (fs::exists(directory / "run.jsonl")) return directory;
  }
  return std::nullopt;
}

}  // namespace

void write_html_report(const fs::path& run_dir) { write_html_report(run_dir, events_in(run_dir)); }

void write_html_report(const fs::path& run_dir, std::vector<DecisionEvent> events) {
  const std::string name = directory_of(run_dir).filename().string();
  write_run_page(read_run(run_dir, name, std::move(events)), run_dir / "report.html");
}

void write_html_report(const std::vector<fs::path>& run_dirs, const fs::path& file) {
  if (run_dirs.size() > most_runs) {
    throw UserError(
        concat(run_dirs.size(), " runs: more than ", most_runs, " cannot be told apart on one page; give fewer"));
  }
  std::vector<fs::path> directories;
  for (const fs::path& directory : run_dirs) {
    directories.push_back(directory_of(directory));
    if (std::count(directories.begin(), directories.end(), directories.back()) > 1) {
      throw UserError(concat(directory.string(), ": given twice; name every run once"));
    }
  }
  const std::vector<std::string> names = names_of(directories);
  std::vector<ReportedRun> runs;
  for (size_t i = 0; i < run_dirs.size(); ++i) {
    runs.push_back(read_run(run_dirs[i], names[i], events_in(run_dirs[i])));
  }
  if (runs.size() == 1) {
    write_run_page(std::move(runs.front()), file);
    return;
  }
  write_page(file, concat(runs.size(), " Copus runs"),
             body_of(runs, concat(heading(concat(runs.size(), " runs"), ""), table_of(runs))), data_of(runs));
}

bool is_experiment_directory(const fs::path& directory) { return fs::exists(directory / "experiment.toml"); }

void write_experiment_report(const fs::path& directory, const fs::path& file) {
  const fs::path source = directory / "experiment.toml";
  const Experiment experiment = parse_experiment(read_text_file(source), source.string());
  ReportedComparison comparison;
  const bool compared = fs::exists(directory / "results.json");
  if (compared) {
    comparison = read_comparison(directory / "results.json");
  } else {
    for (const ExperimentArm& arm : experiment.arms) comparison.contenders.push_back({arm.name, arm.name});
    comparison.seeds = experiment.seeds;
    comparison.intervals = nlohmann::json::array();
  }
  std::vector<int64_t> seeds = comparison.seeds;
  seeds.insert(seeds.end(), experiment.screening_seeds.begin(), experiment.screening_seeds.end());
  std::vector<ReportedRun> runs;
  size_t left_out = 0;
  for (const auto& [name, arm] : comparison.contenders) {
    const auto run = run_of(directory, arm, seeds);
    if (!run) continue;
    if (runs.size() == most_runs) {
      ++left_out;
      continue;
    }
    const std::string full_name = name == arm ? name : concat(name, " = ", arm);
    runs.push_back(read_run(*run, concat(full_name, ", ", run->filename().string()), events_in(*run)));
  }
  if (runs.empty()) throw UserError(concat(directory.string(), ": nothing has run yet; `copus compare` begins it"));
  const std::string name = directory_of(directory).filename().string();
  std::string head = heading(name, compared ? concat("comparison over ", counted(std::ssize(comparison.seeds), "seed"),
                                                     "; the curves are of one each")
                                            : "not compared yet: the runs so far, one of each arm");
  if (left_out > 0) head += concat("<p class=\"subtitle\">", left_out, " more arms are not drawn.</p>\n");
  head += "<section class=\"charts\" id=\"intervals\" aria-label=\"Comparison\"></section>\n";
  head += comparison.tables + table_of(runs);
  nlohmann::json data = data_of(runs);
  data["comparison"] = comparison.intervals;
  write_page(file, concat(name, " - Copus experiment"), body_of(runs, head), data);
}

}  // namespace copus
