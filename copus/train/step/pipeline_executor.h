// Executes one rank's part of a pipeline schedule on its model chunks. On a GPU the host runs ahead: only evaluate()
// and the communicators wait for the device.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include "copus/base/numbers/exact_sum.h"
#include "copus/model/layers/model_chunk.h"
#include "copus/schedule/schedule.h"
#include "copus/train/recording/step_recorder.h"
#include "copus/train/step/gathered_weights.h"
#include "copus/train/step/gradient_probe.h"
#include "copus/train/step/gradient_reduction.h"
#include "copus/train/step/rank_groups.h"

namespace copus {

class PipelineExecutor {
 public:
  // All three arguments must outlive this object.
  PipelineExecutor(ParameterStore& parameters, RankGroups& groups, GatheredWeights& weights);

  // Runs forward and backward of `micro_batches` (schedule.num_microbatches of them), and adds their gradients to the
  // main gradients. Returns the unscaled sums of token losses, float64 [micro-batches] on the device: equal on all
  // tensor-parallel ranks of the last stage, zero on other stages.
  //
  // Meanwhile reports complete gradients of buckets to `reduction`, complete gradients of the first micro-batch to
  // `probe`, and the time of each action to `recorder`. The caller must have begun `probe`, but not `reduction`. Does
  // not wait for the device.
  at::Tensor run(const Schedule& schedule, const std::vector<MicroBatch>& micro_batches, GradientReduction& reduction,
                 GradientProbe& probe, StepRecorder& recorder);

  // Runs one micro-batch forward through the pipeline, without gradients; every rank of the pipeline calls it. Returns
  // the sum of token losses as above. Does not wait for later stages.
  ExactSum evaluate(const MicroBatch& micro_batch);

  // Waits for all sends of this rank in flight. Call it before this object is destroyed.
  void finish_sends();

 private:
  class Pass;
  struct Message {
    at::Tensor tensor;
    Work work;
  };

  // The floating-point operations of one action.
  struct Flops {
    int64_t first_layer = 0;
    std::vector<double> layers = {};  // by layer of the chunk
    double head = 0;
    double total() const { return std::accumulate(layers.begin(), layers.end(), head); }
  };

  // Starts to send to the next stage (`distance` 1) or to the previous one (-1). `with_next_receive`: the next
  // operation is a receive from that stage.
  void send(const at::Tensor& tensor, int64_t distance, bool with_next_receive = false);
  Work start_receive(const at::Tensor& tensor, int64_t distance);
  int64_t neighbour(int64_t distance) const;
  // Returns the link to another stage (Route). `direction`: 1 for messages to later stages, -1 for messages to earlier
  // stages. Both directions share a link unless ranks have several chunks (joins_receive).
  int64_t link_to(int64_t distance, int64_t direction) const;
  void drop_finished_sends();
  const ParallelStrategy& strategy() const { return parameters_.placement().strategy; }
  RankClock& clock() { return groups_.world().clock(); }
  int64_t stage(int64_t chunk) const;
  int64_t layer_of(int64_t bucket) const;  // -1 for the embedding and the head
  Flops flops(int64_t chunk, ActionKind kind, const MicroBatch& micro_batch) const;

  ParameterStore& parameters_;
  RankGroups& groups_;
  GatheredWeights& weights_;
  std::vector<ModelChunk> chunks_;
  std::vector<Message> sends_;  // in flight
};

// Sums the losses that run() returned. Waits for the device.
ExactSum add_up(const at::Tensor& losses);

}  // namespace copus
