// A block of a decoder layer (attention or feed-forward), forward and hand-written backward. It reads the residual
// stream, and its result is added to the stream. It has a norm of its input, of its output, or of both.
//
// With tensor parallelism every rank has some of the block's units (heads or inner columns). The first linear layers
// are column-parallel: a rank holds the weight rows of its units' outputs. The last linear layer is row-parallel: a
// rank holds the weight columns of its units, and its output is one term of a sum over the ranks (Shoeybi et al. 2019).
// With sequence parallelism the activations between blocks are split by rows (Korthikanti et al. 2022).
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <string>

#include "copus/description/layer_blocks.h"
#include "copus/description/parallel_strategy.h"
#include "copus/model/kernels/kernels.h"
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
  // Returns the input's gradient (B), and passes the weights' gradients (W) to weight_gradients.
  at::Tensor backward(const at::Tensor& dy, const at::Tensor& x, WeightGradients& weight_gradients) const;
};

// The residual stream between blocks is residual + delta. The next norm computes this sum, because it reads both
// tensors anyway. delta may be undefined.
struct ResidualStream {
  at::Tensor residual, delta;  // [local rows, hidden]

  at::Tensor sum() const { return delta.defined() ? kernels::add(residual, delta) : residual; }
};

// What a layer's blocks need to know about a micro-batch.
struct LayerContext {
  kernels::AttentionShape shape;  // with this rank's heads (local_attention_shape)
  RotaryTable::Rows rotary;
  // A key-value cache, [batch, kv heads, length, head_dim]; the blocks write its last shape.sequence positions.
  at::Tensor keys = {}, values = {};
};

// Activations that a block keeps from forward to backward. Activations that a recompute rebuilds are undefined until
// then. Inputs of linear layers are kept as local rows, and gathered again in the backward pass.
struct BlockActivations {
  at::Tensor input;                      // the residual stream (the sum) that the block reads
  at::Tensor normed, statistics;         // of the input's norm; `normed` is the input of the first linear layers
  at::Tensor projected;                  // the result of the first linear layers
  at::Tensor output, output_statistics;  // input and statistics of the output's norm, if any
  // `normed` with the rows of all ranks. It exists from its gather (in forward or a recompute) until its last use, and
  // is never kept for backward.
  at::Tensor all_normed;

  BlockActivations() = default;
  BlockActivations(const BlockActivations&) = delete;
  BlockActivations& operator=(const BlockActivations&) = delete;
  virtual ~BlockActivations() = default;
};

class Block {
 public:
  Block(const ParameterStore& parameters, int64_t layer, const BlockDescription& block,
        const TensorParallel& tensor_parallel);
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;
  virtual ~Block() = default;

  virtual std::unique_ptr<BlockActivations> new_activations() const { return std::make_unique<BlockActivations>(); }

  // Runs the forward pass. Returns the stream before the block, and the result to add to it.
  ResidualStream forward(const ResidualStream& in, const LayerContext& context, BlockActivations& a) const;

  // Frees the activations that Recompute::attention rebuilds.
  virtual void drop_attention(BlockActivations& /*a*/) const {}

  // Rebuilds all activations from the stream. Returns what forward() returned, but without delta unless needs_output.
  ResidualStream rebuild(const ResidualStream& in, const LayerContext& context, bool needs_output,
                         BlockActivations& a) const;

  // Runs the backward pass. dy: gradient of the stream after the block, [local rows, hidden]. Returns residual_gradient
  // + the gradient through the block. Consumes `a`.
  at::Tensor backward(const at::Tensor& dy, const at::Tensor& residual_gradient, BlockActivations& a,
                      const LayerContext& context, WeightGradients& weight_gradients) const;

 protected:
  // Computes the output layer's input from a.projected.
  virtual at::Tensor forward_inner(BlockActivations& a, const LayerContext& context) const = 0;
  // Returns whether the backward pass needs activations that forward_inner() stores.
  virtual bool keeps_inner() const { return false; }
  // Runs the backward pass from the gradient of the output layer's result. Returns the gradient of a.projected.
  virtual at::Tensor backward_inner(at::Tensor all_dy, BlockActivations& a, const LayerContext& context,
                                    WeightGradients& weight_gradients) const = 0;

  const Linear& output_layer() const { return output_layer_; }

 private:
  // Sums the stream, and applies the input's norm if there is one.
  void enter(BlockActivations& a, const ResidualStream& in) const;
  void project(BlockActivations& a) const;
  // Returns the result that is added to the stream.
  at::Tensor leave(BlockActivations& a, const at::Tensor& inner) const;
  // Multiplies the block's output or, in the backward pass, the stream's gradient by residual_multiplier.
  at::Tensor scaled(const at::Tensor& x) const;
  // Runs the backward pass of the first linear layers. The gather of their input overlaps with the product for the
  // input's gradient; there is no gather if a.all_normed is defined. The sum of the input's gradient overlaps with the
  // product for the weights' gradients.
  at::Tensor input_layers_backward(const at::Tensor& dy, BlockActivations& a, WeightGradients& weight_gradients) const;

  TensorParallel tensor_parallel_;
  double residual_multiplier_;
  std::optional<StreamNorm> input_norm_, output_norm_;
  Linear input_layers_, output_layer_;
};

std::unique_ptr<Block> make_block(const ParameterStore& parameters, int64_t layer, BlockKind kind,
                                  const TensorParallel& tensor_parallel);

}  // namespace copus
