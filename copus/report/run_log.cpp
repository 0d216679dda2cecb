#include "copus/report/run_log.h"

#include <algorithm>
#include <string>
#include <system_error>

#include "copus/base/error.h"
#include "copus/base/json_text.h"
#include "copus/report/json_fields.h"

namespace copus {
namespace {

constexpr int64_t run_log_version = 1;  // of every line, since a log may be cut anywhere

template <class Record, class Visitor>
void record_fields(Record& record, Visitor&& visit) {
  visit("step", record.step, json_count_from_one);
  visit("consumed_samples", record.consumed_samples, json_count);
  visit("consumed_tokens", record.consumed_tokens, json_count);
  visit("loss_tokens", record.loss_tokens, json_count);
  visit("loss", record.loss);
  visit("lr", record.lr, OrNull{json_not_negative});
  visit("rate_factor", record.rate_factor, json_positive);
  visit("phase", record.phase);
  visit("grad_norm", record.grad_norm);
  visit("clipped", record.clipped);
  visit("step_seconds", record.step_seconds, json_seconds);
  visit("switch_seconds", record.switch_seconds);
  visit("predicted_step_seconds", record.predicted_step_seconds);
  visit("tokens_per_second", record.tokens_per_second);
  visit("strategy", record.strategy);
  visit("global_batch", record.global_batch, json_count);
  visit("micro_batch", record.micro_batch, json_count);
  visit("small_batch", record.small_batch, json_positive);
  visit("small_batch_squared_norm", record.small_batch_squared_norm, json_not_negative);
  visit("noise_scale", record.noise_scale, json_not_negative);
  visit("noise_scale_low", record.noise_scale_low, json_not_negative);
  visit("noise_scale_high", record.noise_scale_high, json_not_negative);
  visit("noise_scale_tokens", record.noise_scale_tokens);
  visit("critical_batch", record.critical_batch);
  visit("statistical_efficiency", record.statistical_efficiency);
  visit("goodput", record.goodput);
  visit("skipped_samples", record.skipped_samples, json_count);
  visit("held_out_loss", record.held_out_loss);
  visit("held_out_losses", record.held_out_losses);
  visit("elapsed_seconds", record.elapsed_seconds);
  visit("seconds_left", record.seconds_left);
  visit("share_done", record.share_done);
}

}  // namespace

std::string to_line(const StepRecord& record) {
  JsonFieldWriter writer;
  writer("version", run_log_version);
  record_fields(record, writer);
  return json_text(writer.object());
}

StepRecord step_record_from_line(const std::string& line) {
  StepRecord record;
  const nlohmann::json object = parse_json(line);
  if (object.is_object()) check_version(object, run_log_version);
  try {
    record_fields(record, JsonFieldReader(object));
  } catch (const UserError& error) {
    throw UserError(
        concat(error.what(), ". Expected one JSON object for each training step. Remove this line to go ", "on."));
  }
  return record;
}

RunLog::RunLog(const std::filesystem::path& run_dir, std::optional<int64_t> resume_after_step)
    : kept_(StepOrder::Lines::one_a_step),
      lines_(
          run_dir / "run.jsonl", resume_after_step,
          [this, last = resume_after_step.value_or(0)](const std::string& line) {
            if (kept_.latest() == last) return last + 1;
            const StepRecord record = step_record_from_line(line);
            if (record.step <= last) kept_.add(record.step);
            if (record.step == last) {
              resumed_line_ = line;
              resumed_step_ = record;
            }
            return record.step;
          },
          LineLog::Lock::exclusive),
      missing_(kept_.missing_until(resume_after_step.value_or(0))) {}

void RunLog::append(const StepRecord& record) { lines_.append(to_line(record), concat("step ", record.step)); }

void RunLog::add_to_resumed_step(const HeldOutLoss& loss) {
  COPUS_CHECK(resumed_step_);
  resumed_step_->held_out_loss = loss.mean;
  resumed_step_->held_out_losses = loss.sources;
  const std::string line = to_line(*resumed_step_);
  lines_.replace_last(resumed_line_, line, concat("step ", resumed_step_->step));
  resumed_line_ = line;
}

std::vector<StepRecord> read_run_log(const std::filesystem::path& path, int64_t last_step) {
  std::vector<StepRecord> records;
  StepOrder order(StepOrder::Lines::one_a_step);
  for_each_line(path, [&](const std::string& line) {
    StepRecord record = step_record_from_line(line);
    if (record.step > last_step) return false;
    order.add(record.step);
    records.push_back(std::move(record));
    return order.latest() < last_step;
  });
  return records;
}

int64_t latest_logged_step(const std::filesystem::path& path) {
  constexpr uint64_t bytes_at_its_end = uint64_t{1} << 20;
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return 0;
  int64_t latest = 0;
  const auto look = [&](const std::string& line) {
    try {
      latest = std::max(latest, step_record_from_line(line).step);
    } catch (const UserError&) {  // NOLINT(bugprone-empty-catch): says nothing of a step
    }
    return true;
  };
  try {
    for_each_line(path, look, bytes_at_its_end);
  } catch (const UserError&) {  // NOLINT(bugprone-empty-catch): opening the log reports it
  }
  return latest;
}

std::vector<StepSpan> missing_steps(const std::vector<StepRecord>& records, int64_t after, int64_t until) {
  StepOrder order(StepOrder::Lines::one_a_step, after);
  for (const StepRecord& record : records) {
    if (record.step > until) break;
    if (record.step > after) order.add(record.step);
  }
  return order.missing_until(until);
}

}  // namespace copus
