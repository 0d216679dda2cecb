// The model's state: compute weight, fp32 master weight and fp32 main gradient of every parameter. One contiguous
// buffer per decoder layer (a bucket) holds them, so that optimizer, norms and reductions run over flat memory. With
// ZeRO a rank keeps a shard of each bucket. Unsharded gradients (from stage 2 on) and unsharded weights (stage 3) then
// have memory only while they are in use.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "copus/description/model_description.h"
#include "copus/model/memory/state_memory.h"
#include "copus/placement/bucket_offsets.h"

namespace copus {

// One parameter, or this rank's part of it. The tensors have the shape of `box`.
struct Parameter {
  ParameterInfo info;  // of the whole, logical tensor
  Sharding sharding;
  Box box;              // this rank's part
  int64_t chunk;        // index of the chunk on this pipeline rank
  bool tied_copy;       // the head's side of a tied embedding. If this rank also holds the embedding, `weight`
                        // is the embedding's, and only the gradient is separate
  at::Tensor weight;    // compute dtype; read by forward and backward
  at::Tensor gradient;  // master dtype; accumulated over micro-batches
  int64_t bucket;       // index into ParameterStore::buckets()
  int64_t offset;       // of the parameter's first element in the bucket
};

// Linear layers with the same input as one matrix: their weights, stacked along the outputs.
struct JoinedParameters {
  at::Tensor weight;    // [sum of outputs, inputs], or [sum of outputs] for biases; a view
  at::Tensor gradient;  // same shape
};

// A bucket: the parameters of one decoder layer, of the embedding, of the final norm with the head, or of the tied copy
// of the head. Its flat 1-d buffers have zeros between and after parameters (BucketOffsets).
struct Bucket {
  std::vector<int64_t> parameters;  // indices into ParameterStore::parameters()
  int64_t chunk;
  at::Tensor weight;    // [size]; undefined for a tied copy on the rank of its embedding
  at::Tensor gradient;  // [size]
  // The weights and gradients that this rank keeps between steps: `weight` and `gradient` or, if ZeRO shards them, this
  // rank's shards (`weight` and `gradient` are then flat_without_memory).
  at::Tensor kept_weight, kept_gradient;
  // The elements shard_begin .. shard_end that this rank updates: the unsharded bucket, or with ZeRO its shard. The
  // shards are views of the kept tensors. `master` is a view of `weight_shard` if compute and master dtype are equal.
  // All three are undefined if `weight` is, because there is nothing to update.
  at::Tensor weight_shard, gradient_shard, master;
  int64_t shard_begin = 0, shard_end = 0;
  int64_t size() const { return gradient.numel(); }
};

class ParameterStore {
 public:
  // Allocates the whole state on `device`, zeroed. compute_dtype: kFloat, kBFloat16 or (in tests) kDouble. The master
  // dtype is kDouble for kDouble, otherwise kFloat.
  ParameterStore(const ModelDescription& model, at::ScalarType compute_dtype, at::Device device);  // the whole model
  ParameterStore(const ModelDescription& model, at::ScalarType compute_dtype, at::Device device,
                 const Placement& placement);
  // Uses existing state, including gradients, of the placement's buckets in order. Shares the tensors.
  ParameterStore(const ModelDescription& model, at::ScalarType compute_dtype, const Placement& placement,
                 const std::vector<BucketState>& state);

  const ModelDescription& model() const { return model_; }
  at::ScalarType compute_dtype() const { return compute_dtype_; }
  at::ScalarType master_dtype() const { return master_dtype_of(compute_dtype_); }
  at::Device device() const { return device_; }
  const Placement& placement() const { return placement_; }
  const std::vector<Parameter>& parameters() const { return parameters_; }
  const std::vector<Bucket>& buckets() const { return buckets_; }
  const Parameter& find(const std::string& name) const;  // throws InternalError if missing
  const Parameter* find_tied_copy() const;               // null if missing

  // Returns a parameter's master weights, a view with the shape of its box. This rank must update the entire parameter.
  at::Tensor master(const Parameter& parameter) const;

  // Returns views over parameters that are stored back to back.
  JoinedParameters join(const std::vector<std::string>& names) const;

  // Fills the master weights, as a pure function of (seed, parameter name, element index), and derives the compute
  // weights (publish_weights). Embeddings and linear weights are normal with initial_deviation(), biases zero, norms
  // initial_norm_weight() (as in transformers).
  void initialize(uint64_t seed);

  // Rounds the master weights to this rank's shards of the compute weights. Call it after every change of master
  // weights; with ZeRO-1 and 2 then gather the shards.
  void publish_weights();

  // Zeroes the main gradients before a step adds to them. Shards need no zeroing: the first reduction overwrites them.
  void zero_gradients();

 private:
  void place(Bucket& bucket, const BucketOffsets& offsets, const BucketState& state);

  ModelDescription model_;
  Placement placement_;
  at::ScalarType compute_dtype_;
  at::Device device_;
  std::vector<Parameter> parameters_;
  std::vector<Bucket> buckets_;
  std::unordered_map<std::string, int64_t> index_;
};

}  // namespace copus
