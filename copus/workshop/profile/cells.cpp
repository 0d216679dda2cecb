#include "copus/workshop/profile/cells.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>

#include "copus/base/numbers/philox.h"

namespace copus {

namespace {

// Maps configurations to points that are close together if measuring them would give similar information.
std::vector<double> place_of(const Configuration& configuration) {
  const ParallelStrategy& strategy = configuration.strategy;
  std::vector<double> place;
  const auto add = [&](int64_t size) { place.push_back(std::log2(static_cast<double>(size))); };
  for (const MeshAxisInfo& axis : mesh_axes) add(strategy.*axis.degree);
  for (const int64_t size : {strategy.virtual_stages, configuration.micro_batch, configuration.num_microbatches()}) {
    add(size);
  }
  for (const bool is_so :
       {strategy.sequence_parallel, strategy.zero_stage >= 1, strategy.zero_stage >= 2, strategy.zero_stage == 3,
        strategy.schedule == PipelineSchedule::gpipe, strategy.schedule == PipelineSchedule::zb_h1,
        strategy.recompute == Recompute::attention, strategy.recompute == Recompute::full}) {
    place.push_back(is_so ? 1 : 0);
  }
  return place;
}

double squared_distance(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += (a[i] - b[i]) * (a[i] - b[i]);
  return sum;
}

}  // namespace

std::vector<Configuration> choose_cells(const std::vector<Configuration>& candidates, int64_t count, uint64_t seed) {
  std::vector<Configuration> chosen;
  if (candidates.empty()) return chosen;
  std::vector<std::vector<double>> places;
  std::transform(candidates.begin(), candidates.end(), std::back_inserter(places), place_of);
  std::vector<double> distances(candidates.size(), std::numeric_limits<double>::infinity());
  size_t next = philox(stream_key(seed, "cells of a profile"), 0, 0)[0] % candidates.size();
  const size_t wanted = std::min(static_cast<size_t>(count), candidates.size());
  while (chosen.size() < wanted) {
    chosen.push_back(candidates[next]);
    for (size_t i = 0; i < places.size(); ++i) {
      distances[i] = std::min(distances[i], squared_distance(places[i], places[next]));
    }
    distances[next] = -1;
    next = static_cast<size_t>(std::max_element(distances.begin(), distances.end()) - distances.begin());
  }
  return chosen;
}

}  // namespace copus
