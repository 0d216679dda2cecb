#include "copus/description/layer_blocks.h"

#include <numeric>

#include "copus/base/error.h"

namespace copus {

namespace {

BlockDescription describe_attention(const ModelDescription& model) {
  const int64_t hidden = model.hidden_size;
  const int64_t query = model.num_heads * model.head_dim, key_value = model.num_kv_heads * model.head_dim;
  const auto [heads, kv_heads, unused] = units_of(model);
  BlockDescription block{
      .kind = BlockKind::attention,
      .modules = "self_attn.",
      .norms = {.input = model.block_norm == BlockNorm::output ? nullptr : "input_layernorm",
                .output = model.block_norm == BlockNorm::input ? nullptr : "post_attention_layernorm"},
      .inputs = {{"q_proj", query, hidden, model.qkv_bias, heads},
                 {"k_proj", key_value, hidden, model.qkv_bias, kv_heads},
                 {"v_proj", key_value, hidden, model.qkv_bias, kv_heads}},
      .output = {"o_proj", hidden, query, model.attention_output_bias, heads},
      .head_norms = {},
      .score_width = query,
  };
  if (model.qk_norm == QkNorm::projection)
    block.head_norms = {{"q_norm", query, heads}, {"k_norm", key_value, kv_heads}};
  if (model.qk_norm == QkNorm::head)
    block.head_norms = {{"q_norm", model.head_dim, {}}, {"k_norm", model.head_dim, {}}};
  return block;
}

BlockDescription describe_feed_forward(const ModelDescription& model) {
  const int64_t hidden = model.hidden_size, inner = model.intermediate_size;
  const SharedUnits columns = units_of(model).columns;
  const bool has_bias = model.feed_forward_bias;
  const BlockLinear gate{"gate_proj", inner, hidden, has_bias, columns},
      up{"up_proj", inner, hidden, has_bias, columns};
  return {
      .kind = BlockKind::feed_forward,
      .modules = "mlp.",
      .norms = {.input = model.block_norm == BlockNorm::output  ? nullptr
                         : model.block_norm == BlockNorm::input ? "post_attention_layernorm"
                                                                : "pre_feedforward_layernorm",
                .output = model.block_norm == BlockNorm::input ? nullptr : "post_feedforward_layernorm"},
      .inputs = model.gated_feed_forward ? std::vector{gate, up} : std::vector{up},
      .output = {"down_proj", hidden, inner, has_bias, columns},
      .head_norms = {},
  };
}

double part_of(int64_t width, const SharedUnits& units, int64_t ranks) {
  return static_cast<double>(width) / static_cast<double>(units.parts(ranks));
}

}  // namespace

ModelUnits units_of(const ModelDescription& model) {
  return {.heads = {"model.num_attention_heads", model.num_heads},
          .kv_heads = {"model.num_key_value_heads", model.num_kv_heads, /*may_repeat=*/true},
          .columns = {"model.intermediate_size", model.intermediate_size}};
}

const std::vector<BlockKind>& blocks_of(const ModelDescription& /*model*/, int64_t /*layer*/) {
  static const std::vector<BlockKind> blocks = {BlockKind::attention, BlockKind::feed_forward};
  return blocks;
}

LayerKinds::LayerKinds(const ModelDescription& model) {
  for (int64_t layer = 0; layer < model.num_layers; ++layer) {
    const auto same = std::ranges::find_if(
        examples, [&](int64_t example) { return blocks_of(model, example) == blocks_of(model, layer); });
    of_layer.push_back(same - examples.begin());
    if (same == examples.end()) examples.push_back(layer);
  }
}

std::vector<double> LayerKinds::counts(int64_t begin, int64_t end) const {
  std::vector<double> counts(examples.size(), 0);
  for (int64_t layer = begin; layer < end; ++layer) ++counts[of_layer[layer]];
  return counts;
}

int64_t BlockDescription::num_weights() const {
  return std::accumulate(inputs.begin(), inputs.end(), output.outputs * output.inputs,
                         [](int64_t sum, const BlockLinear& linear) { return sum + linear.outputs * linear.inputs; });
}

double BlockDescription::input_width(int64_t ranks) const {
  return std::accumulate(inputs.begin(), inputs.end(), 0.0, [&](double sum, const BlockLinear& linear) {
    return sum + part_of(linear.outputs, linear.units, ranks);
  });
}

double BlockDescription::output_width(int64_t ranks) const { return part_of(output.inputs, output.units, ranks); }

BlockDescription describe_block(const ModelDescription& model, BlockKind kind) {
  switch (kind) {
    case BlockKind::attention:
      return describe_attention(model);
    case BlockKind::feed_forward:
      return describe_feed_forward(model);
  }
  fail_check("known block", __FILE__, __LINE__, "");
}

std::vector<BlockDescription> describe_layer(const ModelDescription& model, int64_t layer) {
  std::vector<BlockDescription> blocks;
  blocks.reserve(blocks_of(model, layer).size());
  for (const BlockKind kind : blocks_of(model, layer)) blocks.push_back(describe_block(model, kind));
  return blocks;
}

}  // namespace copus
