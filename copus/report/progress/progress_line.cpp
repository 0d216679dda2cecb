#include "copus/report/progress/progress_line.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "copus/base/error.h"
#include "copus/base/text/units.h"
#include "copus/description/configuration_text.h"

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

// The finished percentage of the run, rounded down: 100% means done.
std::string percent_text(const ProgressState& state) {
  return format_number("%3.0f%%", std::floor(100 * fraction(state)));
}

// The columns that step numbers need until the end of the run or, if that is unknown, for some time.
size_t step_columns(const ProgressState& state) {
  ProgressState last = state;
  last.record.step = state.total_steps > 0 ? state.total_steps : 1000;
  return step_text(last).size();
}

// A loss of 10 or more, as at the start with a large vocabulary, takes as many columns as a smaller loss.
std::string loss_text(const char* name, const std::optional<double>& loss) {
  if (!loss) return concat(name, " -");
  return name + format_number(*loss < 9.9995 ? " %.3f" : " %.2f", *loss);
}

// The batch and the degrees of parallelism; empty if the step does not report them.
std::string configuration_text(const StepRecord& record) {
  return record.global_batch > 0 ? concat(to_string(record.strategy), ",B=", record.global_batch) : "";
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

std::string LiveLine::text(const ProgressState& state, int width) {
  // The bar's size is a multiple of this, so that the bar does not jump when a number gets a digit longer.
  constexpr size_t bar_step = 10;
  constexpr size_t largest_bar = 30;
  constexpr size_t rate_columns = 15;  // "45.3 k tokens/s"
  struct Part {
    int importance;  // 1: gets space first
    std::string text;
    size_t least_columns = 0;
  };
  // Parts in their order on the line.
  const std::vector<Part> parts{
      {6, percent_text(state)},
      {1, step_text(state), step_columns(state)},
      {3, configuration_text(state.record)},
      {2, loss_text("loss", state.loss)},
      {7, state.record.held_out_loss ? loss_text("held-out", state.record.held_out_loss) : ""},
      {8, noise_scale_part(state)},
      {10, critical_batch_text(state)},
      {9, efficiency_text(state)},
      {11, format_count(static_cast<double>(state.record.consumed_tokens)) + " tokens"},
      {5, format_rate(state.tokens_per_second, "tokens"), rate_columns},
      {4, eta_text(state)}};
  widths_.resize(parts.size());
  for (size_t i = 0; i < parts.size(); ++i) {
    if (!parts[i].text.empty()) widths_[i] = std::max({widths_[i], parts[i].text.size(), parts[i].least_columns});
  }
  const auto room = static_cast<size_t>(std::max(width, 1));
  std::vector<bool> shown(parts.size(), false);
  size_t used = 0;
  for (int importance = 1; importance <= static_cast<int>(parts.size()); ++importance) {
    const auto part =
        std::find_if(parts.begin(), parts.end(), [&](const Part& p) { return p.importance == importance; });
    const size_t columns = widths_[part - parts.begin()];
    if (columns == 0) continue;
    const size_t needed = columns + (used > 0 ? gap.size() : 0);
    if (used + needed > room) break;
    used += needed;
    shown[part - parts.begin()] = true;
  }
  std::string line;
  const size_t bar_width = std::min((room - std::min(room, used + gap.size())) / bar_step * bar_step, largest_bar);
  if (bar_width > 0) line = progress_bar(fraction(state), bar_width);
  for (size_t i = 0; i < parts.size(); ++i) {
    if (!shown[i]) continue;
    if (!line.empty()) line += i == 0 ? std::string_view(" ") : gap;
    line += parts[i].text + std::string(widths_[i] - parts[i].text.size(), ' ');
  }
  line.resize(line.find_last_not_of(' ') + 1);
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
