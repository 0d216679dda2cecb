#include "copus/performance/sharded_stage.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <vector>

namespace copus {

namespace {

enum PassKind { forward_pass, input_pass, weight_pass, num_pass_kinds };
using PassSeconds = std::array<double, num_pass_kinds>;

// A block's part of a pass.
struct BlockPass {
  PassKind kind;
  int64_t micro_batch;
  double compute;
  bool uses_weights;
  double gather;  // seconds to gather what it uses; 0: it is whole
  double reduce;  // seconds to reduce the gradient that it completes; 0: it completes none
};

// The order in which a stage goes through its blocks.
class BlockPasses {
 public:
  explicit BlockPasses(const ShardedStage& stage) : stage_(stage) {
    const int64_t shown = std::min<int64_t>(stage.num_microbatches, 2);
    if (stage.schedule == PipelineSchedule::gpipe) {
      for (int64_t i = 0; i < shown; ++i) add_forward(i);
      for (int64_t i = 0; i < shown; ++i) add_backward(i);
    } else {
      for (int64_t i = 0; i < shown; ++i) {
        add_forward(i);
        add_backward(i);
      }
    }
  }

  const std::vector<BlockPass>& list() const { return list_; }

 private:
  void add_forward(int64_t micro_batch) {
    const auto add = [&](const BucketSeconds& block) {
      const bool gathers = stage_.reshards || micro_batch == 0;
      list_.push_back({forward_pass, micro_batch, block.forward, block.gather > 0, gathers ? block.gather : 0, 0});
    };
    add(stage_.embedding);
    for (int64_t i = 0; i < stage_.num_layers; ++i) add(stage_.layer);
  }

  void add_backward(int64_t micro_batch) {
    const auto add = [&](const BucketSeconds& block, bool uses_weights, bool gathers) {
      const bool defers = stage_.defers_weight_gradients;
      list_.push_back({input_pass, micro_batch, block.backward_input + (defers ? 0 : block.backward_weight),
                       uses_weights && block.gather > 0, gathers ? block.gather : 0, defers ? 0 : block.reduce});
    };
    add(stage_.head, true, stage_.reshards || micro_batch == 0);
    for (int64_t i = 0; i < stage_.num_layers; ++i) add(stage_.layer, true, stage_.reshards);
    add(stage_.embedding, false, false);
    if (!stage_.defers_weight_gradients) return;
    const auto add_weight = [&](const BucketSeconds& block) {
      list_.push_back({weight_pass, micro_batch, block.backward_weight, false, 0, block.reduce});
    };
    add_weight(stage_.head);
    for (int64_t i = 0; i < stage_.num_layers; ++i) add_weight(stage_.layer);
    add_weight(stage_.embedding);
  }

  const ShardedStage& stage_;
  std::vector<BlockPass> list_;
};

StageWaits as_waits(const PassSeconds& first, const PassSeconds& later) {
  StageWaits waits{later[forward_pass], later[input_pass], later[weight_pass]};
  waits.first = first[forward_pass] + first[input_pass] + first[weight_pass] - waits.total();
  return waits;
}

}  // namespace

StageWaits wait_for_shares(const ShardedStage& stage) {
  const BlockPasses passes(stage);
  const std::vector<BlockPass>& list = passes.list();
  std::array<PassSeconds, 2> waited{};  // by micro-batch
  if (!stage.overlaps) {
    for (const BlockPass& pass : list) waited[pass.micro_batch][pass.kind] += pass.gather + pass.reduce;
    return as_waits(waited.front(), waited[list.back().micro_batch]);
  }

  double now = 0, communicator_free = 0;
  double gathered = 0;                     // when the weights of the next use are whole
  double reduced = 0, reduced_before = 0;  // when the last two gradients are
  size_t next_use = 0;
  const auto start_next_gather = [&](double at) {
    while (next_use < list.size() && !list[next_use].uses_weights) ++next_use;
    if (next_use == list.size()) return;
    if (list[next_use].gather > 0) communicator_free = std::max(communicator_free, at) + list[next_use].gather;
    gathered = communicator_free;
    ++next_use;
  };
  start_next_gather(0);
  if (!stage.is_first) now = gathered;
  for (const BlockPass& pass : list) {
    double begin = now;
    if (pass.gather > 0) begin = std::max(begin, gathered);
    if (pass.reduce > 0) begin = std::max(begin, reduced_before);
    waited[pass.micro_batch][pass.kind] += begin - now;
    if (pass.uses_weights) start_next_gather(begin);
    now = begin + pass.compute;
    if (pass.reduce == 0) continue;
    communicator_free = std::max(communicator_free, now) + pass.reduce;
    reduced_before = reduced;
    reduced = communicator_free;
  }
  StageWaits waits = as_waits(waited.front(), waited[list.back().micro_batch]);
  waits.left = std::max(0.0, communicator_free - now);
  return waits;
}

}  // namespace copus
