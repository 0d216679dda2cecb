#include "copus/placement/matrix_shares.h"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <numeric>
#include <queue>
#include <utility>

#include "copus/base/error.h"
#include "copus/description/muon.h"
#include "copus/placement/placed_tensors.h"

namespace copus {

namespace {

// Lists the parts of a matrix, with the ranks that hold them.
std::vector<MatrixPart> list_parts(const PlacedState& state, const PlacedTensor& tensor) {
  const int64_t shards = tensor.along(MeshAxis::data).flat_shards;
  std::vector<MatrixPart> parts;
  for (int64_t rank = 0; rank < std::ssize(tensor.offsets); ++rank) {
    const int64_t elements = tensor.num_elements(rank);
    int64_t begin = 0, shard = 0;
    for (const int64_t size : shard_sizes(state.buckets[tensor.bucket].sizes[rank], shards)) {
      const Stretch part{std::clamp<int64_t>(begin - tensor.offsets[rank], 0, elements),
                         std::clamp<int64_t>(begin + size - tensor.offsets[rank], 0, elements)};
      if (part.size() > 0) parts.push_back({.tensor = rank, .shard = shard, .elements = part});
      begin += size;
      ++shard;
    }
  }
  return parts;
}

}  // namespace

std::vector<int64_t> choose_owners(const std::vector<double>& work, int64_t ranks) {
  std::vector<size_t> order(work.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, std::greater(), [&](size_t item) { return work[item]; });
  using Load = std::pair<double, int64_t>;  // work so far, rank
  std::priority_queue<Load, std::vector<Load>, std::greater<>> loads;
  for (int64_t rank = 0; rank < ranks; ++rank) loads.emplace(0, rank);
  std::vector<int64_t> owners(work.size());
  for (const size_t item : order) {
    const auto [load, rank] = loads.top();
    loads.pop();
    owners[item] = rank;
    loads.emplace(load + work[item], rank);
  }
  return owners;
}

MatrixShares share_matrices(const ModelDescription& model, const ParallelStrategy& strategy,
                            const std::vector<LayerRange>& stages, int64_t pipeline_rank) {
  const PlacedState state = place_state(model, strategy, stages, {.keeps_master = true, .slots = {}});
  MatrixShares shares;
  for (const HeldTensor& held : list_held(state, {.pipeline = pipeline_rank})) {
    const PlacedTensor& tensor = *held.tensor;
    if (tensor.slot != master_slot || !is_hidden_matrix(tensor.parameter)) continue;
    SharedMatrix& matrix = shares.matrices.emplace_back();
    matrix = {.parameter = tensor.parameter,
              .bucket = held.bucket,
              .offsets = tensor.offsets,
              .boxes = {},
              .replicas = tensor.tensor_replicas(),
              .parts = list_parts(state, tensor)};
    for (int64_t rank = 0; rank < strategy.tensor_parallel; ++rank) {
      const std::vector<Box> boxes = tensor.boxes(rank);
      COPUS_CHECK(boxes.size() == 1, tensor.parameter.name, " in ", boxes.size(), " boxes");
      matrix.boxes.push_back(boxes.front());
    }
  }
  std::vector<double> work, loads(strategy.ranks_per_stage());
  for (const SharedMatrix& matrix : shares.matrices) work.push_back(newton_schulz_flops(matrix.parameter.shape, 1));
  const std::vector<int64_t> owners = choose_owners(work, std::ssize(loads));
  for (size_t i = 0; i < owners.size(); ++i) {
    shares.matrices[i].owner = owners[i];
    loads[owners[i]] += work[i];
  }
  if (!work.empty()) {
    const double mean = std::reduce(loads.begin(), loads.end()) / static_cast<double>(loads.size());
    shares.imbalance = std::ranges::max(loads) / mean;
  }
  shares.idle_ranks = std::ranges::count(loads, 0.0);
  return shares;
}

}  // namespace copus
