#include "copus/report/files/run_summary.h"

#include <variant>

#include "copus/base/error.h"
#include "copus/base/files/durable_file.h"
#include "copus/base/text/json_text.h"
#include "copus/report/json_fields.h"
#include "copus/report/logs/run_log.h"

namespace copus {
namespace {

template <class Summary, class Visitor>
void summary_fields(Summary& summary, Visitor&& visit) {
  visit("held_out_loss", summary.held_out_loss);
  visit("steps", summary.steps);
  visit("consumed_samples", summary.consumed_samples);
  visit("consumed_tokens", summary.consumed_tokens);
  visit("train_seconds", summary.train_seconds);
  visit("tokens_per_second", summary.tokens_per_second);
  visit("relayouts", summary.relayouts);
  visit("batch_changes", summary.batch_changes);
  visit("relayout_pause_seconds", summary.relayout_pause_seconds);
  visit("skipped_steps", summary.skipped_steps);
  visit("missing_steps", summary.missing_steps);
  visit("parameters", summary.parameters);
  visit("ended", summary.ended);
}

}  // namespace

void count_switches(const std::vector<DecisionEvent>& events, RunSummary& summary) {
  for (const DecisionEvent& event : events) {
    const auto* report = std::get_if<SwitchReport>(&event);
    if (report == nullptr || report->outcome != SwitchReport::Outcome::moved) continue;
    if (report->from.global_batch != report->to.global_batch) summary.batch_changes += 1;
    if (report->from.strategy == report->to.strategy) continue;
    summary.relayouts += 1;
    summary.relayout_pause_seconds.push_back(report->pause_seconds);
  }
}

void write_summary(const std::filesystem::path& run_dir, const RunSummary& summary) {
  JsonFieldWriter writer;
  summary_fields(summary, writer);
  write_file_durably(run_dir / "summary.json", json_text(writer.object(), 2) + '\n');
}

std::optional<RunSummary> read_summary(const std::filesystem::path& run_dir) {
  const std::filesystem::path path = run_dir / "summary.json";
  if (!std::filesystem::exists(path)) return std::nullopt;
  RunSummary summary;
  try {
    const nlohmann::json object = parse_json(read_text_file(path));
    summary_fields(summary, JsonFieldReader(object));
  } catch (const UserError& error) {
    throw UserError(concat(path.string(), ": damaged: ", error.what(), ". Remove the file to go on without it."));
  }
  return summary;
}

std::optional<RunSummary> read_current_summary(const std::filesystem::path& run_dir) {
  std::optional<RunSummary> summary = read_summary(run_dir);
  if (!summary) return std::nullopt;
  const int64_t latest_step = latest_logged_step(run_dir / "run.jsonl");
  const bool has_log = latest_step > 0;
  if (has_log && latest_step != summary->steps) return std::nullopt;
  return summary;
}

}  // namespace copus
