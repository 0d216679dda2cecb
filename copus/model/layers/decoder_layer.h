// One decoder layer, forward and hand-written backward: attention and feed-forward, either in sequence or in parallel
// (both reading the same stream). Each of the two adds to the residual stream, and has a norm of its input, of its
// output or of both.
//
// With tensor parallelism every rank has some of the attention heads and some of the feed-forward's inner columns. The
// linear layers before them hold the rows of the weight for these outputs (column-parallel). The linear layers after
// them hold the columns for these inputs (row-parallel), and each rank's output is one term of a sum (Shoeybi et al.
// 2019). With sequence parallelism the activations in between are split by rows (Korthikanti et al. 2022).
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "copus/config/run_config.h"
#include "copus/description/layer_blocks.h"
#include "copus/model/kernels/kernels.h"
#include "copus/model/layers/query_key_norm.h"
#include "copus/model/layers/rotary_table.h"
#include "copus/model/layers/stream_norm.h"
#include "copus/model/layers/tensor_parallel.h"
#include "copus/model/layers/weight_gradients.h"
#include "copus/model/memory/parameters.h"

namespace copus {

// Linear layers that read the same input, run as one.
struct Linear {
  at::Tensor weight, weight_gradient;  // [out, in]
  at::Tensor bias, bias_gradient;      // [out] or undefined

  at::Tensor forward(const at::Tensor& x) const { return kernels::linear(x, weight, bias); }
  // Computes the input's gradient (B) and hands the weights' gradients (W) to weight_gradients.
  at::Tensor backward(const at::Tensor& dy, const at::Tensor& x, WeightGradients& weight_gradients) const;
};

// The residual stream between layers: its value is residual + delta. The next norm computes the sum, since it reads
// both anyway. delta may be undefined.
struct ResidualStream {
  at::Tensor residual, delta;  // [local rows, hidden]

  at::Tensor sum() const { return delta.defined() ? kernels::add(residual, delta) : residual; }
};

// Activations that a layer keeps from forward to backward: all of them, or fewer if recompute rebuilds the others
// (undefined here). Inputs of linear layers are kept as local rows, and the backward pass gathers them again.
struct LayerActivations {
  at::Tensor input;  // the summed residual stream that entered the layer
  at::Tensor attention_statistics, attention_input;
  at::Tensor qkv;  // queries and keys rotated; as projected if they are normalised
  at::Tensor qkv_statistics;
  kernels::AttentionResult attention;
  at::Tensor attention_output, attention_output_statistics;  // input and statistics of its norm, if any
  // The summed residual stream between attention and feed-forward; not kept if these are parallel.
  at::Tensor middle;
  at::Tensor feed_forward_statistics, feed_forward_input;
  at::Tensor gate_up;                                              // up alone without a gate
  at::Tensor feed_forward_output, feed_forward_output_statistics;  // input and statistics of its norm, if any
  // The inputs with the rows of all ranks. They exist from the gather in forward, or in the recompute before backward,
  // until their last use, and are never kept.
  at::Tensor all_attention_input, all_feed_forward_input;
};

// The norms of a block's input and output, each optional.
struct BlockNorms {
  std::optional<StreamNorm> input, output;

  BlockNorms(const ParameterStore& parameters, const std::string& prefix, const BlockNormNames& names);
  // Backward through the output's norm, with `x` [local rows, hidden]; the identity without a norm.
  at::Tensor output_backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& statistics,
                             WeightGradients& weight_gradients) const;
  // Backward through the block's read of the stream. Returns residual_gradient + the gradient through the block.
  at::Tensor input_backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& statistics,
                            const at::Tensor& residual_gradient, WeightGradients& weight_gradients) const;
};

class DecoderLayer {
 public:
  DecoderLayer(const ParameterStore& parameters, int64_t layer, const TensorParallel& tensor_parallel);

  // Runs the forward pass. `shape` describes a micro-batch, with the heads of this rank (local_attention_shape). Fills
  // `kept` for backward according to `recompute`; if it is null, nothing is kept.
  ResidualStream forward(const ResidualStream& in, const kernels::AttentionShape& shape,
                         const RotaryTable::Rows& rotary, Recompute recompute, LayerActivations* kept) const;

  // Runs the backward pass. dy: the gradient of the layer's output stream, [local rows, hidden]. Returns the gradient
  // of its input stream. Consumes `kept`.
  at::Tensor backward(const at::Tensor& dy, LayerActivations kept, const kernels::AttentionShape& shape,
                      const RotaryTable::Rows& rotary, WeightGradients& weight_gradients) const;

  // Runs forward over new positions of a key-value cache. keys, values: [batch, kv heads, length, head_dim]; writes
  // their last shape.sequence positions.
  ResidualStream forward_cached(const ResidualStream& in, const kernels::AttentionShape& shape,
                                const RotaryTable::Rows& rotary, const at::Tensor& keys,
                                const at::Tensor& values) const;

 private:
  // Computes the projection a.qkv, and returns the matrix that attention reads. If the layer normalises queries and
  // keys, this is a normalised copy; otherwise it is a.qkv itself. Queries and keys are rotated if the layer has rotary
  // embeddings.
  at::Tensor project_query_key_value(LayerActivations& a, const kernels::AttentionShape& shape,
                                     const RotaryTable::Rows& rotary) const;
  at::Tensor normalize_and_rotate(const LayerActivations& a, const kernels::AttentionShape& shape,
                                  const RotaryTable::Rows& rotary) const;
  // Sums the stream, and normalises attention's input if this layer has a norm there.
  void enter(LayerActivations& a, const ResidualStream& in) const;
  void project_gate_up(LayerActivations& a, const at::Tensor& attended) const;
  // Multiplies by residual_multiplier: a block's output or, backward, the stream's gradient.
  at::Tensor scaled(const at::Tensor& x) const;
  // Returns what the feed-forward adds to the stream.
  at::Tensor project_down(LayerActivations& a, const at::Tensor& activation) const;
  // Runs the backward pass of a column-parallel layer. Two collectives overlap with its two products. The gather of the
  // input x [local rows, width], which is not needed if all_x is defined, overlaps with the product for the input
  // gradient. The sum of the input gradient overlaps with the product for the weight gradient.
  at::Tensor column_backward(const Linear& linear, const at::Tensor& dy, const at::Tensor& x, at::Tensor all_x,
                             WeightGradients& weight_gradients) const;
  ResidualStream feed_forward(LayerActivations& a, const at::Tensor& attended) const;

  TensorParallel tensor_parallel_;
  bool has_rope_;
  kernels::Activation activation_;
  double residual_multiplier_;
  bool parallel_residual_;
  BlockNorms attention_norms_, feed_forward_norms_;
  QueryKeyNorm query_key_norm_;
  Linear query_key_value_, attention_output_, gate_up_, down_;
};

// Returns the attention of a rank over a micro-batch of `tokens`, int64 [batch, sequence], with the window of `layer`.
// The rank has some of the query heads, and at least one key-value head: those that its query heads read.
kernels::AttentionShape local_attention_shape(const ModelDescription& model, int64_t layer,
                                              const TensorParallel& tensor_parallel, const at::Tensor& tokens);

}  // namespace copus
