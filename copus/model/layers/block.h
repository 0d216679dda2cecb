// A block of a decoder layer, forward and hand-written backward: attention or feed-forward. A block reads the residual
// stream, and its result is added to the stream. It has a norm of its input, of its output or of both.
//
// With tensor parallelism every rank has some of the block's units (heads or inner columns). The linear layers before
// them hold the rows of the weight for these outputs (column-parallel). The linear layer after them holds the columns
// for these inputs (row-parallel), and each rank's output is one term of a sum (Shoeybi et al. 2019). With sequence
// parallelism the activations in between are split by rows (Korthikanti et al. 2022).
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
  // Computes the input's gradient (B) and hands the weights' gradients (W) to weight_gradients.
  at::Tensor backward(const at::Tensor& dy, const at::Tensor& x, WeightGradients& weight_gradients) const;
};

// The residual stream between blocks: its value is residual + delta. The next norm computes the sum, since it reads
// both anyway. delta may be undefined.
struct ResidualStream {
  at::Tensor residual, delta;  // [local rows, hidden]

  at::Tensor sum() const { return delta.defined() ? kernels::add(residual, delta) : residual; }
};

// What the blocks of a layer know of a micro-batch.
struct LayerContext {
  kernels::AttentionShape shape;  // with the heads of this rank (local_attention_shape)
  RotaryTable::Rows rotary;
  // With a key-value cache, [batch, kv heads, length, head_dim]: the last shape.sequence positions are written.
  at::Tensor keys = {}, values = {};
};

// Activations that a block keeps from forward to backward: all of them, or fewer if recompute rebuilds the others
// (undefined here). Inputs of linear layers are kept as local rows, and the backward pass gathers them again.
struct BlockActivations {
  at::Tensor input;                      // the summed residual stream that the block reads
  at::Tensor normed, statistics;         // the input of the first linear layers
  at::Tensor projected;                  // their result
  at::Tensor output, output_statistics;  // input and statistics of the output's norm, if any
  // `normed` with the rows of all ranks. It exists from the gather in forward, or in the recompute before backward,
  // until its last use, and is never kept.
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

  // Runs the forward pass. Returns the summed stream and what the block adds to it.
  ResidualStream forward(const ResidualStream& in, const LayerContext& context, BlockActivations& a) const;

  // Frees what the backward pass rebuilds if only attention is recomputed.
  virtual void drop_attention(BlockActivations& /*a*/) const {}

  // Rebuilds all activations from the stream. Returns what forward() returns, without delta if nothing needs it.
  ResidualStream rebuild(const ResidualStream& in, const LayerContext& context, bool needs_output,
                         BlockActivations& a) const;

  // Runs the backward pass. dy: the gradient of the stream to which the result was added, [local rows, hidden]. Returns
  // residual_gradient + the gradient through the block. Consumes `a`.
  at::Tensor backward(const at::Tensor& dy, const at::Tensor& residual_gradient, BlockActivations& a,
                      const LayerContext& context, WeightGradients& weight_gradients) const;

 protected:
  // Computes the input of the output layer from a.projected.
  virtual at::Tensor forward_inner(BlockActivations& a, const LayerContext& context) const = 0;
  // Whether the backward pass needs what forward_inner() keeps in its activations.
  virtual bool keeps_inner() const { return false; }
  // Runs the backward pass from the gradient of the output layer's result. Returns the gradient of a.projected.
  virtual at::Tensor backward_inner(at::Tensor all_dy, BlockActivations& a, const LayerContext& context,
                                    WeightGradients& weight_gradients) const = 0;

  const Linear& output_layer() const { return output_layer_; }

 private:
  // Sums the stream, and normalises it if the block has a norm of its input.
  void enter(BlockActivations& a, const ResidualStream& in) const;
  void project(BlockActivations& a) const;
  // Returns what the block adds to the stream.
  at::Tensor leave(BlockActivations& a, const at::Tensor& inner) const;
  // Multiplies by residual_multiplier: the block's output or, backward, the stream's gradient.
  at::Tensor scaled(const at::Tensor& x) const;
  // Runs the backward pass of the first linear layers. Two collectives overlap with their two products. The gather of
  // the input, which is not needed if a.all_normed is defined, overlaps with the product for the input gradient. The
  // sum of the input gradient overlaps with the product for the weight gradient.
  at::Tensor input_layers_backward(const at::Tensor& dy, BlockActivations& a, WeightGradients& weight_gradients) const;

  TensorParallel tensor_parallel_;
  double residual_multiplier_;
  std::optional<StreamNorm> input_norm_, output_norm_;
  Linear input_layers_, output_layer_;
};

std::unique_ptr<Block> make_block(const ParameterStore& parameters, int64_t layer, BlockKind kind,
                                  const TensorParallel& tensor_parallel);

}  // namespace copus
