#include "copus/report/logs/run_log.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include "copus/base/error.h"
#include "copus/base/text/json_text.h"
#include "copus/report/json_fields.h"
#include "copus/report/logs/line_search.h"

namespace copus {
namespace {

constexpr int64_t run_log_version = 1;  // repeated in every line, because a log may be truncated anywhere

// The number of lines chosen from a long log; it exceeds the number of points on a page.
constexpr int64_t evenly_chosen = 8000;
constexpr int64_t evaluations_chosen = 2000;

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
  visit("sign_noise_scale", record.sign_noise_scale, json_not_negative);
  visit("sign_noise_scale_low", record.sign_noise_scale_low, json_not_negative);
  visit("sign_noise_scale_high", record.sign_noise_scale_high, json_not_negative);
  visit("spectral_noise_scale", record.spectral_noise_scale, json_not_negative);
  visit("spectral_noise_scale_low", record.spectral_noise_scale_low, json_not_negative);
  visit("spectral_noise_scale_high", record.spectral_noise_scale_high, json_not_negative);
  visit("preconditioned_noise_scale", record.preconditioned_noise_scale, json_not_negative);
  visit("preconditioned_noise_scale_low", record.preconditioned_noise_scale_low, json_not_negative);
  visit("preconditioned_noise_scale_high", record.preconditioned_noise_scale_high, json_not_negative);
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

std::optional<int64_t> step_in(std::string_view line) { return number_in(line, "step"); }

// Selects lines of a log by their offsets, each once and in order.
class LineChoice {
 public:
  explicit LineChoice(LineSearch& search) : search_(search) {}

  // Selects all lines of the same step.
  void add(uint64_t place) {
    auto line = search_.line_from(place);
    while (line) {
      auto next = search_.line_from(line->end());
      if (next && step_in(next->text) != step_in(line->text)) next.reset();
      lines_.emplace(line->begin, std::move(line->text));
      line = std::move(next);
    }
  }
  // Selects the first line where a field has reached `least`.
  void add(std::string_view field, int64_t least) {
    add(search_.first_at_least(least, [&](std::string_view line) { return number_in(line, field); }));
  }
  // Selects lines where a field passes multiples of `interval`; if there are more than `most`, selects them evenly
  // spread.
  void add_multiples(std::string_view field, int64_t interval, int64_t until, int64_t most) {
    if (interval <= 0) return;
    const int64_t multiples = until / interval;
    const int64_t stride = std::max<int64_t>(1, (multiples + most - 1) / most) * interval;
    for (int64_t number = stride; number <= until; number += stride) add(field, number);
  }
  const std::map<uint64_t, std::string>& lines() const { return lines_; }

