#include "copus/report/decision_log.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <functional>
#include <utility>

#include "copus/base/error.h"
#include "copus/report/write_all.h"

namespace copus {
namespace {

// Calls visit(event, offset behind its line) for every whole line until it returns false.
void for_each_event(const std::filesystem::path& path, const std::function<bool(DecisionEvent, int64_t)>& visit) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw UserError(concat(path.string(), ": cannot be opened: ", std::strerror(errno), "."));
  int64_t line_number = 0, offset = 0;
  for (std::string line; std::getline(file, line) && !file.eof();) {
    ++line_number;
    offset += static_cast<int64_t>(line.size()) + 1;
    std::optional<DecisionEvent> event;
    try {
      event = decision_event_from_line(line);
    } catch (const UserError& error) {
      throw UserError(concat(path.string(), ", line ", line_number, ": damaged: ", error.what(),
                             ". Expected one JSON object for each event of a run that adapts."));
    }
    if (!visit(std::move(*event), offset)) return;
  }
}

}  // namespace

int64_t step_of(const DecisionEvent& event) {
  if (const auto* report = std::get_if<SwitchReport>(&event)) return report->after_step;
  return std::visit(
      [](const auto& alternative) {
        if constexpr (requires { alternative.step; }) return alternative.step;
        return int64_t{0};
      },
      event);
}

DecisionLog::DecisionLog(const std::filesystem::path& run_dir, std::optional<int64_t> resume_after_step)
    : path_(run_dir / "decisions.jsonl"),
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
    if (!resume_after_step) return;
    for_each_event(path_, [&](const DecisionEvent& event, int64_t end) {
      if (step_of(event) > *resume_after_step) return false;
      size_ = end;
      return true;
    });
    if (ftruncate(descriptor_, size_) != 0) {
      throw UserError(
          concat(path_.string(), ": cannot be cut behind step ", *resume_after_step, ": ", std::strerror(errno), "."));
    }
  } catch (...) {
    close(descriptor_);
    throw;
  }
}

DecisionLog::~DecisionLog() { close(descriptor_); }

void DecisionLog::append(const DecisionEvent& event) {
  const std::string line = to_line(event) + '\n';
  if (write_all(descriptor_, line) < line.size()) {
    const int error = errno;
    // If even this fails, resuming cuts the half line.
    [[maybe_unused]] const int ignored = ftruncate(descriptor_, size_);
    throw UserError(concat(path_.string(), ": what happened after step ", step_of(event), " cannot be written: ",
                           std::strerror(error), ". Make room on the disk, then continue the run with --resume."));
  }
  size_ += static_cast<int64_t>(line.size());
}

std::vector<DecisionEvent> read_decision_log(const std::filesystem::path& path) {
  std::vector<DecisionEvent> events;
  if (!std::filesystem::exists(path)) return events;
  for_each_event(path, [&](DecisionEvent event, int64_t) {
    events.push_back(std::move(event));
    return true;
  });
  return events;
}

}  // namespace copus
