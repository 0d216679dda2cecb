// Shows the progress of a command that computes for a long time without printing. The progress goes to standard error,
// so that the command's output is unchanged.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace copus {

// Where the lines go, and how often.
struct ProgressPlace {
  int descriptor = 2;
  bool is_terminal = false;  // if so, one line is overwritten; elsewhere lines are appended
  // If the output is not a terminal: the first line appears after this time. Each later interval is twice the previous
  // one, but at most a minute.
  std::chrono::duration<double> first_line{5};
};
// This process's standard error.
ProgressPlace standard_error();

// Not thread-safe.
class CommandProgress {
 public:
  // `unit`: what is counted, such as "batches"; `total`: how many there are.
  CommandProgress(std::string unit, int64_t total, const ProgressPlace& place = standard_error());
  ~CommandProgress();  // erases the line on a terminal
  CommandProgress(const CommandProgress&) = delete;
  CommandProgress& operator=(const CommandProgress&) = delete;

  // Call this often, with the number that is done so far. Prints only when the next line is due.
  void show(int64_t done);

 private:
  using Clock = std::chrono::steady_clock;

  std::string unit_;
  int64_t total_;
  ProgressPlace place_;
  Clock::time_point begin_, next_;
  bool is_live_ = false;  // whether there is a line on the terminal
};

// "12 of 32 batches, 40 s left"; without a time if nothing is done yet.
std::string command_progress_text(const std::string& unit, int64_t done, int64_t total, double seconds_so_far);

}  // namespace copus
