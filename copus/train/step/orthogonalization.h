// Computes Muon's directions, which need unsharded matrices: assembles each hidden matrix's momentum on one rank,
// orthogonalises it there, and distributes the result.
#pragma once

#include <vector>

#include "copus/config/job_config.h"
#include "copus/train/optimizer/optimizer.h"
#include "copus/train/step/matrix_exchange.h"

namespace copus {

class Orthogonalization {
 public:
  // All arguments but `config` must belong to the same layout and outlive this object.
  Orthogonalization(const ParameterStore& parameters, const OptimizerConfig& config, const Optimizer& optimizer,
                    MatrixExchange& exchange);

  // Computes the directions of the update from the reduced gradients in `parameters`, multiplied by gradient_factor.
  // Stores them in the optimizer's second slot, scaled by update_factor(). All ranks of a pipeline stage call this. The
  // same matrix gives the same bits in every layout.
  void run(double gradient_factor);

 private:
  at::Tensor direction_of(const at::Tensor& momentum) const;

  const ParameterStore& parameters_;
  const MuonSettings settings_;
  const Optimizer& optimizer_;
  MatrixExchange& exchange_;
  std::vector<MatrixExchange::Round> rounds_;
};

}  // namespace copus
