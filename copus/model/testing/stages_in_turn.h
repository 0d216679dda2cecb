// For tests: splits a whole model, and runs the pipeline stages of one tensor-parallel rank one after another.
#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "copus/model/layers/model_chunk.h"
#include "copus/model/memory/parameters.h"

namespace copus {

// Sets all weights to random values, including those that training starts at one or zero. Draws from ATen's generator.
inline void randomize(ParameterStore& store) {
  for (const Parameter& parameter : store.parameters()) {
    if (parameter.tied_copy) continue;
    const bool norm = parameter.info.kind == ParameterKind::norm;
    store.master(parameter).copy_(at::randn(parameter.info.shape, at::kDouble) * (norm ? 0.2 : 0.15) +
                                  (norm ? initial_norm_weight(store.model()) : 0.0));
  }
  store.publish_weights();
}

inline Placement part_of_job(const ModelDescription& model, const ParallelStrategy& strategy,
                             const MeshCoordinates& here) {
  Placement placement = place(model, strategy, 16, 0);
  placement.here = here;
  return placement;
}

inline at::Tensor cut(at::Tensor whole, const Box& box) {
  for (size_t i = 0; i < box.shape.size(); ++i) {
    whole = whole.narrow(static_cast<int64_t>(i), box.begin[i], box.shape[i]);
  }
  return whole;
}

// Returns the whole model's parameter that contains `parameter`, or its tied copy.
inline const Parameter& same_parameter(const ParameterStore& whole, const Parameter& parameter) {
  return *std::ranges::find_if(whole.parameters(), [&](const Parameter& other) {
    return other.tied_copy == parameter.tied_copy && other.info.name == parameter.info.name;
  });
}

class StagesInTurn {
 public:
  // Copies `whole`, split by `strategy`. The group behind `tensor_parallel` must outlive this object.
  StagesInTurn(const ParameterStore& whole, const ParallelStrategy& strategy, const TensorParallel& tensor_parallel) {
    for (int64_t rank = 0; rank < strategy.pipeline_parallel; ++rank) {
      const Placement placement =
          part_of_job(whole.model(), strategy, {.tensor = tensor_parallel.rank(), .pipeline = rank});
      stores_.push_back(
          std::make_unique<ParameterStore>(whole.model(), whole.compute_dtype(), whole.device(), placement));
      ParameterStore& store = *stores_.back();
      for (const Parameter& parameter : store.parameters()) {
        const bool shared = !store.buckets()[static_cast<size_t>(parameter.bucket)].master.defined();
        const at::Tensor master = whole.master(whole.find(parameter.info.name));
        if (!shared) store.master(parameter).copy_(cut(master, parameter.box));
      }
      store.publish_weights();
    }
    for (int64_t stage = 0; stage < strategy.num_stages(); ++stage) {
      stages_.emplace_back(*stores_[static_cast<size_t>(stage % strategy.pipeline_parallel)],
                           stage / strategy.pipeline_parallel, strategy.recompute, tensor_parallel);
    }
  }

  std::vector<std::unique_ptr<ParameterStore>>& stores() { return stores_; }
  std::vector<ModelChunk>& stages() { return stages_; }

  // Runs F, then B, then W of every stage. Returns the sum of token losses.
  double forward_backward(const MicroBatch& micro_batch, WeightGradients::Mode mode) {
    std::vector<ChunkActivations> kept(stages_.size());
    at::Tensor stream;
    for (size_t i = 0; i < stages_.size(); ++i) {
      stream = stages_[i].forward(micro_batch, stream, kept[i]);
      if (stream.defined()) TORCH_CHECK(stream.sizes() == stages_[i].empty_stream(micro_batch).sizes());
    }
    const at::Tensor loss_sum = at::zeros({}, micro_batch.tokens.options().dtype(at::kDouble));
    at::Tensor gradient;
    WeightGradients weight_gradients(mode);
    for (size_t i = stages_.size(); i-- > 0;) {
      gradient = stages_[i].backward(micro_batch, gradient, std::move(kept[i]), weight_gradients, loss_sum);
    }
    weight_gradients.run();
    return loss_sum.item<double>();
  }

  double evaluate(const MicroBatch& micro_batch) {
    const at::Tensor loss_sum = at::zeros({}, micro_batch.tokens.options().dtype(at::kDouble));
    at::Tensor stream;
    for (ModelChunk& stage : stages_) stream = stage.evaluate(micro_batch, stream, loss_sum);
    return loss_sum.item<double>();
  }

 private:
  std::vector<std::unique_ptr<ParameterStore>> stores_;
  std::vector<ModelChunk> stages_;
};

}  // namespace copus
