#include "copus/train/step/pipeline_executor.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "copus/base/error.h"
#include "copus/model/kernels/kernels.h"
#include "copus/model/tensor_messages.h"

namespace copus {

// One execution of a schedule, with the state between its actions.
class PipelineExecutor::Pass : private BucketUse {
 public:
  Pass(PipelineExecutor& executor, const Schedule& schedule, const std::vector<MicroBatch>& micro_batches,
       GradientReduction& reduction, GradientProbe& probe, StepRecorder& recorder)
      : executor_(executor),
        schedule_(schedule),
        actions_(in_order_of_start(schedule, executor.groups_.here().pipeline)),
        micro_batches_(micro_batches),
        reduction_(reduction),
        probe_(probe),
        recorder_(recorder),
        slots_(executor.chunks_.size()),
        losses_(kernels::zeros({std::ssize(micro_batches)}, at::kDouble, executor.parameters_.device())) {
    COPUS_CHECK(std::ssize(micro_batches) == schedule.num_microbatches);
    for (auto& of_chunk : slots_) of_chunk.resize(micro_batches.size());
  }

  at::Tensor run() {
    reduction_.begin(std::ssize(micro_batches_));
    if (executor_.weights_.needs_passes()) {
      executor_.weights_.begin(weights_in_order(), !executor_.strategy().reshard_after_forward);
    }
    for (size_t i = 0; i < actions_.size(); ++i) {
      const Action& action = actions_[i];
      const std::optional<Action> next = i + 1 < actions_.size() ? std::optional(actions_[i + 1]) : std::nullopt;
      perform(action, next);
      if (action.micro_batch == 0) tell_probe(action);
    }
    executor_.weights_.end();
    probe_.schedule_done();
    return losses_;
  }

 private:
  // A chunk's state of a micro-batch.
  struct Slot {
    at::Tensor input, output;                    // of F: from the previous stage, to the next stage
    at::Tensor output_gradient, input_gradient;  // of B: from the next stage, to the previous stage
    Work receive;                                // of input or output_gradient
    ChunkActivations activations;
    std::optional<WeightGradients> deferred;  // computation that B has left for W
  };

  void perform(const Action& action, const std::optional<Action>& next) {
    const bool weight_pass_follows = next == Action{ActionKind::backward_weight, action.chunk, action.micro_batch};
    const bool joins = next && joins_receive(schedule_, action, *next);
    const MicroBatch& micro_batch = micro_batches_[action.micro_batch];
    ModelChunk& chunk = executor_.chunks_[action.chunk];
    Slot& slot = slots_[action.chunk][action.micro_batch];
    switch (action.kind) {
      case ActionKind::forward:
        if (!chunk.is_first()) wait_for(slot, "activations", action);
        compute(StepPart::forward, "F", "forward", action);
        begin_work(action, flops(action, action.kind), /*is_whole_backward=*/false);
        slot.output = chunk.forward(micro_batch, std::exchange(slot.input, {}), slot.activations, this);
        executor_.clock().charge(left_.total());
        break;
      case ActionKind::backward_input:
        if (!chunk.is_last()) wait_for(slot, "gradients", action);
        compute(StepPart::backward, weight_pass_follows ? "B+W" : "B", "backward", action);
        backward(action, weight_pass_follows, chunk, slot);
        break;
      case ActionKind::backward_weight:
        if (!slot.deferred) break;  // already done in B
        compute(StepPart::backward, "W", "weight gradients", action);
        begin_work(action, flops(action, action.kind), /*is_whole_backward=*/false);
        slot.deferred->run(this);
        slot.deferred.reset();
        executor_.clock().charge(left_.total());
        if (is_last(action) && !reduction_.reduces_each_micro_batch()) reduce_chunk(action.chunk);
        break;
      case ActionKind::send_activation:
        executor_.send(std::exchange(slot.output, {}), 1, joins);
        break;
      case ActionKind::send_gradient:
        executor_.send(std::exchange(slot.input_gradient, {}), -1, joins);
        break;
      case ActionKind::receive_activation:
        slot.input = chunk.empty_stream(micro_batch);
        slot.receive = executor_.start_receive(slot.input, -1);
        break;
      case ActionKind::receive_gradient:
        slot.output_gradient = chunk.empty_stream(micro_batch);
        slot.receive = executor_.start_receive(slot.output_gradient, 1);
        break;
    }
    recorder_.end();
  }

