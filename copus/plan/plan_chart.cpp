#include "copus/plan/plan_chart.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "copus/base/error.h"
#include "copus/base/text/escape_html.h"
#include "copus/base/text/json_text.h"
#include "copus/base/text/units.h"
#include "copus/page/web_page.h"
#include "copus/plan/plan_page_script.h"
#include "copus/plan/plan_report.h"

namespace copus {

namespace {

constexpr double width = 820;
constexpr double height = 440;
constexpr double left = 72;
constexpr double right = 650;  // end of the plot; names are written to the right of it
constexpr double top_edge = 84;
constexpr double bottom = 384;
constexpr double least_label_distance = 17;
constexpr double digit_width = 8;  // large enough for the style's font
constexpr size_t most_lines = 6;   // the number of colours

// Colours that most colour-blind people can distinguish (Okabe & Ito 2008), darker on white and lighter on black. Each
// line also has its own shape.
constexpr const char* style = R"(<style>
.copus-plan { --paper: #ffffff; --ink: #1a1d23; --quiet: #5b6472; --grid: #e4e7ec;
  --c0: #0072b2; --c1: #d55e00; --c2: #008763; --c3: #b5568c; --c4: #8a6d00; --c5: #3d6fd0;
  font: 13px system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif; }
@media (prefers-color-scheme: dark) {
  .copus-plan { --paper: #14171c; --ink: #e6e8ec; --quiet: #a0a9b8; --grid: #2a2f38;
    --c0: #56b4e9; --c1: #ff9248; --c2: #2fd3a0; --c3: #e8a0c8; --c4: #f0e442; --c5: #9db8ff; } }
.copus-plan text { fill: var(--quiet); }
.copus-plan .title { fill: var(--ink); font-size: 16px; font-weight: 600; }
.copus-plan .name { fill: var(--ink); }
.copus-plan .grid { stroke: var(--grid); }
.copus-plan .axis { stroke: var(--quiet); }
.copus-plan .change { stroke: var(--quiet); stroke-dasharray: 4 4; }
.copus-plan .line { fill: none; stroke-width: 2; stroke-linejoin: round; }
.copus-plan .best { stroke: var(--ink); stroke-width: 2; }
</style>
)";

// One shape for each colour, approximately of unit size.
constexpr const char* shapes[most_lines] = {"M-1 0a1 1 0 1 0 2 0a1 1 0 1 0 -2 0z",
                                            "M-.9 -.9h1.8v1.8h-1.8z",
                                            "M0 -1.15L1.1 .85H-1.1z",
                                            "M0 -1.25L1.25 0L0 1.25L-1.25 0z",
                                            "M0 1.15L1.1 -.85H-1.1z",
                                            "M-1.1 -.4h.7v-.7h.8v.7h.7v.8h-.7v.7h-.8v-.7h-.7z"};

std::string fixed(double value) { return format_number("%.1f", value); }

// A layout's throughput by batch.
struct Line {
  ParallelStrategy layout;
  std::map<int64_t, double> speeds;
};

// The layouts that are the fastest at some batch, in order of the batches, then those that come nearest to the fastest.
std::vector<Line> lines_of(const Plan& plan) {
  std::vector<ParallelStrategy> chosen;
  const auto choose = [&](const ParallelStrategy& layout) {
    if (chosen.size() < most_lines && std::find(chosen.begin(), chosen.end(), layout) == chosen.end()) {
      chosen.push_back(layout);
    }
  };
  // The largest ratio of each layout's throughput to the fastest layout's throughput.
  std::map<ParallelStrategy, double> shares;
  for (const BatchPlan& batch : plan.batches) {
    if (!batch.layouts.empty()) choose(batch.layouts.front().layout());
    for (const PlannedConfiguration& row : batch.layouts) {
      double& share = shares[row.layout()];
      share = std::max(share, batch.layouts.front().seconds / row.seconds);
    }
  }
  std::vector<std::pair<double, ParallelStrategy>> others;
  for (const auto& [layout, share] : shares) others.emplace_back(-share, layout);
  std::sort(others.begin(), others.end());
  for (const auto& [unused, layout] : others) choose(layout);

  std::vector<Line> lines;
  for (const ParallelStrategy& layout : chosen) {
    Line& line = lines.emplace_back(Line{layout, {}});
    for (const BatchPlan& batch : plan.batches) {
      for (const PlannedConfiguration& row : batch.layouts) {
        if (row.layout() == layout) line.speeds[batch.global_batch] = row.tokens_per_second_per_gpu;
      }
    }
  }
  return lines;
}

// Returns the logarithm of the batch at which the lines of two layouts cross. If one of the layouts has no line there,
// the result is halfway between the neighbouring batches.
double place_of(const Crossover& change, const std::vector<Line>& lines) {
  const double low = std::log2(change.last_batch);
  const double high = std::log2(change.first_batch);
  const auto speed = [&](const ParallelStrategy& layout, int64_t batch) -> std::optional<double> {
    for (const Line& line : lines) {
      if (line.layout == layout && line.speeds.contains(batch)) return line.speeds.at(batch);
    }
    return std::nullopt;
  };
  const auto from_low = speed(change.from, change.last_batch), from_high = speed(change.from, change.first_batch);
  const auto to_low = speed(change.to, change.last_batch), to_high = speed(change.to, change.first_batch);
  if (!from_low || !from_high || !to_low || !to_high) return (low + high) / 2;
  const double ahead = *from_low - *to_low, behind = *to_high - *from_high;
  return low + (high - low) * (ahead + behind > 0 ? ahead / (ahead + behind) : 0.5);
}

// Chooses 1, 2 or 5 times a power of ten, so that about `wanted` of them fit into `range`.
double tick_distance(double range, int wanted) {
  const double rough = range / wanted;
  const double power = std::pow(10, std::floor(std::log10(rough)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= rough) return factor * power;
  }
  return 10 * power;
}

class Chart {
 public:
  Chart(const PlanQuestion& question, const Plan& plan) : plan_(plan), lines_(lines_of(plan)) {
    COPUS_CHECK(plan.batches.size() >= 2, "a chart over ", plan.batches.size(), " batches");
    double lowest = INFINITY;
    double highest = 0;
    for (const Line& line : lines_) {
      for (const auto& [batch, speed] : line.speeds) {
        lowest = std::min(lowest, speed);
        highest = std::max(highest, speed);
      }
    }
    tick_ = tick_distance(std::max(highest - lowest, 0.1 * highest), 6);
    low_ = std::floor(lowest / tick_) * tick_;
    high_ = std::max(std::ceil(highest / tick_) * tick_, low_ + tick_);
    draw_frame(question);
    draw_changes();
    draw_lines();
    draw_names();
    text_ += "</svg>\n";
  }

  std::string take() { return std::move(text_); }

 private:
  double x(double log2_batch) const {
    const double first = std::log2(plan_.batches.front().global_batch);
    const double last = std::log2(plan_.batches.back().global_batch);
    return left + (right - left) * (log2_batch - first) / (last - first);
  }
  double x(int64_t batch) const { return x(std::log2(batch)); }
  double y(double speed) const { return bottom - (bottom - top_edge) * (speed - low_) / (high_ - low_); }

  template <class... Parts>
  void add(const Parts&... parts) {
    text_ += concat(parts..., "\n");
  }
  void add_text(double at_x, double at_y, const char* anchor, const std::string& text, const char* kind = "quiet") {
    add("<text class=\"", kind, "\" x=\"", fixed(at_x), "\" y=\"", fixed(at_y), "\" text-anchor=\"", anchor, "\">",
        escape_html(text), "</text>");
  }
  void add_line(const char* kind, double x1, double y1, double x2, double y2) {
    add("<line class=\"", kind, "\" x1=\"", fixed(x1), "\" y1=\"", fixed(y1), "\" x2=\"", fixed(x2), "\" y2=\"",
        fixed(y2), "\"/>");
  }
  void add_marker(size_t line, double at_x, double at_y, double size, bool best) {
    // The outline keeps its width when the shape is scaled.
    add("<path", best ? " class=\"best\"" : "", " d=\"", shapes[line], "\" transform=\"translate(", fixed(at_x), " ",
        fixed(at_y), ") scale(", size, ")\" vector-effect=\"non-scaling-stroke\" style=\"fill: var(--c", line, ")\"/>");
  }

  // Shows enough decimals to distinguish adjacent ticks.
  std::string tick_text(double value) const {
    if (tick_ >= 1) return with_commas(value);
    const int decimals = static_cast<int>(std::ceil(-std::log10(tick_)));
    return format_number(concat("%.", decimals, "f").c_str(), value);
  }

  void draw_frame(const PlanQuestion& question) {
    add("<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"copus-plan\" viewBox=\"0 0 ", width, " ", height,
        "\" width=\"", width, "\" height=\"", height, "\" role=\"img\">");
    add("<title>", escape_html(title_of(question)), ": throughput of the best layouts by global batch</title>");
    text_ += style;
    add("<rect width=\"", width, "\" height=\"", height, "\" style=\"fill: var(--paper)\"/>");
    add_text(left, 30, "start", title_of(question), "title");
    add_text(left, 52, "start", "Tokens per second and GPU; outlined: the fastest layout; dashed: where it changes");
    const auto ticks = std::lround((high_ - low_) / tick_);
    for (int64_t i = 0; i <= ticks; ++i) {
      const double value = low_ + static_cast<double>(i) * tick_;
      add_line("grid", left, y(value), right, y(value));
      add_text(left - 8, y(value) + 4, "end", tick_text(value));
    }
    add_line("axis", left, bottom, right, bottom);
    double last_end = -std::numeric_limits<double>::infinity();
    for (const BatchPlan& batch : plan_.batches) {
      const double at = x(batch.global_batch);
      add_line("axis", at, bottom, at, bottom + 5);
      const std::string text = std::to_string(batch.global_batch);
      const double half = digit_width * static_cast<double>(text.size()) / 2;
      if (at - half < last_end + digit_width) continue;
      add_text(at, bottom + 20, "middle", text);
      last_end = at + half;
    }
    add_text((left + right) / 2, bottom + 42, "middle", "Global batch, sequences");
  }

  void draw_changes() {
    for (const Crossover& change : crossovers(plan_)) {
      const double at = x(place_of(change, lines_));
      add_line("change", at, top_edge - 8, at, bottom);
    }
  }

  void draw_lines() {
    for (size_t i = 0; i < lines_.size(); ++i) {
      std::string path;
      bool goes_on = false;
      for (const BatchPlan& batch : plan_.batches) {
        const auto speed = lines_[i].speeds.find(batch.global_batch);
        if (speed != lines_[i].speeds.end()) {
          path += concat(goes_on ? "L" : "M", fixed(x(batch.global_batch)), " ", fixed(y(speed->second)));
        }
        goes_on = speed != lines_[i].speeds.end();
      }
      add("<path class=\"line\" d=\"", path, "\" style=\"stroke: var(--c", i, ")\"/>");
    }
    draw_markers(false);
    draw_markers(true);  // last, so that they cover the others
  }

  // Draws the markers of the layouts that are the fastest at their batch, or of all other layouts.
  void draw_markers(bool of_best) {
    for (size_t i = 0; i < lines_.size(); ++i) {
      for (const BatchPlan& batch : plan_.batches) {
        const auto speed = lines_[i].speeds.find(batch.global_batch);
        if (speed == lines_[i].speeds.end()) continue;
        const bool best = batch.layouts.front().layout() == lines_[i].layout;
        if (best == of_best) add_marker(i, x(batch.global_batch), y(speed->second), best ? 6.5 : 4, best);
      }
    }
  }

  // Writes names to the right of the plot, each near the end of its line, without overlaps.
  void draw_names() {
    std::vector<std::pair<double, size_t>> places;
    for (size_t i = 0; i < lines_.size(); ++i) places.emplace_back(y(lines_[i].speeds.rbegin()->second), i);
    std::sort(places.begin(), places.end());
    for (size_t i = 1; i < places.size(); ++i) {
      places[i].first = std::max(places[i].first, places[i - 1].first + least_label_distance);
    }
    double lowest = bottom;
    for (size_t i = places.size(); i-- > 0; lowest -= least_label_distance) {
      places[i].first = std::min(places[i].first, lowest);
    }
    for (const auto& [place, line] : places) {
      add_marker(line, right + 20, place, 5, false);
      add_text(right + 32, place + 4.5, "start", to_string(lines_[line].layout), "name");
    }
  }

  const Plan& plan_;
  std::vector<Line> lines_;
  double low_ = 0;
  double high_ = 1;
  double tick_ = 1;
  std::string text_;
};

// Returns the input of plan_page.js: {"batches", "layouts": [{"name", "batches", "speeds"}], "fastest": {"batches",
// "speeds", "low", "high"}, "changes": batches}. Speeds are in tokens per second and GPU. low and high are one standard
// deviation from the speed. They are given only for the fastest layout, because errors are mostly common to all
// layouts: error bars for each layout would wrongly suggest that their order is uncertain.
nlohmann::json data_of(const Plan& plan) {
  using nlohmann::json;
  const std::vector<Line> lines = lines_of(plan);
  json layouts = json::array();
  for (const Line& line : lines) {
    json layout{{"name", to_string(line.layout)}, {"batches", json::array()}, {"speeds", json::array()}};
    for (const BatchPlan& batch : plan.batches) {
      const auto speed = line.speeds.find(batch.global_batch);
      layout["batches"].push_back(batch.global_batch);
      layout["speeds"].push_back(speed == line.speeds.end() ? json() : json(speed->second));
    }
    layouts.push_back(std::move(layout));
  }
  json batches = json::array();
  json fastest{{"batches", json::array()}, {"speeds", json::array()}, {"low", json::array()}, {"high", json::array()}};
  for (const BatchPlan& batch : plan.batches) {
    batches.push_back(batch.global_batch);
    if (batch.layouts.empty()) continue;
    const PlannedConfiguration& row = batch.layouts.front();
    fastest["batches"].push_back(batch.global_batch);
    fastest["speeds"].push_back(row.tokens_per_second_per_gpu);
    fastest["low"].push_back(row.tokens_per_second_per_gpu * std::exp(-row.relative_deviation));
    fastest["high"].push_back(row.tokens_per_second_per_gpu * std::exp(row.relative_deviation));
  }
  json changes = json::array();
  for (const Crossover& change : crossovers(plan)) changes.push_back(std::exp2(place_of(change, lines)));
  return {{"batches", std::move(batches)},
          {"layouts", std::move(layouts)},
          {"fastest", std::move(fastest)},
          {"changes", std::move(changes)}};
}

}  // namespace

std::string to_svg(const PlanQuestion& question, const Plan& plan) { return Chart(question, plan).take(); }

std::string to_html(const PlanQuestion& question, const Plan& plan, int64_t top) {
  std::string body = concat("<h1>", escape_html(title_of(question)),
                            "</h1>\n<div class=\"controls\" id=\"controls\"></div>\n<section class=\"charts\" "
                            "id=\"charts\"><noscript>The chart is drawn by a script in this page; it is switched "
                            "off.</noscript></section>\n<section class=\"card block\"><pre>",
                            escape_html(to_text(question, plan, top)), "</pre></section>\n");
  for (const BatchPlan& batch : plan.batches) {
    if (batch.layouts.empty()) continue;
    Plan one = plan;
    one.batches = {batch};
    body += concat("<details class=\"card\"><summary>Global batch ", batch.global_batch, "</summary><pre>",
                   escape_html(to_text(question, one, top)), "</pre></details>\n");
  }
  return to_html({.title = concat(title_of(question), " - Copus plan"),
                  .body = body,
                  .data = json_text(data_of(plan)),
                  .script = plan_page_js});
}

}  // namespace copus
