// Measures a step's gradient and its noise in the dual norms of sign descent and Muon (statistics/dual_noise.h), for
// some hidden matrices in some steps. Compares the gradient with the optimizer's average of earlier gradients, which
// exists in every layout, even where ZeRO never keeps a whole gradient.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "copus/base/numbers/exact_sum.h"
#include "copus/config/job_config.h"
#include "copus/train/optimizer/optimizer.h"
#include "copus/train/step/matrix_exchange.h"

namespace copus {

// g - m|* and <g, d> of DualObservation, summed over matrices.
struct DualNorms {
  double noise = 0, signal = 0;
};
// DualNorms in the sum of absolute elements (sign descent), and in the sum of singular values (Muon).
struct DualNormsOfStep {
  DualNorms sign, spectral;
};

class DualMeasurement {
 public:
  // Approximate number of the model's matrices per measurement; the next measurement takes others. Models with fewer
  // than twice as many are measured as a whole.
  static constexpr int64_t matrices_at_once = 16;

  // All arguments but `config` must belong to the same layout and outlive this object.
  DualMeasurement(const ParameterStore& parameters, const OptimizerConfig& config, const Optimizer& optimizer,
                  MatrixExchange& exchange);

  // Returns this rank's sums over the matrices that it owns and that measurement `number` covers: the four numbers of
  // DualNormsOfStep, in order. Sums over all ranks are the same in every layout with the same gradients. All ranks of a
  // pipeline rank call it before the optimizer's update.
  std::array<ExactSum, 4> measure(int64_t number, double gradient_factor);

  // Returns whether measurement `number` covers the model's hidden matrix with this index.
  bool is_due(int64_t index_in_model, int64_t number) const;

 private:
  const ParameterStore& parameters_;
  const double decay_;  // of the average of gradients
  const Optimizer& optimizer_;
  MatrixExchange& exchange_;
  std::vector<int64_t> index_in_model_;  // by matrix of the exchange
  int64_t groups_;                       // number of groups of matrices, which are measured in turn
};

// Returns the decay of the optimizer's first slot, its average of gradients.
double average_decay(const OptimizerConfig& config);

}  // namespace copus
