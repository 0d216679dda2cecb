#include "copus/placement/stages.h"

#include <algorithm>
#include <functional>

#include "copus/base/error.h"

namespace copus {
namespace {

// Returns the number of layers of each stage if the last one gets `last`. The other stages get the remaining layers, as
// evenly as possible, and the earliest of them get the remainder.
std::vector<int64_t> share_layers(int64_t num_layers, int64_t num_stages, int64_t last) {
  std::vector<int64_t> sizes;
  for (int64_t stage = 0; stage + 1 < num_stages; ++stage) {
    const int64_t others = num_stages - 1;
    sizes.push_back((num_layers - last) / others + (stage < (num_layers - last) % others ? 1 : 0));
  }
  sizes.push_back(last);
  return sizes;
}

}  // namespace

TrainingFlops training_flops(const ModelDescription& model, int64_t sequence_length) {
  ModelDescription part = model;
  part.num_layers = 0;
  const double head = training_flops_per_token(part, sequence_length);
  part.num_layers = 1;
  return {.layer = training_flops_per_token(part, sequence_length) - head, .head = head};
}

std::vector<LayerRange> balance_stages(const ModelDescription& model, int64_t sequence_length, int64_t num_stages) {
  COPUS_CHECK(num_stages >= 1 && num_stages <= model.num_layers, num_stages, " stages, ", model.num_layers, " layers");

  const TrainingFlops flops = training_flops(model, sequence_length);
  // Every layer costs the same, so the number of layers in the last stage, the only one that differs, determines the
  // rest. Trying every number is exact.
  std::vector<int64_t> best_sizes;
  std::vector<double> best_costs;
  const int64_t most = model.num_layers - (num_stages - 1);
  for (int64_t last = num_stages == 1 ? most : 1; last <= most; ++last) {
    std::vector<int64_t> sizes = share_layers(model.num_layers, num_stages, last);
    std::vector<double> costs;
    for (const int64_t size : sizes) costs.push_back(static_cast<double>(size) * flops.layer);
    costs.back() += flops.head;
    std::sort(costs.begin(), costs.end(), std::greater<>());
    if (best_sizes.empty() || costs < best_costs) {
      best_sizes = std::move(sizes);
      best_costs = std::move(costs);
    }
  }

  std::vector<LayerRange> stages;
  int64_t begin = 0;
  for (const int64_t size : best_sizes) {
    stages.push_back({begin, begin + size});
    begin += size;
  }
  return stages;
}

}  // namespace copus
