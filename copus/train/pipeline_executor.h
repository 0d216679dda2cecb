// Runs one rank's part of a pipeline schedule over its model chunks. On a GPU the host runs ahead: only evaluate() and
// the communicators wait for the device.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "copus/base/exact_sum.h"
#include "copus/model/model_chunk.h"
#include "copus/schedule/schedule.h"
#include "copus/train/gathered_weights.h"
#include "copus/train/gradient_probe.h"
#include "copus/train/gradient_reduction.h"
#include "copus/train/rank_groups.h"
#include "copus/train/step_recorder.h"

namespace copus {

class PipelineExecutor {
 public:
  // Refers to all three for its whole life.
  PipelineExecutor(ParameterStore& parameters, RankGroups& groups, GatheredWeights& weights);

  // Runs forward and backward of micro_batches (schedule.num_microbatches of them), whose gradients are added to the
  // main gradients. Tells `reduction` (not begun) of each bucket as soon as its gradient is complete, while the rest
  // still runs, `probe` (begun) of the first micro-batch's gradients, and `recorder` when each thing happened. Returns
  // the sums of token losses, unscaled, float64 [micro-batches] on the device: on the ranks of the last stage, equal on
  // all of its tensor-parallel ranks; zeros elsewhere. Does not wait for the device.
  at::Tensor run(const Schedule& schedule, const std::vector<MicroBatch>& micro_batches, GradientReduction& reduction,
                 GradientProbe& probe, StepRecorder& recorder);

  // Runs one micro-batch forward, without gradients, through the whole pipeline; every rank of the pipeline calls it.
  // Returns the sum of token losses as above. Does not wait for the stages that come after this rank's.
  ExactSum evaluate(const MicroBatch& micro_batch);

  // Waits until no message of this rank is under way any more; call before it is destroyed.
  void finish_sends();

 private:
  class Pass;
  struct Message {
    at::Tensor tensor;
    Work work;
  };

  // The floating-point operations of one action.
  struct Flops {
    double layers;  // of all layers of the chunk, which are equal
    double head;
    double total() const { return layers + head; }
  };

  // Starts to send to another stage. `distance`: 1 to the next stage, -1 to the previous one. `with_next_receive`: what
  // comes next is a receive from that stage.
  void send(const at::Tensor& tensor, int64_t distance, bool with_next_receive = false);
  Work start_receive(const at::Tensor& tensor, int64_t distance);
  int64_t neighbour(int64_t distance) const;
  // The link to another stage (Route). `direction`: 1 for messages to later stages, -1 to earlier ones. The two share a
  // link, unless a rank has several chunks (joins_receive).
  int64_t link_to(int64_t distance, int64_t direction) const;
  void drop_finished_sends();
  const ParallelStrategy& strategy() const { return parameters_.placement().strategy; }
  RankClock& clock() { return groups_.world().clock(); }
  int64_t stage(int64_t chunk) const;
  int64_t num_layers(int64_t chunk) const;
  bool is_layer(int64_t bucket) const;
  Flops flops(int64_t chunk, ActionKind kind, const MicroBatch& micro_batch) const;

  ParameterStore& parameters_;
  RankGroups& groups_;
  GatheredWeights& weights_;
  std::vector<ModelChunk> chunks_;
  std::vector<Message> sends_;  // messages under way
};

// Adds up the losses that run() has returned. Waits for the device.
ExactSum add_up(const at::Tensor& losses);

}  // namespace copus
