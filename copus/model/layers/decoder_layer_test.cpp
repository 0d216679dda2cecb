// Tests the split backward pass of a layer: deferred weight gradients equal immediate ones bitwise.
#include "copus/model/layers/decoder_layer.h"

#include <ATen/Context.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include "copus/model/testing/reference_decoder.h"
#include "copus/model/testing/test_device.h"

namespace copus {
namespace {

void expect_deferring_changes_no_bit(QkNorm qk_norm, BlockNorm block_norm, bool gated = true) {
  ModelDescription model;
  model.architecture = Architecture::qwen2;
  model.vocab_size = 10;
  model.hidden_size = 40;
  model.intermediate_size = 56;
  model.num_layers = 1;
  model.num_heads = 4;
  model.num_kv_heads = 2;
  model.head_dim = 8;
  model.qkv_bias = model.attention_output_bias = model.feed_forward_bias = true;
  model.qk_norm = qk_norm;
  model.block_norm = block_norm;
  model.gated_feed_forward = gated;
  if (!gated) model.norm = NormKind::layer;
  at::manual_seed(3);
  ParameterStore store(model, at::kFloat, test_device());
  store.initialize(3);
  const DecoderLayer layer(store, 0, TensorParallel());
  RotaryTable table(model, at::kFloat, test_device());
  const kernels::AttentionShape shape{2, 30, 4, 2, 8};
  const RotaryTable::Rows rotary = table.rows(0, 0, 30);
  const at::Tensor x = at::randn({60, 40}).to(test_device()), dy = at::randn({60, 40}).to(test_device());

  const auto run = [&](WeightGradients::Mode mode, const auto& between) {
    store.zero_gradients();
    LayerActivations kept;
    layer.forward({x, {}}, {shape, rotary}, Recompute::none, &kept);
    WeightGradients weight_gradients(mode);
    const at::Tensor dx = layer.backward(dy, std::move(kept), {shape, rotary}, weight_gradients);
    between();
    weight_gradients.run();
    return std::pair{dx, store.buckets()[1].gradient.clone()};
  };
  const auto now = run(WeightGradients::Mode::immediate, [] {});
  const auto later = run(WeightGradients::Mode::deferred, [&] {
    EXPECT_EQ(store.find("model.layers.0.mlp.down_proj.weight").gradient.abs().max().item<float>(), 0);
    EXPECT_EQ(store.find("model.layers.0.mlp.down_proj.bias").gradient.abs().max().item<float>(), 0);
    EXPECT_EQ(store.find("model.layers.0.self_attn.q_proj.bias").gradient.abs().max().item<float>(), 0);
  });
  EXPECT_TRUE(now.first.equal(later.first));
  EXPECT_TRUE(now.second.equal(later.second));
  EXPECT_GT(now.second.abs().max().item<float>(), 0);
}

TEST(DecoderLayer, DeferredWeightGradientsChangeNoBit) {
  expect_deferring_changes_no_bit(QkNorm::none, BlockNorm::input);
  expect_deferring_changes_no_bit(QkNorm::head, BlockNorm::input);
  expect_deferring_changes_no_bit(QkNorm::none, BlockNorm::input, /*gated=*/false);
  expect_deferring_changes_no_bit(QkNorm::projection, BlockNorm::output);
}

}  // namespace
}  // namespace copus
