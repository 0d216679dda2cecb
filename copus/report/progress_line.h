// The text of progress lines, apart from where and how often they are shown.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace copus {

struct ProgressState {
  int64_t step = 0;
  int64_t total_steps = 0;  // 0: not known
  double fraction_done = 0;
  int64_t consumed_tokens = 0;
  std::optional<double> loss;  // smoothed
  std::optional<double> held_out_loss;
  double lr = 0;
  double grad_norm = 0;
  double tokens_per_second = 0;
  std::optional<double> noise_scale;  // in samples, with the ends of its interval; the lower one may be known alone
  std::optional<double> noise_scale_low;
  std::optional<double> noise_scale_high;
  std::optional<double> critical_batch;  // in samples
  std::optional<double> statistical_efficiency;
  double eta_seconds = -1;  // < 0: not known
};

// One line of at most `width` columns, all ASCII: a bar if there is room for it, and as many of the numbers as fit,
// the most important first.
std::string live_line(const ProgressState& state, int width);

// One line with everything.
std::string plain_line(const ProgressState& state);

}  // namespace copus
