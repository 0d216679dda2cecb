// The training state as a list of tensors. Each entry has the tensor's role, its placement along the axes of the mesh,
// its position in a bucket, and the smallest unit into which it may be split. What each rank holds follows from this
// list.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "copus/base/named_values.h"
#include "copus/base/numbers/dtype.h"
#include "copus/description/mesh.h"
#include "copus/description/model_description.h"
#include "copus/description/optimizer_kind.h"
#include "copus/description/parallel_strategy.h"
#include "copus/placement/bucket_offsets.h"
#include "copus/placement/sharding.h"
#include "copus/placement/stages.h"

namespace copus {

enum class TensorRole { weight, gradient, optimizer_slot };

// The smallest piece into which a tensor may be split. A row is one index of the first dimension.
enum class CutUnit { element, row, matrix };
template <>
inline constexpr auto named_values<CutUnit> = std::to_array<NamedValue<CutUnit>>(
    {{CutUnit::element, "elements"}, {CutUnit::row, "rows"}, {CutUnit::matrix, "matrices"}});

// The optimizer slot with the master weights.
inline constexpr std::string_view master_slot = "master";

// A tensor that the optimizer keeps for each parameter, with the parameter's shape.
struct OptimizerSlot {
  std::string name;
  DType dtype = DType::f32;
  CutUnit unit = CutUnit::element;
};

// Returns whether all slots may be split at any element.
bool may_cut_anywhere(const std::vector<OptimizerSlot>& slots);

// The tensors that training keeps for each parameter.
struct StateRecipe {
  DType weight = DType::f32;    // read by forward and backward passes
  DType gradient = DType::f32;  // summed over micro-batches
  bool keeps_master = false;    // whether there are fp32 master weights, of which `weight` is the rounding
  std::vector<OptimizerSlot> slots;
};

// Lists the slots that an optimizer has for each parameter in addition to master weights, in the order in which it
// reads them:
// - adamw: exp_avg and exp_avg_sq, the moving averages of the gradient and of its square;
// - signum: momentum, the moving average of the gradient;
// - muon: first_moment, the moving average of the gradient, and second_moment. For parameters that AdamW updates,
//   second_moment is the moving average of the gradient's square. For a hidden matrix it is the direction of the update
//   in progress, and zero between updates.
std::vector<OptimizerSlot> optimizer_slots(OptimizerKind kind);

// Returns the bytes of all slots per parameter element.
int64_t slot_bytes(OptimizerKind kind);

// Returns the training state for this optimizer, with fp32 master weights unless `weight` is fp32.
StateRecipe state_recipe(OptimizerKind kind, DType weight);

// A range of a tensor along a split dimension. A fused projection has one segment per projection.
struct Segment {
  int64_t begin = 0, end = 0;
  int64_t parts = 1;  // as even as possible; ranks / parts neighbouring ranks hold each part
};

// How the ranks along one axis of the mesh hold a tensor.
struct AxisPlacement {
  MeshAxis axis = MeshAxis::data;
  int64_t ranks = 1;
  // Each segment is split separately along `dimension`. Without segments every rank holds the whole dimension.
  int64_t dimension = 0;
  std::vector<Segment> segments = {};
  // With ZeRO, rank i holds share i mod flat_shards of the tensor's flat bucket.
  int64_t flat_shards = 1;
  // Whether ranks compute summands, which the ranks with the same part must add up.
  bool partial = false;
};

// A tensor of the training state, with its parameter's name and shape.
struct PlacedTensor {
  ParameterInfo parameter;
  TensorRole role = TensorRole::weight;
  std::string slot = {};  // name of the optimizer slot; master_slot for master weights
  DType dtype = DType::f32;
  CutUnit unit = CutUnit::element;
  std::vector<AxisPlacement> axes = {};  // among the ranks of the bucket's stage
  bool tied_copy = false;                // whether it is the last stage's copy of a tied embedding, used as head
  int64_t bucket = 0;                    // index into PlacedState::buckets
  std::vector<int64_t> offsets = {};     // by tensor-parallel rank: of the first element in the bucket

  // Returns the placement along an axis that is in `axes`.
  const AxisPlacement& along(MeshAxis axis) const;
  // Returns how many neighbouring tensor-parallel ranks hold the same elements. Requires at most one segment.
  int64_t tensor_replicas() const;
  // Returns the number of elements of boxes().
  int64_t num_elements(int64_t tensor_rank) const;
  // Returns the boxes of the logical tensor in a tensor-parallel rank's bucket, one after another: one box per segment.
  std::vector<Box> boxes(int64_t tensor_rank) const;
};

// A bucket: the parameters of a decoder layer, the embedding, the final norm with the head, or the tied copy of the
// head. Each role and slot of the bucket is one flat buffer. A rank's buckets are in the order of PlacedState::buckets.
struct PlacedBucket {
  int64_t stage = 0;
  std::vector<int64_t> sizes;  // by tensor-parallel rank: as BucketOffsets::size, in elements
};

struct PlacedState {
  ParallelStrategy strategy;
  std::vector<PlacedBucket> buckets;
  // Sorted by bucket, offset, role and slot. A tied copy on its embedding's pipeline rank has only a gradient.
  std::vector<PlacedTensor> tensors;

  // Returns the range of the tensor's bucket in a rank's buffer for the tensor's role and slot.
  Stretch share(const PlacedTensor& tensor, const MeshCoordinates& at) const;
};

// Places a model's state on the stages of a strategy (strategy.num_stages() ranges, which may be empty). Throws
// UserError if the strategy splits a tensor's unit: "parallel.tensor_parallel 2 cuts ...; the nearest is 1".
PlacedState place_state(const ModelDescription& model, const ParallelStrategy& strategy,
                        const std::vector<LayerRange>& stages, const StateRecipe& recipe);

// Returns the error message of place_state() if the strategy splits a unit of a tensor, for an optimizer with these
// slots. Empty if it splits no unit.
std::optional<std::string> cut_below_unit(const ModelDescription& model, const ParallelStrategy& strategy,
                                          int64_t sequence_length, const std::vector<OptimizerSlot>& slots);

// One rank's part of a tensor.
struct HeldTensor {
  const PlacedTensor* tensor = nullptr;
  int64_t bucket = 0;      // index among the rank's buckets
  int64_t offset = 0;      // of the boxes' first element within the bucket
  std::vector<Box> boxes;  // the part within the bucket before ZeRO shards it
  Stretch kept;            // the elements that the rank keeps, counted over all boxes; may be empty
};

// Lists the parts that the rank at these coordinates holds, in the order of the state's tensors. The result points into
// `state`, which must outlive it.
std::vector<HeldTensor> list_held(const PlacedState& state, const MeshCoordinates& at);

}  // namespace copus
