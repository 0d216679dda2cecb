// The model's state: the compute weight, fp32 master weight and fp32 main gradient of every parameter. They are stored
// in one contiguous buffer per decoder layer (a bucket), so that optimizer, norms and reductions run over flat memory.
// With ZeRO a rank keeps a shard of each bucket. Whole gradients (from stage 2 on) and whole weights (stage 3) then
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

// One parameter, or the part of it that this rank holds. The tensors have the shape of `box`.
struct Parameter {
  ParameterInfo info;  // of the whole, logical tensor
  Sharding sharding;
  Box box;              // the part that this rank holds
  int64_t chunk;        // chunk of this pipeline rank
  bool tied_copy;       // the head's side of a tied embedding. If this rank also holds the embedding, `weight`
                        // is the embedding's, and only the gradient is separate
  at::Tensor weight;    // compute dtype; read by forward and backward
  at::Tensor gradient;  // master dtype; accumulated over micro-batches
  int64_t bucket;       // index into ParameterStore::buckets()
  int64_t offset;       // first element of the parameter in the bucket
};

// Linear layers with the same input, as one matrix: the weights of the parameters, stacked along their outputs.
struct JoinedParameters {
  at::Tensor weight;    // [sum of outputs, inputs], or [sum of outputs] for biases; a view
  at::Tensor gradient;  // same shape
};

// A bucket: the parameters of one decoder layer, of the embedding, of the final norm with the head, or of the tied copy
// of the head. It stores them in flat 1-d buffers, with zeros between and after the parameters (BucketOffsets).
struct Bucket {
  std::vector<int64_t> parameters;  // indices into ParameterStore::parameters()
  int64_t chunk;
  at::Tensor weight;    // [size]; undefined for a tied copy beside its embedding
  at::Tensor gradient;  // [size]
  // The weights and gradients that this rank keeps between steps: the same tensors, or with ZeRO its shards of them
  // (`weight` and `gradient` are then flat_without_memory).
  at::Tensor kept_weight, kept_gradient;
  // The elements shard_begin .. shard_end, which this rank updates: the whole bucket, or with ZeRO its shard. They are
  // views of the kept tensors. `master` is a view of `weight_shard` if the compute dtype is the master dtype. Undefined
  // if `weight` is undefined, because there is nothing to update then.
  at::Tensor weight_shard, gradient_shard, master;
  int64_t shard_begin = 0, shard_end = 0;
  int64_t size() const { return gradient.numel(); }
};

class ParameterStore {
 public:
  // Allocates the whole state on `device`, zeroed. compute_dtype: kFloat, kBFloat16 or (tests) kDouble; the master
  // dtype is kDouble for kDouble and kFloat otherwise.
  ParameterStore(const ModelDescription& model, at::ScalarType compute_dtype, at::Device device);  // the whole model
  ParameterStore(const ModelDescription& model, at::ScalarType compute_dtype, at::Device device,
                 const Placement& placement);
  // Uses existing state, gradients included, of the placement's buckets in their order. Shares the tensors.
  ParameterStore(const ModelDescription& model, at::ScalarType compute_dtype, const Placement& placement,
                 const std::vector<BucketState>& state);

  const ModelDescription& model() const { return model_; }
  at::ScalarType compute_dtype() const { return compute_dtype_; }
  at::ScalarType master_dtype() const { return master_dtype_of(compute_dtype_); }
  at::Device device() const { return device_; }
  const Placement& placement() const { return placement_; }
  const std::vector<Parameter>& parameters() const { return parameters_; }
  const std::vector<Bucket>& buckets() const { return buckets_; }
  const Parameter& find(const std::string& name) const;  // throws InternalError if there is none
  const Parameter* find_tied_copy() const;               // null if this rank has none

  // Returns the parameter's master weights, a view of the shape of its box. Call it only if this rank updates the whole
  // parameter.
  at::Tensor master(const Parameter& parameter) const;

  // Returns views over parameters that are adjacent in memory.
  JoinedParameters join(const std::vector<std::string>& names) const;

  // Fills the master weights from (seed, parameter name, element index) alone, and derives the compute weights
  // (publish_weights). Embeddings and linear weights are normal with initial_deviation(), biases are zero, norms are
  // one (the rule of transformers).
  void initialize(uint64_t seed);

  // Rounds the master weights to this rank's shards of the compute weights. Call it after every change of a master
  // weight. With ZeRO-1 and 2, gather the shards afterwards.
  void publish_weights();

  // Zeroes the main gradients before a step adds to them. Shards are not zeroed: the first reduction overwrites them.
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
