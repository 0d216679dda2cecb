#include "copus/placement/sharding.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <map>
#include <string>

#include "copus/base/error.h"
#include "copus/base/numbers/philox.h"

namespace copus {
namespace {

using testing::ElementsAre;

constexpr int64_t tokens_per_sequence = 32;

ModelDescription sharded_model() {
  ModelDescription model;
  model.vocab_size = 11;
  model.hidden_size = 8;
  model.intermediate_size = 12;
  model.num_layers = 4;
  model.num_heads = 4;
  model.num_kv_heads = 2;
  model.head_dim = 3;
  model.qkv_bias = true;
  return model;
}

Sharding shard_by_name(const ModelDescription& model, const ParallelStrategy& strategy, const std::string& name) {
  for (const ParameterInfo& parameter : list_parameters(model)) {
    if (parameter.name == name) return shard(model, place(model, strategy, tokens_per_sequence, 0), parameter);
  }
  ADD_FAILURE() << name;
  return {};
}

// Returns the box of a parameter on one rank of the world.
Box box_by_name(const ModelDescription& model, const ParallelStrategy& strategy, int64_t rank,
                const std::string& name) {
  for (const LocalParameter& held : list_local_parameters(model, place(model, strategy, tokens_per_sequence, rank))) {
    if (held.info.name == name) return held.box;
  }
  ADD_FAILURE() << name << " on rank " << rank;
  return {};
}

TEST(Sharding, WithOneRankEverythingIsWhole) {
  const ModelDescription model = sharded_model();
  const Placement placement = whole_model(model);
  const auto held = list_local_parameters(model, placement);
  const auto parameters = list_parameters(model);
  ASSERT_EQ(held.size(), parameters.size());
  for (size_t i = 0; i < held.size(); ++i) {
    EXPECT_EQ(held[i].info.name, parameters[i].name);
    EXPECT_EQ(held[i].box.shape, parameters[i].shape);
    EXPECT_EQ(held[i].sharding.parts, 1);
    EXPECT_EQ(held[i].sharding.replicas, 1);
    EXPECT_FALSE(held[i].sharding.partial);
    EXPECT_EQ(held[i].chunk, 0);
  }
}

TEST(Sharding, CutsEveryKindOfParameterAlongItsAxis) {
  const ModelDescription model = sharded_model();
  const ParallelStrategy two{.tensor_parallel = 2};
  const Sharding rows{.axis = 0, .parts = 2};
  const Sharding columns{.axis = 1, .parts = 2};
  const Sharding whole{.replicas = 2};
  const std::string layer = "model.layers.0.";
  const std::map<std::string, Sharding> expected = {
      {"model.embed_tokens.weight", rows},
      {layer + "self_attn.q_proj.weight", rows},
      {layer + "self_attn.q_proj.bias", rows},
      {layer + "self_attn.k_proj.weight", rows},
      {layer + "self_attn.k_proj.bias", rows},
      {layer + "self_attn.v_proj.weight", rows},
      {layer + "self_attn.v_proj.bias", rows},
      {layer + "self_attn.o_proj.weight", columns},
      {layer + "mlp.gate_proj.weight", rows},
      {layer + "mlp.up_proj.weight", rows},
      {layer + "mlp.down_proj.weight", columns},
      {layer + "input_layernorm.weight", whole},
      {layer + "post_attention_layernorm.weight", whole},
      {"model.norm.weight", whole},
      {"lm_head.weight", rows},
  };
  for (const auto& [name, sharding] : expected) EXPECT_EQ(shard_by_name(model, two, name), sharding) << name;
}

TEST(Sharding, ReplicatesKeysAndValuesWhereHeadsAreFewerThanRanks) {
  const ParallelStrategy four{.tensor_parallel = 4};
  for (const char* name : {"model.layers.1.self_attn.k_proj.weight", "model.layers.1.self_attn.v_proj.bias"}) {
    EXPECT_EQ(shard_by_name(sharded_model(), four, name), (Sharding{.parts = 2, .replicas = 2, .partial = true}))
        << name;
  }
  ModelDescription multi_query = sharded_model();
  multi_query.num_kv_heads = 1;
  EXPECT_EQ(shard_by_name(multi_query, four, "model.layers.1.self_attn.k_proj.weight"),
            (Sharding{.parts = 1, .replicas = 4, .partial = true}));
}

// Every rank computes the gradient of such a bias from all rows.
TEST(Sharding, BiasesBehindASumOfTheRanksAreWholeAndNeverPartial) {
  ModelDescription model = sharded_model();
  model.attention_output_bias = model.feed_forward_bias = true;
  for (const bool sequence_parallel : {false, true}) {
    const ParallelStrategy two{.tensor_parallel = 2, .sequence_parallel = sequence_parallel};
    for (const char* name : {"self_attn.o_proj.bias", "mlp.down_proj.bias"}) {
      EXPECT_EQ(shard_by_name(model, two, concat("model.layers.1.", name)), (Sharding{.replicas = 2})) << name;
    }
    EXPECT_EQ(shard_by_name(model, two, "model.layers.1.mlp.up_proj.bias"), (Sharding{.parts = 2}));
  }
}

// Only the first rank adds positions to its term of the embedding; every rank computes their gradient from all rows.
TEST(Sharding, PositionsAreWholeAndGoWithATiedEmbedding) {
  ModelDescription model = sharded_model();
  model.learned_positions = true;
  const ParallelStrategy two{.tensor_parallel = 2, .sequence_parallel = true};
  EXPECT_EQ(shard_by_name(model, two, "model.embed_positions.weight"), (Sharding{.replicas = 2}));
  model.tie_word_embeddings = true;
  const ParallelStrategy stages{.pipeline_parallel = 2};
  const auto held = list_local_parameters(model, place(model, stages, tokens_per_sequence, 1));
  EXPECT_EQ(held[held.size() - 2].info.name, token_embedding_name);
  EXPECT_EQ(held.back().info.name, "model.embed_positions.weight");
  EXPECT_TRUE(held.back().tied_copy);
}

TEST(Sharding, LayerNormsBiasesAreReducedAsTheirWeights) {
  ModelDescription model = sharded_model();
  model.norm = NormKind::layer;
  for (const bool sequence_parallel : {false, true}) {
    const ParallelStrategy two{.tensor_parallel = 2, .sequence_parallel = sequence_parallel};
    for (const char* name : {"model.norm.weight", "model.norm.bias", "model.layers.1.input_layernorm.bias"}) {
      EXPECT_EQ(shard_by_name(model, two, name), (Sharding{.replicas = 2, .partial = sequence_parallel})) << name;
    }
  }
}

TEST(Sharding, NormsArePartialWithSequenceParallelismAlone) {
  ParallelStrategy strategy{.tensor_parallel = 2, .sequence_parallel = true};
  EXPECT_TRUE(shard_by_name(sharded_model(), strategy, "model.norm.weight").partial);
  EXPECT_FALSE(shard_by_name(sharded_model(), strategy, "lm_head.weight").partial);
  strategy.tensor_parallel = 1;
  EXPECT_FALSE(shard_by_name(sharded_model(), strategy, "model.norm.weight").partial);
}

// Each rank normalises its own heads, with or without sequence parallelism.
TEST(Sharding, NormsOfHeadsArePartialWithAnyTensorParallelism) {
  ModelDescription model = sharded_model();
  model.qk_norm = QkNorm::head;
  for (const char* name : {"model.layers.1.self_attn.q_norm.weight", "model.layers.1.self_attn.k_norm.weight"}) {
    for (const bool sequence_parallel : {false, true}) {
      const ParallelStrategy four{.tensor_parallel = 4, .sequence_parallel = sequence_parallel};
      EXPECT_EQ(shard_by_name(model, four, name), (Sharding{.replicas = 4, .partial = true})) << name;
    }
    EXPECT_FALSE(shard_by_name(model, {}, name).partial) << name;
  }
}

// Norms over projections are split like the projections. Ranks with the same key heads have different query heads.
TEST(Sharding, NormsOfProjectionsAreCutByHeads) {
  ModelDescription model = sharded_model();
  model.qk_norm = QkNorm::projection;
  for (const bool sequence_parallel : {false, true}) {
    const ParallelStrategy four{.tensor_parallel = 4, .sequence_parallel = sequence_parallel};
    EXPECT_EQ(shard_by_name(model, four, "model.layers.1.self_attn.q_norm.weight"), (Sharding{.parts = 4}));
    EXPECT_EQ(shard_by_name(model, four, "model.layers.1.self_attn.k_norm.weight"),
              (Sharding{.parts = 2, .replicas = 2, .partial = true}));
  }
}

TEST(Sharding, OnlyTheVocabularyIsCutUnevenly) {
  const ParallelStrategy four{.tensor_parallel = 4};
  std::vector<int64_t> rows;
  for (int64_t rank = 0; rank < 4; ++rank) {
    rows.push_back(box_by_name(sharded_model(), four, rank, "lm_head.weight").shape[0]);
  }
  EXPECT_THAT(rows, ElementsAre(2, 3, 3, 3));
}

TEST(Sharding, StagesHoldEmbeddingLayersAndHead) {
  const ParallelStrategy strategy{.pipeline_parallel = 2, .virtual_stages = 2};
  const ModelDescription model = sharded_model();
  EXPECT_EQ(shard_by_name(model, strategy, "model.embed_tokens.weight").stage, 0);
  for (int64_t layer = 0; layer < 4; ++layer) {
    EXPECT_EQ(shard_by_name(model, strategy, concat("model.layers.", layer, ".mlp.up_proj.weight")).stage, layer);
  }
  EXPECT_EQ(shard_by_name(model, strategy, "model.norm.weight").stage, 3);
  EXPECT_EQ(shard_by_name(model, strategy, "lm_head.weight").stage, 3);
}

TEST(Sharding, ListsChunkByChunkInCanonicalOrder) {
  const ParallelStrategy strategy{.pipeline_parallel = 2, .virtual_stages = 2};
  const ModelDescription model = sharded_model();
  const auto held = list_local_parameters(model, place(model, strategy, tokens_per_sequence, 1));
  ASSERT_EQ(held.size(), 2 * 12 + 2);
  EXPECT_EQ(held.front().info.name, "model.layers.1.self_attn.q_proj.weight");
  EXPECT_EQ(held.front().chunk, 0);
  EXPECT_EQ(held[12].info.name, "model.layers.3.self_attn.q_proj.weight");
  EXPECT_EQ(held[12].chunk, 1);
  EXPECT_EQ(held.back().info.name, "lm_head.weight");
}

TEST(Sharding, ATiedEmbeddingIsAlsoTheLastStagesHead) {
  ModelDescription model = sharded_model();
  model.tie_word_embeddings = true;
  for (const int64_t pipeline_parallel : {1, 2}) {
    const ParallelStrategy strategy{.tensor_parallel = 2, .pipeline_parallel = pipeline_parallel};
    // The last rank is tensor-parallel rank 1 of the last stage.
    const int64_t last_rank = strategy.world_size() - 1;
    const auto held = list_local_parameters(model, place(model, strategy, tokens_per_sequence, last_rank));
    const LocalParameter& copy = held.back();
    EXPECT_TRUE(copy.tied_copy);
    EXPECT_EQ(copy.info.name, "model.embed_tokens.weight");
    EXPECT_EQ(copy.sharding, (Sharding{.parts = 2, .stage = 0, .tied = true}));
    EXPECT_THAT(copy.box.begin, ElementsAre(5, 0));
    EXPECT_THAT(copy.box.shape, ElementsAre(6, 8));
    EXPECT_EQ(std::count_if(held.begin(), held.end(), [](const auto& one) { return one.tied_copy; }), 1);
    EXPECT_EQ(std::count_if(held.begin(), held.end(),
                            [](const auto& one) { return one.info.kind == ParameterKind::embedding; }),
              pipeline_parallel == 1 ? 2 : 1);
  }
}

TEST(Sharding, APartThatDoesNotExistIsOurMistake) {
  const ModelDescription model = sharded_model();
  const ParameterInfo embedding = list_parameters(model).front();
  const Sharding sharding = shard_by_name(model, {.tensor_parallel = 2}, embedding.name);
  EXPECT_THROW(local_box(embedding, sharding, 2), InternalError);
  // infeasible_reason refuses 2 kv heads on 3 ranks.
  EXPECT_THROW(shard_by_name(model, {.tensor_parallel = 3}, "model.layers.0.self_attn.k_proj.weight"), InternalError);
}

// ---- Properties of random models in random layouts ----

struct RandomLayout {
  ModelDescription model;
  ParallelStrategy strategy;
};

RandomLayout random_layout(uint64_t trial) {
  const uint64_t key = stream_key(7, "random layouts");
  uint64_t drawn = 0;
  const auto pick = [&](std::vector<int64_t> choices) {
    return choices[philox(key, trial, drawn++)[0] % choices.size()];
  };
  RandomLayout random;
  ParallelStrategy& strategy = random.strategy;
  strategy.data_parallel = pick({1, 2, 3});
  strategy.tensor_parallel = pick({1, 2, 3, 4, 6, 8});
  strategy.pipeline_parallel = pick({1, 2, 3});
  strategy.virtual_stages = strategy.pipeline_parallel > 1 ? pick({1, 2}) : 1;
  strategy.sequence_parallel = pick({0, 1}) == 1;
  const int64_t t = strategy.tensor_parallel;

  ModelDescription& model = random.model;
  // Either the number of kv heads divides t or t divides it. All kv heads serve equally many query heads.
  std::vector<int64_t> kv_choices = {t, 2 * t};
  for (int64_t heads = 1; heads < t; ++heads) {
    if (t % heads == 0) kv_choices.push_back(heads);
  }
  model.num_kv_heads = pick(kv_choices);
  model.num_heads = std::max(t, model.num_kv_heads) * pick({1, 2, 3});
  model.head_dim = pick({1, 2});
  model.hidden_size = pick({2, 5});
  model.intermediate_size = t * pick({1, 3});
  model.vocab_size = t + pick({0, 1, 5, 8});
  model.num_layers = strategy.num_stages() + pick({0, 1, 3});
  model.qkv_bias = pick({0, 1}) == 1;
  model.tie_word_embeddings = pick({0, 1}) == 1;
  return random;
}

std::string text_of(const RandomLayout& layout) {
  return concat(to_string(layout.strategy), " v ", layout.strategy.virtual_stages, ", ", layout.model.num_heads, "/",
                layout.model.num_kv_heads, " heads, vocabulary ", layout.model.vocab_size);
}

// Adds one to the elements in the box of a matrix (or vector) of this shape.
void count_elements(const Box& box, const std::vector<int64_t>& shape, std::vector<int64_t>& counts) {
  const int64_t width = shape.size() == 2 ? shape[1] : 1;
  const int64_t column_begin = shape.size() == 2 ? box.begin[1] : 0;
  const int64_t columns = shape.size() == 2 ? box.shape[1] : 1;
  for (int64_t row = box.begin[0]; row < box.begin[0] + box.shape[0]; ++row) {
    for (int64_t column = column_begin; column < column_begin + columns; ++column) {
      ++counts.at(row * width + column);
    }
  }
}

TEST(ShardingProperty, AllRanksTogetherHoldEveryElementOncePerReplica) {
  for (uint64_t trial = 0; trial < 200; ++trial) {
    const auto layout = random_layout(trial);
    SCOPED_TRACE(text_of(layout));
    std::map<std::string, std::vector<int64_t>> counts, tied_counts;
    std::map<std::string, Sharding> shardings;
    for (const ParameterInfo& parameter : list_parameters(layout.model)) {
      counts[parameter.name].resize(parameter.num_elements());
    }
    for (int64_t rank = 0; rank < layout.strategy.world_size(); ++rank) {
      const Placement placement = place(layout.model, layout.strategy, tokens_per_sequence, rank);
      for (const LocalParameter& held : list_local_parameters(layout.model, placement)) {
        auto& where = held.tied_copy ? tied_counts[held.info.name] : counts[held.info.name];
        where.resize(held.info.num_elements());
        count_elements(held.box, held.info.shape, where);
        const auto [known, first] = shardings.emplace(held.info.name, held.sharding);
        EXPECT_TRUE(first || known->second == held.sharding) << held.info.name << ": every rank says the same";
        EXPECT_GT(held.box.num_elements(), 0) << held.info.name;
      }
    }
    for (const auto& [name, count] : counts) {
      const int64_t expected = shardings.at(name).replicas * layout.strategy.data_parallel;
      EXPECT_THAT(count, testing::Each(expected)) << name;
    }
    for (const auto& [name, count] : tied_counts) {
      EXPECT_TRUE(shardings.at(name).tied);
      EXPECT_THAT(count, testing::Each(layout.strategy.tensor_parallel / shardings.at(name).parts *
                                       layout.strategy.data_parallel));
    }
    EXPECT_EQ(tied_counts.size(), layout.model.tie_word_embeddings ? 1U : 0U);
  }
}

TEST(ShardingProperty, ARanksQueryHeadsFindTheirKeysAndValuesOnIt) {
  for (uint64_t trial = 0; trial < 200; ++trial) {
    const auto layout = random_layout(trial);
    const ModelDescription& model = layout.model;
    SCOPED_TRACE(text_of(layout));
    for (int64_t rank = 0; rank < layout.strategy.tensor_parallel; ++rank) {
      const Box query = box_by_name(model, layout.strategy, rank, "model.layers.0.self_attn.q_proj.weight");
      const Box key = box_by_name(model, layout.strategy, rank, "model.layers.0.self_attn.k_proj.weight");
      const Box output = box_by_name(model, layout.strategy, rank, "model.layers.0.self_attn.o_proj.weight");
      // Heads are whole, and the output projection reads the columns that this rank's query heads write.
      EXPECT_EQ(query.begin[0] % model.head_dim, 0);
      EXPECT_EQ(query.shape[0] % model.head_dim, 0);
      EXPECT_EQ(output.begin[1], query.begin[0]);
      EXPECT_EQ(output.shape[1], query.shape[0]);
      const int64_t first_head = query.begin[0] / model.head_dim;
      const int64_t local_heads = query.shape[0] / model.head_dim;
      const int64_t local_kv_heads = key.shape[0] / model.head_dim;
      // The kernel takes local_heads query heads in groups of local_heads / local_kv_heads.
      ASSERT_EQ(local_heads % local_kv_heads, 0);
      for (int64_t head = 0; head < local_heads; ++head) {
        const int64_t wanted = (first_head + head) / (model.num_heads / model.num_kv_heads);
        const int64_t found = key.begin[0] / model.head_dim + head / (local_heads / local_kv_heads);
        EXPECT_EQ(found, wanted) << "query head " << first_head + head << " on rank " << rank;
      }
    }
  }
}

}  // namespace
}  // namespace copus
