#include "copus/placement/state_placement.h"

#include <algorithm>

#include "copus/base/error.h"

namespace copus::relayout {

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
    : mesh(strategy), strategy_(strategy), weights_are_master_(request.weights_are_master) {
  find_places(request);
  find_shapes(request.model);
}

const Place* StatePlacement::find_place(int64_t content, int64_t pipeline) const {
  for (const Place& place : places(content)) {
    if (place.pipeline == pipeline) return &place;
  }
  return nullptr;
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
  const int64_t weights = stretch(weights_are_master_ ? StateKind::weights : StateKind::master, content, at).size();
  return bytes_per_element * (weights + 2 * stretch(StateKind::exp_avg, content, at).size());
}

void StatePlacement::find_places(const RelayoutRequest& request) {
  places_.resize(request.model.num_layers + 2);
  Placement placement = place(request.model, strategy_, request.sequence_length, 0);
  for (int64_t pipeline = 0; pipeline < strategy_.pipeline_parallel; ++pipeline) {
    placement.here.pipeline = pipeline;
    const std::vector<LocalParameter> parameters = list_local_parameters(request.model, placement);
    const std::vector<BucketOffsets> buckets = arrange_buckets(parameters, placement);
    for (size_t i = 0; i < buckets.size(); ++i) {
      if (buckets[i].gradient_only) continue;
      const ParameterInfo& info = parameters[buckets[i].entries.front().parameter].info;
      const auto content = info.layer >= 0                         ? info.layer + 1
                           : info.kind == ParameterKind::embedding ? 0
                                                                   : num_contents() - 1;
      places_[content].push_back({.pipeline = pipeline, .bucket = static_cast<int64_t>(i)});
    }
  }
}

// Shapes depend on tensor parallelism alone, so they are taken from a model with one layer, without a pipeline.
void StatePlacement::find_shapes(ModelDescription model) {
  model.num_layers = 1;
  Placement placement = whole_model(model);
  placement.strategy.tensor_parallel = strategy_.tensor_parallel;
  for (int64_t tensor = 0; tensor < strategy_.tensor_parallel; ++tensor) {
    placement.here.tensor = tensor;
    const std::vector<LocalParameter> parameters = list_local_parameters(model, placement);
    const std::vector<BucketOffsets> buckets = arrange_buckets(parameters, placement);
    COPUS_CHECK(buckets.size() >= num_content_kinds);
    for (size_t content = 0; content < num_content_kinds; ++content) {
      BucketShape& shape = shapes_[content].emplace_back();
      shape.size = buckets[content].size;
      for (const auto& [index, offset] : buckets[content].entries) {
        const LocalParameter& parameter = parameters[index];
        shape.entries.push_back({parameter.info.name, parameter.sharding, rectangle_of(parameter.box), offset});
      }
      std::vector<int64_t>& cuts = cuts_[content].emplace_back(1, 0);
      for (const int64_t size : shard_sizes(shape.size, strategy_.zero_shards())) cuts.push_back(cuts.back() + size);
    }
  }
}

}  // namespace copus::relayout
