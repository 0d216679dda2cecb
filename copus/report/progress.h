// The progress that the user watches while a run trains: one live line, rewritten in place, on a terminal; plain lines
// elsewhere.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string_view>

#include "copus/record/step_record.h"
#include "copus/report/progress_line.h"

namespace copus {

// An exponential moving average, corrected for its start: after one value it is that value. Values that are not finite
// (of skipped steps) are left out.
class SmoothedValue {
 public:
  // `window`: the number of values that the average looks back on, roughly; >= 1.
  explicit SmoothedValue(double window);

  void add(double value);
  std::optional<double> value() const;  // empty before the first finite value

 private:
  double decay_;
  double weighted_sum_ = 0;
  double weight_ = 0;
};

// Shows the progress. Output that cannot be written is dropped: a run does not end because nobody watches it. Not for
// several threads.
class Progress {
 public:
  // Writes to `descriptor`, which stays open and the caller's. `terminal`: isatty(descriptor). `plain_interval`: steps
  // between plain lines.
  Progress(int descriptor, bool terminal, int64_t plain_interval);
  ~Progress();  // calls finish()
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // Call after every step. The live line is rewritten at most ten times a second. `eta_seconds` < 0: not known.
  // `total_steps`: steps of the whole run, shown behind the step; 0: not known beforehand. `has_line`: another process
  // has printed the step's plain line already.
  void step(const StepRecord& record, double fraction_done, double eta_seconds, int64_t total_steps = 0,
            bool has_line = false);

  // Prints a line of its own, above the live line.
  void note(std::string_view text);

  // Shows the last step and leaves the cursor on a new line. Later steps start a new live line.
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
  bool pending_ = false;  // the last step is not shown yet
  bool live_ = false;     // the cursor is on the live line, at its beginning
  std::chrono::steady_clock::time_point next_draw_;
};

}  // namespace copus
