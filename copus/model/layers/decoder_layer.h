// One decoder layer, forward and hand-written backward: its blocks in sequence, or in parallel (all read the same
// stream).
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "copus/model/layers/block.h"

namespace copus {

// Activations that a layer keeps from forward to backward, by block. With Recompute::full only the first block keeps an
// activation, its input.
using LayerActivations = std::vector<std::unique_ptr<BlockActivations>>;

class DecoderLayer {
 public:
  DecoderLayer(const ParameterStore& parameters, int64_t layer, const TensorParallel& tensor_parallel);

  // Runs the forward pass. Fills `kept` for backward according to `recompute`; keeps nothing if it is null.
  ResidualStream forward(const ResidualStream& in, const LayerContext& context, Recompute recompute,
                         LayerActivations* kept) const;

  // Runs the backward pass. dy: gradient of the layer's output stream, [local rows, hidden]. Returns the gradient of
  // the input stream. Consumes `kept`.
  at::Tensor backward(const at::Tensor& dy, LayerActivations kept, const LayerContext& context,
                      WeightGradients& weight_gradients) const;

 private:
  // Calls run(i, stream) for each block i; `run` must return what Block::forward returns. Returns the stream after the
  // layer.
  template <class Run>
  ResidualStream through_blocks(ResidualStream stream, const Run& run) const;

  bool parallel_residual_;
  std::vector<std::unique_ptr<Block>> blocks_;
};

}  // namespace copus
