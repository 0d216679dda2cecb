#include "copus/report/line_log.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>

#include "copus/base/durable_file.h"
#include "copus/base/error.h"
#include "copus/base/write_all.h"

namespace copus {

std::string describe(const std::vector<StepSpan>& spans) {
  constexpr size_t most_named = 4;
  std::string text;
  int64_t others = 0;
  for (size_t i = 0; i < spans.size(); ++i) {
    const auto [first, last] = spans[i];
    if (i >= most_named) {
      others += last - first + 1;
      continue;
    }
    text += concat(i == 0 ? "" : ", ", first);
    if (last > first) text += concat(" to ", last);
  }
  if (others > 0) text += concat(" and ", others, others == 1 ? " other" : " others");
  const bool is_one = spans.size() == 1 && spans.front().first == spans.front().last;
  return concat(is_one ? "step " : "steps ", text);
}

int64_t count_steps(const std::vector<StepSpan>& spans) {
  int64_t count = 0;
  for (const auto& [first, last] : spans) count += last - first + 1;
  return count;
}

void StepOrder::add(int64_t step) {
  const bool follows = step > latest_ || (step == latest_ && lines_ == Lines::any_number_a_step);
  if (!follows) {
    throw UserError(concat("it is of step ", step, " and stands behind one of step ", latest_, ". Expected steps in ",
                           lines_ == Lines::one_a_step ? "order, each once" : "order",
                           ". Remove the line that is repeated or out of its place to go on."));
  }
  if (step > latest_ + 1) missing_.push_back({latest_ + 1, step - 1});
  latest_ = step;
}

std::vector<StepSpan> StepOrder::missing_until(int64_t step) const {
  std::vector<StepSpan> missing = missing_;
  if (step > latest_) missing.push_back({latest_ + 1, step});
  return missing;
}

LineLog::LineLog(const std::filesystem::path& path, std::optional<int64_t> resume_after_step,
                 const StepOfLine& step_of_line, Lock lock)
    : path_(path),
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
    // Locks the file, since two processes in one run directory would mix their lines. Network file systems that cannot
    // lock are used without.
    if (lock == Lock::exclusive && flock(descriptor_, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
      throw UserError(concat(path_.string(), ": another process is writing this run. Wait for it, or stop it first."));
    }
    if (resume_after_step) cut_behind(*resume_after_step, step_of_line);
    sync_directory(std::filesystem::absolute(path_).parent_path());
  } catch (...) {
    close(descriptor_);
    throw;
  }
}

LineLog::~LineLog() { close(descriptor_); }

void LineLog::cut_behind(int64_t step, const StepOfLine& step_of_line) {
  for_each_line(path_, [&](const std::string& line) {
    if (step_of_line(line) > step) return false;
    size_ += std::ssize(line) + 1;
    return true;
  });
  if (ftruncate(descriptor_, size_) != 0) {
    throw UserError(concat(path_.string(), ": cannot be cut behind step ", step, ": ", std::strerror(errno), "."));
  }
}

void LineLog::append(const std::string& line, const std::string& what) {
  const std::string whole_line = line + '\n';
  if (write_all(descriptor_, whole_line) < whole_line.size()) {
    const int error = errno;
    // Restores whole lines; if even this fails, resuming cuts the half line.
    [[maybe_unused]] const int ignored = ftruncate(descriptor_, size_);
    throw UserError(concat(path_.string(), ": ", what, " cannot be written: ", std::strerror(error),
                           ". Make room on the disk, then continue the run with --resume."));
  }
  size_ += std::ssize(whole_line);
}

void LineLog::sync() {
  // Some file systems have nothing to sync, and say so by EINVAL.
  if (fdatasync(descriptor_) != 0 && errno != EINVAL) {
    throw UserError(concat(path_.string(), ": cannot be synced to the disk: ", std::strerror(errno),
                           ". Look after the disk, then continue the run with --resume."));
  }
}

void for_each_line(const std::filesystem::path& path, const std::function<bool(const std::string& line)>& visit) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw UserError(concat(path.string(), ": cannot be opened: ", std::strerror(errno), "."));
  int64_t line_number = 0;
  for (std::string line; std::getline(file, line) && !file.eof();) {
    ++line_number;
    try {
      if (!visit(line)) return;
    } catch (const UserError& error) {
      throw UserError(concat(path.string(), ", line ", line_number, ": damaged: ", error.what()));
    }
  }
}

}  // namespace copus
