#include "copus/model/memory/parameters.h"

#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "copus/model/testing/odd_model.h"
#include "copus/model/testing/reference_decoder.h"
#include "copus/model/testing/stages_in_turn.h"

namespace copus {
namespace {

TEST(ParameterStore, ParametersStartOnAlignedElementsUnlessJoined) {
  const ParameterStore store(odd_model(), at::kFloat, at::kCPU);
  for (const Parameter& parameter : store.parameters()) {
    const std::string& name = parameter.info.name;
    const bool joined = name.find("k_proj") != std::string::npos || name.find("v_proj") != std::string::npos ||
                        name.find("up_proj") != std::string::npos;
    EXPECT_TRUE(joined || parameter.offset % bucket_alignment == 0) << name;
    EXPECT_EQ(parameter.weight.data_ptr(), store.master(parameter).data_ptr());
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
    EXPECT_TRUE(a.master(parameter).equal(b.master(b.find(name)))) << name;
    const bool random = parameter.info.kind == ParameterKind::linear || parameter.info.kind == ParameterKind::embedding;
    EXPECT_EQ(a.master(parameter).equal(c.master(c.find(name))), !random) << name;
  }
  EXPECT_NEAR(a.master(a.find("model.embed_tokens.weight")).std().item<double>(), 0.02, 0.002);
}

TEST(ParameterStore, Bfloat16WeightsAreRoundedMasters) {
  ParameterStore store(odd_model(), at::kBFloat16, at::kCPU);
  store.initialize(1);
  for (const Parameter& parameter : store.parameters()) {
    EXPECT_EQ(store.master(parameter).scalar_type(), at::kFloat);
    EXPECT_TRUE(parameter.weight.equal(store.master(parameter).to(at::kBFloat16))) << parameter.info.name;
  }
}

ModelDescription tied_model() {
  ModelDescription model = odd_model();
  model.num_heads = 4;
  model.num_kv_heads = 2;
  model.tie_word_embeddings = true;
  return model;
}

TEST(ParameterStore, APartHoldsItsElementsOfTheWholeModel) {
  const ModelDescription model = tied_model();
  ParameterStore whole(model, at::kBFloat16, at::kCPU);
  whole.initialize(5);
  for (const int64_t tensor_parallel : {2, 4}) {
    int64_t seen = 0;
    for (int64_t pipeline = 0; pipeline < 2; ++pipeline) {
      for (int64_t tensor = 0; tensor < tensor_parallel; ++tensor) {
        const Placement placement = part_of_job(model, {.tensor_parallel = tensor_parallel, .pipeline_parallel = 2},
                                                {.tensor = tensor, .pipeline = pipeline});
        ParameterStore store(model, at::kBFloat16, at::kCPU, placement);
        store.initialize(5);
        for (const Parameter& parameter : store.parameters()) {
          const std::string& name = parameter.info.name;
          EXPECT_TRUE(parameter.weight.equal(cut(whole.find(name).weight, parameter.box))) << name;
          EXPECT_EQ(parameter.gradient.sizes(), parameter.weight.sizes()) << name;
          EXPECT_EQ(parameter.tied_copy, pipeline == 1 && name == "model.embed_tokens.weight") << name;
          if (tensor % parameter.sharding.replicas == 0) seen += parameter.box.num_elements();
        }
        const std::string layer = "model.layers." + std::to_string(pipeline) + ".self_attn.";
        const JoinedParameters joined =
            store.join({layer + "q_proj.weight", layer + "k_proj.weight", layer + "v_proj.weight"});
        EXPECT_EQ(joined.weight.size(0), (4 / tensor_parallel + 2 * std::max<int64_t>(1, 2 / tensor_parallel)) * 6);
      }
    }
    // Every element occurs once, except those of a tied embedding, which two stages hold.
    EXPECT_EQ(seen, count_parameters(model) + model.vocab_size * model.hidden_size);
  }
}

TEST(ParameterStore, BucketsFollowTheChunks) {
  ModelDescription model = tied_model();
  model.num_layers = 4;
  const Placement placement = part_of_job(model, {.pipeline_parallel = 2, .virtual_stages = 2}, {.pipeline = 1});
  const ParameterStore store(model, at::kFloat, at::kCPU, placement);
  // The buckets are layer 1, layer 3, final norm, tied head.
  ASSERT_EQ(store.buckets().size(), 4);
  EXPECT_EQ(store.buckets()[0].chunk, 0);
  for (size_t i = 1; i < 4; ++i) EXPECT_EQ(store.buckets()[i].chunk, 1);
  ASSERT_EQ(store.buckets()[3].parameters.size(), 1);
  EXPECT_EQ(&store.parameters()[static_cast<size_t>(store.buckets()[3].parameters[0])], store.find_tied_copy());
  EXPECT_TRUE(store.buckets()[3].master.defined());
  EXPECT_EQ(store.find("model.layers.3.mlp.down_proj.weight").bucket, 1);
}

TEST(ParameterStore, ATiedHeadBesideItsEmbeddingHasOnlyAGradientOfItsOwn) {
  for (const int64_t virtual_stages : {1, 2}) {
    ModelDescription model = tied_model();
    const Placement placement = part_of_job(model, {.virtual_stages = virtual_stages}, {});
    ParameterStore store(model, at::kFloat, at::kCPU, placement);
    const Parameter& embedding = store.find("model.embed_tokens.weight");
    const Parameter& head = *store.find_tied_copy();
    EXPECT_EQ(head.weight.data_ptr(), embedding.weight.data_ptr());
    EXPECT_NE(head.gradient.data_ptr(), embedding.gradient.data_ptr());
    EXPECT_FALSE(store.buckets().back().weight.defined());
    EXPECT_FALSE(store.buckets().back().master.defined());
    EXPECT_EQ(store.buckets().back().size(), 448);
  }
}

// ZeRO may pad a bucket.
at::Tensor padded(const at::Tensor& values, int64_t size) {
  at::Tensor longer = at::zeros({size}, values.options());
  longer.narrow(0, 0, values.numel()).copy_(values);
  return longer;
}

TEST(ParameterStore, ShardsOfZero1TogetherHoldEveryMasterWeight) {
  const ModelDescription model = odd_model();
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    ParameterStore whole(model, dtype, at::kCPU);
    whole.initialize(9);
    std::vector<at::Tensor> gathered;
    for (int64_t data = 0; data < 3; ++data) {
      const Placement placement = part_of_job(model, {.data_parallel = 3, .zero_stage = 1}, {.data = data});
      ParameterStore store(model, dtype, at::kCPU, placement);
      store.initialize(9);
      for (size_t i = 0; i < store.buckets().size(); ++i) {
        const Bucket& bucket = store.buckets()[i];
        const int64_t count = bucket.shard_end - bucket.shard_begin;
        EXPECT_EQ(bucket.master.numel(), count);
        EXPECT_EQ(count, shard_sizes(bucket.size(), 3)[static_cast<size_t>(data)]);
        if (data == 0) gathered.push_back(at::zeros_like(bucket.weight));
        gathered[i].narrow(0, bucket.shard_begin, count).copy_(bucket.weight.narrow(0, bucket.shard_begin, count));
        const at::Tensor master = padded(whole.buckets()[i].master, bucket.size());
        EXPECT_TRUE(bucket.master.equal(master.narrow(0, bucket.shard_begin, count)));
      }
    }
    for (size_t i = 0; i < gathered.size(); ++i) {
      EXPECT_TRUE(gathered[i].equal(padded(whole.buckets()[i].weight, gathered[i].numel()))) << i;
    }
  }
}

}  // namespace
}  // namespace copus
