#include "copus/report/drawn/page_curves.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <optional>
#include <utility>

#include "copus/base/text/units.h"
#include "copus/description/configuration_text.h"

namespace copus {

namespace {

constexpr double smoothed_share = 0.01;  // as a fraction of the run: how far a smoothed curve averages to either side

struct Point {
  const StepRecord* record;
  double value;
  double smoothed;
};

using ValueOfStep = std::function<std::optional<double>(const StepRecord&)>;

// Points of the steps whose value is known, not yet smoothed.
std::vector<Point> points_of(const std::vector<StepRecord>& records, const ValueOfStep& value_of) {
  std::vector<Point> points;
  for (const StepRecord& record : records) {
    if (const auto value = value_of(record); value && std::isfinite(*value)) points.push_back({&record, *value, 0});
  }
  return points;
}

// Reduces the points to most_points: the first, the last, and the lowest and highest point of each of many equal ranges
// of steps.
std::vector<Point> decimate(std::vector<Point> points, size_t most_points) {
  if (points.size() <= most_points) return points;
  std::vector<Point> kept{points.front()};
  const size_t buckets = most_points / 2 - 1;
  const size_t inner = points.size() - 2;
  for (size_t bucket = 0; bucket < buckets; ++bucket) {
    const auto first = points.begin() + static_cast<ptrdiff_t>(1 + inner * bucket / buckets);
    const auto last = points.begin() + static_cast<ptrdiff_t>(1 + inner * (bucket + 1) / buckets);
    auto [low, high] = std::minmax_element(first, last, [](auto& a, auto& b) { return a.value < b.value; });
    if (high < low) std::swap(low, high);
    kept.push_back(*low);
    if (high != low) kept.push_back(*high);
  }
  kept.push_back(points.back());
  return kept;
}

// Smooths with weights that fall off exponentially to both sides. Unlike an average over earlier steps only, this
// smoothing does not lag behind a falling curve.
void smooth_stretch(std::vector<Point>& points, size_t begin, size_t end, double window) {
  const double decay = 1 - 1 / window;
  std::vector<double> weights(end - begin, 0);
  double sum = 0;
  double weight = 0;
  for (size_t i = begin; i < end; ++i) {
    sum = decay * sum + points[i].value;
    weight = decay * weight + 1;
    points[i].smoothed = sum;
    weights[i - begin] = weight;
  }
  sum = 0;
  weight = 0;
  for (size_t i = end; i-- > begin;) {
    points[i].smoothed = (points[i].smoothed + sum) / (weights[i - begin] + weight);
    sum = decay * (sum + points[i].value);
    weight = decay * (weight + 1);
  }
}

bool same_configuration(const StepRecord& a, const StepRecord& b) {
  return a.global_batch == b.global_batch && a.micro_batch == b.micro_batch && a.strategy == b.strategy;
}

// How a curve is smoothed. The duration of a step jumps at a switch, so an average over both sides of the switch would
// show a ramp that did not exist.
enum class Smoothing { none, over_all, between_switches };

void smooth(std::vector<Point>& points, Smoothing smoothing) {
  const double window = std::max(1.0, smoothed_share * static_cast<double>(points.size()));
  for (size_t begin = 0, end = 0; begin < points.size(); begin = end) {
    end = begin + 1;
    while (end < points.size() &&
           (smoothing == Smoothing::over_all || same_configuration(*points[end - 1].record, *points[end].record))) {
      ++end;
    }
    smooth_stretch(points, begin, end, window);
  }
}

nlohmann::json positions_of(const std::vector<Point>& points) {
  std::vector<const StepRecord*> records;
  records.reserve(points.size());
  for (const Point& point : points) records.push_back(point.record);
  return positions_of(records);
}

class CurveList {
 public:
  CurveList(const std::vector<StepRecord>& records, size_t most_points)
      : records_(records), most_points_(most_points) {}

  void add(const char* name, Smoothing smoothing, const ValueOfStep& value_of) {
    std::vector<Point> points = points_of(records_, value_of);
    if (points.empty()) return;
    if (smoothing != Smoothing::none) smooth(points, smoothing);
    points = decimate(std::move(points), most_points_);
    nlohmann::json curve = positions_of(points);
    for (const Point& point : points) {
      curve["value"].push_back(shortened(point.value));
      if (smoothing != Smoothing::none) curve["smoothed"].push_back(shortened(point.smoothed));
    }
    curves_[name] = std::move(curve);
  }

  // Adds a curve whose value is constant for many steps.
  template <class ToJson>
  void add_steps(const char* name, const ToJson& to_json) {
    std::vector<Point> points;
    for (size_t i = 0; i < records_.size(); ++i) {
      const bool ends = i == 0 || i + 1 == records_.size();
      if (ends || to_json(records_[i]) != to_json(records_[i + 1])) {
        points.push_back({&records_[i], static_cast<double>(i), 0});
      }
    }
    if (points.empty()) return;
    // For a run that changes very often, keeps as many changes as there is room for.
    points = decimate(std::move(points), most_points_);
    nlohmann::json curve = positions_of(points);
    for (const Point& point : points) curve["value"].push_back(to_json(*point.record));
    curves_[name] = std::move(curve);
  }

