#include "copus/placement/matrix_shares.h"

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <vector>

#include "copus/description/muon.h"

namespace copus {
namespace {

ModelDescription model_of_four_layers() {
  ModelDescription model;
  model.vocab_size = 64;
  model.hidden_size = 64;
  model.intermediate_size = 96;
  model.num_layers = 4;
  model.num_heads = 4;
  model.num_kv_heads = 2;
  model.head_dim = 16;
  return model;
}

MatrixShares share(const ParallelStrategy& strategy, int64_t pipeline_rank) {
  const ModelDescription model = model_of_four_layers();
  return share_matrices(model, strategy, balance_stages(model, 32, strategy.num_stages()), pipeline_rank);
}

std::vector<ParallelStrategy> strategies() {
  std::vector<ParallelStrategy> all;
  for (const int64_t data : {1, 2, 8}) {
    for (const int64_t tensor : {1, 2, 4}) {
      for (const int64_t pipeline : {1, 2}) {
        for (const int64_t zero : {0, 1, 2, 3}) {
          if (zero > 0 && data == 1) continue;
          ParallelStrategy& strategy = all.emplace_back();
          strategy.data_parallel = data;
          strategy.tensor_parallel = tensor;
          strategy.pipeline_parallel = pipeline;
          strategy.zero_stage = zero;
          if (zero > 0 && data == 8) strategy.zero_replicas = 2;
        }
      }
    }
  }
  return all;
}

// Every element of every hidden matrix is in exactly one part, apart from replicas.
TEST(MatrixShares, CoverEveryHiddenMatrixOnceInEveryLayout) {
  for (const ParallelStrategy& strategy : strategies()) {
    std::map<std::string, std::vector<int64_t>> covered;
    for (int64_t pipeline = 0; pipeline < strategy.pipeline_parallel; ++pipeline) {
      for (const SharedMatrix& matrix : share(strategy, pipeline).matrices) {
        std::vector<int64_t>& times = covered[matrix.parameter.name];
        times.resize(matrix.parameter.num_elements());
        ASSERT_LT(matrix.owner, strategy.data_parallel * strategy.tensor_parallel);
        for (const MatrixPart& part : matrix.parts) {
          if (part.tensor % matrix.replicas != 0) continue;
          for_stretches(matrix.boxes[part.tensor], matrix.parameter.shape, part.elements.begin, part.elements.end,
                        [&](int64_t, int64_t index, int64_t count) {
                          for (int64_t i = 0; i < count; ++i) ++times[index + i];
                        });
        }
      }
    }
    EXPECT_EQ(covered.size(), 4 * 7U);
    for (const auto& [name, times] : covered) {
      EXPECT_EQ(std::set(times.begin(), times.end()), std::set<int64_t>{1}) << name;
    }
  }
}

TEST(MatrixShares, AreAsEvenAsWholeMatricesAllow) {
  const MatrixShares alone = share({}, 0);
  EXPECT_EQ(alone.imbalance, 1);
  EXPECT_EQ(alone.idle_ranks, 0);
  double largest = 0, all = 0;
  for (const SharedMatrix& matrix : alone.matrices) {
    const double work = newton_schulz_flops(matrix.parameter.shape, 1);
    largest = std::max(largest, work);
    all += work;
  }
  for (const int64_t data : {2, 4, 8, 40}) {
    ParallelStrategy strategy;
    strategy.data_parallel = data;
    strategy.zero_stage = 1;
    const MatrixShares shares = share(strategy, 0);
    std::map<int64_t, double> loads;
    for (const SharedMatrix& matrix : shares.matrices) {
      loads[matrix.owner] += newton_schulz_flops(matrix.parameter.shape, 1);
    }
    double most = 0;
    for (const auto& [owner, load] : loads) most = std::max(most, load);
    EXPECT_DOUBLE_EQ(shares.imbalance, most * static_cast<double>(data) / all);
    const double best = std::max(largest, all / static_cast<double>(data));
    EXPECT_LE(most, 4.0 / 3 * best + 1) << data;
    EXPECT_EQ(shares.idle_ranks, data - std::ssize(loads)) << data;
  }
}

}  // namespace
}  // namespace copus
