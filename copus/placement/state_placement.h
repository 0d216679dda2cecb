// Where the training state is under one strategy, for planning re-layouts: the content of each bucket, the pipeline
// ranks that hold it, and the elements in each rank's buffers. Only this room's sources include this header.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "copus/description/layer_blocks.h"
#include "copus/placement/bucket_offsets.h"
#include "copus/placement/placed_tensors.h"
#include "copus/placement/relayout_plan.h"

namespace copus::relayout {

inline constexpr int64_t bytes_per_element = 4;  // master weights and moments are fp32

// A rectangle of a logical tensor, in its coordinates. A one-dimensional tensor is one row.
struct Rectangle {
  int64_t row_begin = 0, row_end = 0, column_begin = 0, column_end = 0;
  int64_t rows() const { return row_end - row_begin; }
  int64_t columns() const { return column_end - column_begin; }
  bool operator==(const Rectangle&) const = default;
};

inline Rectangle rectangle_of(const Box& box) {
  const bool is_matrix = box.begin.size() == 2;
  return {.row_begin = is_matrix ? box.begin[0] : 0,
          .row_end = is_matrix ? box.begin[0] + box.shape[0] : 1,
          .column_begin = box.begin.back(),
          .column_end = box.begin.back() + box.shape.back()};
}

inline Rectangle intersect(const Rectangle& a, const Rectangle& b) {
  Rectangle both{std::max(a.row_begin, b.row_begin), std::min(a.row_end, b.row_end),
                 std::max(a.column_begin, b.column_begin), std::min(a.column_end, b.column_end)};
  both.row_end = std::max(both.row_end, both.row_begin);
  both.column_end = std::max(both.column_end, both.column_begin);
  return both;
}

inline int64_t num_elements(const Rectangle& one) { return one.rows() * one.columns(); }

// The rectangles that cover a range of a row-major rectangle: the end of a row, whole rows, the beginning of a row.
struct Region {
  std::array<Rectangle, 3> parts;
  size_t count = 0;

  void add(const Rectangle& part) {
    if (num_elements(part) > 0) parts[count++] = part;
  }
  const Rectangle* begin() const { return parts.data(); }
  const Rectangle* end() const { return parts.data() + count; }
};

// Calls visit(rectangle) for each rectangle that is in both regions.
template <class Visit>
void for_overlaps(const Region& a, const Region& b, Visit visit) {
  for (const Rectangle& one : a) {
    for (const Rectangle& other : b) {
      const Rectangle both = intersect(one, other);
      if (num_elements(both) > 0) visit(both);
    }
  }
}

// A parameter in a bucket: `box`, row-major, from `offset` on.
struct Entry {
  std::string name;
  int64_t parts = 1;     // over tensor-parallel ranks
  int64_t replicas = 1;  // neighbouring tensor-parallel ranks that hold the same part
  Rectangle box;
  int64_t offset = 0;

  int64_t position(int64_t row, int64_t column) const {
    return offset + (row - box.row_begin) * box.columns() + column - box.column_begin;
  }

  // Returns the region of the box that lies in this range of the bucket.
  Region inside(const Stretch& stretch) const;
};

// The kinds of buckets' contents: the embedding (also as tied copy of the head), each kind of decoder layer, and the
// final norm with the head. Contents of one kind have the same shape.
using ContentKind = int64_t;

// The arrangement of a content in one tensor-parallel rank's bucket.
struct BucketShape {
  std::vector<Entry> entries;
  int64_t size = 0;
};

bool equal(const BucketShape& a, const BucketShape& b);

// A flat buffer that every bucket has.
struct StateBuffer {
  StateKind kind = StateKind::weights;
  int64_t bytes_per_element = 0;
  bool is_cut = false;  // whether each data-parallel rank has only its share
  bool moves = false;   // whether it moves; otherwise it is derived from other buffers after the move
};

// A pipeline rank that holds a content, and the bucket's index there.
struct Place {
  int64_t pipeline = 0;
  int64_t bucket = 0;
};

class StatePlacement {
 public:
  StatePlacement(const RelayoutRequest& request, const ParallelStrategy& strategy);

  const Mesh mesh;

  int64_t num_contents() const { return std::ssize(places_); }
  ContentKind num_content_kinds() const { return std::ssize(kinds_.examples) + 2; }
  ContentKind kind_of(int64_t content) const {
    if (content == 0) return 0;
    return content + 1 < num_contents() ? 1 + kinds_.of_layer[content - 1] : num_content_kinds() - 1;
  }
  const std::vector<Place>& places(int64_t content) const { return places_[content]; }
  // Finds a content on a pipeline rank; null if that rank does not hold it.
  const Place* find_place(int64_t content, int64_t pipeline) const;
  const BucketShape& shape(ContentKind content, int64_t tensor) const { return shapes_[content][tensor]; }
  int64_t data_parallel() const { return strategy_.data_parallel; }
  // Number of copies of the state that ZeRO shards. Share s of copy c is on data-parallel rank c * zero_shards() + s.
  int64_t zero_replicas() const { return strategy_.zero_replicas; }
  int64_t zero_shards() const { return strategy_.zero_shards(); }
  int64_t tensor_parallel() const { return strategy_.tensor_parallel; }

  const std::vector<StateBuffer>& buffers() const { return buffers_; }
  // Returns whether each data-parallel rank has only its share of this kind of buffer.
  bool is_cut(StateKind kind) const;
  // Returns the range of the bucket in the buffer.
  Stretch stretch(StateKind kind, ContentKind content, const MeshCoordinates& at) const;
  Stretch share(ContentKind content, int64_t tensor, int64_t data) const;
  // Returns the index of the share that contains an element.
  int64_t share_of(ContentKind content, int64_t tensor, int64_t element) const;

  // Returns the bytes of all buffers of one bucket that move.
  int64_t state_bytes(ContentKind content, const MeshCoordinates& at) const;

 private:
  void find_places(const RelayoutRequest& request);
  void find_shapes(ModelDescription model, const StateRecipe& recipe);
  void add_buffer(const PlacedTensor& tensor, const StateRecipe& recipe);
  void add_entries(const PlacedTensor& tensor, BucketShape* shapes);

  ParallelStrategy strategy_;
  std::vector<StateBuffer> buffers_;
  std::vector<std::vector<Place>> places_;  // by content
  LayerKinds kinds_;
  // By kind of content and tensor-parallel rank: shapes, and boundaries between shares.
  std::vector<std::vector<BucketShape>> shapes_;
  std::vector<std::vector<std::vector<int64_t>>> cuts_;
};

}  // namespace copus::relayout
