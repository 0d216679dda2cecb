// One decoder layer (attention and feed-forward, one after the other or both of the same stream, each beside a residual
// and with a norm of its input, of its output or of both), forward and hand-written backward.
//
// With tensor parallelism every rank has some of the attention heads and some of the feed-forward's inner columns. The
// linear layers that lead there hold their outputs' rows of the weight (column-parallel); those that lead back hold
// their inputs' columns (row-parallel) and each yield one term of a sum (Shoeybi et al. 2019). With sequence
// parallelism the activations in between are cut by rows (Korthikanti et al. 2022).
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "copus/config/run_config.h"
#include "copus/model/kernels.h"
#include "copus/model/parameters.h"
#include "copus/model/query_key_norm.h"
#include "copus/model/rotary_table.h"
#include "copus/model/stream_norm.h"
#include "copus/model/tensor_parallel.h"
#include "copus/model/weight_gradients.h"

namespace copus {

// Linear layers that read the same input, run as one.
struct Linear {
  at::Tensor weight, weight_gradient;  // [out, in]
  at::Tensor bias, bias_gradient;      // [out] or undefined

  at::Tensor forward(const at::Tensor& x) const { return kernels::linear(x, weight, bias); }
  // Computes the input's gradient (B); the weights' gradients (W) are left to weight_gradients.
  at::Tensor backward(const at::Tensor& dy, const at::Tensor& x, WeightGradients& weight_gradients) const;
};

// The residual stream between layers: its value is residual + delta. The sum is left to the next norm, which reads
// either of them anyway. delta may be undefined.
struct ResidualStream {
  at::Tensor residual, delta;  // [local rows, hidden]

  at::Tensor sum() const { return delta.defined() ? kernels::add(residual, delta) : residual; }
};

// Activations that a layer keeps from forward to backward: all of them, or fewer where recompute rebuilds them
// (undefined here). The inputs of linear layers are kept as local rows and gathered a second time in the backward pass.
struct LayerActivations {
  at::Tensor input;  // the summed residual stream that entered the layer
  at::Tensor attention_statistics, attention_input;
  at::Tensor qkv;  // with rotated queries and keys; as projected where they are normalised
  at::Tensor qkv_statistics;
  kernels::AttentionResult attention;
  at::Tensor attention_output, attention_output_statistics;  // what its norm reads; undefined without one
  // The summed residual stream between attention and feed-forward; not kept where these are parallel.
  at::Tensor middle;
  at::Tensor feed_forward_statistics, feed_forward_input;
  at::Tensor gate_up;                                              // up alone where the feed-forward is not gated
  at::Tensor feed_forward_output, feed_forward_output_statistics;  // what its norm reads; undefined without one
  // The same inputs with the rows of all ranks, from where a pass gathers them, or the recompute before a backward
  // pass, until they are used last. Never kept.
  at::Tensor all_attention_input, all_feed_forward_input;
};

// The norms of a block's input and output, where there are any.
struct BlockNorms {
  std::optional<StreamNorm> input, output;

  BlockNorms(const ParameterStore& parameters, const std::string& prefix, const BlockNormNames& names);
  // Backward through the output's norm, [local rows, hidden] of `x`; else the identity.
  at::Tensor output_backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& statistics,
                             WeightGradients& weight_gradients) const;
  // Backward through where the block reads the stream. Returns the gradient of the stream: residual_gradient and the
  // block's.
  at::Tensor input_backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& statistics,
                            const at::Tensor& residual_gradient, WeightGradients& weight_gradients) const;
};

class DecoderLayer {
 public:
  DecoderLayer(const ParameterStore& parameters, int64_t layer, const TensorParallel& tensor_parallel);

  // Runs the forward pass. shape: that of a micro-batch, with the heads of this rank (local_attention_shape).
  // `kept` is filled for backward according to `recompute`; null: nothing is kept.
  ResidualStream forward(const ResidualStream& in, const kernels::AttentionShape& shape,
                         const RotaryTable::Rows& rotary, Recompute recompute, LayerActivations* kept) const;

  // Runs the backward pass. dy: the gradient of the stream that left the layer, [local rows, hidden]. Returns the
  // gradient of the stream that entered. Consumes `kept`.
  at::Tensor backward(const at::Tensor& dy, LayerActivations kept, const kernels::AttentionShape& shape,
                      const RotaryTable::Rows& rotary, WeightGradients& weight_gradients) const;

  // Runs forward over new positions of a key-value cache. keys, values: [batch, kv heads, length, head_dim], of which
  // the last shape.sequence positions are written here.
  ResidualStream forward_cached(const ResidualStream& in, const kernels::AttentionShape& shape,
                                const RotaryTable::Rows& rotary, const at::Tensor& keys,
                                const at::Tensor& values) const;

 private:
  // Projects to a.qkv. Returns the matrix that attention takes, with queries and keys normalised and rotated where this
  // layer does that: a.qkv itself where nothing is normalised.
  at::Tensor project_query_key_value(LayerActivations& a, const kernels::AttentionShape& shape,
                                     const RotaryTable::Rows& rotary) const;
  at::Tensor normalize_and_rotate(const LayerActivations& a, const kernels::AttentionShape& shape,
                                  const RotaryTable::Rows& rotary) const;
  // Sums up the stream, and normalises what attention reads where norms are of inputs.
  void enter(LayerActivations& a, const ResidualStream& in) const;
  void project_gate_up(LayerActivations& a, const at::Tensor& attended) const;
  // Multiplies by residual_multiplier: a block's output or, backward, the stream's gradient.
  at::Tensor scaled(const at::Tensor& x) const;
  // Returns what the feed-forward adds to the stream.
  at::Tensor project_down(LayerActivations& a, const at::Tensor& activation) const;
  // Runs the backward pass of a column-parallel layer. Its input x [local rows, width] is gathered, unless all_x is
  // defined, beside the product that gives its gradient, and this gradient is added up beside the one of the weights.
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

// Returns the attention of a rank over a micro-batch of `tokens`, int64 [batch, sequence]: its share of the query
// heads, and the key-value heads that these read, at least one; within the window of `layer`.
kernels::AttentionShape local_attention_shape(const ModelDescription& model, int64_t layer,
                                              const TensorParallel& tensor_parallel, const at::Tensor& tokens);

}  // namespace copus
