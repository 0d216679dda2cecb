#include "copus/checkpoint/checkpoint_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>

#include "copus/base/error.h"

namespace copus {
namespace {

using ::testing::ElementsAre;

std::vector<CheckpointTensor> random_tensors(std::mt19937& generator) {
  std::vector<CheckpointTensor> tensors;
  const auto count = static_cast<int64_t>(1 + generator() % 60);
  for (int64_t i = 0; i < count; ++i) {
    const auto rows = static_cast<int64_t>(1 + generator() % (i % 7 == 0 ? 5000 : 100));
    tensors.push_back({.name = concat("t", i), .shape = {rows, 16}, .is_weight = 3 * i < count});
  }
  return tensors;
}

std::map<int64_t, int64_t> bytes_by_writer(const CheckpointPlan& plan) {
  std::map<int64_t, int64_t> bytes;
  for (const CheckpointFile& file : plan.files) {
    for (const int64_t tensor : file.tensors) bytes[file.writer] += plan.tensors[tensor].bytes();
  }
  return bytes;
}

std::vector<std::string> names_of(const CheckpointPlan& plan) {
  std::vector<std::string> names;
  for (const CheckpointFile& file : plan.files) names.push_back(file.name);
  return names;
}

TEST(CheckpointPlan, EveryTensorIsInOneFileWithinTheLimits) {
  std::mt19937 generator(7);
  for (int round = 0; round < 50; ++round) {
    const auto num_ranks = static_cast<int64_t>(1 + generator() % 9);
    const CheckpointLimits limits{.file_bytes = static_cast<int64_t>(1 + generator() % 200'000), .bytes_per_writer = 1};
    const CheckpointPlan plan = plan_checkpoint(random_tensors(generator), num_ranks, limits);
    std::set<int64_t> seen;
    std::set<std::string> names;
    for (const CheckpointFile& file : plan.files) {
      ASSERT_FALSE(file.tensors.empty());
      EXPECT_TRUE(names.insert(file.name).second) << file.name;
      int64_t bytes = 0;
      for (const int64_t tensor : file.tensors) {
        EXPECT_TRUE(seen.insert(tensor).second) << tensor;
        EXPECT_EQ(plan.tensors[tensor].is_weight, file.name.starts_with("model"));
        bytes += plan.tensors[tensor].bytes();
      }
      EXPECT_TRUE(bytes <= limits.file_bytes || file.tensors.size() == 1) << bytes;
    }
    EXPECT_EQ(seen.size(), plan.tensors.size());
  }
}

TEST(CheckpointPlan, NoRankWritesMoreThanItsShareAndOneTensor) {
  std::mt19937 generator(11);
  for (int round = 0; round < 50; ++round) {
    const auto num_ranks = static_cast<int64_t>(1 + generator() % 9);
    std::vector<CheckpointTensor> tensors = random_tensors(generator);
    int64_t largest = 0;
    for (CheckpointTensor& tensor : tensors) {
      largest = std::max(largest, tensor.bytes());
      tensor.at_hand = {0};  // one rank holds everything
    }
    const CheckpointPlan plan = plan_checkpoint(tensors, num_ranks, {.bytes_per_writer = 1});
    for (const auto& [writer, bytes] : bytes_by_writer(plan)) {
      EXPECT_LE(bytes, plan.bytes() / num_ranks + 1 + largest) << "rank " << writer << " of " << num_ranks;
    }
  }
}

TEST(CheckpointPlan, RanksWriteWhatTheyHaveAtHand) {
  std::vector<CheckpointTensor> tensors;
  for (int64_t i = 0; i < 12; ++i) tensors.push_back({.name = concat("t", i), .shape = {100}, .at_hand = {i / 3}});
  const CheckpointPlan plan = plan_checkpoint(tensors, 4, {.bytes_per_writer = 1});
  for (int64_t rank = 0; rank < 4; ++rank) {
    EXPECT_THAT(plan.tensors_of(rank), ElementsAre(3 * rank, 3 * rank + 1, 3 * rank + 2));
  }
}

TEST(CheckpointPlan, AFewBytesAreWrittenByOneRankAsOneFile) {
  ModelDescription model;
  model.vocab_size = 20;
  model.hidden_size = 8;
  model.intermediate_size = 12;
  model.num_layers = 2;
  model.num_heads = 4;
  model.num_kv_heads = 2;
  model.head_dim = 4;
  const CheckpointPlan plan = plan_checkpoint(list_checkpoint_tensors(model, optimizer_slots(OptimizerKind::adamw)), 8);
  EXPECT_THAT(names_of(plan), ElementsAre("model.safetensors", "optimizer-00001-of-00001.safetensors"));
  EXPECT_THAT(plan.writers(), ElementsAre(0));
  EXPECT_EQ(plan.model_index(), "");
  EXPECT_EQ(plan.bytes(), 12 * count_parameters(model));
}

TEST(CheckpointPlan, WritersAreSpreadOverTheRanks) {
  const std::vector<CheckpointTensor> tensors = {{.name = "a", .shape = {1000}}, {.name = "b", .shape = {1000}}};
  const CheckpointPlan plan = plan_checkpoint(tensors, 8, {.bytes_per_writer = 4000});
  EXPECT_THAT(plan.writers(), ElementsAre(0, 4));
  EXPECT_THAT(names_of(plan), ElementsAre("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"));
  EXPECT_NE(plan.model_index().find("\"b\": \"model-00002-of-00002.safetensors\""), std::string::npos);
}

}  // namespace
}  // namespace copus
