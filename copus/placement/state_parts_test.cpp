#include "copus/placement/state_parts.h"

#include <gtest/gtest.h>

#include <set>

#include "copus/base/error.h"
#include "copus/placement/bucket_offsets.h"

namespace copus {
namespace {

ModelDescription small_model(bool tied) {
  ModelDescription model;
  model.vocab_size = 250;
  model.hidden_size = 64;
  model.intermediate_size = 96;
  model.num_layers = 4;
  model.num_heads = 8;
  model.num_kv_heads = 2;
  model.head_dim = 8;
  model.tie_word_embeddings = tied;
  return model;
}

TEST(StateParts, EveryElementIsInOnePartAndItsRanksHoldIt) {
  for (const bool tied : {false, true}) {
    for (const auto& [d, t, p, zero, copies] :
         {std::tuple(1, 1, 1, 0, 1), std::tuple(4, 1, 1, 0, 1), std::tuple(4, 1, 1, 1, 1), std::tuple(2, 4, 1, 1, 1),
          std::tuple(1, 2, 2, 0, 1), std::tuple(2, 2, 2, 1, 1), std::tuple(4, 1, 1, 3, 1), std::tuple(4, 2, 1, 2, 2),
          std::tuple(4, 1, 2, 3, 2), std::tuple(4, 1, 1, 3, 4)}) {
      SCOPED_TRACE(concat("d ", d, " t ", t, " p ", p, " zero ", zero, " copies ", copies, " tied ", tied));
      const ModelDescription model = small_model(tied);
      ParallelStrategy strategy;
      strategy.data_parallel = d;
      strategy.tensor_parallel = t;
      strategy.pipeline_parallel = p;
      strategy.zero_stage = zero;
      strategy.zero_replicas = copies;
      const auto parts = find_state_parts(model, place(model, strategy, 16, 0));
      const std::vector<ParameterInfo> parameters = list_parameters(model);
      ASSERT_EQ(parts.size(), parameters.size());
      for (size_t i = 0; i < parts.size(); ++i) {
        std::set<int64_t> seen;
        for (const StatePart& part : parts[i]) {
          EXPECT_EQ(std::ssize(part.ranks), zero == 0 ? d : copies);
          for_stretches(part.box, parameters[i].shape, part.begin, part.end,
                        [&](int64_t /*position*/, int64_t first, int64_t count) {
                          for (int64_t element = first; element < first + count; ++element) {
                            EXPECT_TRUE(seen.insert(element).second) << parameters[i].name << " " << element;
                          }
                        });
          for (const int64_t rank : part.ranks) {
            bool holds = false;
            for (const LocalParameter& local : list_local_parameters(model, place(model, strategy, 16, rank))) {
              holds |= local.info.name == parameters[i].name && local.box == part.box;
            }
            EXPECT_TRUE(holds) << parameters[i].name << " on rank " << rank;
          }
        }
        int64_t elements = 1;
        for (const int64_t size : parameters[i].shape) elements *= size;
        EXPECT_EQ(std::ssize(seen), elements) << parameters[i].name;
      }
    }
  }
}

}  // namespace
}  // namespace copus
