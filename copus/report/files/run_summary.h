// summary.json: a run in a few numbers, written when it ends. The members' names are the JSON field names.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "copus/report/logs/decision_log.h"

namespace copus {

struct RunSummary {
  std::optional<double> held_out_loss;  // of the final weights, nats per token
  int64_t steps = 0;
  int64_t consumed_samples = 0;
  int64_t consumed_tokens = 0;
  double train_seconds = 0;  // without evaluation and checkpoints
  double tokens_per_second = 0;
  int64_t relayouts = 0;
  int64_t batch_changes = 0;
  std::vector<double> relayout_pause_seconds;
  int64_t skipped_steps = 0;
  int64_t missing_steps = 0;  // steps without a line in run.jsonl
  int64_t parameters = 0;
  std::string ended = "done";  // "done", "interrupted" or "time limit"
};

// Adds the number of completed switches among these events.
void count_switches(const std::vector<DecisionEvent>& events, RunSummary& summary);

// Writes <run_dir>/summary.json, whole or not at all. Throws UserError if that fails.
void write_summary(const std::filesystem::path& run_dir, const RunSummary& summary);

// Reads the summary; empty if there is none (the run has not ended). Throws UserError if it is damaged.
std::optional<RunSummary> read_summary(const std::filesystem::path& run_dir);

// Reads the summary as read_summary does, but returns nothing if run.jsonl shows that the run was resumed since: a
// resumed run keeps the summary of its earlier end until it ends again.
std::optional<RunSummary> read_current_summary(const std::filesystem::path& run_dir);

}  // namespace copus
