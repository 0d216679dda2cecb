// Consecutive decoder layers on one rank, with the embedding before the first and final norm, head and loss after the
// last: the computation of one pipeline stage, forward and hand-written backward.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "copus/config/run_config.h"
#include "copus/model/bucket_use.h"
#include "copus/model/layers/decoder_layer.h"
#include "copus/model/layers/input_embedding.h"
#include "copus/model/layers/output_head.h"
#include "copus/model/layers/rotary_table.h"
#include "copus/model/layers/tensor_parallel.h"
#include "copus/model/layers/weight_gradients.h"
#include "copus/model/memory/parameters.h"

namespace copus {

// One micro-batch, the same for every stage: int64 [batch, sequence] on the device. Positions whose target is
// `ignored_target` carry no loss.
struct MicroBatch {
  at::Tensor tokens;
  at::Tensor targets;
  double loss_scale = 1;  // for gradients of loss_scale * (sum of token losses)
  // A copy of the tokens on the host, row by row, for code that must not wait for the device.
  std::vector<int64_t> host_tokens = {};
  kernels::Documents documents = {};  // attention and positions begin with each document

  // Returns the position of each row in its document, int64 [batch * sequence]; undefined without documents.
  at::Tensor positions() const;
};

// Where the tokens of a micro-batch stand, and what the layers of a chunk read there.
struct ChunkPositions {
  at::Tensor of_rows;  // int64 [batch * sequence]; undefined where neither documents nor learned positions need it
  std::vector<RotaryTable::Rows> rotations;  // one a layer
};

// Activations that a chunk keeps of one micro-batch between forward and backward.
struct ChunkActivations {
  ChunkPositions positions;
  std::vector<LayerActivations> layers;
  ResidualStream stream;  // the stream that enters the head; only on the last chunk
};

class ModelChunk {
 public:
  // Makes chunk `chunk` of the store's pipeline rank. Refers to `parameters` and the group behind `tensor_parallel`.
  ModelChunk(ParameterStore& parameters, int64_t chunk, Recompute recompute, const TensorParallel& tensor_parallel);

  bool is_first() const { return embedding_.has_value(); }  // reads tokens; other chunks read the stage before's output
  bool is_last() const { return head_.has_value(); }        // ends in the loss

  // Returns an empty tensor for receiving the residual stream between stages: [local rows, hidden] in the compute
  // dtype.
  at::Tensor empty_stream(const MicroBatch& micro_batch) const;

  // Runs F. `input`: the stream from the previous stage (undefined on the first). Returns the stream for the next
  // stage; on the last stage it is undefined, because B computes the loss and its gradient. All three passes report
  // each bucket to `use`, if given.
  at::Tensor forward(const MicroBatch& micro_batch, const at::Tensor& input, ChunkActivations& kept,
                     BucketUse* use = nullptr);

  // Runs B, and the part of W that `weight_gradients` runs at once. `output_gradient`: the gradient of forward()'s
  // result (undefined on the last stage). Returns the gradient of the input (undefined on the first). The last chunk
  // adds the sum of token losses, unscaled, to loss_sum (float64 scalar tensor). For layers with deferred gradients,
  // WeightGradients::run reports the buckets with Mode::all_deferred, and nothing reports them with Mode::deferred.
  at::Tensor backward(const MicroBatch& micro_batch, const at::Tensor& output_gradient, ChunkActivations kept,
                      WeightGradients& weight_gradients, const at::Tensor& loss_sum, BucketUse* use = nullptr);

  // Runs forward without gradients. Returns the stream for the next stage; on the last chunk adds the sum of token
  // losses to loss_sum and returns an undefined tensor.
  at::Tensor evaluate(const MicroBatch& micro_batch, const at::Tensor& input, const at::Tensor& loss_sum,
                      BucketUse* use = nullptr);

  // The buckets whose weights these passes read, in the order of their use.
  std::vector<int64_t> weights_of_forward() const;
  std::vector<int64_t> weights_of_backward() const;
  std::vector<int64_t> weights_of_evaluation() const;

 private:
  class Use;
  // Returns the context of a layer, counted from the chunk's first.
  LayerContext context_of(const MicroBatch& micro_batch, const ChunkPositions& positions, size_t layer) const;
  ChunkPositions positions_of(const MicroBatch& micro_batch);
  ResidualStream through_layers(const MicroBatch& micro_batch, const ChunkPositions& positions, const at::Tensor& input,
                                std::vector<LayerActivations>* kept, const Use& use);

  ParameterStore& parameters_;
  Recompute recompute_;
  TensorParallel tensor_parallel_;
  RotaryTable rotary_;
  std::optional<InputEmbedding> embedding_;
  int64_t first_layer_of_model_;
  std::vector<DecoderLayer> layers_;
  std::optional<OutputHead> head_;
  // The bucket indices of the embedding, of the layers, of final norm and head, and of a tied head.
  std::vector<int64_t> buckets_;
  size_t first_layer_ = 0;             // position of the first layer's bucket in buckets_
  std::vector<int64_t> head_weights_;  // buckets that the head reads; a tied head may read the embedding's
};

}  // namespace copus
