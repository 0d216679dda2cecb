// The mesh of ranks: every rank has one coordinate on each named axis. Tensor-parallel ranks are neighbours, then come
// data-parallel ones, and pipeline stages lie farthest apart, since in that order they have less and less to tell each
// other. It is Megatron-LM's: rank = (pipeline * d + data) * t + tensor.
#pragma once

#include <cstdint>
#include <vector>

#include "copus/description/parallel_strategy.h"

namespace copus {

enum class MeshAxis { data, tensor, pipeline };

struct MeshCoordinates {
  int64_t data = 0;
  int64_t tensor = 0;
  int64_t pipeline = 0;
  bool operator==(const MeshCoordinates&) const = default;
};

class Mesh {
 public:
  explicit Mesh(const ParallelStrategy& strategy);

  int64_t size() const { return data_ * tensor_ * pipeline_; }
  MeshCoordinates coordinates(int64_t rank) const;
  int64_t rank(const MeshCoordinates& coordinates) const;

  // The ranks that differ from `rank` in this axis alone, in the order of their coordinate, `rank` among them.
  std::vector<int64_t> group(int64_t rank, MeshAxis axis) const;

 private:
  int64_t data_, tensor_, pipeline_;
};

}  // namespace copus