  // Adds the noise scale with its interval. Bounds of zero carry no information and are omitted.
  void add_noise_scale() {
    const auto value_or_bound = [](const StepRecord& record) -> std::optional<double> {
      if (record.noise_scale) return record.noise_scale;
      return record.noise_scale_low > 0 ? record.noise_scale_low : std::nullopt;
    };
    const std::vector<Point> points = decimate(points_of(records_, value_or_bound), most_points_);
    if (points.empty()) return;
    const auto known = [](const std::optional<double>& value) { return value ? shortened(*value) : nlohmann::json(); };
    nlohmann::json curve = positions_of(points);
    for (const Point& point : points) {
      curve["value"].push_back(known(point.record->noise_scale));
      curve["low"].push_back(known(point.record->noise_scale_low));
      curve["high"].push_back(known(point.record->noise_scale_high));
    }
    curves_["noise_scale"] = std::move(curve);
  }

  // Adds a list of curves, one for each of the first sources of the latest evaluation. They have the same points.
  void add_sources() {
    constexpr size_t most_sources = 8;
    const auto evaluated = [](const StepRecord& record) { return !record.held_out_losses.empty(); };
    const auto latest = std::find_if(records_.rbegin(), records_.rend(), evaluated);
    if (latest == records_.rend()) return;
    nlohmann::json& list = curves_["held_out_sources"] = nlohmann::json::array();
    for (const auto& [source, loss] : latest->held_out_losses) {
      if (list.size() == most_sources) break;
      const auto value_of = [&name = source](const StepRecord& record) -> std::optional<double> {
        const auto found = std::ranges::find(record.held_out_losses, name, &SourceLoss::source);
        return found == record.held_out_losses.end() ? std::nullopt : std::optional(found->loss);
      };
      const std::vector<Point> points = decimate(points_of(records_, value_of), most_points_ / most_sources);
      if (points.empty()) continue;
      nlohmann::json curve = positions_of(points);
      for (const Point& point : points) curve["value"].push_back(shortened(point.value));
      curve["name"] = source;
      list.push_back(std::move(curve));
    }
  }

  nlohmann::json take() { return std::move(curves_); }

 private:
  const std::vector<StepRecord>& records_;
  size_t most_points_;
  nlohmann::json curves_ = nlohmann::json::object();
};

}  // namespace

size_t most_points_of_a_curve(size_t runs) { return std::clamp<size_t>(6000 / std::max<size_t>(runs, 1), 200, 2000); }

nlohmann::json shortened(double value) {
  if (!std::isfinite(value)) return nullptr;
  return std::strtod(format_number("%.6g", value).c_str(), nullptr);
}

nlohmann::json position_of(const StepRecord& record) {
  // With six digits, neighbouring steps of a run of several days would coincide.
  const double seconds = record.elapsed_seconds;
  return {{"step", record.step},
          {"tokens", record.consumed_tokens},
          {"seconds", std::isfinite(seconds) ? nlohmann::json(std::round(1e6 * seconds) / 1e6) : nlohmann::json()}};
}

nlohmann::json positions_of(const std::vector<const StepRecord*>& records) {
  auto lists = nlohmann::json::object();
  for (const char* axis : {"step", "tokens", "seconds"}) {
    auto& list = lists[axis] = nlohmann::json::array();
    for (const StepRecord* record : records) list.push_back(position_of(*record).at(axis));
  }
  return lists;
}

nlohmann::json curves_of(const std::vector<StepRecord>& records, size_t most_points) {
  CurveList curves(records, most_points);
  const auto per_second = [](const StepRecord& record) -> std::optional<double> {
    if (record.step_seconds <= 0) return std::nullopt;
    return static_cast<double>(record.global_batch) / record.step_seconds;
  };
  const auto pause = [](const StepRecord& record) {
    return record.switch_seconds > 0 ? record.switch_seconds : std::nullopt;
  };
  curves.add("loss", Smoothing::over_all, [](const StepRecord& record) { return record.loss; });
  curves.add("held_out_loss", Smoothing::none, [](const StepRecord& record) { return record.held_out_loss; });
  curves.add("learning_rate", Smoothing::none, [](const StepRecord& record) { return record.lr; });
  curves.add("gradient_norm", Smoothing::over_all, [](const StepRecord& record) { return record.grad_norm; });
  curves.add("goodput", Smoothing::between_switches, [](const StepRecord& record) { return record.goodput; });
  curves.add("throughput", Smoothing::between_switches, per_second);
  curves.add("efficiency", Smoothing::none, [](const StepRecord& record) { return record.statistical_efficiency; });
  curves.add("step_seconds", Smoothing::between_switches, [](const StepRecord& record) { return record.step_seconds; });
  curves.add("predicted_step_seconds", Smoothing::none,
             [](const StepRecord& record) { return record.predicted_step_seconds; });
  curves.add("pause", Smoothing::none, pause);
  curves.add("critical_batch", Smoothing::none, [](const StepRecord& record) { return record.critical_batch; });
  curves.add_noise_scale();
  curves.add_sources();
  curves.add_steps("global_batch", [](const StepRecord& record) { return nlohmann::json(record.global_batch); });
  curves.add_steps("micro_batch", [](const StepRecord& record) { return nlohmann::json(record.micro_batch); });
  curves.add_steps("layout", [](const StepRecord& record) { return nlohmann::json(to_string(record.strategy)); });
  return curves.take();
}

}  // namespace copus
