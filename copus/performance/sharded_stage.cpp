#include "copus/performance/sharded_stage.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <utility>
#include <vector>

namespace copus {

namespace {

enum PassKind { forward_pass, input_pass, weight_pass, num_pass_kinds };
using PassSeconds = std::array<double, num_pass_kinds>;

// One block's share of a pass.
struct BlockPass {
  PassKind kind;
  int64_t micro_batch;
  double compute;
  int64_t bucket;
  bool uses_weights;
  double gather;  // seconds to gather the weights that it uses; 0: already unsharded
  double reduce;  // seconds to reduce the gradient that it completes; 0: completes none
};

// The passes of a stage's blocks, in the order of execution.
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
    keep_what_is_used_next();
  }

  const std::vector<BlockPass>& list() const { return list_; }

 private:
  void add_forward(int64_t micro_batch) {
    const auto add = [&](const BucketSeconds& block, int64_t bucket) {
      const bool gathers = stage_.reshards || is_first_use(micro_batch);
      list_.push_back(
          {forward_pass, micro_batch, block.forward, bucket, block.gather > 0, gathers ? block.gather : 0, 0});
    };
    add(stage_.embedding, embedding_bucket);
    for (int64_t i = 0; i < std::ssize(stage_.layers); ++i) add(stage_.layers[i], i);
  }

  void add_backward(int64_t micro_batch) {
    const auto add = [&](const BucketSeconds& block, int64_t bucket, bool uses_weights, bool gathers) {
      const bool defers = stage_.defers_weight_gradients;
      list_.push_back({input_pass, micro_batch, block.backward_input + (defers ? 0 : block.backward_weight), bucket,
                       uses_weights && block.gather > 0, gathers ? block.gather : 0, defers ? 0 : block.reduce});
    };
    add(stage_.head, head_bucket, true, stage_.reshards || is_first_use(micro_batch));
    for (int64_t i = std::ssize(stage_.layers); i-- > 0;) add(stage_.layers[i], i, true, stage_.reshards);
    add(stage_.embedding, embedding_bucket, false, false);
    if (!stage_.defers_weight_gradients) return;
    const auto add_weight = [&](const BucketSeconds& block) {
      list_.push_back({weight_pass, micro_batch, block.backward_weight, no_bucket, false, 0, block.reduce});
    };
    add_weight(stage_.head);
    for (const BucketSeconds& layer : stage_.layers) add_weight(layer);
    add_weight(stage_.embedding);
  }

  // Returns whether no earlier micro-batch has left the weights gathered.
  bool is_first_use(int64_t micro_batch) const { return micro_batch == 0 || stage_.frees_after_backward; }

  // A bucket stays gathered between two consecutive uses. In a stage without the head, its last layer is used at the
  // end of F and the start of B. In a stage without the embedding, its first layer is used at the end of B and the
  // start of the next F.
  void keep_what_is_used_next() {
    int64_t latest = no_bucket;
    for (BlockPass& pass : list_) {
      if (!pass.uses_weights) continue;
      if (std::exchange(latest, pass.bucket) == pass.bucket) pass.gather = 0;
    }
  }

  enum : int64_t { head_bucket = -1, embedding_bucket = -2, no_bucket = -3 };

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
  double gathered = 0;                     // when the weights of the next use are gathered
  double reduced = 0, reduced_before = 0;  // when the last two gradients are reduced
  size_t next_use = 0;                     // the first use whose gather has not started
  bool is_ahead = false;                   // whether the gather of weights that are not yet in use has started
  const auto gather_next = [&](size_t from, double at) {
    if (is_ahead) return;
    next_use = std::max(next_use, from);
    while (next_use < list.size() && list[next_use].gather == 0) ++next_use;
    if (next_use == list.size()) return;
    communicator_free = std::max(communicator_free, at) + list[next_use++].gather;
    gathered = communicator_free;
    is_ahead = true;
  };
  gather_next(0, 0);
  if (!stage.is_first) now = gathered;
  for (size_t i = 0; i < list.size(); ++i) {
    const BlockPass& pass = list[i];
    double begin = now;
    if (pass.gather > 0) {
      begin = std::max(begin, gathered);
      is_ahead = false;
    }
    if (pass.reduce > 0) begin = std::max(begin, reduced_before);
    waited[pass.micro_batch][pass.kind] += begin - now;
    if (pass.uses_weights) gather_next(i + 1, begin);
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
