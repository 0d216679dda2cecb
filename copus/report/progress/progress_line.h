// The text of progress lines, independent of where and how often they are shown.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "copus/record/step_record.h"

namespace copus {

struct ProgressState {
  StepRecord record;           // of the latest step; on a live line, with the latest held-out loss
  std::optional<double> loss;  // smoothed, like tokens_per_second
  double tokens_per_second = 0;
  int64_t total_steps = 0;  // 0: unknown
  double fraction_done = 0;
  double eta_seconds = -1;  // < 0: unknown
};

// Makes the successive contents of a run's live line. Numbers do not jump: each has a fixed position, and its column
// may get wider but never narrower.
class LiveLine {
 public:
  // Makes one line of at most `width` columns, all ASCII: as many of the numbers as fit, the most important first, and
  // a bar if there is room for it.
  std::string text(const ProgressState& state, int width);

 private:
  std::vector<size_t> widths_;  // by part of the line
};

// These functions write parts of the line for other views of a run:
// - a progress bar with this many columns, at least 3;
// - the noise scale, "118 (97-142)" with its interval, or ">97" if only the lower end is known; empty if unknown;
// - a duration, "1 min 20 s";
// - a number of samples, with two digits where format_count would round it too coarsely.
std::string progress_bar(double done, size_t width);
std::string noise_scale_text(const StepRecord& record);
std::string time_left_text(double seconds);
std::string samples_text(double samples);

// Makes one line with all numbers.
std::string plain_line(const ProgressState& state);

}  // namespace copus
