// Where the training state lies under one strategy, as planning a re-layout asks for it: what each bucket is filled
// with, which pipeline ranks hold it, and which of its elements each rank's buffers hold (for this room's sources
// only).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "copus/placement/bucket_layout.h"
#include "copus/placement/regions.h"
#include "copus/placement/relayout_plan.h"

namespace copus::relayout {

inline constexpr int64_t bytes_per_element = 4;  // masters and moments are fp32

// Where a parameter lies in a bucket: `box` row-major from `offset` on.
struct Entry {
  std::string name;
  Sharding sharding;
  Rectangle box;
  int64_t offset = 0;

  int64_t position(int64_t row, int64_t column) const {
    return offset + (row - box.row_begin) * box.columns() + column - box.column_begin;
  }

  // What lies in this stretch of the bucket.
  Region inside(const Stretch& stretch) const;
};

// What buckets are filled with: the embedding, each decoder layer, final norm and head. A tied copy of the head has the
// embedding's content. All layers are alike.
enum ContentKind { embedding_content, layer_content, head_content, num_content_kinds };

// How the content lies in the bucket of one tensor-parallel rank.
struct BucketShape {
  std::vector<Entry> entries;
  int64_t size = 0;
};

bool equal(const BucketShape& a, const BucketShape& b);

// Which pipeline rank holds a content, and the bucket's index there.
struct Place {
  int64_t pipeline = 0;
  int64_t bucket = 0;
};

class StateLayout {
 public:
  StateLayout(const RelayoutRequest& request, const ParallelStrategy& strategy);

  const Mesh mesh;

  int64_t num_contents() const { return static_cast<int64_t>(places_.size()); }
  ContentKind kind_of(int64_t content) const {
    if (content == 0) return embedding_content;
    return content + 1 < num_contents() ? layer_content : head_content;
  }
  const std::vector<Place>& places(int64_t content) const { return places_[static_cast<size_t>(content)]; }
  // Null where that pipeline rank does not hold the content.
  const Place* find_place(int64_t content, int64_t pipeline) const;
  const BucketShape& shape(ContentKind content, int64_t tensor) const {
    return shapes_[content][static_cast<size_t>(tensor)];
  }
  int64_t data_parallel() const { return strategy_.data_parallel; }
  int64_t tensor_parallel() const { return strategy_.tensor_parallel; }

  // Is each data-parallel rank's buffer of that kind its share only?
  bool is_cut(StateKind kind) const { return kind != StateKind::weights && strategy_.zero_stage == 1; }
  // The elements of the bucket that the buffer holds.
  Stretch stretch(StateKind kind, ContentKind content, const MeshCoordinates& at) const;
  Stretch share(ContentKind content, int64_t tensor, int64_t data) const;
  // The data-parallel rank whose share an element is in.
  int64_t share_of(ContentKind content, int64_t tensor, int64_t element) const;

  // Of all kinds of state of one bucket.
  int64_t state_bytes(ContentKind content, const MeshCoordinates& at) const;

 private:
  void find_places(const RelayoutRequest& request);
  void find_shapes(ModelDescription model);

  ParallelStrategy strategy_;
  bool weights_are_master_;
  std::vector<std::vector<Place>> places_;  // by content
  // By tensor-parallel rank: shapes, and the bounds of the data-parallel ranks' shares.
  std::array<std::vector<BucketShape>, num_content_kinds> shapes_;
  std::array<std::vector<std::vector<int64_t>>, num_content_kinds> cuts_;
};

}  // namespace copus::relayout