  void wait_for(Slot& slot, const char* message, const Action& action) {
    recorder_.wait_at(concat(message, " of micro-batch ", action.micro_batch));
    std::exchange(slot.receive, {}).wait();
  }

  // Reports the first micro-batch's gradients to the probe. W is a separate action after B, even if B has computed it.
  void tell_probe(const Action& action) {
    if (action.kind == ActionKind::backward_input) {
      probe_.first_micro_batch_done(action.chunk, GradientPart::input_pass);
    } else if (action.kind == ActionKind::backward_weight) {
      probe_.first_micro_batch_done(action.chunk, GradientPart::weight_pass);
    }
  }

  void backward(const Action& action, bool weight_pass_follows, ModelChunk& chunk, Slot& slot) {
    at::Tensor loss_sum;
    if (chunk.is_last()) loss_sum = losses_.select(0, action.micro_batch);
    using Mode = WeightGradients::Mode;
    const bool deferred = !weight_pass_follows;
    const Mode deferring = reduction_.reduces_each_micro_batch() ? Mode::all_deferred : Mode::deferred;
    WeightGradients weight_gradients(deferred ? deferring : Mode::immediate);
    Flops all = flops(action, ActionKind::backward_input);
    if (!deferred) {
      const Flops weights = flops(action, ActionKind::backward_weight);
      std::ranges::transform(all.layers, weights.layers, all.layers.begin(), std::plus<>());
      all.head += weights.head;
    }
    begin_work(action, std::move(all), /*is_whole_backward=*/!deferred);
    slot.input_gradient = chunk.backward(micro_batches_[action.micro_batch], std::exchange(slot.output_gradient, {}),
                                         std::move(slot.activations), weight_gradients, loss_sum, this);
    executor_.clock().charge(left_.total());
    if (deferred) slot.deferred = std::move(weight_gradients);
  }

  // Begins an action with this number of operations.
  void begin_work(const Action& action, Flops all, bool is_whole_backward) {
    left_ = std::move(all);
    uses_weights_ = action.kind != ActionKind::backward_weight;
    reduces_ = reduction_.reduces_each_micro_batch() || (is_whole_backward && is_last(action));
  }

  // Charges a bucket's operations to the virtual clock. Called right after the operations: then gathers of other
  // weights overlap with them, and the reduction of the bucket's gradients begins only when they are done.
  void charge(int64_t bucket) {
    const int64_t layer = executor_.layer_of(bucket);
    double& left = layer < 0 ? left_.head : left_.layers[layer - left_.first_layer];
    executor_.clock().charge(std::exchange(left, 0));
  }

  void weights_begin(int64_t bucket) override { executor_.weights_.use(bucket); }
  void weights_end(int64_t bucket) override {
    charge(bucket);
    executor_.weights_.release(bucket);
  }
  void gradient_begins(int64_t bucket) override { reduction_.pass_begins(bucket); }
  void gradient_ends(int64_t bucket) override {
    if (!uses_weights_) charge(bucket);
    if (reduces_) reduction_.bucket_done(bucket);
  }

  // Lists the buckets whose weights this rank's actions use, in order. W uses none.
  std::vector<int64_t> weights_in_order() const {
    std::vector<int64_t> buckets;
    for (const Action& action : actions_) {
      const ModelChunk& chunk = executor_.chunks_[action.chunk];
      std::vector<int64_t> used;
      if (action.kind == ActionKind::forward) used = chunk.weights_of_forward();
      if (action.kind == ActionKind::backward_input) used = chunk.weights_of_backward();
      buckets.insert(buckets.end(), used.begin(), used.end());
    }
    return buckets;
  }

