#include "copus/report/logs/line_log.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <utility>
#include <vector>

#include "copus/base/error.h"
#include "copus/base/files/durable_file.h"
#include "copus/base/files/regular_file.h"
#include "copus/base/files/write_all.h"
#include "copus/base/files/write_error.h"

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

LineLog::LineLog(std::filesystem::path path, std::optional<int64_t> resume_after_step, const StepOfLine& step_of_line,
                 Lock lock, const LineSearch::NumberOfLine& number_of)
    : path_(std::move(path)), lock_(lock) {
  // Also opened for reading, because put_back() copies the content.
  const OpenedFile file = open_regular_file(path_, O_RDWR | O_APPEND | O_CREAT | (resume_after_step ? 0 : O_EXCL));
  if (file.descriptor < 0) {
    if (file.error_number == EEXIST) {
      throw UserError(concat(path_.string(), ": there is a log of a run already. Continue that run with --resume, or ",
                             "choose another run directory."));
    }
    throw UserError(concat(path_.string(), ": cannot be opened for writing: ", file.error, "."));
  }
  descriptor_ = file.descriptor;
  try {
    lock_file(descriptor_);
    if (resume_after_step) cut_behind(*resume_after_step, step_of_line, number_of);
    sync_directory(std::filesystem::absolute(path_).parent_path());
  } catch (...) {
    close(descriptor_);
    throw;
  }
}

LineLog::~LineLog() { close(descriptor_); }

// Locks the file, because two processes in one run directory would mix their lines. On network file systems without
// locks, the log is used unlocked.
void LineLog::lock_file(int descriptor) const {
  if (lock_ == Lock::none || lock_as_writer(descriptor)) return;
  throw UserError(concat(path_.string(), ": another process is writing this run. Wait for it, or stop it first."));
}

bool LineLog::is_in_place() const { return is_file_at(descriptor_, path_); }

void LineLog::put_back() {
  if (is_in_place()) return;
  const OpenedFile file = open_regular_file(path_, O_RDWR | O_APPEND | O_CREAT | O_EXCL);
  if (file.descriptor < 0) throw UserError(concat(path_.string(), ": cannot be made again: ", file.error));
  try {
    lock_file(file.descriptor);
    copy_lines_to(file.descriptor);
  } catch (...) {
    unlink(path_.c_str());
    close(file.descriptor);
    throw;
  }
  close(std::exchange(descriptor_, file.descriptor));
  sync();
  sync_directory(path_.has_parent_path() ? path_.parent_path() : ".");
}

void LineLog::copy_lines_to(int descriptor) const {
  std::array<char, size_t{64} << 10> piece;
  for (int64_t copied = 0; copied < size_;) {
    const auto wanted = static_cast<size_t>(std::min<int64_t>(std::ssize(piece), size_ - copied));
    const ssize_t count = pread(descriptor_, piece.data(), wanted, copied);
    const bool is_copied =
        count > 0 && write_all(descriptor, {piece.data(), static_cast<size_t>(count)}) == static_cast<size_t>(count);
    if (!is_copied) throw UserError(concat(path_.string(), ": cannot be made again: ", std::strerror(errno)));
    copied += count;
  }
}

void LineLog::cut_behind(int64_t step, const StepOfLine& step_of_line, const LineSearch::NumberOfLine& number_of) {
  uint64_t begin = 0;
  if (number_of) {
    LineSearch search(path_);
    const uint64_t cut = search.first_at_least(step + 1, number_of);
    const auto checked = cut > bytes_to_check ? search.line_from(cut - bytes_to_check) : std::nullopt;
    if (checked) begin = checked->begin;
  }
  size_ = static_cast<int64_t>(begin);
  bool follows_unread = begin > 0;
  for_each_line_from(begin, path_, [&](const std::string& line) {
    if (step_of_line(line, std::exchange(follows_unread, false)) > step) return false;
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
    // Removes the half-written line. If even this fails, a resumed run removes it.
    [[maybe_unused]] const int ignored = ftruncate(descriptor_, size_);
    throw WriteError(concat(path_.string(), ": ", what,
                            " cannot be written: ", write_error_text(error, size_ + whole_line.size(), path_)));
  }
  size_ += std::ssize(whole_line);
}

void LineLog::sync() {
  // File systems that have nothing to sync may return EINVAL.
  if (fdatasync(descriptor_) != 0 && errno != EINVAL) {
    throw WriteError(
        concat(path_.string(), ": cannot be synced to the disk: ", std::strerror(errno), "; look after the disk"));
  }
}

namespace {

// Calls visit(line) for every whole line after `begin` until visit returns false. `in_cut_line`: `begin` is inside a
// line, which is skipped. `where` is a text that follows the number of a line in a message.
void read_lines(InputFile& file, uint64_t begin, bool in_cut_line, const std::filesystem::path& path,
                const std::string& where, const std::function<bool(const std::string& line)>& visit) {
  if (begin > 0) file.skip_to(begin);
  int64_t line_number = 0;
  const auto visit_line = [&](const std::string& line) {
    ++line_number;
    if (std::exchange(in_cut_line, false)) return true;
    try {
      return visit(line);
    } catch (const UserError& error) {
      throw UserError(concat(path.string(), ", line ", line_number, where, ": damaged: ", error.what()));
    }
  };
  std::string line;  // the part read so far
  std::vector<char> piece(size_t{64} << 10);
  while (const size_t count = file.read(piece)) {
    std::string_view rest(piece.data(), count);
    for (size_t end; (end = rest.find('\n')) != std::string_view::npos; rest.remove_prefix(end + 1)) {
      line += rest.substr(0, end);
      if (!visit_line(line)) return;
      line.clear();
    }
    line += rest;
    if (line.size() > most_text_bytes) {
      throw UserError(concat(path.string(), ", line ", line_number + 1, ": has more than ", most_text_bytes,
                             " bytes; is it the right file?"));
    }
  }
}

}  // namespace

void for_each_line(const std::filesystem::path& path, const std::function<bool(const std::string& line)>& visit,
                   uint64_t last_bytes) {
  InputFile file(path);
  const bool is_cut = file.size() > last_bytes;
  const std::string where = is_cut ? concat(" of its last ", last_bytes, " bytes") : "";
  read_lines(file, is_cut ? file.size() - last_bytes : 0, is_cut, path, where, visit);
}

void for_each_line_from(uint64_t begin, const std::filesystem::path& path,
                        const std::function<bool(const std::string& line)>& visit) {
  InputFile file(path);
  const std::string where = begin > 0 ? concat(" from byte ", begin, " on") : "";
  read_lines(file, begin, /*in_cut_line=*/false, path, where, visit);
}

}  // namespace copus
