#include "copus/placement/stages.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <utility>

#include "copus/base/error.h"
#include "copus/description/layer_blocks.h"

namespace copus {

TrainingFlops training_flops(const ModelDescription& model, int64_t sequence_length) {
  TrainingFlops flops{.layers = {}, .head = static_cast<double>(6 * model.vocab_size * model.hidden_size)};
  const double attended = attended_tokens(model, sequence_length);
  std::vector<double> of_kind;
  const LayerKinds kinds(model);
  for (const int64_t example : kinds.examples) {
    double& sum = of_kind.emplace_back(0);
    for (const BlockDescription& block : describe_layer(model, example)) {
      sum += static_cast<double>(6 * block.num_weights()) + static_cast<double>(24 * block.score_width) * attended;
    }
  }
  for (const int64_t kind : kinds.of_layer) flops.layers.push_back(of_kind[kind]);
  return flops;
}

std::vector<LayerRange> balance_stages(const ModelDescription& model, int64_t sequence_length, int64_t num_stages) {
  const int64_t layers = model.num_layers;
  COPUS_CHECK(num_stages >= 1 && num_stages <= layers, num_stages, " stages, ", layers, " layers");

  const TrainingFlops flops = training_flops(model, sequence_length);
  // By layer: the cost of all earlier layers, in whole operations. Floating-point sums would make equal stages differ
  // by rounding errors, which would then decide between equally good splits.
  std::vector<int64_t> before(1, 0);
  for (const double layer : flops.layers) before.push_back(before.back() + std::llround(layer));
  // The best split of a stage and all later ones: their costs, slowest first, and where the stage ends.
  struct Choice {
    std::vector<int64_t> costs;
    int64_t end = 0;
  };
  std::vector<std::vector<Choice>> choices(num_stages, std::vector<Choice>(layers));  // by stage and first layer
  for (int64_t begin = num_stages - 1; begin < layers; ++begin) {
    choices.back()[begin] = {{before[layers] - before[begin] + std::llround(flops.head)}, layers};
  }
  for (int64_t stage = num_stages - 1; stage-- > 0;) {
    for (int64_t begin = stage; begin <= layers - (num_stages - stage); ++begin) {
      Choice& best = choices[stage][begin];
      for (int64_t end = begin + 1; end <= layers - (num_stages - stage - 1); ++end) {
        const int64_t cost = before[end] - before[begin];
        if (!best.costs.empty() && cost > best.costs.front()) break;
        std::vector<int64_t> costs = choices[stage + 1][end].costs;
        costs.insert(std::ranges::upper_bound(costs, cost, std::greater<>()), cost);
        // Of equally good ends, the latest makes this stage largest.
        if (best.costs.empty() || costs <= best.costs) best = {std::move(costs), end};
      }
    }
  }

  std::vector<LayerRange> stages;
  for (int64_t begin = 0; std::ssize(stages) < num_stages; begin = stages.back().end) {
    stages.push_back({begin, choices[stages.size()][begin].end});
  }
  return stages;
}

}  // namespace copus
