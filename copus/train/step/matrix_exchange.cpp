#include "copus/train/step/matrix_exchange.h"

#include <algorithm>
#include <utility>

#include "copus/base/error.h"
#include "copus/model/kernels/kernels.h"

namespace copus {

namespace {

Message message(int64_t member, const at::Tensor& tensor) {
  return {member, tensor.data_ptr(), static_cast<int64_t>(tensor.nbytes())};
}

at::Tensor elements_of(const at::Tensor& flat, const Stretch& elements) {
  return flat.narrow(0, elements.begin, elements.size());
}

// Returns a tensor-parallel rank's part of a matrix, as a view.
at::Tensor part_of(const at::Tensor& matrix, const Box& box) {
  return matrix.narrow(0, box.begin[0], box.shape[0]).narrow(1, box.begin[1], box.shape[1]);
}

}  // namespace

MatrixExchange::MatrixExchange(const ParameterStore& parameters, RankGroups& groups)
    : parameters_(parameters),
      groups_(groups),
      zero_shards_(parameters.placement().strategy.optimizer_shards()),
      tensor_parallel_(parameters.placement().strategy.tensor_parallel) {
  const Placement& placement = parameters.placement();
  shares_ = share_matrices(parameters.model(), placement.strategy, placement.stages, placement.here.pipeline);
}

std::vector<MatrixExchange::Round> MatrixExchange::rounds_of(std::span<const SharedMatrix* const> matrices) const {
  std::vector<size_t> next_round(parameters_.placement().strategy.ranks_per_stage());  // by owner
  std::vector<Round> rounds;
  for (const SharedMatrix* matrix : matrices) {
    const size_t round = next_round[matrix->owner]++;
    rounds.resize(std::max(rounds.size(), round + 1));
    rounds[round].push_back(matrix);
  }
  return rounds;
}

const SharedMatrix* MatrixExchange::own(const Round& round) const {
  const auto found = std::ranges::find(round, groups_.stage().rank(), &SharedMatrix::owner);
  return found == round.end() ? nullptr : *found;
}

bool MatrixExchange::is_here(const MatrixPart& part) const {
  return part.tensor == groups_.here().tensor && part.shard == groups_.here().data % zero_shards_;
}

// Returns the rank, within the stage's group, that holds a part in this copy of the state.
int64_t MatrixExchange::rank_of(const MatrixPart& part, int64_t copy) const {
  return (copy * zero_shards_ + part.shard) * tensor_parallel_ + part.tensor;
}

at::Tensor MatrixExchange::view(const at::Tensor& shard, const SharedMatrix& matrix, const MatrixPart& part) const {
  const int64_t offset = matrix.offsets[part.tensor] - parameters_.buckets()[matrix.bucket].shard_begin;
  return shard.narrow(0, offset + part.elements.begin, part.elements.size());
}

at::Tensor MatrixExchange::gather(const Round& round, const ReadPart& read) {
  Communicator& stage = groups_.stage();
  std::vector<at::Tensor> sent;  // kept until the exchange is done
  std::vector<Piece> pieces;
  std::vector<Message> outgoing, incoming;
  for (const SharedMatrix* matrix : round) {
    const bool is_own = matrix->owner == stage.rank();
    const int64_t copy = matrix->owner / tensor_parallel_ / zero_shards_;
    for (const MatrixPart& part : matrix->parts) {
      if (part.tensor % matrix->replicas != 0) continue;
      const int64_t holder = rank_of(part, copy);
      if (holder == stage.rank() && is_own) {
        pieces.push_back({&part, read(*matrix, part)});
      } else if (holder == stage.rank()) {
        sent.push_back(read(*matrix, part));
        outgoing.push_back(message(matrix->owner, sent.back()));
      } else if (is_own) {
        pieces.push_back(
            {&part, kernels::empty({part.elements.size()}, parameters_.master_dtype(), parameters_.device())});
        incoming.push_back(message(holder, pieces.back().elements));
      }
    }
  }
  if (stage.size() > 1) stage.exchange(outgoing, incoming);
  const SharedMatrix* const mine = own(round);
  return mine == nullptr ? at::Tensor() : assemble(*mine, pieces);
}

// `pieces` must be sorted by tensor-parallel rank.
at::Tensor MatrixExchange::assemble(const SharedMatrix& matrix, const std::vector<Piece>& pieces) const {
  at::Tensor whole = kernels::empty(matrix.parameter.shape, parameters_.master_dtype(), parameters_.device());
  for (auto piece = pieces.begin(); piece != pieces.end();) {
    const int64_t tensor = piece->part->tensor;
    const Box& box = matrix.boxes[tensor];
    const at::Tensor part = kernels::empty(box.shape, parameters_.master_dtype(), parameters_.device());
    for (; piece != pieces.end() && piece->part->tensor == tensor; ++piece) {
      elements_of(part.view({-1}), piece->part->elements).copy_(piece->elements);
    }
    part_of(whole, box).copy_(part);
  }
  return whole;
}

void MatrixExchange::distribute(const Round& round, const at::Tensor& own, const ReadPart& read) {
  Communicator& stage = groups_.stage();
  const int64_t copies = stage.size() / tensor_parallel_ / zero_shards_;
  std::vector<at::Tensor> kept;  // until the exchange is done
  std::vector<Message> outgoing, incoming;
  for (const SharedMatrix* matrix : round) {
    const bool is_own = matrix->owner == stage.rank();
    std::vector<at::Tensor> flat(tensor_parallel_);  // the parts of `own`
    for (const MatrixPart& part : matrix->parts) {
      if (!is_own) {
        if (is_here(part)) incoming.push_back(message(matrix->owner, read(*matrix, part)));
        continue;
      }
      at::Tensor& of_rank = flat[part.tensor];
      if (!of_rank.defined()) {
        of_rank = part_of(own, matrix->boxes[part.tensor]).contiguous().view({-1});
        kept.push_back(of_rank);
      }
      const at::Tensor elements = elements_of(of_rank, part.elements);
      if (is_here(part)) read(*matrix, part).copy_(elements);
      for (int64_t copy = 0; copy < copies; ++copy) {
        const int64_t holder = rank_of(part, copy);
        if (holder != stage.rank()) outgoing.push_back(message(holder, elements));
      }
    }
  }
  if (stage.size() > 1) stage.exchange(outgoing, incoming);
}

}  // namespace copus
