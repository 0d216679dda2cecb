#include "copus/report/line_log.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>

#include "copus/base/error.h"
#include "copus/base/write_all.h"

namespace copus {

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
