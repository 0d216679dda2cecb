// A run of consecutive decoder layers on one rank, with the embedding before the first and final norm, head and loss
// after the last: what one pipeline stage computes, forward and hand-written backward.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "copus/config/run_config.h"
#include "copus/model/decoder_layer.h"
#include "copus/model/input_embedding.h"
#include "copus/model/output_head.h"
#include "copus/model/parameters.h"
#include "copus/model/rotary_table.h"
#include "copus/model/tensor_parallel.h"
#include "copus/model/weight_gradients.h"

namespace copus {

// One micro-batch, which every stage sees: int64 [batch, sequence] on the device. Positions whose target is
// `ignored_target` carry no loss.
struct MicroBatch {
  at::Tensor tokens;
  at::Tensor targets;
  double loss_scale = 1;  // the gradient is that of loss_scale * (sum of token losses)
  // The tokens once more for the host, row by row, for who must read them without waiting for the device.
  std::vector<int64_t> host_tokens = {};
};

// What a chunk keeps of one micro-batch between forward and backward.
struct ChunkActivations {
  std::vector<LayerActivations> layers;
  ResidualStream stream;  // on the last chunk, what enters the head
};

class ModelChunk {
 public:
  // Chunk `chunk` of the store's pipeline rank. Refers to `parameters` and the group behind `tensor_parallel`.
  ModelChunk(ParameterStore& parameters, int64_t chunk, Recompute recompute, const TensorParallel& tensor_parallel);

  bool is_first() const { return embedding_.has_value(); }  // it reads tokens, others what the stage before it sent
  bool is_last() const { return head_.has_value(); }        // it ends in the loss

  // The residual stream that stages hand on, [local rows, hidden] in the compute dtype: an empty tensor of this shape,
  // to receive into.
  at::Tensor empty_stream(const MicroBatch& micro_batch) const;

  // F. `input`: the stream from the stage before (undefined on the first). Returns the stream for the next stage,
  // undefined on the last, where the loss and its gradient are left to B.
  at::Tensor forward(const MicroBatch& micro_batch, const at::Tensor& input, ChunkActivations& kept);

  // B, and W as far as `weight_gradients` runs it at once. `output_gradient`: that of the stream handed on (undefined
  // on the last). Returns the gradient of the input (undefined on the first). On the last chunk adds the sum of token
  // losses, unscaled, to loss_sum (float64 scalar tensor).
  // `bucket_done`, where given, is called with the index of each bucket of the chunk, last layer first, as soon as no
  // more gradient will be added to it by this call; only with WeightGradients::Mode::immediate.
  at::Tensor backward(const MicroBatch& micro_batch, const at::Tensor& output_gradient, ChunkActivations kept,
                      WeightGradients& weight_gradients, const at::Tensor& loss_sum,
                      const std::function<void(int64_t bucket)>& bucket_done = {});

  // Forward without gradients: the stream for the next stage, or on the last chunk undefined after adding the sum of
  // token losses to loss_sum.
  at::Tensor evaluate(const MicroBatch& micro_batch, const at::Tensor& input, const at::Tensor& loss_sum);

 private:
  kernels::AttentionShape shape_of(const MicroBatch& micro_batch) const;
  ResidualStream through_layers(const MicroBatch& micro_batch, const at::Tensor& input,
                                std::vector<LayerActivations>* kept);

  ParameterStore& parameters_;
  Recompute recompute_;
  TensorParallel tensor_parallel_;
  RotaryTable rotary_;
  std::optional<InputEmbedding> embedding_;
  std::vector<DecoderLayer> layers_;
  std::optional<OutputHead> head_;
  // Indices of the buckets: the embedding's, those of the layers, that of final norm and head, a tied head's.
  std::vector<int64_t> buckets_;
};

}  // namespace copus
