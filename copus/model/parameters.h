// The model's state: for every parameter its compute weight, fp32 master weight and fp32 main gradient, stored in
// one contiguous buffer per decoder layer (a bucket), so that optimizer, norms and reductions run over flat memory.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "copus/strategy/model_description.h"

namespace copus {

// One parameter. All tensors have info.shape; `weight` is `master` itself where the compute dtype is the master dtype.
struct Parameter {
  ParameterInfo info;
  at::Tensor weight;    // compute dtype; what forward and backward read
  at::Tensor master;    // fp32 (float64 in tests); what the optimizer updates
  at::Tensor gradient;  // master dtype; accumulated over micro-batches
  int64_t bucket;       // index into ParameterStore::buckets()
  int64_t offset;       // of its first element in the bucket
};

// Linear layers that read the same input, as one matrix: the weights of the parameters, stacked along their outputs.
struct JoinedParameters {
  at::Tensor weight;    // [sum of outputs, inputs], or [sum of outputs] for biases; a view
  at::Tensor gradient;  // likewise
};

// The parameters of one decoder layer, or of the embedding, or of final norm and head. Flat 1-d buffers, zero padded.
struct Bucket {
  std::vector<int64_t> parameters;  // indices into ParameterStore::parameters()
  at::Tensor weight;
  at::Tensor master;
  at::Tensor gradient;
};

class ParameterStore {
 public:
  // Every parameter starts on a multiple of this many elements, so that shards and norms can be cut there; only the
  // parameters of linear layers that read the same input (query, key and value; gate and up) lie back to back.
  static constexpr int64_t alignment = 64;

  // Allocates everything on `device`, zeroed. compute_dtype: kFloat, kBFloat16 or (tests) kDouble; the master dtype is
  // kDouble for kDouble and kFloat otherwise.
  ParameterStore(const ModelDescription& model, at::ScalarType compute_dtype, at::Device device);

  const ModelDescription& model() const { return model_; }
  at::ScalarType compute_dtype() const { return compute_dtype_; }
  at::Device device() const { return device_; }
  const std::vector<Parameter>& parameters() const { return parameters_; }
  const std::vector<Bucket>& buckets() const { return buckets_; }
  const Parameter& find(const std::string& name) const;  // throws InternalError if there is none

  // Views over parameters that lie back to back.
  JoinedParameters join(const std::vector<std::string>& names) const;

  // Fills the master weights from (seed, parameter name, element index) alone and publishes them: normal with
  // initializer_range for embeddings and linear weights, zero for biases, one for norms (transformers' rule).
  void initialize(uint64_t seed);

  // Rounds the master weights to the compute weights. Call after every change of a master weight.
  void publish_weights();

  void zero_gradients();

 private:
  ModelDescription model_;
  at::ScalarType compute_dtype_;
  at::Device device_;
  std::vector<Parameter> parameters_;
  std::vector<Bucket> buckets_;
  std::unordered_map<std::string, int64_t> index_;
};

}  // namespace copus
