#include "copus/train/step/orthogonalization.h"

#include "copus/model/kernels/kernels.h"

namespace copus {

Orthogonalization::Orthogonalization(const ParameterStore& parameters, const OptimizerConfig& config,
                                     const Optimizer& optimizer, MatrixExchange& exchange)
    : parameters_(parameters), settings_(config.muon), optimizer_(optimizer), exchange_(exchange) {
  std::vector<const SharedMatrix*> matrices;
  for (const SharedMatrix& matrix : exchange.matrices()) matrices.push_back(&matrix);
  rounds_ = exchange.rounds_of(matrices);
}

void Orthogonalization::run(double gradient_factor) {
  // The momentum after the update; with Nesterov's method, after one more.
  const double kept = settings_.nesterov ? settings_.momentum * settings_.momentum : settings_.momentum;
  const auto momentum = [&](const SharedMatrix& matrix, const MatrixPart& part) {
    return kernels::weighted_sum(exchange_.view(optimizer_.slot_tensors(0)[matrix.bucket], matrix, part), kept,
                                 exchange_.view(parameters_.buckets()[matrix.bucket].gradient_shard, matrix, part),
                                 (1 - kept) * gradient_factor);
  };
  const auto direction = [&](const SharedMatrix& matrix, const MatrixPart& part) {
    return exchange_.view(optimizer_.slot_tensors(1)[matrix.bucket], matrix, part);
  };
  for (const MatrixExchange::Round& round : rounds_) {
    const at::Tensor own = exchange_.gather(round, momentum);
    exchange_.distribute(round, own.defined() ? direction_of(own) : own, direction);
  }
}

at::Tensor Orthogonalization::direction_of(const at::Tensor& momentum) const {
  const bool is_bf16 =
      settings_.newton_schulz_precision == Precision::bf16 ||
      (settings_.newton_schulz_precision == Precision::automatic && parameters_.compute_dtype() == at::kBFloat16);
  const auto polynomials = newton_schulz_polynomials(settings_.newton_schulz, settings_.newton_schulz_steps);
  return kernels::map_singular_values(momentum, polynomials, is_bf16 ? at::kBFloat16 : momentum.scalar_type())
      .mul_(update_factor(settings_.update_scale, momentum.size(0), momentum.size(1)));
}

}  // namespace copus
