#include "copus/train/step/orthogonalization.h"

#include <algorithm>
#include <utility>

#include "copus/base/error.h"
#include "copus/model/kernels/kernels.h"

namespace copus {

namespace {

Message message(int64_t member, const at::Tensor& tensor) {
  return {member, tensor.data_ptr(), static_cast<int64_t>(tensor.nbytes())};
}

at::Tensor elements_of(const at::Tensor& flat, const Stretch& elements, int64_t offset = 0) {
  return flat.narrow(0, offset + elements.begin, elements.size());
}

// The view of a matrix that is a tensor-parallel rank's part.
at::Tensor part_of(const at::Tensor& matrix, const Box& box) {
  return matrix.narrow(0, box.begin[0], box.shape[0]).narrow(1, box.begin[1], box.shape[1]);
}

}  // namespace

Orthogonalization::Orthogonalization(const ParameterStore& parameters, const OptimizerConfig& config,
                                     const Optimizer& optimizer, RankGroups& groups)
    : parameters_(parameters),
      settings_(config.muon),
      optimizer_(optimizer),
      groups_(groups),
      zero_shards_(parameters.placement().strategy.cuts_optimizer() ? parameters.placement().strategy.zero_shards()
                                                                    : 1),
      tensor_parallel_(parameters.placement().strategy.tensor_parallel) {
  const Placement& placement = parameters.placement();
  shares_ = share_matrices(parameters.model(), placement.strategy, placement.stages, placement.here.pipeline);
  std::vector<size_t> round_of(placement.strategy.data_parallel * tensor_parallel_);  // by owner: the next one
  for (const SharedMatrix& matrix : shares_.matrices) {
    const size_t round = round_of[matrix.owner]++;
    rounds_.resize(std::max(rounds_.size(), round + 1));
    rounds_[round].push_back(&matrix);
  }
}

void Orthogonalization::run(double gradient_factor) {
  for (const std::vector<const SharedMatrix*>& round : rounds_) {
    const std::vector<Piece> pieces = gather(round, gradient_factor);
    const auto own = std::ranges::find(round, groups_.stage().rank(), &SharedMatrix::owner);
    at::Tensor direction;
    if (own != round.end()) direction = direction_of(**own, pieces);
    distribute(round, direction);
  }
}

bool Orthogonalization::is_here(const MatrixPart& part) const {
  return part.tensor == groups_.here().tensor && part.shard == groups_.here().data % zero_shards_;
}

// The rank, in the group of the stage, that holds a part in this copy of the state.
int64_t Orthogonalization::rank_of(const MatrixPart& part, int64_t copy) const {
  return (copy * zero_shards_ + part.shard) * tensor_parallel_ + part.tensor;
}

// Returns the part's momentum after the update, or with Nesterov's method one more step ahead.
at::Tensor Orthogonalization::momentum_of(const SharedMatrix& matrix, const MatrixPart& part,
                                          double gradient_factor) const {
  const Bucket& bucket = parameters_.buckets()[matrix.bucket];
  const int64_t offset = matrix.offsets[part.tensor] - bucket.shard_begin;
  const double kept = settings_.nesterov ? settings_.momentum * settings_.momentum : settings_.momentum;
  return kernels::weighted_sum(elements_of(optimizer_.slot_tensors(0)[matrix.bucket], part.elements, offset), kept,
                               elements_of(bucket.gradient_shard, part.elements, offset), (1 - kept) * gradient_factor);
}

// Returns the momentum of the matrix that this rank owns, in pieces that cover it; empty if it owns none.
std::vector<Orthogonalization::Piece> Orthogonalization::gather(const std::vector<const SharedMatrix*>& round,
                                                                double gradient_factor) {
  Communicator& stage = groups_.stage();
  std::vector<Piece> sent, pieces;
  std::vector<Message> outgoing, incoming;
  for (const SharedMatrix* matrix : round) {
    const int64_t copy = matrix->owner / tensor_parallel_ / zero_shards_;
    for (const MatrixPart& part : matrix->parts) {
      if (part.tensor % matrix->replicas != 0) continue;
      const int64_t holder = rank_of(part, copy);
      const bool is_own = matrix->owner == stage.rank();
      if (holder == stage.rank()) {
        Piece piece{&part, momentum_of(*matrix, part, gradient_factor)};
        if (!is_own) outgoing.push_back(message(matrix->owner, piece.elements));
        (is_own ? pieces : sent).push_back(std::move(piece));
      } else if (is_own) {
        pieces.push_back(
            {&part, kernels::empty({part.elements.size()}, parameters_.master_dtype(), parameters_.device())});
        incoming.push_back(message(holder, pieces.back().elements));
      }
    }
  }
  if (stage.size() > 1) stage.exchange(outgoing, incoming);
  return pieces;
}

at::Tensor Orthogonalization::direction_of(const SharedMatrix& matrix, const std::vector<Piece>& pieces) const {
  const std::vector<int64_t>& shape = matrix.parameter.shape;
  const at::Tensor momentum = kernels::empty(shape, parameters_.master_dtype(), parameters_.device());
  for (auto piece = pieces.begin(); piece != pieces.end();) {
    const int64_t tensor = piece->part->tensor;
    const Box& box = matrix.boxes[tensor];
    const at::Tensor part = kernels::empty(box.shape, parameters_.master_dtype(), parameters_.device());
    for (; piece != pieces.end() && piece->part->tensor == tensor; ++piece) {
      elements_of(part.view({-1}), piece->part->elements).copy_(piece->elements);
    }
    part_of(momentum, box).copy_(part);
  }
  const bool is_bf16 =
      settings_.newton_schulz_precision == Precision::bf16 ||
      (settings_.newton_schulz_precision == Precision::automatic && parameters_.compute_dtype() == at::kBFloat16);
  const auto polynomials = newton_schulz_polynomials(settings_.newton_schulz, settings_.newton_schulz_steps);
  return kernels::map_singular_values(momentum, polynomials, is_bf16 ? at::kBFloat16 : parameters_.master_dtype())
      .mul_(update_factor(settings_.update_scale, shape[0], shape[1]));
}

// Puts the directions of the round's matrices into the second slots of all ranks that hold parts of them. `direction`:
// that of the matrix that this rank owns.
void Orthogonalization::distribute(const std::vector<const SharedMatrix*>& round, const at::Tensor& direction) {
  Communicator& stage = groups_.stage();
  const int64_t copies = stage.size() / tensor_parallel_ / zero_shards_;
  std::vector<at::Tensor> kept;  // until the exchange is done
  std::vector<Message> outgoing, incoming;
  for (const SharedMatrix* matrix : round) {
    const bool is_own = matrix->owner == stage.rank();
    std::vector<at::Tensor> flat(tensor_parallel_);  // the parts of `direction`
    for (const MatrixPart& part : matrix->parts) {
      at::Tensor elements;
      if (is_own) {
        at::Tensor& of_rank = flat[part.tensor];
        if (!of_rank.defined()) of_rank = part_of(direction, matrix->boxes[part.tensor]).contiguous().view({-1});
        elements = elements_of(of_rank, part.elements);
      }
      const bool is_here = this->is_here(part);
      at::Tensor target;
      if (is_here) {
        const int64_t offset = matrix->offsets[part.tensor] - parameters_.buckets()[matrix->bucket].shard_begin;
        target = elements_of(optimizer_.slot_tensors(1)[matrix->bucket], part.elements, offset);
      }
      if (is_own) {
        for (int64_t copy = 0; copy < copies; ++copy) {
          const int64_t holder = rank_of(part, copy);
          if (holder == stage.rank()) {
            target.copy_(elements);
          } else {
            outgoing.push_back(message(holder, elements));
          }
        }
        kept.push_back(elements);
      } else if (is_here) {
        incoming.push_back(message(matrix->owner, target));
      }
    }
  }
  if (stage.size() > 1) stage.exchange(outgoing, incoming);
}

}  // namespace copus
