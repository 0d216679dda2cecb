#include "copus/placement/stages.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <functional>
#include <numeric>

#include "copus/base/error.h"
#include "copus/base/numbers/philox.h"

namespace copus {
namespace {

using testing::ElementsAre;

ModelDescription model_of(int64_t num_layers, int64_t vocab_size) {
  ModelDescription model;
  model.vocab_size = vocab_size;
  model.hidden_size = 16;
  model.intermediate_size = 32;
  model.num_layers = num_layers;
  model.num_heads = 4;
  model.num_kv_heads = 2;
  model.head_dim = 4;
  return model;
}

std::vector<int64_t> sizes_of(const std::vector<LayerRange>& stages) {
  std::vector<int64_t> sizes;
  for (const LayerRange& stage : stages) sizes.push_back(stage.end - stage.begin);
  return sizes;
}

// Returns the stages' costs, slowest first, by the published formula, independently of balance_stages.
std::vector<double> costs_of(const ModelDescription& model, int64_t sequence_length,
                             const std::vector<int64_t>& sizes) {
  std::vector<double> costs;
  for (size_t i = 0; i < sizes.size(); ++i) {
    const double hidden = 16, query = 16, key_value = 8, intermediate = 32;
    const double layer = 6 * (2 * hidden * query + 2 * hidden * key_value + 3 * hidden * intermediate) +
                         12 * query * static_cast<double>(sequence_length);
    const double head = i + 1 == sizes.size() ? 6 * static_cast<double>(model.vocab_size) * hidden : 0;
    costs.push_back(static_cast<double>(sizes[i]) * layer + head);
  }
  std::sort(costs.begin(), costs.end(), std::greater<>());
  return costs;
}

// Visits all ways to write `total` as a sum of `count` positive numbers.
void for_each_composition(int64_t total, int64_t count, std::vector<int64_t>& sizes,
                          const std::function<void(const std::vector<int64_t>&)>& visit) {
  if (count == 0) {
    if (total == 0) visit(sizes);
    return;
  }
  for (int64_t size = 1; size <= total - (count - 1); ++size) {
    sizes.push_back(size);
    for_each_composition(total - size, count - 1, sizes, visit);
    sizes.pop_back();
  }
}

std::vector<int64_t> best_by_trying_all(const ModelDescription& model, int64_t sequence_length, int64_t num_stages) {
  std::vector<int64_t> best, current;
  for_each_composition(model.num_layers, num_stages, current, [&](const std::vector<int64_t>& sizes) {
    if (best.empty()) best = sizes;
    const auto costs = costs_of(model, sequence_length, sizes);
    const auto best_costs = costs_of(model, sequence_length, best);
    if (costs < best_costs || (costs == best_costs && sizes > best)) best = sizes;
  });
  return best;
}

TEST(Stages, OneStageHoldsEverything) {
  EXPECT_THAT(balance_stages(model_of(5, 1000), 64, 1), ElementsAre(LayerRange{0, 5}));
}

TEST(Stages, EqualLayersAreSharedEquallyWhereTheHeadIsCheap) {
  EXPECT_THAT(balance_stages(model_of(8, 1), 64, 4),
              ElementsAre(LayerRange{0, 2}, LayerRange{2, 4}, LayerRange{4, 6}, LayerRange{6, 8}));
}

TEST(Stages, TheEarliestStagesGetWhatIsOver) {
  EXPECT_THAT(sizes_of(balance_stages(model_of(11, 1), 64, 4)), ElementsAre(3, 3, 3, 2));
}

// At sequences of 64, one layer costs 6 * 2304 + 12 * 16 * 64 = 26112 operations per token, as much as the head with
// this vocabulary.
constexpr int64_t vocabulary_of_a_layer = 272;

// With a window, a layer's operations are not a whole number.
TEST(Stages, TheEarliestStagesGetWhatIsOverAlsoWithAWindow) {
  ModelDescription model = model_of(24, 128256);
  model.architecture = Architecture::mistral;
  model.hidden_size = 4096;
  model.intermediate_size = 14336;
  model.num_heads = 32;
  model.num_kv_heads = 8;
  model.head_dim = 128;
  model.attention_window = 4096;
  for (const auto& [layers, num_stages] : {std::pair(24, 4), {24, 6}, {12, 8}, {32, 7}}) {
    model.num_layers = layers;
    const std::vector<int64_t> sizes = sizes_of(balance_stages(model, 6000, num_stages));
    EXPECT_TRUE(std::is_sorted(sizes.begin(), sizes.end() - 1, std::greater<>())) << testing::PrintToString(sizes);
  }
}

// Only some layers have a window. All operations together are those of training.
TEST(Stages, ModelsWithFullLayersAmongSlidingOnesAreSharedEqually) {
  ModelDescription model = model_of(12, 1);
  model.attention_window = 16;
  model.full_attention_interval = 6;
  EXPECT_THAT(sizes_of(balance_stages(model, 64, 4)), ElementsAre(3, 3, 3, 3));
  const TrainingFlops flops = training_flops(model, 64);
  EXPECT_DOUBLE_EQ(std::accumulate(flops.layers.begin(), flops.layers.end(), flops.head),
                   training_flops_per_token(model, 64));
}

TEST(Stages, TheHeadCountsAsLayers) {
  EXPECT_THAT(sizes_of(balance_stages(model_of(7, vocabulary_of_a_layer), 64, 2)), ElementsAre(4, 3));
  EXPECT_THAT(sizes_of(balance_stages(model_of(7, 3 * vocabulary_of_a_layer), 64, 2)), ElementsAre(5, 2));
  // Sizes 2, 2, 2 would be equally slow because of the head. Of equally fast splits, the one with larger early stages
  // wins.
  EXPECT_THAT(sizes_of(balance_stages(model_of(6, vocabulary_of_a_layer), 64, 3)), ElementsAre(3, 2, 1));
}

TEST(Stages, AHeadThatOutweighsEverythingLeavesTheOthersEven) {
  EXPECT_THAT(sizes_of(balance_stages(model_of(10, 100 * vocabulary_of_a_layer), 64, 4)), ElementsAre(3, 3, 3, 1));
}

TEST(Stages, IsAsGoodAsTheBestOfAllCuts) {
  for (uint64_t trial = 0; trial < 300; ++trial) {
    const auto random = philox(stream_key(1, "stages"), 0, trial);
    const int64_t num_layers = 1 + random[0] % 10;
    const int64_t num_stages = 1 + random[1] % num_layers;
    const int64_t sequence_length = 1 + random[2] % 200;
    const ModelDescription model = model_of(num_layers, 1 + random[3] % 2000);
    EXPECT_EQ(sizes_of(balance_stages(model, sequence_length, num_stages)),
              best_by_trying_all(model, sequence_length, num_stages))
        << num_layers << " layers, " << num_stages << " stages, vocabulary " << model.vocab_size;
  }
}

TEST(Stages, MoreStagesThanLayersAreOurMistake) { EXPECT_THROW(balance_stages(model_of(3, 10), 64, 4), InternalError); }

}  // namespace
}  // namespace copus
