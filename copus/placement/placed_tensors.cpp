#include "copus/placement/placed_tensors.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "copus/base/error.h"
#include "copus/base/numbers/round_up.h"
#include "copus/placement/parameter_rules.h"

namespace copus {
namespace {

// Builds the list, bucket by bucket.
class StatePlacer {
 public:
  StatePlacer(const ModelDescription& model, const ParallelStrategy& strategy, const std::vector<LayerRange>& stages,
              const StateRecipe& recipe)
      : model_(model), strategy_(strategy), stages_(stages), recipe_(recipe) {
    COPUS_CHECK(std::ssize(stages) == strategy.num_stages(), stages.size(), " stages for ", strategy.num_stages());
    state_.strategy = strategy;
  }

  PlacedState place() {
    const std::vector<ParameterInfo> parameters = list_parameters(model_);
    for (size_t begin = 0, end = 0; begin < parameters.size(); begin = end) {
      while (end < parameters.size() && share_bucket(parameters[begin], parameters[end])) ++end;
      add_bucket({parameters.begin() + begin, parameters.begin() + end}, /*tied_copy=*/false);
    }
    if (model_.tie_word_embeddings) {
      // Includes learned positions, so that both copies of a tied embedding are buckets of equal size, and reductions
      // and re-layouts need no special case.
      std::vector<ParameterInfo> embeddings;
      std::ranges::copy_if(parameters, std::back_inserter(embeddings),
                           [](const ParameterInfo& parameter) { return parameter.kind == ParameterKind::embedding; });
      add_bucket(embeddings, /*tied_copy=*/true);
    }
    return std::move(state_);
  }

 private:
  static bool share_bucket(const ParameterInfo& one, const ParameterInfo& other) {
    const auto is_embedding = [](const ParameterInfo& info) { return info.kind == ParameterKind::embedding; };
    return one.layer == other.layer && is_embedding(one) == is_embedding(other);
  }

  int64_t last_stage() const { return std::ssize(stages_) - 1; }

  int64_t stage_of(const ParameterInfo& parameter) const {
    if (parameter.layer < 0) return parameter.kind == ParameterKind::embedding ? 0 : last_stage();
    const auto holder = std::ranges::find_if(stages_, [&](const LayerRange& layers) {
      return layers.begin <= parameter.layer && parameter.layer < layers.end;
    });
    COPUS_CHECK(holder != stages_.end(), parameter.name, " lies on none of ", stages_.size(), " stages");
    return holder - stages_.begin();
  }

  // Moves joined parameters behind the first of them; all others keep their order.
  static std::vector<ParameterInfo> in_bucket_order(std::vector<ParameterInfo> rest) {
    std::vector<ParameterInfo> ordered;
    while (!rest.empty()) {
      const ParameterInfo first = rest.front();
      const auto behind = std::stable_partition(rest.begin() + 1, rest.end(),
                                                [&](const ParameterInfo& other) { return are_joined(first, other); });
      ordered.insert(ordered.end(), rest.begin(), behind);
      rest.erase(rest.begin(), behind);
    }
    return ordered;
  }

  void add_bucket(const std::vector<ParameterInfo>& parameters, bool tied_copy) {
    PlacedBucket bucket{.stage = tied_copy ? last_stage() : stage_of(parameters.front()), .sizes = {}};
    bucket.sizes.resize(strategy_.tensor_parallel, 0);
    const ParameterInfo* previous = nullptr;
    const std::vector<ParameterInfo> ordered = in_bucket_order(parameters);
    for (const ParameterInfo& parameter : ordered) {
      PlacedTensor tensor{.parameter = parameter,
                          .axes = {along_tensor_axis(parameter)},
                          .tied_copy = tied_copy,
                          .bucket = std::ssize(state_.buckets)};
      const bool joined = previous != nullptr && are_joined(*previous, parameter);
      for (int64_t rank = 0; rank < strategy_.tensor_parallel; ++rank) {
        int64_t& size = bucket.sizes[rank];
        tensor.offsets.push_back(joined ? size : round_up(size, bucket_alignment));
        size = tensor.offsets.back() + tensor.num_elements(rank);
      }
      previous = &parameter;
      add_roles(tensor);
    }
    // As in BucketOffsets::size.
    for (int64_t& size : bucket.sizes) size = round_up(size, bucket_alignment * strategy_.optimizer_shards());
    state_.buckets.push_back(std::move(bucket));
  }

  AxisPlacement along_tensor_axis(const ParameterInfo& parameter) const {
    const ParameterSplit& split = parameter.split;
    AxisPlacement placement{.axis = MeshAxis::tensor, .ranks = strategy_.tensor_parallel, .dimension = split.dimension};
    const int64_t parts = split.parts(placement.ranks);
    COPUS_CHECK(placement.ranks % parts == 0, parameter.name, " in ", parts, " parts on ", placement.ranks, " ranks");
    if (split.units > 0) placement.segments = {{0, parameter.shape.at(split.dimension), parts}};
    return placement;
  }

