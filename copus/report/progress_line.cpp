#include "copus/report/progress_line.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "copus/base/error.h"
#include "copus/base/units.h"

namespace copus {
namespace {

constexpr std::string_view gap = "  ";

std::string step_text(const ProgressState& state) {
  return state.total_steps > 0 ? concat("step ", state.record.step, "/", state.total_steps)
                               : concat("step ", state.record.step);
}

double fraction(const ProgressState& state) {
  return std::isfinite(state.fraction_done) ? std::clamp(state.fraction_done, 0.0, 1.0) : 0.0;
}

// Percentage of the run that is done, rounded down: 100% means done.
std::string percent_text(const ProgressState& state) {
  return format_number("%3.0f%%", std::floor(100 * fraction(state)));
}

std::string loss_text(const char* name, const std::optional<double>& loss) {
  return loss ? name + format_number(" %.3f", *loss) : concat(name, " -");
}

std::string eta_text(const ProgressState& state) {
  return state.eta_seconds < 0 ? "" : concat(time_left_text(state.eta_seconds), " left");
}

std::string noise_scale_part(const ProgressState& state) {
  const std::string text = noise_scale_text(state.record);
  return text.empty() ? "" : concat("noise scale ", text);
}

std::string critical_batch_text(const ProgressState& state) {
  return state.record.critical_batch ? concat("B_c ", samples_text(*state.record.critical_batch)) : "";
}

std::string efficiency_text(const ProgressState& state) {
  return state.record.statistical_efficiency ? format_number("SE %.0f%%", 100 * *state.record.statistical_efficiency)
                                             : "";
}

}  // namespace

std::string progress_bar(double done, size_t width) {
  const size_t cells = width - 2;
  const auto full = static_cast<size_t>(done * static_cast<double>(cells));
  std::string text(cells, ' ');
  std::fill_n(text.begin(), full, '=');
  if (full < cells) text[full] = '>';
  return concat("[", text, "]");
}

std::string noise_scale_text(const StepRecord& record) {
  if (record.noise_scale) {
    std::string text = samples_text(*record.noise_scale);
    if (record.noise_scale_low && record.noise_scale_high) {
      text += concat(" (", samples_text(*record.noise_scale_low), "-", samples_text(*record.noise_scale_high), ")");
    }
    return text;
  }
  const bool bounded = record.noise_scale_low && *record.noise_scale_low > 0;
  return bounded ? concat(">", samples_text(*record.noise_scale_low)) : "";
}

std::string time_left_text(double seconds) {
  return seconds < 59.5 ? format_number("%.0f s", seconds) : format_duration(std::round(seconds));
}

std::string samples_text(double samples) {
  return std::abs(samples) < 9.95 ? format_number("%.2g", samples)
                                  : format_count(std::abs(samples) < 999.5 ? std::round(samples) : samples);
}

std::string live_line(const ProgressState& state, int width) {
  // Step of the bar's size, which is coarse so that the bar does not jump when a number gets a digit longer.
  constexpr size_t bar_step = 10;
  constexpr size_t largest_bar = 30;
  struct Part {
    int importance;  // 1: gets room first
    std::string text;
  };
  // Parts in the order in which they are shown.
  const std::vector<Part> parts{
      {2, percent_text(state)},
      {1, step_text(state)},
      {3, loss_text("loss", state.loss)},
      {6, state.record.held_out_loss ? loss_text("held-out", state.record.held_out_loss) : ""},
      {7, noise_scale_part(state)},
      {9, critical_batch_text(state)},
      {8, efficiency_text(state)},
      {10, format_count(static_cast<double>(state.record.consumed_tokens)) + " tokens"},
      {5, format_rate(state.tokens_per_second, "tokens")},
      {4, eta_text(state)}};
  const auto room = static_cast<size_t>(std::max(width, 1));
  std::vector<bool> shown(parts.size(), false);
  size_t used = 0;
  for (int importance = 1; importance <= static_cast<int>(parts.size()); ++importance) {
    const auto part =
        std::find_if(parts.begin(), parts.end(), [&](const Part& p) { return p.importance == importance; });
    if (part->text.empty()) continue;
    const size_t needed = part->text.size() + (used > 0 ? gap.size() : 0);
    if (used + needed > room) break;
    used += needed;
    shown[part - parts.begin()] = true;
  }
  std::string line;
  const size_t bar_width = std::min((room - std::min(room, used + 1)) / bar_step * bar_step, largest_bar);
  if (bar_width > 0) line = progress_bar(fraction(state), bar_width);
  for (size_t i = 0; i < parts.size(); ++i) {
    if (!shown[i]) continue;
    if (!line.empty()) line += i == 0 ? std::string_view(" ") : gap;
    line += parts[i].text;
  }
  return line.substr(0, room);
}

std::string plain_line(const ProgressState& state) {
  std::string line = concat(step_text(state), gap, percent_text(state), gap, loss_text("loss", state.loss), gap);
  if (state.record.held_out_loss) line += concat(loss_text("held-out", state.record.held_out_loss), gap);
  line += concat("lr ", format_number("%.2e", state.record.lr), gap, "grad norm ",
                 format_number("%.3g", state.record.grad_norm), gap);
  for (const std::string& text : {noise_scale_part(state), critical_batch_text(state), efficiency_text(state)}) {
    if (!text.empty()) line += concat(text, gap);
  }
  line += concat(format_count(static_cast<double>(state.record.consumed_tokens)), " tokens", gap,
                 format_rate(state.tokens_per_second, "tokens"));
  if (const std::string eta = eta_text(state); !eta.empty()) line += concat(gap, eta);
  return line;
}

}  // namespace copus
