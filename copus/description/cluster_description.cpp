#include "copus/description/cluster_description.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "copus/base/error.h"

namespace copus {

Curve::Curve(std::vector<CurvePoint> points) : points_(std::move(points)) {
  const auto unordered = std::adjacent_find(points_.begin(), points_.end(),
                                            [](const CurvePoint& a, const CurvePoint& b) { return a.at >= b.at; });
  COPUS_CHECK(unordered == points_.end() && (points_.empty() || points_.front().at > 0));
}

double Curve::at(double x) const {
  if (points_.empty()) return 1;
  const auto after =
      std::find_if(points_.begin(), points_.end(), [x](const CurvePoint& point) { return point.at >= x; });
  if (after == points_.begin()) return after->value;
  if (after == points_.end()) return points_.back().value;
  const auto before = std::prev(after);
  const double share = std::log(x / before->at) / std::log(after->at / before->at);
  return before->value + share * (after->value - before->value);
}

bool is_speed_known(const ClusterDescription& cluster) {
  return cluster.flops_per_second > 0 || cluster.device.matmul_flops_per_second > 0;
}

double memory_of_rank(const ClusterDescription& cluster, int64_t ranks) {
  if (cluster.devices_per_node == 0) return cluster.device.memory_bytes;
  const auto on_node = static_cast<double>(std::min(ranks, cluster.ranks_per_node));
  return cluster.device.memory_bytes * static_cast<double>(cluster.devices_per_node) / on_node;
}

}  // namespace copus