  // Adds `tensor` once for each role: weight, gradient, and the optimizer's slots.
  void add_roles(const PlacedTensor& tensor) {
    const bool has_gradient_alone = tensor.tied_copy && strategy_.pipeline_parallel == 1;
    if (!has_gradient_alone) add(tensor, TensorRole::weight, {.name = "", .dtype = recipe_.weight});
    add(tensor, TensorRole::gradient, {.name = "", .dtype = recipe_.gradient});
    if (has_gradient_alone) return;
    if (recipe_.keeps_master) add(tensor, TensorRole::optimizer_slot, {std::string(master_slot)});
    for (const OptimizerSlot& slot : recipe_.slots) add(tensor, TensorRole::optimizer_slot, slot);
  }

  void add(PlacedTensor tensor, TensorRole role, const OptimizerSlot& slot) {
    tensor.role = role;
    tensor.slot = slot.name;
    tensor.dtype = slot.dtype;
    tensor.unit = slot.unit;
    const bool is_gradient = role == TensorRole::gradient;
    const bool is_sharded_flat = role == TensorRole::weight ? strategy_.cuts_weights()
                                 : is_gradient              ? strategy_.cuts_gradients()
                                                            : strategy_.cuts_optimizer();
    AxisPlacement& along_tensor = tensor.axes.front();
    const bool has_replicas = along_tensor.segments.empty()
                                  ? along_tensor.ranks > 1
                                  : std::ranges::any_of(along_tensor.segments, [&](const Segment& segment) {
                                      return segment.parts < along_tensor.ranks;
                                    });
    along_tensor.partial = is_gradient && has_replicas && replicas_differ(tensor.parameter, strategy_);
    tensor.axes.push_back({.axis = MeshAxis::data,
                           .ranks = strategy_.data_parallel,
                           .flat_shards = is_sharded_flat ? strategy_.zero_shards() : 1,
                           .partial = is_gradient && strategy_.data_parallel > 1});
    state_.tensors.push_back(std::move(tensor));
  }

