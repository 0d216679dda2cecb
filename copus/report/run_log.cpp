#include "copus/report/run_log.h"

#include <string>

#include "copus/base/error.h"
#include "copus/report/json_fields.h"

namespace copus {
namespace {

template <class Record, class Visitor>
void record_fields(Record& record, Visitor&& visit) {
  visit("step", record.step);
  visit("consumed_samples", record.consumed_samples);
  visit("consumed_tokens", record.consumed_tokens);
  visit("loss", record.loss);
  visit("lr", record.lr);
  visit("rate_factor", record.rate_factor);
  visit("phase", record.phase);
  visit("grad_norm", record.grad_norm);
  visit("clipped", record.clipped);
  visit("step_seconds", record.step_seconds);
  visit("switch_seconds", record.switch_seconds);
  visit("predicted_step_seconds", record.predicted_step_seconds);
  visit("tokens_per_second", record.tokens_per_second);
  visit("strategy", record.strategy);
  visit("global_batch", record.global_batch);
  visit("micro_batch", record.micro_batch);
  visit("small_batch", record.small_batch);
  visit("small_batch_squared_norm", record.small_batch_squared_norm);
  visit("noise_scale", record.noise_scale);
  visit("noise_scale_low", record.noise_scale_low);
  visit("noise_scale_high", record.noise_scale_high);
  visit("noise_scale_tokens", record.noise_scale_tokens);
  visit("critical_batch", record.critical_batch);
  visit("statistical_efficiency", record.statistical_efficiency);
  visit("goodput", record.goodput);
  visit("skipped_samples", record.skipped_samples);
  visit("held_out_loss", record.held_out_loss);
  visit("elapsed_seconds", record.elapsed_seconds);
}

}  // namespace

std::string to_line(const StepRecord& record) {
  JsonFieldWriter writer;
  record_fields(record, writer);
  return writer.object().dump();
}

StepRecord step_record_from_line(const std::string& line) {
  StepRecord record;
  try {
    const nlohmann::json object = parse_json(line);
    record_fields(record, JsonFieldReader(object));
  } catch (const UserError& error) {
    throw UserError(
        concat(error.what(), ". Expected one JSON object for each training step. Remove this line to go ", "on."));
  }
  return record;
}

RunLog::RunLog(const std::filesystem::path& run_dir, std::optional<int64_t> resume_after_step)
    : lines_(
          run_dir / "run.jsonl", resume_after_step,
          [](const std::string& line) { return step_record_from_line(line).step; }, LineLog::Lock::exclusive) {}

void RunLog::append(const StepRecord& record) { lines_.append(to_line(record), concat("step ", record.step)); }

std::vector<StepRecord> read_run_log(const std::filesystem::path& path) {
  std::vector<StepRecord> records;
  for_each_line(path, [&](const std::string& line) {
    records.push_back(step_record_from_line(line));
    return true;
  });
  return records;
}

}  // namespace copus
