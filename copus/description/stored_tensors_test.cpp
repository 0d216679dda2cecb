#include "copus/description/stored_tensors.h"

#include <gmock/gmock.h>

#include <set>

namespace copus {
namespace {

using testing::ElementsAre;

ModelDescription model_to_store() {
  ModelDescription model;
  model.vocab_size = 11;
  model.hidden_size = 8;
  model.intermediate_size = 20;
  model.num_layers = 2;
  model.num_heads = model.num_kv_heads = 2;
  model.head_dim = 4;
  model.max_position_embeddings = 16;
  return model;
}

ModelDescription gpt2_model() {
  return parse_model_description(
      R"({"model_type": "gpt2", "vocab_size": 11, "n_embd": 8, "n_layer": 2, "n_head": 2, "n_positions": 16})", "test");
}

TEST(StoredTensors, MostModelsStoreEachParameterByItself) {
  const ModelDescription model = model_to_store();
  const std::vector<ParameterInfo> parameters = list_parameters(model);
  const std::vector<StoredTensor> stored = list_stored_tensors(model);
  ASSERT_EQ(stored.size(), parameters.size());
  for (size_t i = 0; i < stored.size(); ++i) {
    EXPECT_TRUE(stored[i].is_plain());
    EXPECT_EQ(stored[i].name, parameters[i].name);
    EXPECT_EQ(stored[i].shape, parameters[i].shape);
  }
}

TEST(StoredTensors, Gpt2FusesAndTransposes) {
  const ModelDescription model = gpt2_model();
  std::set<std::string> held;
  for (const StoredTensor& tensor : list_stored_tensors(model)) {
    for (const ParameterInfo& parameter : tensor.parameters) EXPECT_TRUE(held.insert(parameter.name).second);
    if (tensor.name == "transformer.h.1.attn.c_attn.weight") {
      EXPECT_THAT(tensor.shape, ElementsAre(8, 24));
      EXPECT_TRUE(tensor.is_transposed);
      ASSERT_EQ(tensor.parameters.size(), 3);
      EXPECT_EQ(tensor.parameters[1].name, "model.layers.1.self_attn.k_proj.weight");
    } else if (tensor.name == "transformer.h.0.attn.c_attn.bias") {
      EXPECT_THAT(tensor.shape, ElementsAre(24));
      EXPECT_FALSE(tensor.is_transposed);
    } else if (tensor.name == "transformer.h.0.mlp.c_proj.weight") {
      EXPECT_THAT(tensor.shape, ElementsAre(32, 8));
    }
  }
  EXPECT_EQ(held.size(), list_parameters(model).size());
}

TEST(StoredTensors, GptNeoXFusesQueriesKeysAndValuesOfAHead) {
  ModelDescription model = model_to_store();
  model.architecture = Architecture::gpt_neox;
  model.qkv_bias = model.attention_output_bias = model.feed_forward_bias = true;
  model.norm = NormKind::layer;
  model.gated_feed_forward = false;
  model.num_kv_heads = model.num_heads;
  std::set<std::string> held;
  for (const StoredTensor& tensor : list_stored_tensors(model)) {
    for (const ParameterInfo& parameter : tensor.parameters) EXPECT_TRUE(held.insert(parameter.name).second);
    const bool is_fused = tensor.name.find("query_key_value") != std::string::npos;
    EXPECT_EQ(tensor.outputs_in_turn, is_fused ? model.head_dim : 0) << tensor.name;
    EXPECT_EQ(tensor.parameters.size(), is_fused ? 3 : 1) << tensor.name;
  }
  EXPECT_EQ(held.size(), list_parameters(model).size());
  EXPECT_EQ(list_stored_tensors(model).back().name, "embed_out.weight");
  EXPECT_EQ(stored_head_name(model), "embed_out.weight");
  EXPECT_EQ(stored_head_name(model_to_store()), "lm_head.weight");
}

TEST(StoredTensors, Phi3Fuses) {
  ModelDescription model = model_to_store();
  model.architecture = Architecture::phi3;
  model.num_kv_heads = 1;
  std::set<std::string> held;
  for (const StoredTensor& tensor : list_stored_tensors(model)) {
    for (const ParameterInfo& parameter : tensor.parameters) EXPECT_TRUE(held.insert(parameter.name).second);
    EXPECT_FALSE(tensor.is_transposed);
    if (tensor.name == "model.layers.1.self_attn.qkv_proj.weight") {
      EXPECT_THAT(tensor.shape, ElementsAre(16, 8));
      EXPECT_EQ(tensor.parameters.back().name, "model.layers.1.self_attn.v_proj.weight");
    } else if (tensor.name == "model.layers.0.mlp.gate_up_proj.weight") {
      EXPECT_THAT(tensor.shape, ElementsAre(40, 8));
      EXPECT_EQ(tensor.parameters.front().name, "model.layers.0.mlp.gate_proj.weight");
    }
  }
  EXPECT_EQ(held.size(), list_parameters(model).size());
}

}  // namespace
}  // namespace copus
