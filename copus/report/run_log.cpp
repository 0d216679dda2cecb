#include "copus/report/run_log.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <functional>
#include <string>
#include <utility>

#include "copus/base/error.h"
#include "copus/report/json_fields.h"
#include "copus/report/write_all.h"

namespace copus {
namespace {

template <class Record, class Visitor>
void fields(Record& record, Visitor&& visit) {
  visit("step", record.step);
  visit("consumed_samples", record.consumed_samples);
  visit("consumed_tokens", record.consumed_tokens);
  visit("loss", record.loss);
  visit("lr", record.lr);
  visit("grad_norm", record.grad_norm);
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

// Calls visit(record, offset behind its line) for every whole line until it returns false.
void for_each_record(const std::filesystem::path& path, const std::function<bool(StepRecord, int64_t)>& visit) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw UserError(concat(path.string(), ": cannot be opened: ", std::strerror(errno), "."));
  int64_t line_number = 0;
  int64_t offset = 0;
  for (std::string line; std::getline(file, line) && !file.eof();) {
    ++line_number;
    offset += static_cast<int64_t>(line.size()) + 1;
    StepRecord record;
    try {
      const auto object = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
      fields(record, JsonFieldReader(object));
    } catch (const UserError& error) {
      throw UserError(concat(path.string(), ", line ", line_number, ": damaged: ", error.what(),
                             ". Expected one JSON object for each training step. Remove this line to go on."));
    }
    if (!visit(std::move(record), offset)) return;
  }
}

}  // namespace

RunLog::RunLog(const std::filesystem::path& run_dir, std::optional<int64_t> resume_after_step)
    : path_(run_dir / "run.jsonl"),
      descriptor_(
          open(path_.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | (resume_after_step ? 0 : O_EXCL), 0666)) {
  if (descriptor_ < 0) {
    if (errno == EEXIST) {
      throw UserError(concat(path_.string(), ": there is a log of a run already. Continue that run with --resume, or ",
                             "choose another run directory."));
    }
    throw UserError(concat(path_.string(), ": cannot be opened for writing: ", std::strerror(errno), "."));
  }
  try {
    // Two processes in one run directory would mix their lines. (Some network file systems cannot lock: then not.)
    if (flock(descriptor_, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
      throw UserError(concat(path_.string(), ": another process is writing this run. Wait for it, or stop it first."));
    }
    if (resume_after_step) {
      for_each_record(path_, [&](const StepRecord& record, int64_t end) {
        if (record.step > *resume_after_step) return false;
        size_ = end;
        return true;
      });
      if (ftruncate(descriptor_, size_) != 0) {
        throw UserError(concat(path_.string(), ": cannot be cut behind step ", *resume_after_step, ": ",
                               std::strerror(errno), "."));
      }
    }
  } catch (...) {
    close(descriptor_);
    throw;
  }
}

RunLog::~RunLog() { close(descriptor_); }

void RunLog::append(const StepRecord& record) {
  JsonFieldWriter writer;
  fields(record, writer);
  const std::string line = writer.object().dump() + '\n';
  if (write_all(descriptor_, line) < line.size()) {
    const int error = errno;
    // If even this fails, resuming cuts the half line.
    [[maybe_unused]] const int ignored = ftruncate(descriptor_, size_);
    throw UserError(concat(path_.string(), ": step ", record.step, " cannot be written: ", std::strerror(error),
                           ". Make room on the disk, then continue the run with --resume."));
  }
  size_ += static_cast<int64_t>(line.size());
}

std::vector<StepRecord> read_run_log(const std::filesystem::path& path) {
  std::vector<StepRecord> records;
  for_each_record(path, [&](StepRecord record, int64_t) {
    records.push_back(std::move(record));
    return true;
  });
  return records;
}

}  // namespace copus
