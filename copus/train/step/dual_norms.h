// Measures the gradient and its noise in the norms that belong to an optimizer's steps (statistics/dual_noise.h), on
// some hidden matrices in some steps. It compares the gradient of a part of the step's samples, which GradientProbe has
// kept, with the gradient of the other samples, at the same weights.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
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
// One step's DualNorms in three norms: `sign` is the sum of absolute elements and `spectral` the sum of singular
// values. `preconditioned`, only with AdamW, is the norm of AdamW's steps: |x|^2 = sum of x_i^2 / (sqrt(v_i) +
// epsilon), where v is AdamW's average of squared gradients. v is not corrected for its start at 0: a common factor of
// all weights does not change a noise scale, and epsilon hardly matters.
struct DualNormsOfStep {
  DualNorms sign, spectral;
  std::optional<DualNorms> preconditioned;
  double part = 0;  // samples of g; m has the others of the global batch
};

class DualMeasurement {
 public:
  // All arguments but `config` must belong to the same layout and outlive this object.
  DualMeasurement(const ParameterStore& parameters, const OptimizerConfig& config, const Optimizer& optimizer,
                  MatrixExchange& exchange);

  // Whether a measurement measures the hidden matrix with this index among those of the model.
  bool is_due(int64_t index_in_model, int64_t number) const;

  // The parameters of this rank that measurement number `number` measures, by their indices in the store.
  std::vector<int64_t> parameters_of(int64_t number) const;

  // What norms_from() needs, as sums over matrices.
  static constexpr size_t num_sums = 7;

  // Returns this rank's sums over the matrices that it owns. `kept`: the gradients of parameters_of(number) in `share`
  // of the step's samples, from GradientProbe::take_kept(). All ranks of a pipeline stage call this before the
  // optimizer's update.
  std::array<ExactSum, num_sums> measure(int64_t number, const std::vector<at::Tensor>& kept, double share,
                                         double gradient_factor);

  // Returns the norms from the `num_sums` sums over all ranks.
  DualNormsOfStep norms_from(std::span<const double> sums) const;

 private:
  // A hidden matrix of this rank.
  struct Matrix {
    int64_t index_in_model;
    int64_t parameter;  // its index in the store
  };

  const ParameterStore& parameters_;
  const std::optional<double> epsilon_;  // AdamW's
  const Optimizer& optimizer_;
  MatrixExchange& exchange_;
  std::vector<Matrix> matrices_;  // by matrix of the exchange
  int64_t groups_;                // of matrices, measured in turn
};

}  // namespace copus