  bool is_last(const Action& action) const { return action.micro_batch + 1 == std::ssize(micro_batches_); }

  // Reduces all buckets of a chunk at once, in the order in which a backward pass completes them.
  void reduce_chunk(int64_t chunk) {
    const auto& buckets = executor_.parameters_.buckets();
    for (int64_t b = std::ssize(buckets); b-- > 0;) {
      if (buckets[b].chunk == chunk) reduction_.bucket_done(b);
    }
  }

  void compute(StepPart part, const char* name, const char* what, const Action& action) {
    recorder_.begin(
        {.category = "pipeline", .name = name, .part = part, .chunk = action.chunk, .micro_batch = action.micro_batch},
        concat(what, " of micro-batch ", action.micro_batch));
  }

  Flops flops(const Action& action, ActionKind kind) const {
    return executor_.flops(action.chunk, kind, micro_batches_[action.micro_batch]);
  }

  PipelineExecutor& executor_;
  const Schedule& schedule_;
  const std::vector<Action> actions_;
  const std::vector<MicroBatch>& micro_batches_;
  GradientReduction& reduction_;
  GradientProbe& probe_;
  StepRecorder& recorder_;
  std::vector<std::vector<Slot>> slots_;  // by chunk and micro-batch
  at::Tensor losses_;                     // by micro-batch
  // State of the current action: its operations that are not charged yet, whether the action reads weights, and whether
  // the buckets that it completes are reduced.
  Flops left_{};
  bool uses_weights_ = false;
  bool reduces_ = false;
};

PipelineExecutor::PipelineExecutor(ParameterStore& parameters, RankGroups& groups, GatheredWeights& weights)
    : parameters_(parameters), groups_(groups), weights_(weights) {
  const TensorParallel tensor_parallel = strategy().tensor_parallel == 1
                                             ? TensorParallel()
                                             : TensorParallel(groups.tensor(), strategy().sequence_parallel);
  for (int64_t chunk = 0; chunk < strategy().virtual_stages; ++chunk) {
    chunks_.emplace_back(parameters, chunk, strategy().recompute, tensor_parallel);
  }
}

at::Tensor PipelineExecutor::run(const Schedule& schedule, const std::vector<MicroBatch>& micro_batches,
                                 GradientReduction& reduction, GradientProbe& probe, StepRecorder& recorder) {
  at::Tensor losses = Pass(*this, schedule, micro_batches, reduction, probe, recorder).run();
  finish_sends();
  return losses;
}

namespace {

// Gathers unsharded weights for a pass without gradients.
class WeightUse final : public BucketUse {
 public:
  explicit WeightUse(GatheredWeights& weights) : weights_(weights) {}
  void weights_begin(int64_t bucket) override { weights_.use(bucket); }
  void weights_end(int64_t bucket) override { weights_.release(bucket); }
  void gradient_begins(int64_t) override {}
  void gradient_ends(int64_t) override {}

