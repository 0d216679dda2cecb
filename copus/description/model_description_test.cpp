#include "copus/description/model_description.h"

#include <gmock/gmock.h>

namespace copus {
namespace {

using testing::ElementsAre;

ModelDescription countable_model() {
  ModelDescription model;
  model.vocab_size = 11;
  model.hidden_size = 8;
  model.intermediate_size = 6;
  model.num_layers = 2;
  model.num_heads = 4;
  model.num_kv_heads = 2;
  model.head_dim = 4;
  return model;
}

std::vector<std::string> names_of(const ModelDescription& model) {
  std::vector<std::string> names;
  for (const ParameterInfo& parameter : list_parameters(model)) names.push_back(parameter.name);
  return names;
}

TEST(ModelDescription, ListsParametersInTransformersOrder) {
  ModelDescription model = countable_model();
  model.num_layers = 1;
  model.qkv_bias = true;
  EXPECT_THAT(names_of(model),
              ElementsAre("model.embed_tokens.weight", "model.layers.0.self_attn.q_proj.weight",
                          "model.layers.0.self_attn.q_proj.bias", "model.layers.0.self_attn.k_proj.weight",
                          "model.layers.0.self_attn.k_proj.bias", "model.layers.0.self_attn.v_proj.weight",
                          "model.layers.0.self_attn.v_proj.bias", "model.layers.0.self_attn.o_proj.weight",
                          "model.layers.0.mlp.gate_proj.weight", "model.layers.0.mlp.up_proj.weight",
                          "model.layers.0.mlp.down_proj.weight", "model.layers.0.input_layernorm.weight",
                          "model.layers.0.post_attention_layernorm.weight", "model.norm.weight", "lm_head.weight"));
}

TEST(ModelDescription, NormsOfOutputsHaveNamesOfTheirOwn) {
  ModelDescription model = countable_model();
  model.num_layers = 1;
  model.block_norm = BlockNorm::output;
  EXPECT_THAT(names_of(model),
              ElementsAre("model.embed_tokens.weight", "model.layers.0.self_attn.q_proj.weight",
                          "model.layers.0.self_attn.k_proj.weight", "model.layers.0.self_attn.v_proj.weight",
                          "model.layers.0.self_attn.o_proj.weight", "model.layers.0.mlp.gate_proj.weight",
                          "model.layers.0.mlp.up_proj.weight", "model.layers.0.mlp.down_proj.weight",
                          "model.layers.0.post_attention_layernorm.weight",
                          "model.layers.0.post_feedforward_layernorm.weight", "model.norm.weight", "lm_head.weight"));
}

ParameterInfo find(const ModelDescription& model, const std::string& name) {
  for (const ParameterInfo& parameter : list_parameters(model)) {
    if (parameter.name == name) return parameter;
  }
  return {"no parameter " + name, {}, ParameterKind::bias, -2};
}

TEST(ModelDescription, ShapesAreOutByIn) {
  const ModelDescription model = countable_model();
  EXPECT_THAT(find(model, "model.embed_tokens.weight").shape, ElementsAre(11, 8));
  EXPECT_THAT(find(model, "model.layers.1.self_attn.q_proj.weight").shape, ElementsAre(16, 8));
  EXPECT_THAT(find(model, "model.layers.0.self_attn.k_proj.weight").shape, ElementsAre(8, 8));
  EXPECT_THAT(find(model, "model.layers.0.self_attn.o_proj.weight").shape, ElementsAre(8, 16));
  EXPECT_THAT(find(model, "model.layers.0.mlp.gate_proj.weight").shape, ElementsAre(6, 8));
  EXPECT_THAT(find(model, "model.layers.0.mlp.down_proj.weight").shape, ElementsAre(8, 6));
  EXPECT_THAT(find(model, "model.norm.weight").shape, ElementsAre(8));
  EXPECT_EQ(find(model, "model.layers.1.self_attn.q_proj.weight").num_elements(), 128);
}

TEST(ModelDescription, NormsOfQueriesAndKeysAreAsWideAsWhatTheyAverageOver) {
  ModelDescription model = countable_model();
  model.qk_norm = QkNorm::head;
  EXPECT_THAT(find(model, "model.layers.1.self_attn.q_norm.weight").shape, ElementsAre(4));
  EXPECT_THAT(find(model, "model.layers.1.self_attn.k_norm.weight").shape, ElementsAre(4));
  model.qk_norm = QkNorm::projection;
  EXPECT_THAT(find(model, "model.layers.1.self_attn.q_norm.weight").shape, ElementsAre(16));
  EXPECT_THAT(find(model, "model.layers.1.self_attn.k_norm.weight").shape, ElementsAre(8));
}

TEST(ModelDescription, KindsAndLayers) {
  ModelDescription model = countable_model();
  model.qkv_bias = true;
  const auto kind = [&](const std::string& name) { return find(model, name).kind; };
  EXPECT_EQ(kind("model.embed_tokens.weight"), ParameterKind::embedding);
  EXPECT_EQ(kind("model.layers.1.self_attn.v_proj.weight"), ParameterKind::linear);
  EXPECT_EQ(kind("model.layers.1.self_attn.v_proj.bias"), ParameterKind::bias);
  EXPECT_EQ(kind("model.layers.1.input_layernorm.weight"), ParameterKind::norm);
  EXPECT_EQ(kind("lm_head.weight"), ParameterKind::linear);
  EXPECT_EQ(find(model, "model.layers.1.self_attn.v_proj.bias").layer, 1);
  EXPECT_EQ(find(model, "model.norm.weight").layer, -1);
}

TEST(ModelDescription, TiedModelsHaveNoHead) {
  ModelDescription model = countable_model();
  const int64_t untied = count_parameters(model);
  model.tie_word_embeddings = true;
  EXPECT_EQ(names_of(model).back(), "model.norm.weight");
  EXPECT_EQ(untied - count_parameters(model), 11 * 8);
}

// Counts the pairs of a token and an earlier one, for comparison.
TEST(ModelDescription, CountsTheTokensThatAreAttendedTo) {
  ModelDescription model;
  for (const int64_t window : {0, 1000, 1001, 5000}) {
    model.attention_window = window;
    EXPECT_EQ(attended_tokens(model, 1000), 500);
  }
  for (const int64_t window : {100, 400, 999}) {
    model.attention_window = window;
    int64_t pairs = 0;
    for (int64_t token = 0; token < 1000; ++token) pairs += std::min(token + 1, window);
    EXPECT_NEAR(attended_tokens(model, 1000), static_cast<double>(pairs) / 1000, 0.51) << window;
  }
  model.attention_window = 400;
  model.full_attention_interval = 4;
  for (const int64_t layers : {4, 6, 7, 8}) {
    model.num_layers = layers;
    double sum = 0;
    for (int64_t layer = 0; layer < layers; ++layer) sum += model.window_of(layer) > 0 ? 320 : 500;
    EXPECT_DOUBLE_EQ(attended_tokens(model, 1000), sum / static_cast<double>(layers)) << layers;
  }
}

TEST(ModelDescription, CountsTrainingOperations) {
  // By hand: h = 8, h_q = 16, h_kv = 8, f = 6, V = 11, L = 2, s = 5.
  const double weights = 2 * (2 * 8 * 16 + 2 * 8 * 8 + 3 * 8 * 6) + 11 * 8;
  EXPECT_DOUBLE_EQ(training_flops_per_token(countable_model(), 5), 6 * weights + 12 * 2 * 16 * 5);
  // Without attention: 6 operations for each parameter except embedding and norms.
  EXPECT_DOUBLE_EQ(training_flops_per_token(countable_model(), 0),
                   6.0 * static_cast<double>(count_parameters(countable_model()) - int64_t{11} * 8 - int64_t{5} * 8));
}

TEST(ModelDescription, LayerNormsHaveBiasesAndPositionsFollowTheEmbedding) {
  ModelDescription model = countable_model();
  model.norm = NormKind::layer;
  model.learned_positions = true;
  model.gated_feed_forward = false;
  model.max_position_embeddings = 7;
  const std::vector<ParameterInfo> parameters = list_parameters(model);
  EXPECT_EQ(parameters[1].name, "model.embed_positions.weight");
  EXPECT_THAT(parameters[1].shape, ElementsAre(7, model.hidden_size));
  EXPECT_EQ(find(model, "model.layers.0.input_layernorm.bias").kind, ParameterKind::norm_bias);
  EXPECT_EQ(find(model, "model.norm.bias").layer, -1);
  for (const ParameterInfo& parameter : parameters) EXPECT_FALSE(parameter.name.find("gate_proj") != std::string::npos);
  EXPECT_FALSE(model.has_rope(0));

  ModelDescription gated = model;
  gated.gated_feed_forward = true;
  EXPECT_EQ(training_flops_per_token(gated, 0) - training_flops_per_token(model, 0),
            6.0 * static_cast<double>(model.num_layers * model.hidden_size * model.intermediate_size));
}

TEST(ModelDescription, LayersThatLeadBackToTheStreamMayStartSmaller) {
  ModelDescription model = countable_model();
  model.num_layers = 8;
  const auto deviation = [&](const std::string& name) { return initial_deviation(model, find(model, name)); };
  EXPECT_EQ(deviation("model.layers.0.self_attn.o_proj.weight"), model.initializer_range);
  model.scales_residual_initializer = true;
  for (const char* name : {"model.layers.0.self_attn.o_proj.weight", "model.layers.7.mlp.down_proj.weight"}) {
    EXPECT_EQ(deviation(name), model.initializer_range / 4);
  }
  EXPECT_EQ(deviation("model.layers.0.self_attn.q_proj.weight"), model.initializer_range);
}

}  // namespace
}  // namespace copus
