// Gathers the parts of each matrix on the rank that owns the matrix, and distributes the results.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "copus/model/memory/parameters.h"
#include "copus/placement/matrix_shares.h"
#include "copus/train/step/rank_groups.h"

namespace copus {

// The hidden matrices of a pipeline rank. All its ranks call these functions in the same order.
class MatrixExchange {
 public:
  // Matrices that are exchanged at the same time: at most one per owner.
  using Round = std::vector<const SharedMatrix*>;
  // Returns this rank's elements of a part, flat, in the master dtype.
  using ReadPart = std::function<at::Tensor(const SharedMatrix&, const MatrixPart&)>;

  // Both arguments must outlive this object.
  MatrixExchange(const ParameterStore& parameters, RankGroups& groups);

  const std::vector<SharedMatrix>& matrices() const { return shares_.matrices; }
  // Divides the matrices, in order, into rounds.
  std::vector<Round> rounds_of(std::span<const SharedMatrix* const> matrices) const;
  // Returns the round's matrix that this rank owns; null if there is none.
  const SharedMatrix* own(const Round& round) const;

  // Returns the matrix that this rank owns in the round; undefined if it owns none. The matrix is assembled from its
  // parts: every rank that holds a part gets it from `read` and sends it to the owner.
  at::Tensor gather(const Round& round, const ReadPart& read);
  // Copies the parts of each owner's matrix into the tensors that `read` returns on the ranks with these parts.
  void distribute(const Round& round, const at::Tensor& own, const ReadPart& read);

  // Returns this rank's view of the part's elements in a tensor of the bucket's shard.
  at::Tensor view(const at::Tensor& shard, const SharedMatrix& matrix, const MatrixPart& part) const;

 private:
  // A part of this rank's own matrix, as it arrives.
  struct Piece {
    const MatrixPart* part;
    at::Tensor elements;
  };

  bool is_here(const MatrixPart& part) const;
  int64_t rank_of(const MatrixPart& part, int64_t copy) const;
  at::Tensor assemble(const SharedMatrix& matrix, const std::vector<Piece>& pieces) const;

  const ParameterStore& parameters_;
  RankGroups& groups_;
  const int64_t zero_shards_, tensor_parallel_;
  MatrixShares shares_;
};

}  // namespace copus
