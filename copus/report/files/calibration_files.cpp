#include "copus/report/files/calibration_files.h"

#include <nlohmann/json.hpp>

#include "copus/base/error.h"
#include "copus/base/text/json_text.h"
#include "copus/config/descriptions.h"
#include "copus/report/json_fields.h"

namespace copus {

namespace {

template <class Outcome, class Visitor>
void fields(Outcome& outcome, Visitor&& visitor) {
  visitor("batch", outcome.batch);
  visitor("rate_exponent", outcome.rate_exponent);
  visitor("samples", outcome.samples);
  visitor("repetition", outcome.repetition);
  visitor("loss", outcome.loss);
}

nlohmann::ordered_json to_object(const Estimate& estimate) {
  return {{"value", estimate.value}, {"low", estimate.low}, {"high", estimate.high}};
}

}  // namespace

BranchLog::BranchLog(const std::filesystem::path& path)
    : lines_(
          path, /*resume_after_step=*/0, [](const std::string&, bool) { return int64_t{0}; },
          LineLog::Lock::exclusive) {}

void BranchLog::append(const BranchOutcome& outcome) {
  JsonFieldWriter writer;
  fields(outcome, writer);
  lines_.append(json_text(writer.object()), "a branch of the calibration");
}

std::vector<BranchOutcome> read_branch_log(const std::filesystem::path& path) {
  std::vector<BranchOutcome> outcomes;
  if (!std::filesystem::exists(path)) return outcomes;
  for_each_line(path, [&](const std::string& line) {
    const nlohmann::json object = parse_json(line);
    BranchOutcome outcome;
    fields(outcome, JsonFieldReader(object));
    outcomes.push_back(outcome);
    return true;
  });
  return outcomes;
}

std::string to_json(const CalibrationReport& report) {
  nlohmann::ordered_json object{
      {"format", "copus-calibration"},
      {"version", calibration_file_version},
      {"calibration", report.fit.calibration.value},
      {"calibration_low", report.fit.calibration.low},
      {"calibration_high", report.fit.calibration.high},
      {"alpha", report.alpha},
      {"critical_updates", report.updates},
      {"critical_batches", nlohmann::ordered_json::array()},
      {"deviation", report.fit.deviation},
      {"free_fit",
       {{"calibration", to_object(report.fit.free_calibration)}, {"alpha", to_object(report.fit.free_alpha)}}},
      {"rate_exponent", nullptr},
      {"noise_scale", report.noise_scale},
      {"noise_scale_low", report.noise_scale_low},
      {"noise_scale_high", report.noise_scale_high},
      {"reference_batch", report.reference_batch},
      {"learning_rate", report.learning_rate},
      {"branches", report.branches},
      {"outside", report.outside},
      {"step", report.step},
      {"consumed_samples", report.consumed_samples}};
  for (const MeasuredCriticalBatch& at : report.critical_batches) {
    object["critical_batches"].push_back({{"tokens", at.tokens},
                                          {"noise_scale_tokens", at.noise_scale},
                                          {"critical_batch_tokens", at.critical_batch},
                                          {"deviation", at.deviation}});
  }
  if (report.rate_exponent) object["rate_exponent"] = to_object(*report.rate_exponent);
  return object.dump(2);
}

}  // namespace copus
