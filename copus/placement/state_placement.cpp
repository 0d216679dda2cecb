#include "copus/placement/state_placement.h"

#include <algorithm>

#include "copus/base/error.h"

namespace copus::relayout {

namespace {

StateKind state_kind(const PlacedTensor& tensor, const StateRecipe& recipe) {
  if (tensor.role == TensorRole::weight) return StateKind::weights;
  if (tensor.slot == master_slot) return StateKind::master;
  const auto slot = std::ranges::find(recipe.slots, tensor.slot, &OptimizerSlot::name);
  COPUS_CHECK(slot != recipe.slots.end(), tensor.slot);
  return slot_kind(static_cast<size_t>(slot - recipe.slots.begin()));
}

}  // namespace

Region Entry::inside(const Stretch& stretch) const {
  const int64_t width = box.columns();
  const int64_t from = std::max<int64_t>(0, stretch.begin - offset);
  const int64_t to = std::min(num_elements(box), stretch.end - offset);
  Region region;
  if (from >= to) return region;
  const auto row = [&](int64_t first, int64_t last, int64_t begin, int64_t end) {
    region.add({box.row_begin + first, box.row_begin + last, box.column_begin + begin, box.column_begin + end});
  };
  int64_t first = from / width;
  const int64_t last = to / width;
  if (first == last) {
    row(first, first + 1, from % width, to % width);
    return region;
  }
  if (from % width != 0) {
    row(first, first + 1, from % width, width);
    ++first;
  }
  row(first, last, 0, width);
  row(last, last + 1, 0, to % width);
  return region;
}

bool equal(const BucketShape& a, const BucketShape& b) {
  return a.size == b.size && std::equal(a.entries.begin(), a.entries.end(), b.entries.begin(), b.entries.end(),
                                        [](const Entry& one, const Entry& other) {
                                          return one.box == other.box && one.offset == other.offset;
                                        });
}

StatePlacement::StatePlacement(const RelayoutRequest& request, const ParallelStrategy& strategy)
    : mesh(strategy), strategy_(strategy), kinds_(request.model) {
  find_places(request);
  find_shapes(request.model, request.recipe);
}

const Place* StatePlacement::find_place(int64_t content, int64_t pipeline) const {
  for (const Place& place : places(content)) {
    if (place.pipeline == pipeline) return &place;
  }
  return nullptr;
}

bool StatePlacement::is_cut(StateKind kind) const {
  const auto buffer = std::ranges::find(buffers_, kind, &StateBuffer::kind);
  COPUS_CHECK(buffer != buffers_.end(), "buckets have no buffer ", static_cast<int64_t>(kind));
  return buffer->is_cut;
}

Stretch StatePlacement::stretch(StateKind kind, ContentKind content, const MeshCoordinates& at) const {
  if (!is_cut(kind)) return {0, shape(content, at.tensor).size};
  return share(content, at.tensor, at.data);
}

Stretch StatePlacement::share(ContentKind content, int64_t tensor, int64_t data) const {
  const std::vector<int64_t>& cuts = cuts_[content][tensor];
  const int64_t share = data % strategy_.zero_shards();
  return {cuts[share], cuts[share + 1]};
}

int64_t StatePlacement::share_of(ContentKind content, int64_t tensor, int64_t element) const {
  const std::vector<int64_t>& cuts = cuts_[content][tensor];
  return std::upper_bound(cuts.begin(), cuts.end(), element) - cuts.begin() - 1;
}

int64_t StatePlacement::state_bytes(ContentKind content, const MeshCoordinates& at) const {
  int64_t bytes = 0;
  for (const StateBuffer& buffer : buffers_) {
    if (buffer.moves) bytes += buffer.bytes_per_element * stretch(buffer.kind, content, at).size();
  }
  return bytes;
}

void StatePlacement::find_places(const RelayoutRequest& request) {
  places_.resize(request.model.num_layers + 2);
  // The arrangement of a rank's buckets is the same for all optimizers.
  const PlacedState state =
      place_state(request.model, strategy_,
                  balance_stages(request.model, request.sequence_length, strategy_.num_stages()), {.slots = {}});
  std::vector<int64_t> num_buckets(strategy_.pipeline_parallel, 0);
  int64_t previous = -1;
  for (const PlacedTensor& tensor : state.tensors) {
    if (tensor.bucket == previous) continue;
    previous = tensor.bucket;
    const int64_t pipeline = state.buckets[tensor.bucket].stage % strategy_.pipeline_parallel;
    const int64_t bucket = num_buckets[pipeline]++;
    if (tensor.role != TensorRole::weight) continue;  // a bucket without weights has only a gradient
    const ParameterInfo& info = tensor.parameter;
    const auto content = info.layer >= 0                         ? info.layer + 1
                         : info.kind == ParameterKind::embedding ? 0
                                                                 : num_contents() - 1;
    places_[content].push_back({.pipeline = pipeline, .bucket = bucket});
  }
}

// A bucket's shape depends only on tensor parallelism and the number of shards, so shapes are computed for a model with
// one layer of each kind and no pipeline.
void StatePlacement::find_shapes(ModelDescription model, const StateRecipe& recipe) {
  model.num_layers = kinds_.examples.back() + 1;  // the first layers include every kind
  const ParallelStrategy strategy{.data_parallel = strategy_.data_parallel,
                                  .tensor_parallel = strategy_.tensor_parallel,
                                  .zero_stage = strategy_.zero_stage,
                                  .zero_replicas = strategy_.zero_replicas};
  const PlacedState state = place_state(model, strategy, {{0, model.num_layers}}, recipe);
  std::vector<int64_t> buckets = {0};  // by kind of content
  for (const int64_t example : kinds_.examples) buckets.push_back(1 + example);
  buckets.push_back(1 + model.num_layers);
  shapes_.resize(buckets.size());
  cuts_.resize(buckets.size());
  for (size_t content = 0; content < buckets.size(); ++content) {
    for (const int64_t size : state.buckets.at(buckets[content]).sizes) {
      shapes_[content].push_back({.entries = {}, .size = size});
      std::vector<int64_t>& cuts = cuts_[content].emplace_back(1, 0);
      for (const int64_t share : shard_sizes(size, strategy_.zero_shards())) cuts.push_back(cuts.back() + share);
    }
  }
  const std::string& first = state.tensors.front().parameter.name;
  for (const PlacedTensor& tensor : state.tensors) {
    if (tensor.parameter.name == first && !tensor.tied_copy) add_buffer(tensor, recipe);
    const auto content = std::ranges::find(buckets, tensor.bucket);
    if (tensor.role == TensorRole::weight && content != buckets.end()) {
      add_entries(tensor, shapes_[content - buckets.begin()].data());
    }
  }
}

void StatePlacement::add_buffer(const PlacedTensor& tensor, const StateRecipe& recipe) {
  if (tensor.role == TensorRole::gradient) return;
  buffers_.push_back({.kind = state_kind(tensor, recipe),
                      .bytes_per_element = size_of(tensor.dtype),
                      .is_cut = tensor.along(MeshAxis::data).flat_shards > 1,
                      .moves = !recipe.keeps_master || tensor.role == TensorRole::optimizer_slot});
}

void StatePlacement::add_entries(const PlacedTensor& tensor, BucketShape* shapes) {
  const int64_t ranks = strategy_.tensor_parallel, replicas = tensor.tensor_replicas();
  for (int64_t rank = 0; rank < ranks; ++rank) {
    shapes[rank].entries.push_back({.name = tensor.parameter.name,
                                    .parts = ranks / replicas,
                                    .replicas = replicas,
                                    .box = rectangle_of(tensor.boxes(rank).front()),
                                    .offset = tensor.offsets[rank]});
  }
}

}  // namespace copus::relayout
