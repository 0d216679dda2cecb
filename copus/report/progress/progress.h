// The progress of a run, for the user: on a terminal one live line, rewritten in place; elsewhere plain lines.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string_view>

#include "copus/record/step_record.h"
#include "copus/report/progress/progress_line.h"

namespace copus {

// An exponential moving average, corrected for its start: after the first value it equals that value. Values that are
// not finite, as in skipped steps, are ignored.
class SmoothedValue {
 public:
  // `window`: the approximate number of values that the average covers; >= 1.
  explicit SmoothedValue(double window);

  void add(double value);
  std::optional<double> value() const;  // empty before the first finite value

 private:
  double decay_;
  double weighted_sum_ = 0;
  double weight_ = 0;
};

// Shows the progress. Write errors are ignored, so that a run continues when its terminal is gone. Not thread-safe.
class Progress {
 public:
  // Writes to `descriptor`, which the caller owns and keeps open. `terminal`: whether the descriptor is a terminal
  // (isatty). `plain_interval`: steps between plain lines.
  Progress(int descriptor, bool terminal, int64_t plain_interval);
  ~Progress();  // calls finish()
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // Call this after every step. Rewrites the live line at most ten times per second. `eta_seconds` < 0: unknown.
  // `total_steps`: steps of the whole run, shown after the step's number; 0: unknown. `has_line`: another process has
  // already printed the plain line of this step.
  void step(const StepRecord& record, double fraction_done, double eta_seconds, int64_t total_steps = 0,
            bool has_line = false);

  // Prints a separate line above the live line.
  void note(std::string_view text);

  // Shows the last step and moves the cursor to a new line. Later steps start a new live line.
  void finish();

 private:
  void draw_live_line();
  void print_plain_line();

  int descriptor_;
  bool terminal_;
  int64_t plain_interval_;
  ProgressState state_;
  SmoothedValue loss_;
  SmoothedValue tokens_per_second_;
  LiveLine line_;
  bool pending_ = false;  // the last step has not been shown yet
  bool live_ = false;     // the cursor is on the live line, at its beginning
  std::chrono::steady_clock::time_point next_draw_;
};

}  // namespace copus
