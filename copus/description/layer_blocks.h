// The blocks of decoder layers: attention and feed-forward, each of which adds its result to the residual stream. The
// model, its list of parameters, their sharding and predictions all follow this description.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string_view>
#include <vector>

#include "copus/description/model_description.h"

namespace copus {

enum class BlockKind { attention, feed_forward };

// Returns a layer's blocks, in the order in which they add to the residual stream.
const std::vector<BlockKind>& blocks_of(const ModelDescription& model, int64_t layer);

// Groups layers into kinds. Layers of one kind have the same blocks.
struct LayerKinds {
  std::vector<int64_t> of_layer;  // the kind of each layer
  std::vector<int64_t> examples;  // the first layer of each kind

  explicit LayerKinds(const ModelDescription& model);
  // Returns, for each kind, the number of layers in begin .. end.
  std::vector<double> counts(int64_t begin, int64_t end) const;
};

// Heads or columns that are distributed over tensor-parallel ranks as whole units.
struct SharedUnits {
  std::string_view setting;  // the config.json field with the number of units
  int64_t count = 0;
  bool may_repeat = false;  // whether neighbouring ranks may hold the same unit if there are more ranks than units

  int64_t parts(int64_t ranks) const { return std::min(ranks, count); }
};

// A model's heads and columns, computed without a description of blocks, because infeasible_reason calls units_of
// millions of times.
struct ModelUnits {
  SharedUnits heads, kv_heads, columns;
};
ModelUnits units_of(const ModelDescription& model);

// A linear layer. Column-parallel layers are split along the units of their outputs, row-parallel layers along the
// units of their inputs.
struct BlockLinear {
  std::string_view module;
  int64_t outputs = 0, inputs = 0;
  bool has_bias = false;
  SharedUnits units;
};

// A norm of queries or keys. `units.count` is 0 if all ranks have the same weights.
struct HeadNorm {
  std::string_view module;
  int64_t width = 0;
  SharedUnits units;
};

// The names of the modules with the norms of a block's input and output; null if the block lacks the norm. One name may
// mean different norms in different models.
struct BlockNormNames {
  const char* input;
  const char* output;
};

// One block. Within a model all blocks of one kind are equal.
struct BlockDescription {
  BlockKind kind = BlockKind::attention;
  std::string_view modules;  // prefix of its modules: "self_attn."
  BlockNormNames norms;
  std::vector<BlockLinear> inputs;  // column-parallel; stored back to back; one product of the block's input
  BlockLinear output;               // row-parallel; adds to the residual stream
  std::vector<HeadNorm> head_norms;
  int64_t score_width = 0;  // total width of the queries; 0 without attention

  // Returns the number of weights of its linear layers.
  int64_t num_weights() const;
  // On a tensor-parallel rank: the width of all results of `inputs`, and the width of the input of `output`.
  double input_width(int64_t ranks) const;
  double output_width(int64_t ranks) const;
};

BlockDescription describe_block(const ModelDescription& model, BlockKind kind);

// Describes the blocks of a layer.
std::vector<BlockDescription> describe_layer(const ModelDescription& model, int64_t layer);

}  // namespace copus
