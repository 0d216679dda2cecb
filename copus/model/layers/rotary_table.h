// Cosines and sines of rotary position embeddings (Su et al. 2021), with rescaled frequencies for long contexts.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <limits>
#include <vector>

#include "copus/description/model_description.h"

namespace copus {

// The rotation of one kind of layer.
struct Rotation {
  // The angle per position of each pair (j, j + r / 2) of a head's r rotating elements: r / 2 values. In single
  // precision as in transformers, so that both programs rotate by the same angle.
  std::vector<float> frequencies;
  double factor = 1;  // factor on cosines and sines
};
// Returns the rotation of a layer in sequences of this length.
Rotation rotation_of(const ModelDescription& model, int64_t layer, int64_t sequence_length);

class RotaryTable {
 public:
  RotaryTable(const ModelDescription& model, at::ScalarType dtype, at::Device device);

  // Returns a layer's cosines and sines for `count` positions from `first` on, each [count, r / 2] in the table's
  // dtype, for a sequence of first + count tokens. The table grows on demand.
  struct Rows {
    at::Tensor cosine, sine;
  };
  Rows rows(int64_t layer, int64_t first, int64_t count);
  // Returns the cosines and sines of `layers` consecutive layers, for sequences of this length. Each is [n, r / 2] at
  // `positions`, int64 [n], or [sequence, r / 2] if `positions` is undefined. Layers with the same rotation share
  // memory.
  std::vector<Rows> rows_of_layers(int64_t first_layer, int64_t layers, int64_t sequence, const at::Tensor& positions);
  // Returns whether angles differ between sequences of lengths `from` (0: none) and `to`.
  bool changes_between(int64_t from, int64_t to) const {
    return from > 0 && from <= longest_short_ && to > longest_short_;
  }

 private:
  struct Kind {
    Rotation rotation;
    at::Tensor cosine, sine;
  };
  void grow(Kind& kind, int64_t length) const;

  std::vector<Kind> kinds_;            // two per kind: for sequences within the original context, and for longer ones
  std::vector<size_t> kind_of_layer_;  // counts pairs of kinds_
  int64_t longest_short_ = std::numeric_limits<int64_t>::max();
  at::ScalarType dtype_;
  at::Device device_;
};

}  // namespace copus
