// Consecutive decoder layers, the computation of one pipeline stage, forward and hand-written backward. The first chunk
// begins with the embedding; the last ends with final norm, head and loss.
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

// One micro-batch, the same on every stage: int64 [batch, sequence] on the device. A target `ignored_target` carries no
// loss.
struct MicroBatch {
  at::Tensor tokens;
  at::Tensor targets;
  double loss_scale = 1;  // factor on the loss, for gradients
  // The tokens in host memory, row by row, for code that must not wait for the device.
  std::vector<int64_t> host_tokens = {};
  kernels::Documents documents = {};  // limits of attention; positions count from a document's start

  // Returns each row's position in its document, int64 [batch * sequence]; undefined without documents.
  at::Tensor positions() const;
};

// The positions of a micro-batch's rows, and the rotary tables at these positions.
struct ChunkPositions {
  at::Tensor of_rows;  // int64 [batch * sequence]; undefined if neither documents nor learned positions need it
  std::vector<RotaryTable::Rows> rotations;  // by layer
};

// Activations of one micro-batch that a chunk keeps from forward to backward.
struct ChunkActivations {
  ChunkPositions positions;
  std::vector<LayerActivations> layers;
  ResidualStream stream;  // the head's input; only on the last chunk
};

class ModelChunk {
 public:
  // Makes chunk `chunk` of the store's pipeline rank. `parameters` and the group behind `tensor_parallel` must outlive
  // it.
  ModelChunk(ParameterStore& parameters, int64_t chunk, Recompute recompute, const TensorParallel& tensor_parallel);

  bool is_first() const { return embedding_.has_value(); }  // reads tokens; others read the previous stage's output
  bool is_last() const { return head_.has_value(); }        // ends in the loss

  // Returns an empty tensor to receive the residual stream from another stage: [local rows, hidden], compute dtype.
  at::Tensor empty_stream(const MicroBatch& micro_batch) const;

  // Runs F. `input`: the stream from the previous stage (undefined on the first chunk). Returns the stream for the next
  // stage (undefined on the last chunk, where B computes the loss and its gradient). F, B and W report their use of
  // buckets to `use`, if given.
  at::Tensor forward(const MicroBatch& micro_batch, const at::Tensor& input, ChunkActivations& kept,
                     BucketUse* use = nullptr);

  // Runs B, and the part of W that `weight_gradients` does not defer. `output_gradient`: gradient of forward()'s result
  // (undefined on the last chunk). Returns the input's gradient (undefined on the first chunk). The last chunk adds the
  // unscaled sum of token losses to loss_sum (float64 scalar tensor). With Mode::all_deferred, WeightGradients::run
  // reports complete gradients of the layers; with Mode::deferred they are not reported.
  at::Tensor backward(const MicroBatch& micro_batch, const at::Tensor& output_gradient, ChunkActivations kept,
                      WeightGradients& weight_gradients, const at::Tensor& loss_sum, BucketUse* use = nullptr);

  // Runs forward without gradients. Returns the stream for the next stage. The last chunk instead adds the sum of token
  // losses to loss_sum and returns an undefined tensor.
  at::Tensor evaluate(const MicroBatch& micro_batch, const at::Tensor& input, const at::Tensor& loss_sum,
                      BucketUse* use = nullptr);

  // Return the buckets whose weights a pass reads, in the order of use.
  std::vector<int64_t> weights_of_forward() const;
  std::vector<int64_t> weights_of_backward() const;
  std::vector<int64_t> weights_of_evaluation() const;

 private:
  class Use;
  // Returns the context of a layer, which is counted from the chunk's first.
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
  // Bucket indices: embedding, layers, final norm and head, tied head.
  std::vector<int64_t> buckets_;
  size_t first_layer_ = 0;             // index in buckets_ of the first layer's bucket
  std::vector<int64_t> head_weights_;  // buckets that the head reads; a tied head may read the embedding's
};

}  // namespace copus
