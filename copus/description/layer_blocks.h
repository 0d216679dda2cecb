// The blocks of the decoder layers: attention and feed-forward. Each adds its result to the residual stream. The model,
// the list of parameters, their sharding and the predictions are derived from this description.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string_view>
#include <vector>

#include "copus/description/model_description.h"

namespace copus {

enum class BlockKind { attention, feed_forward };

// Returns the blocks of a layer, in the order in which their results are added to the stream.
const std::vector<BlockKind>& blocks_of(const ModelDescription& model, int64_t layer);

// Layers with the same blocks are of one kind.
struct LayerKinds {
  std::vector<int64_t> of_layer;  // the kind of each layer
  std::vector<int64_t> examples;  // the first layer of each kind

  explicit LayerKinds(const ModelDescription& model);
  // Returns the number of layers of each kind in begin .. end.
  std::vector<double> counts(int64_t begin, int64_t end) const;
};

// Heads or columns that tensor-parallel ranks share. A rank has whole ones.
struct SharedUnits {
  std::string_view setting;  // the setting with their number
  int64_t count = 0;
  bool may_repeat = false;  // whether neighbouring ranks may have the same unit, if there are more ranks than units

  int64_t parts(int64_t ranks) const { return std::min(ranks, count); }
};

// The heads and columns of a model. infeasible_reason asks for them millions of times, without describing blocks.
struct ModelUnits {
  SharedUnits heads, kv_heads, columns;
};
ModelUnits units_of(const ModelDescription& model);

// A linear layer. Column-parallel ranks share the units of its outputs, row-parallel ranks those of its inputs.
struct BlockLinear {
  std::string_view module;
  int64_t outputs = 0, inputs = 0;
  bool has_bias = false;
  SharedUnits units;
};

// A norm of queries or of keys. `units` has no count if all ranks have the same weights.
struct HeadNorm {
  std::string_view module;
  int64_t width = 0;
  SharedUnits units;
};

// The names of the modules with the norms of a block's input and output; null if there is none. Models use the same
// name for different norms.
struct BlockNormNames {
  const char* input;
  const char* output;
};

// One block. All blocks of one kind are equal within a model.
struct BlockDescription {
  BlockKind kind = BlockKind::attention;
  std::string_view modules;  // "self_attn.": the beginning of its modules' names
  BlockNormNames norms;
  std::vector<BlockLinear> inputs;  // column-parallel; they read the block's input, lie back to back and run as one
  BlockLinear output;               // row-parallel, back to the residual stream
  std::vector<HeadNorm> head_norms;
  int64_t score_width = 0;  // width of all queries; 0 without attention

  // Returns the number of elements of its linear layers' weights.
  int64_t num_weights() const;
  // Return the widths of a tensor-parallel rank's results of the input layers, and of its input of the output layer.
  double input_width(int64_t ranks) const;
  double output_width(int64_t ranks) const;
};

BlockDescription describe_block(const ModelDescription& model, BlockKind kind);

// Describes the blocks of a layer.
std::vector<BlockDescription> describe_layer(const ModelDescription& model, int64_t layer);

}  // namespace copus
