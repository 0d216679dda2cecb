// Muon's directions, which need whole matrices: assembles each hidden matrix' momentum on one rank, orthogonalises it
// there, and distributes the result.
#pragma once

#include <cstdint>
#include <vector>

#include "copus/config/job_config.h"
#include "copus/model/memory/parameters.h"
#include "copus/placement/matrix_shares.h"
#include "copus/train/optimizer/optimizer.h"
#include "copus/train/step/rank_groups.h"

namespace copus {

class Orthogonalization {
 public:
  // Keeps references to `parameters`, `optimizer` and `groups`, which belong to the same layout.
  Orthogonalization(const ParameterStore& parameters, const OptimizerConfig& config, const Optimizer& optimizer,
                    RankGroups& groups);

  // Computes the directions of the update with the reduced gradients in `parameters`, each multiplied by
  // gradient_factor, and leaves them in the optimizer's second slot, scaled by update_factor(). All ranks of a pipeline
  // rank call it. The same matrix gives the same bits in every layout.
  void run(double gradient_factor);

  const MatrixShares& shares() const { return shares_; }

 private:
  // A part of a matrix that this rank holds or receives, flat and contiguous.
  struct Piece {
    const MatrixPart* part;
    at::Tensor elements;
  };

  bool is_here(const MatrixPart& part) const;
  int64_t rank_of(const MatrixPart& part, int64_t copy) const;
  at::Tensor momentum_of(const SharedMatrix& matrix, const MatrixPart& part, double gradient_factor) const;
  at::Tensor direction_of(const SharedMatrix& matrix, const std::vector<Piece>& pieces) const;
  std::vector<Piece> gather(const std::vector<const SharedMatrix*>& round, double gradient_factor);
  void distribute(const std::vector<const SharedMatrix*>& round, const at::Tensor& direction);

  const ParameterStore& parameters_;
  const MuonSettings settings_;
  const Optimizer& optimizer_;
  RankGroups& groups_;
  const int64_t zero_shards_, tensor_parallel_;
  MatrixShares shares_;
  std::vector<std::vector<const SharedMatrix*>> rounds_;  // at most one matrix of each owner
};

}  // namespace copus
