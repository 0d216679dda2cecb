// How far a command is that computes for long without printing: a line on standard error, which leaves its output as it
// is.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace copus {

// Where the lines go, and how often.
struct ProgressPlace {
  int descriptor = 2;
  bool is_terminal = false;  // one line is written over then; elsewhere lines follow one another
  // Elsewhere the first line comes after so long, and every next one after twice the time of the last, or a minute.
  std::chrono::duration<double> first_line{5};
};
// Standard error as this process has it.
ProgressPlace standard_error();

// Not for several threads.
class CommandProgress {
 public:
  // `unit`: what is counted, "batches"; `total`: how many there are.
  CommandProgress(std::string unit, int64_t total, const ProgressPlace& place = standard_error());
  ~CommandProgress();  // takes the line off a terminal
  CommandProgress(const CommandProgress&) = delete;
  CommandProgress& operator=(const CommandProgress&) = delete;

  // Call often, with how many are done; it shows them when it is time.
  void show(int64_t done);

 private:
  using Clock = std::chrono::steady_clock;

  std::string unit_;
  int64_t total_;
  ProgressPlace place_;
  Clock::time_point begin_, next_;
  bool is_live_ = false;  // there is a line on the terminal
};

// "12 of 32 batches, 40 s left"; without a time where nothing is done yet.
std::string command_progress_text(const std::string& unit, int64_t done, int64_t total, double seconds_so_far);

}  // namespace copus
