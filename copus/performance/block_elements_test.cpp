#include "copus/performance/block_elements.h"

#include <gtest/gtest.h>

#include "copus/base/error.h"
#include "copus/performance/testing/predicted_memory.h"
#include "copus/placement/sharding.h"

namespace copus {
namespace {

// Counts the parameters of a pipeline rank's last tensor-parallel rank, as training lists them.
RoleElements held(const ModelDescription& model, const ParallelStrategy& strategy, int64_t pipeline,
                  ParameterKind kind) {
  const Mesh mesh(strategy);
  const int64_t rank = mesh.rank({.data = 0, .tensor = strategy.tensor_parallel - 1, .pipeline = pipeline});
  RoleElements elements;
  for (const LocalParameter& parameter : list_local_parameters(model, place(model, strategy, sequence, rank))) {
    const bool is_embedding = parameter.info.kind == ParameterKind::embedding && !parameter.tied_copy;
    const bool is_wanted = kind == ParameterKind::linear      ? parameter.info.layer == 0
                           : kind == ParameterKind::embedding ? is_embedding
                                                              : parameter.info.layer < 0 && !is_embedding;
    if (!is_wanted) continue;
    const auto number = static_cast<double>(parameter.box.num_elements());
    elements.gradients += number;
    elements.weights += parameter.tied_copy && strategy.pipeline_parallel == 1 ? 0 : number;
  }
  elements.optimizer = elements.weights;
  return elements;
}

void expect_equal(const RoleElements& counted, const RoleElements& expected) {
  EXPECT_EQ(counted.weights, expected.weights);
  EXPECT_EQ(counted.gradients, expected.gradients);
  EXPECT_EQ(counted.optimizer, expected.optimizer);
}

TEST(BlockElements, AreThoseThatTheLayoutLists) {
  for (const bool tied : {false, true}) {
    ModelDescription model = grouped_query_model();
    model.vocab_size = 1021;
    model.qkv_bias = true;
    model.tie_word_embeddings = tied;
    BlockCounter counter(model);
    for (const int64_t t : {1, 2, 4, 8}) {
      for (const int64_t p : {1, 2, 4}) {
        const ParallelStrategy strategy{.tensor_parallel = t, .pipeline_parallel = p};
        SCOPED_TRACE(to_string(strategy) + (tied ? " tied" : ""));
        const BlockElements& counted = counter.of(strategy);
        expect_equal(counted.layers.front(), held(model, strategy, 0, ParameterKind::linear));
        expect_equal(counted.embedding, held(model, strategy, 0, ParameterKind::embedding));
        expect_equal(counted.head, held(model, strategy, p - 1, ParameterKind::norm));
      }
    }
  }
}

TEST(BlockElements, PartialGradientsAreThoseOfNormsAndOfSharedKeyValueHeads) {
  BlockCounter counter(grouped_query_model());
  const double norms = 2 * 128, one_head = 2 * 16 * 128;
  using Partial = std::map<int64_t, double>;
  EXPECT_EQ(counter.of({.tensor_parallel = 4}).layers.front().partial, Partial());
  EXPECT_EQ(counter.of({.tensor_parallel = 4, .sequence_parallel = true}).layers.front().partial,
            (Partial{{4, norms}}));
  EXPECT_EQ(counter.of({.tensor_parallel = 8}).layers.front().partial, (Partial{{2, one_head}}));
  EXPECT_EQ(counter.of({.tensor_parallel = 8, .sequence_parallel = true}).layers.front().partial,
            (Partial{{2, one_head}, {8, norms}}));
}

}  // namespace
}  // namespace copus