 private:
  LineSearch& search_;
  std::map<uint64_t, std::string> lines_;
};

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

bool completes(const StepRecord& before, const StepRecord& record) {
  return record.step == before.step && !before.held_out_loss && record.held_out_loss;
}

// The record of a line that completes the previous one. Empty for any other line, including damaged ones.
static std::optional<StepRecord> completion_of(const StepRecord& before, const std::string& line) {
  if (step_in(line) != before.step) return std::nullopt;
  try {
    StepRecord record = step_record_from_line(line);
    return completes(before, record) ? std::optional(std::move(record)) : std::nullopt;
  } catch (const UserError&) {
    return std::nullopt;
  }
}

RunLog::RunLog(const std::filesystem::path& run_dir, std::optional<int64_t> resume_after_step)
    : kept_(StepOrder::Lines::one_a_step),
      lines_(
          run_dir / "run.jsonl", resume_after_step,
          [this, last = resume_after_step.value_or(0)](const std::string& line, bool follows_unread) {
            if (kept_.latest() == last) {
              auto completion = resumed_step_ ? completion_of(*resumed_step_, line) : std::nullopt;
              if (!completion) return last + 1;
              resumed_step_ = std::move(completion);
              return last;
            }
            const StepRecord record = step_record_from_line(line);
            if (follows_unread) kept_ = StepOrder(StepOrder::Lines::one_a_step, record.step - 1);
            const bool is_repeated = latest_kept_ && completes(*latest_kept_, record);
            if (record.step <= last && !is_repeated) kept_.add(record.step);
            latest_kept_ = record;
            if (record.step == last) resumed_step_ = record;
            return record.step;
          },
          LineLog::Lock::exclusive, step_in),
      missing_(kept_.missing_until(resume_after_step.value_or(0))) {}

void RunLog::append(const StepRecord& record) { lines_.append(to_line(record), concat("step ", record.step)); }

void RunLog::add_to_resumed_step(const HeldOutLoss& loss) {
  COPUS_CHECK(resumed_step_);
  resumed_step_->held_out_loss = loss.mean;
  resumed_step_->held_out_losses = loss.sources;
  append(*resumed_step_);
}

std::vector<StepRecord> read_run_log(const std::filesystem::path& path, int64_t last_step, int64_t after_step) {
  std::vector<StepRecord> records;
  StepOrder order(StepOrder::Lines::one_a_step, after_step);
  const uint64_t begin = after_step > 0 ? LineSearch(path).first_at_least(after_step + 1, step_in) : 0;
  for_each_line_from(begin, path, [&](const std::string& line) {
    if (!records.empty() && records.back().step == last_step) {
      auto completion = completion_of(records.back(), line);
      if (completion) records.back() = std::move(*completion);
      return completion.has_value();
    }
    StepRecord record = step_record_from_line(line);
    if (record.step > last_step) return false;
    if (!records.empty() && completes(records.back(), record)) {
      records.back() = std::move(record);
      return true;
    }
    order.add(record.step);
    records.push_back(std::move(record));
    return true;
  });
  return records;
}

std::vector<StepRecord> read_steps(const std::filesystem::path& path, const std::vector<int64_t>& steps) {
  std::vector<StepRecord> records;
  if (steps.empty()) return records;
  LineSearch search(path);
  for (const int64_t step : steps) {
    const auto line = search.line_from(search.first_at_least(step, step_in));
    if (line && step_in(line->text) == step) records.push_back(step_record_from_line(line->text));
  }
  return records;
}

ChosenRecords choose_records(const std::filesystem::path& path, const std::vector<int64_t>& steps,
                             const EvaluateConfig& evaluate) {
  LineSearch search(path);
  if (search.size() <= most_bytes_read_whole) return {.records = read_run_log(path), .is_all = true};
  LineChoice choice(search);
  for (int64_t i = 0; i < evenly_chosen; ++i) {
    choice.add(static_cast<uint64_t>(static_cast<double>(search.size()) * static_cast<double>(i) / evenly_chosen));
  }
  choice.add("step", latest_logged_step(path));
  for (const int64_t step : steps) choice.add("step", step);
  if (!choice.lines().empty()) {
    const std::string last = choice.lines().rbegin()->second;
    const int64_t until_step = number_in(last, "step").value_or(0);
    const int64_t until_token = number_in(last, "consumed_tokens").value_or(0);
    choice.add_multiples("step", evaluate.interval, until_step, evaluations_chosen);
    choice.add_multiples("consumed_tokens", evaluate.interval_tokens, until_token, evaluations_chosen);
  }
  ChosenRecords chosen{.records = {}, .is_all = false};
  StepOrder order(StepOrder::Lines::one_a_step);
  for (const auto& [place, line] : choice.lines()) {
    try {
      StepRecord record = step_record_from_line(line);
      if (!chosen.records.empty() && completes(chosen.records.back(), record)) {
        chosen.records.back() = std::move(record);
        continue;
      }
      order.add(record.step);
      chosen.records.push_back(std::move(record));
    } catch (const UserError& error) {
      throw UserError(concat(path.string(), ", byte ", place, ": damaged: ", error.what()));
    }
  }
  return chosen;
}

int64_t latest_logged_step(const std::filesystem::path& path) {
  constexpr uint64_t bytes_at_its_end = uint64_t{1} << 20;
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return 0;
  int64_t latest = 0;
  const auto look = [&](const std::string& line) {
    try {
      latest = std::max(latest, step_record_from_line(line).step);
    } catch (const UserError&) {  // NOLINT(bugprone-empty-catch): the line has no valid step
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