  const ModelDescription& model_;
  const ParallelStrategy& strategy_;
  const std::vector<LayerRange>& stages_;
  const StateRecipe& recipe_;
  PlacedState state_;
};

// Returns the range of a segment that a tensor-parallel rank holds.
Stretch part_of(const Segment& segment, const AxisPlacement& placement, int64_t tensor_rank) {
  const int64_t length = segment.end - segment.begin, replicas = placement.ranks / segment.parts;
  const int64_t part = tensor_rank / replicas;
  COPUS_CHECK(part >= 0 && part < segment.parts, "part ", part, " of ", segment.parts);
  return {segment.begin + part_begin(length, segment.parts, part),
          segment.begin + part_begin(length, segment.parts, part + 1)};
}

// Returns whether a boundary between flat shares, at `position` within the tensor's boxes, falls between two units.
bool lies_between_units(const std::vector<Box>& boxes, int64_t position, CutUnit unit) {
  for (const Box& box : boxes) {
    const int64_t elements = box.num_elements();
    if (position <= 0) break;
    if (position < elements) return unit == CutUnit::row && position % (elements / box.shape.front()) == 0;
    position -= elements;
  }
  return true;
}

// Returns whether, on any tensor-parallel rank, a boundary between flat shares splits one of the tensor's units.
bool flat_shares_cut_unit(const PlacedState& state, const PlacedTensor& tensor) {
  const int64_t shards = tensor.along(MeshAxis::data).flat_shards;
  const std::vector<int64_t>& sizes = state.buckets[tensor.bucket].sizes;
  for (size_t rank = 0; rank < sizes.size(); ++rank) {
    const std::vector<Box> boxes = tensor.boxes(static_cast<int64_t>(rank));
    int64_t boundary = 0;
    for (const int64_t share : shard_sizes(sizes[rank], shards)) {
      boundary += share;
      if (!lies_between_units(boxes, boundary - tensor.offsets[rank], tensor.unit)) return true;
    }
  }
  return false;
}

// Finds the first tensor with a split unit, and describes what splits it.
std::optional<std::string> find_cut_below_unit(const PlacedState& state) {
  for (const PlacedTensor& tensor : state.tensors) {
    if (tensor.unit == CutUnit::element) continue;
    const auto cut = [&](const char* key, int64_t value, const char* where, int64_t nearest) {
      return concat(key, " ", value, " cuts ", tensor.parameter.name, " ", where, ", but the optimizer's ", tensor.slot,
                    " needs whole ", to_string(tensor.unit), "; the nearest is ", nearest);
    };
    const AxisPlacement& along_tensor = tensor.along(MeshAxis::tensor);
    const bool between_columns = along_tensor.dimension > 0;
    const bool is_sharded =
        std::ranges::any_of(along_tensor.segments, [](const Segment& segment) { return segment.parts > 1; });
    if (is_sharded && (tensor.unit == CutUnit::matrix || between_columns)) {
      return cut("parallel.tensor_parallel", along_tensor.ranks, between_columns ? "between columns" : "between rows",
                 1);
    }
    if (flat_shares_cut_unit(state, tensor)) {
      return cut("parallel.zero_stage", state.strategy.zero_stage, "into flat shares", 0);
    }
  }
  return std::nullopt;
}

}  // namespace

bool may_cut_anywhere(const std::vector<OptimizerSlot>& slots) {
  return std::ranges::all_of(slots, [](const OptimizerSlot& slot) { return slot.unit == CutUnit::element; });
}

std::vector<OptimizerSlot> optimizer_slots(OptimizerKind kind) {
  switch (kind) {
    case OptimizerKind::adamw:
      return {{"exp_avg"}, {"exp_avg_sq"}};
    case OptimizerKind::signum:
      return {{"momentum"}};
    case OptimizerKind::muon:
      return {{"first_moment"}, {"second_moment"}};
  }
  fail_check("known optimizer", __FILE__, __LINE__, "");
}

int64_t slot_bytes(OptimizerKind kind) {
  int64_t bytes = 0;
  for (const OptimizerSlot& slot : optimizer_slots(kind)) bytes += size_of(slot.dtype);
  return bytes;
}

StateRecipe state_recipe(OptimizerKind kind, DType weight) {
  return {
      .weight = weight, .gradient = DType::f32, .keeps_master = weight != DType::f32, .slots = optimizer_slots(kind)};
}

const AxisPlacement& PlacedTensor::along(MeshAxis axis) const {
  const auto found = std::ranges::find(axes, axis, &AxisPlacement::axis);
  COPUS_CHECK(found != axes.end(), parameter.name, " along axis ", static_cast<int64_t>(axis));
  return *found;
}

int64_t PlacedTensor::tensor_replicas() const {
  const AxisPlacement& along_tensor = along(MeshAxis::tensor);
  if (along_tensor.segments.empty()) return along_tensor.ranks;
  COPUS_CHECK(along_tensor.segments.size() == 1, parameter.name, " in ", along_tensor.segments.size(), " segments");
  return along_tensor.ranks / along_tensor.segments.front().parts;
}

int64_t PlacedTensor::num_elements(int64_t tensor_rank) const {
  int64_t elements = 0;
  for (const Box& box : boxes(tensor_rank)) elements += box.num_elements();
  return elements;
}

std::vector<Box> PlacedTensor::boxes(int64_t tensor_rank) const {
  const Box whole{.begin = std::vector<int64_t>(parameter.shape.size(), 0), .shape = parameter.shape};
  const AxisPlacement& along_tensor = along(MeshAxis::tensor);
  if (along_tensor.segments.empty()) return {whole};
  std::vector<Box> boxes;
  for (const Segment& segment : along_tensor.segments) {
    const Stretch part = part_of(segment, along_tensor, tensor_rank);
    Box& box = boxes.emplace_back(whole);
    box.begin[along_tensor.dimension] = part.begin;
    box.shape[along_tensor.dimension] = part.size();
  }
  return boxes;
}

Stretch PlacedState::share(const PlacedTensor& tensor, const MeshCoordinates& at) const {
  const int64_t shards = tensor.along(MeshAxis::data).flat_shards;
  Stretch share;
  int64_t left = at.data % shards;
  for (const int64_t size : shard_sizes(buckets[tensor.bucket].sizes[at.tensor], shards)) {
    share = {share.end, share.end + size};
    if (left-- == 0) break;
  }
  return share;
}

PlacedState place_state(const ModelDescription& model, const ParallelStrategy& strategy,
                        const std::vector<LayerRange>& stages, const StateRecipe& recipe) {
  PlacedState state = StatePlacer(model, strategy, stages, recipe).place();
  if (const auto cut = find_cut_below_unit(state)) throw UserError(*cut);
  return state;
}

std::optional<std::string> cut_below_unit(const ModelDescription& model, const ParallelStrategy& strategy,
                                          int64_t sequence_length, const std::vector<OptimizerSlot>& slots) {
  if (may_cut_anywhere(slots)) return std::nullopt;  // avoids placing the state
  const std::vector<LayerRange> stages = balance_stages(model, sequence_length, strategy.num_stages());
  return find_cut_below_unit(StatePlacer(model, strategy, stages, {.slots = slots}).place());
}

std::vector<HeldTensor> list_held(const PlacedState& state, const MeshCoordinates& at) {
  std::vector<int64_t> own_index;  // by bucket: its index on this rank, -1 if another rank has it
  int64_t num_own = 0;
  for (const PlacedBucket& bucket : state.buckets) {
    own_index.push_back(bucket.stage % state.strategy.pipeline_parallel == at.pipeline ? num_own++ : -1);
  }
  std::vector<HeldTensor> all_held;
  for (const PlacedTensor& tensor : state.tensors) {
    if (own_index[tensor.bucket] < 0) continue;
    HeldTensor held{.tensor = &tensor,
                    .bucket = own_index[tensor.bucket],
                    .offset = tensor.offsets[at.tensor],
                    .boxes = tensor.boxes(at.tensor),
                    .kept = {}};
    const int64_t elements = tensor.num_elements(at.tensor);
    const Stretch share = state.share(tensor, at);
    held.kept = {std::clamp<int64_t>(share.begin - held.offset, 0, elements),
                 std::clamp<int64_t>(share.end - held.offset, 0, elements)};
    all_held.push_back(std::move(held));
  }
  return all_held;
}

}  // namespace copus
