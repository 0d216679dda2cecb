// Tests the rotation of each scaling type against values from transformers 5.23 (ROPE_INIT_FUNCTIONS).
#include "copus/model/layers/rotary_table.h"

#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <cmath>

namespace copus {
namespace {

ModelDescription model_with(const RopeScaling& scaling, double theta = 10000) {
  ModelDescription model;
  model.num_layers = 4;
  model.head_dim = 16;
  model.max_position_embeddings = 4096;
  model.rope_theta = theta;
  model.rope_scaling = scaling;
  return model;
}

void expect_rotation(const Rotation& rotation, double factor, const std::vector<float>& frequencies) {
  EXPECT_DOUBLE_EQ(rotation.factor, factor);
  ASSERT_EQ(rotation.frequencies.size(), frequencies.size());
  for (size_t j = 0; j < frequencies.size(); ++j) {
    EXPECT_FLOAT_EQ(rotation.frequencies[j], frequencies[j]) << "pair " << j;
  }
}

TEST(RotaryTable, ScalesLinearly) {
  expect_rotation(rotation_of(model_with({.type = RopeType::linear, .factor = 4}), 0, 64), 1,
                  {0.25F, 0.079056941F, 0.0250000004F, 0.00790569466F, 0.00249999994F, 0.000790569466F, 0.000250000012F,
                   7.90569466e-05F});
}

TEST(RotaryTable, ScalesAsYarn) {
  RopeScaling yarn{RopeType::yarn, 8, 1, 32, 512, 1.2079441541679836};  // the default betas and factor
  expect_rotation(
      rotation_of(model_with(yarn), 0, 64), 1.2079441541679836,
      {1, 0.247052938F, 0.0562500022F, 0.01087033F, 0.00124999997F, 0.000395284733F, 0.000125000006F, 3.95284733e-05F});
  yarn.low_frequency_factor = 2;
  yarn.high_frequency_factor = 8;
  expect_rotation(rotation_of(model_with(yarn), 0, 64), 1.2079441541679836,
                  {1, 0.316227764F, 0.100000001F, 0.0177878123F, 0.00124999997F, 0.000395284733F, 0.000125000006F,
                   3.95284733e-05F});
}

// Dynamic scaling starts beyond max_position_embeddings, which no run's sequences exceed.
TEST(RotaryTable, DynamicScalingChangesNothing) {
  EXPECT_EQ(rotation_of(model_with({.type = RopeType::dynamic, .factor = 4}), 0, 4096).frequencies,
            rotation_of(model_with({.type = RopeType::linear, .factor = 1}), 0, 4096).frequencies);
}

TEST(RotaryTable, ScalesAsLongropeByTheLengthOfTheSequence) {
  const ModelDescription model = model_with({.type = RopeType::longrope,
                                             .factor = 16,
                                             .original_max_position_embeddings = 256,
                                             .attention_factor = 1.224744871391589,
                                             .short_factor = {1, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7},
                                             .long_factor = {1, 2, 3, 4, 8, 12, 16, 24}});
  expect_rotation(rotation_of(model, 0, 256), 1.224744871391589,
                  {1, 0.287479758F, 0.0833333358F, 0.0243252143F, 0.00714285718F, 0.00210818532F, 0.000624999986F,
                   0.000186016332F});
  expect_rotation(rotation_of(model, 0, 257), 1.224744871391589,
                  {1, 0.158113882F, 0.0333333351F, 0.00790569466F, 0.00124999997F, 0.000263523165F, 6.2500003e-05F,
                   1.31761572e-05F});
  RotaryTable table(model, at::kDouble, at::kCPU);
  const auto angle = [&](int64_t first, int64_t count) {  // of pair 1 at position `first`
    const auto rows = table.rows(0, first, count);
    return std::asin(rows.sine[0][1].item<double>() / 1.224744871391589);
  };
  EXPECT_NEAR(angle(2, 254), 2 * 0.287479758, 1e-6);
  EXPECT_NEAR(angle(2, 255), 2 * 0.158113882, 1e-6);
}

// As in transformers' Olmo3RotaryEmbedding.
TEST(RotaryTable, SlidingLayersHaveTheirOwnBaseAndNoScaling) {
  ModelDescription model = model_with({RopeType::yarn, 8, 1, 32, 512, 1.5}, 500000);
  model.attention_window = 64;
  model.full_attention_interval = 4;
  model.sliding_rope_theta = 20000;
  expect_rotation(rotation_of(model, 3, 64), 1.5,
                  {1, 0.137361944F, 0.0156691782F, 0.000911583134F, 0.000176776681F, 3.42810235e-05F, 6.64786967e-06F,
                   1.28917316e-06F});
  const std::vector<float> sliding = {
      1, 0.28998214F, 0.0840896443F, 0.0243844949F, 0.00707106804F, 0.00205048337F, 0.000594603538F, 0.000172424421F};
  for (const int64_t layer : {0, 1, 2}) expect_rotation(rotation_of(model, layer, 64), 1, sliding);

  RotaryTable table(model, at::kDouble, at::kCPU);
  EXPECT_DOUBLE_EQ(table.rows(3, 0, 1).cosine[0][0].item<double>(), 1.5);
  EXPECT_DOUBLE_EQ(table.rows(2, 0, 1).cosine[0][0].item<double>(), 1);
  EXPECT_FLOAT_EQ(table.rows(2, 0, 2).sine[1][1].item<float>(), std::sin(0.28998214F));
}

// With documents, a micro-batch gathers each rotation's rows once, however many layers it passes.
TEST(RotaryTable, LayersShareTheRowsOfPositions) {
  ModelDescription model = model_with({RopeType::yarn, 8, 1, 32, 512, 1.5}, 500000);
  model.num_layers = 8;
  model.attention_window = 64;
  model.full_attention_interval = 4;
  model.sliding_rope_theta = 20000;
  RotaryTable table(model, at::kDouble, at::kCPU);
  const at::Tensor positions = at::tensor({0, 1, 2, 0, 1, 0}, at::kLong);
  const std::vector<RotaryTable::Rows> rows = table.rows_of_layers(2, 6, 3, positions);
  ASSERT_EQ(rows.size(), 6);
  for (size_t i = 0; i < rows.size(); ++i) {
    const auto layer = static_cast<int64_t>(i) + 2;
    const RotaryTable::Rows whole = table.rows(layer, 0, 3);
    EXPECT_TRUE(rows[i].cosine.equal(whole.cosine.index_select(0, positions))) << layer;
    EXPECT_TRUE(rows[i].sine.equal(whole.sine.index_select(0, positions))) << layer;
    const size_t first = layer % 4 == 3 ? 1 : 0;  // layers 3 and 7 have full attention
    EXPECT_EQ(rows[i].cosine.const_data_ptr(), rows[first].cosine.const_data_ptr()) << layer;
    EXPECT_EQ(rows[i].sine.const_data_ptr(), rows[first].sine.const_data_ptr()) << layer;
  }
  EXPECT_NE(rows[0].cosine.const_data_ptr(), rows[1].cosine.const_data_ptr());
  const std::vector<RotaryTable::Rows> whole = table.rows_of_layers(2, 6, 3, {});
  EXPECT_TRUE(whole[0].cosine.equal(table.rows(2, 0, 3).cosine));
}

}  // namespace
}  // namespace copus
