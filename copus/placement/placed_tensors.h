// The training state as a list of tensors. Each tensor states its role, how it is placed along the axes of the mesh,
// where it is in its bucket, and how finely it may be split. The list determines what each rank holds.
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

// The smallest piece of a tensor that a rank may hold without the rest. A row is one index of the first dimension.
enum class CutUnit { element, row, matrix };
template <>
inline constexpr auto named_values<CutUnit> = std::to_array<NamedValue<CutUnit>>(
    {{CutUnit::element, "elements"}, {CutUnit::row, "rows"}, {CutUnit::matrix, "matrices"}});

// The name of the master weights among the optimizer's slots.
inline constexpr std::string_view master_slot = "master";

// A tensor that the optimizer keeps for every parameter, with the parameter's shape.
struct OptimizerSlot {
  std::string name;
  DType dtype = DType::f32;
  CutUnit unit = CutUnit::element;
};

// Whether the unit of every slot is the element.
bool may_cut_anywhere(const std::vector<OptimizerSlot>& slots);

// The tensors that training keeps for every parameter.
struct StateRecipe {
  DType weight = DType::f32;    // what forward and backward read
  DType gradient = DType::f32;  // the sum over micro-batches
  bool keeps_master = false;    // fp32 master weights; `weight` is their rounding
  std::vector<OptimizerSlot> slots;
};

// Lists the slots that an optimizer keeps for every parameter in addition to its master weights, in the order in which
// it reads them:
// - adamw: exp_avg and exp_avg_sq, the moving averages of the gradient and of its square,
// - signum: momentum, the moving average of the gradient,
// - muon: first_moment, the moving average of the gradient; and second_moment, which holds the moving average of the
//   square of the gradient where AdamW makes the update. For a hidden matrix second_moment holds the direction of the
//   update that is under way, and is zero between updates.
std::vector<OptimizerSlot> optimizer_slots(OptimizerKind kind);

// Returns the bytes of all slots for one parameter element.
int64_t slot_bytes(OptimizerKind kind);

// Returns the training state with this optimizer, with fp32 master weights unless `weight` is fp32 itself.
StateRecipe state_recipe(OptimizerKind kind, DType weight);

// A range of a tensor along the dimension that an axis shards. A fused projection has one segment for each of its
// projections.
struct Segment {
  int64_t begin = 0, end = 0;
  int64_t parts = 1;  // as even as possible; each is on ranks / parts neighbouring ranks
};

// How the ranks along one axis of the mesh hold a tensor.
struct AxisPlacement {
  MeshAxis axis = MeshAxis::data;
  int64_t ranks = 1;
  // Each segment is sharded separately along `dimension`. Without segments every rank holds the whole dimension.
  int64_t dimension = 0;
  std::vector<Segment> segments = {};
  // Sharded flat (ZeRO): rank i holds share i mod flat_shards of the tensor's bucket.
  int64_t flat_shards = 1;
  // Ranks compute summands, which the ranks that hold the same part add up.
  bool partial = false;
};

// One tensor of the training state. All tensors of a parameter have its name and shape.
struct PlacedTensor {
  ParameterInfo parameter;
  TensorRole role = TensorRole::weight;
  std::string slot = {};  // the name of an optimizer_slot; master_slot for the master weights
  DType dtype = DType::f32;
  CutUnit unit = CutUnit::element;
  std::vector<AxisPlacement> axes = {};  // among the ranks of the bucket's stage
  bool tied_copy = false;                // the last stage's copy of the embedding, which serves as the head
  int64_t bucket = 0;                    // index into PlacedState::buckets
  std::vector<int64_t> offsets = {};     // by tensor-parallel rank: the tensor's first element in its bucket

  // Returns the placement along an axis that is in `axes`.
  const AxisPlacement& along(MeshAxis axis) const;
  // Returns the number of neighbouring tensor-parallel ranks that hold the same elements. The tensor has at most one
  // segment.
  int64_t tensor_replicas() const;
  // Returns the number of elements of boxes().
  int64_t num_elements(int64_t tensor_rank) const;
  // Returns the parts of the logical tensor that are in a tensor-parallel rank's bucket, one after another: one for
  // each segment.
  std::vector<Box> boxes(int64_t tensor_rank) const;
};

// A bucket: the parameters of a decoder layer, the embedding, the final norm with the head, or the tied copy of the
// head. Its tensors are in one flat buffer for each role and slot. A rank's buckets have the order of this list.
struct PlacedBucket {
  int64_t stage = 0;
  std::vector<int64_t> sizes;  // by tensor-parallel rank: elements with padding, as in BucketOffsets::size
};

struct PlacedState {
  ParallelStrategy strategy;
  std::vector<PlacedBucket> buckets;
  // Sorted by bucket, then by offset, then by role and slot. A tied copy on the pipeline rank of its embedding has only
  // a gradient.
  std::vector<PlacedTensor> tensors;

  // Returns the elements of the tensor's bucket that a rank's buffer for its role and slot holds.
  Stretch share(const PlacedTensor& tensor, const MeshCoordinates& at) const;
};

// Places the state of a model on the stages of a strategy (strategy.num_stages() ranges, which may be empty). Throws
// UserError if the strategy splits a tensor below its unit: "parallel.tensor_parallel 2 cuts ...; the nearest is 1".
PlacedState place_state(const ModelDescription& model, const ParallelStrategy& strategy,
                        const std::vector<LayerRange>& stages, const StateRecipe& recipe);

// Returns the message of place_state() about a tensor that a strategy splits below the unit of an optimizer with these
// slots; empty if there is none.
std::optional<std::string> cut_below_unit(const ModelDescription& model, const ParallelStrategy& strategy,
                                          int64_t sequence_length, const std::vector<OptimizerSlot>& slots);

// The part of a tensor that one rank holds.
struct HeldTensor {
  const PlacedTensor* tensor = nullptr;
  int64_t bucket = 0;      // index among the rank's own buckets
  int64_t offset = 0;      // of the first element of the boxes, in the bucket
  std::vector<Box> boxes;  // what is in the bucket before ZeRO shards it
  Stretch kept;            // the elements that the rank keeps, counted over all boxes; empty if it keeps none
};

// Lists what the rank at these coordinates holds, in the order of the state's tensors. Keeps pointers into `state`.
std::vector<HeldTensor> list_held(const PlacedState& state, const MeshCoordinates& at);

}  // namespace copus
