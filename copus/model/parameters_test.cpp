#include "copus/model/parameters.h"

#include <gtest/gtest.h>

#include "copus/model/reference_decoder.h"

namespace copus {
namespace {

ModelDescription odd_model() {
  ModelDescription model;
  model.architecture = Architecture::qwen2;
  model.vocab_size = 37;
  model.hidden_size = 12;
  model.intermediate_size = 20;
  model.num_layers = 2;
  model.num_heads = 3;
  model.num_kv_heads = 1;
  model.head_dim = 6;
  model.qkv_bias = true;
  return model;
}

TEST(ParameterStore, ParametersStartOnAlignedElementsUnlessJoined) {
  const ParameterStore store(odd_model(), at::kFloat, at::kCPU);
  for (const Parameter& parameter : store.parameters()) {
    const std::string& name = parameter.info.name;
    const bool joined = name.find("k_proj") != std::string::npos || name.find("v_proj") != std::string::npos ||
                        name.find("up_proj") != std::string::npos;
    EXPECT_TRUE(joined || parameter.offset % ParameterStore::alignment == 0) << name;
    EXPECT_EQ(parameter.weight.data_ptr(), parameter.master.data_ptr());
  }
  const JoinedParameters joined =
      store.join({"model.layers.1.self_attn.q_proj.bias", "model.layers.1.self_attn.k_proj.bias",
                  "model.layers.1.self_attn.v_proj.bias"});
  EXPECT_EQ(joined.weight.sizes(), at::IntArrayRef({30}));
}

TEST(ParameterStore, ParametersDoNotOverlapAndFillTheirBuckets) {
  const ParameterStore store(odd_model(), at::kFloat, at::kCPU);
  for (const Parameter& parameter : store.parameters()) parameter.gradient.add_(1);
  int64_t covered = 0;
  for (const Bucket& bucket : store.buckets()) {
    EXPECT_LE(bucket.gradient.max().item<float>(), 1);
    covered += static_cast<int64_t>(bucket.gradient.sum().item<float>());
  }
  EXPECT_EQ(covered, count_parameters(odd_model()));
}

TEST(ParameterStore, InitialisationDependsOnSeedAndNameAlone) {
  ModelDescription deeper = odd_model();
  deeper.num_layers = 4;
  ParameterStore a(odd_model(), at::kFloat, at::kCPU), b(deeper, at::kFloat, at::kCPU),
      c(odd_model(), at::kFloat, at::kCPU);
  a.initialize(1);
  b.initialize(1);
  c.initialize(2);
  for (const Parameter& parameter : a.parameters()) {
    const std::string& name = parameter.info.name;
    EXPECT_TRUE(parameter.master.equal(b.find(name).master)) << name;
    const bool random = parameter.info.kind == ParameterKind::linear || parameter.info.kind == ParameterKind::embedding;
    EXPECT_EQ(parameter.master.equal(c.find(name).master), !random) << name;
  }
  EXPECT_NEAR(a.find("model.embed_tokens.weight").master.std().item<double>(), 0.02, 0.002);
}

TEST(ParameterStore, Bfloat16WeightsAreRoundedMasters) {
  ParameterStore store(odd_model(), at::kBFloat16, at::kCPU);
  store.initialize(1);
  for (const Parameter& parameter : store.parameters()) {
    EXPECT_EQ(parameter.master.scalar_type(), at::kFloat);
    EXPECT_TRUE(parameter.weight.equal(parameter.master.to(at::kBFloat16))) << parameter.info.name;
  }
}

}  // namespace
}  // namespace copus
