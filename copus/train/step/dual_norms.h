// Measures the gradient and its noise in the dual norms of sign descent and Muon (statistics/dual_noise.h), on some
// hidden matrices in some steps. It compares a step's gradient with the optimizer's average of earlier gradients, which
// every rank has in every layout, also where ZeRO never keeps a whole gradient.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "copus/base/numbers/exact_sum.h"
#include "copus/config/job_config.h"
#include "copus/train/optimizer/optimizer.h"
#include "copus/train/step/matrix_exchange.h"

namespace copus {

// |g - m|* and <g, d> of DualObservation, summed over matrices.
struct DualNorms {
  double noise = 0, signal = 0;
};
// In the sum of absolute elements, and in the sum of singular values.
struct DualNormsOfStep {
  DualNorms sign, spectral;
};

class DualMeasurement {
 public:
  // A measurement takes about this many matrices of the model, and the next one takes others. It takes all of them if
  // the model has fewer than twice as many.
  static constexpr int64_t matrices_at_once = 16;

  // Keeps references to all arguments but `config`, which belong to the same layout.
  DualMeasurement(const ParameterStore& parameters, const OptimizerConfig& config, const Optimizer& optimizer,
                  MatrixExchange& exchange);

  // Returns this rank's sums over the matrices that it owns: the four numbers of DualNormsOfStep, in their order. The
  // matrices are those that measurement number `number` measures. The sums over all ranks are the same in every layout
  // that has the same gradients. All ranks of a pipeline rank call it before the optimizer's update.
  std::array<ExactSum, 4> measure(int64_t number, double gradient_factor);

  // Whether a measurement measures the hidden matrix with this index among those of the model.
  bool is_due(int64_t index_in_model, int64_t number) const;

 private:
  const ParameterStore& parameters_;
  const double decay_;  // of the average of gradients
  const Optimizer& optimizer_;
  MatrixExchange& exchange_;
  std::vector<int64_t> index_in_model_;  // by matrix of the exchange
  int64_t groups_;                       // of matrices, measured in turn
};

// The decay of an optimizer's average of gradients, its first slot.
double average_decay(const OptimizerConfig& config);

}  // namespace copus
