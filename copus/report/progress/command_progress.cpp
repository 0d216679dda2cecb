#include "copus/report/progress/command_progress.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "copus/base/error.h"
#include "copus/base/files/write_all.h"
#include "copus/base/process/terminal_size.h"
#include "copus/report/progress/progress_line.h"

namespace copus {

namespace {

constexpr std::chrono::milliseconds between_draws(100);
constexpr std::chrono::duration<double> longest_silence(60);
constexpr const char* new_live_line = "\r\x1b[K";

}  // namespace

ProgressPlace standard_error() { return {.is_terminal = ::isatty(STDERR_FILENO) == 1}; }

CommandProgress::CommandProgress(std::string unit, int64_t total, const ProgressPlace& place)
    : unit_(std::move(unit)), total_(total), place_(place), begin_(Clock::now()), next_(begin_) {
  if (!place_.is_terminal) next_ += std::chrono::duration_cast<Clock::duration>(place_.first_line);
}

CommandProgress::~CommandProgress() {
  if (is_live_) write_all(place_.descriptor, new_live_line);
}

void CommandProgress::show(int64_t done) {
  const Clock::time_point now = Clock::now();
  if (now < next_) return;
  const std::chrono::duration<double> so_far = now - begin_;
  const std::string text = command_progress_text(unit_, done, total_, so_far.count());
  if (!place_.is_terminal) {
    write_all(place_.descriptor, concat("copus: ", text, "\n"));
    next_ = now + std::chrono::duration_cast<Clock::duration>(std::min(so_far, longest_silence));
    return;
  }
  // Leaves one column free, because a character in the last column makes some terminals start a new line.
  const auto columns = static_cast<size_t>(std::max(terminal_size(place_.descriptor).columns - 1, 1));
  write_all(place_.descriptor, concat(new_live_line, text.substr(0, columns)));
  is_live_ = true;
  next_ = now + between_draws;
}

std::string command_progress_text(const std::string& unit, int64_t done, int64_t total, double seconds_so_far) {
  std::string text = concat(done, " of ", total, " ", unit);
  if (done <= 0) return text;
  const double left = seconds_so_far * static_cast<double>(total - done) / static_cast<double>(done);
  return concat(text, ", ", time_left_text(left), " left");
}

}  // namespace copus
