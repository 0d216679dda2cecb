#include "copus/report/progress/progress.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "copus/base/error.h"
#include "copus/base/files/write_all.h"
#include "copus/base/process/terminal_size.h"
#include "copus/base/text/printable.h"

namespace copus {
namespace {

constexpr double smoothing_window = 20;  // steps
constexpr auto time_between_draws = std::chrono::milliseconds(100);
constexpr std::string_view erase_from_here = "\x1b[J";  // to the end of the screen

}  // namespace

// Sets the decay so that the mean age of a value in the average is `window` / 2, as in a plain mean over the last
// `window` values.
SmoothedValue::SmoothedValue(double window) : decay_(1 - 2 / (window + 1)) {
  COPUS_CHECK(window >= 1, "window = ", window);
}

void SmoothedValue::add(double value) {
  if (!std::isfinite(value)) return;
  weighted_sum_ = decay_ * weighted_sum_ + (1 - decay_) * value;
  weight_ = decay_ * weight_ + (1 - decay_);
}

std::optional<double> SmoothedValue::value() const {
  return weight_ > 0 ? std::optional(weighted_sum_ / weight_) : std::nullopt;
}

Progress::Progress(int descriptor, bool terminal, int64_t plain_interval)
    : descriptor_(descriptor),
      terminal_(terminal),
      plain_interval_(std::max<int64_t>(plain_interval, 1)),
      loss_(smoothing_window),
      tokens_per_second_(smoothing_window) {}

Progress::~Progress() { finish(); }

void Progress::step(const StepRecord& record, double fraction_done, double eta_seconds, int64_t total_steps,
                    bool has_line) {
  loss_.add(record.loss);
  tokens_per_second_.add(record.tokens_per_second);
  const std::optional<double> latest_held_out_loss = state_.record.held_out_loss;
  state_.record = record;
  if (terminal_ && !record.held_out_loss) state_.record.held_out_loss = latest_held_out_loss;
  state_.loss = loss_.value();
  state_.tokens_per_second = tokens_per_second_.value().value_or(0);
  state_.fraction_done = fraction_done;
  state_.eta_seconds = eta_seconds;
  state_.total_steps = total_steps;
  pending_ = true;
  if (terminal_) {
    if (std::chrono::steady_clock::now() >= next_draw_) draw_live_line();
  } else if (has_line) {
    pending_ = false;
  } else if (record.step % plain_interval_ == 0 || record.held_out_loss) {
    print_plain_line();
  }
}

void Progress::note(std::string_view text) {
  const std::string line = printable(text);
  if (!terminal_) {
    write_all(descriptor_, concat(line, "\n"));
    return;
  }
  const bool was_live = live_;
  write_all(descriptor_, concat(live_ ? "\r" : "", live_ ? erase_from_here : "", line, "\n"));
  live_ = false;
  if (was_live) draw_live_line();
}

void Progress::finish() {
  if (terminal_) {
    if (pending_ || live_) draw_live_line();
    if (live_) write_all(descriptor_, "\n");
    live_ = false;
    next_draw_ = {};
  } else if (pending_) {
    print_plain_line();
  }
}

// Draws the live line and leaves one column free, because a character in the last column makes some terminals start a
// new line. The cursor is at the beginning of the line. Everything after the new text is erased: many terminals rewrap
// lines when they become narrower, so the old line may occupy several rows.
void Progress::draw_live_line() {
  const std::string line = line_.text(state_, terminal_size(descriptor_).columns - 1);
  write_all(descriptor_, concat("\r", line, erase_from_here, "\r"));
  live_ = true;
  pending_ = false;
  next_draw_ = std::chrono::steady_clock::now() + time_between_draws;
}

void Progress::print_plain_line() {
  write_all(descriptor_, plain_line(state_) + "\n");
  pending_ = false;
}

}  // namespace copus