 private:
  GatheredWeights& weights_;
};

}  // namespace

ExactSum PipelineExecutor::evaluate(const MicroBatch& micro_batch) {
  if (weights_.needs_passes()) {
    std::vector<int64_t> uses;
    for (const ModelChunk& chunk : chunks_) {
      const std::vector<int64_t> used = chunk.weights_of_evaluation();
      uses.insert(uses.end(), used.begin(), used.end());
    }
    weights_.begin(std::move(uses), false);
  }
  WeightUse use(weights_);
  ExactSum loss;
  for (size_t c = 0; c < chunks_.size(); ++c) {
    ModelChunk& chunk = chunks_[c];
    at::Tensor input, loss_sum;
    if (!chunk.is_first()) {
      input = chunk.empty_stream(micro_batch);
      start_receive(input, -1).wait();
    }
    if (chunk.is_last()) loss_sum = kernels::zeros({}, at::kDouble, micro_batch.tokens.device());
    const at::Tensor output = chunk.evaluate(micro_batch, input, loss_sum, &use);
    clock().charge(flops(static_cast<int64_t>(c), ActionKind::forward, micro_batch).total());
    if (chunk.is_last()) {
      loss = add_up(loss_sum);
    } else {
      send(output, 1);
    }
  }
  weights_.end();
  drop_finished_sends();
  return loss;
}

ExactSum add_up(const at::Tensor& losses) {
  std::vector<double> values(losses.numel());
  kernels::copy_to_host(losses, values.data());
  ExactSum sum;
  for (const double value : values) sum.add(value);
  return sum;
}

void PipelineExecutor::send(const at::Tensor& tensor, int64_t distance, bool with_next_receive) {
  drop_finished_sends();
  const Route route{.link = link_to(distance, distance), .with_next_receive = with_next_receive};
  sends_.push_back({tensor, groups_.pipeline().start_send(tensor.data_ptr(), tensor.numel(), data_type_of(tensor),
                                                          neighbour(distance), route)});
}

Work PipelineExecutor::start_receive(const at::Tensor& tensor, int64_t distance) {
  return groups_.pipeline().start_receive(tensor.data_ptr(), tensor.numel(), data_type_of(tensor), neighbour(distance),
                                          {.link = link_to(distance, -distance)});
}

// Returns the rank of a neighbouring stage. With several chunks per rank the stages go around the ranks: the first rank
// follows the last one.
int64_t PipelineExecutor::neighbour(int64_t distance) const {
  const int64_t ranks = groups_.pipeline().size();
  return (groups_.pipeline().rank() + distance + ranks) % ranks;
}

int64_t PipelineExecutor::link_to(int64_t distance, int64_t direction) const {
  const int64_t link = distance == 1 ? groups_.pipeline().rank() : neighbour(distance);
  return strategy().virtual_stages > 1 && direction < 0 ? groups_.pipeline().size() + link : link;
}

void PipelineExecutor::drop_finished_sends() {
  std::erase_if(sends_, [](const Message& message) { return message.work.done(); });
}

void PipelineExecutor::finish_sends() {
  for (const Message& message : sends_) message.work.wait();
  sends_.clear();
}

int64_t PipelineExecutor::stage(int64_t chunk) const {
  const Placement& placement = parameters_.placement();
  return chunk * placement.strategy.pipeline_parallel + placement.here.pipeline;
}

int64_t PipelineExecutor::layer_of(int64_t bucket) const {
  const int64_t first = parameters_.buckets()[bucket].parameters.front();
  return parameters_.parameters()[first].info.layer;
}

// Returns the operations of one action. F, B and W each take a third of a layer's training operations. The last stage
// computes the head only in B (including the head's forward pass) and W. With full recompute B includes F.
PipelineExecutor::Flops PipelineExecutor::flops(int64_t chunk, ActionKind kind, const MicroBatch& micro_batch) const {
  const TrainingFlops all = training_flops(parameters_.model(), micro_batch.tokens.size(1));
  const double tokens =
      static_cast<double>(micro_batch.tokens.numel()) / static_cast<double>(strategy().tensor_parallel);
  const bool again = kind == ActionKind::backward_input && strategy().recompute == Recompute::full;
  const double passes = again ? 2 : 1;
  const double thirds_of_head = kind == ActionKind::backward_input ? 2 : kind == ActionKind::backward_weight ? 1 : 0;
  const bool is_last = stage(chunk) + 1 == strategy().num_stages();
  const LayerRange range = parameters_.placement().stages[stage(chunk)];
  Flops flops{.first_layer = range.begin};
  for (int64_t layer = range.begin; layer < range.end; ++layer) {
    flops.layers.push_back(tokens * passes * all.layers[layer] / 3);
  }
  if (is_last) flops.head = tokens * thirds_of_head * all.head / 3;
  return flops;
}

}  // namespace copus
