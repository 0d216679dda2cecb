// Gathers whole weights on ranks that update only their shard. With ZeRO-1 and 2 the weights stay whole: each update
// starts to gather all buckets, and the first use of a bucket waits for it. With ZeRO-3 a bucket is whole only while it
// is in use. Its gather overlaps with the computation on the bucket before it.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "copus/comm/communicator.h"
#include "copus/model/memory/parameters.h"
#include "copus/train/recording/step_recorder.h"
#include "copus/train/step/rank_groups.h"

namespace copus {

// Does nothing without ZeRO, since every rank updates all weights then.
class GatheredWeights {
 public:
  // Keeps references to all three arguments.
  GatheredWeights(const ParameterStore& parameters, RankGroups& groups, StepRecorder& recorder);
  // Waits until the gathers under way are done or have failed.
  ~GatheredWeights();
  GatheredWeights(const GatheredWeights&) = delete;
  GatheredWeights& operator=(const GatheredWeights&) = delete;

  // Starts to gather all buckets with ZeRO-1 and 2, in the order in which a forward pass uses them. All ranks that
  // share the weights call it when their shards have changed. Until finish(), a bucket may be read only after use().
  void start();

  // Waits for all gathers under way. With ZeRO-1 and 2 the weights are whole then.
  void finish();

  // Whether weights must be used in passes (begin, use, release, end): true with ZeRO-3.
  bool needs_passes() const { return is_cut_; }

  // Begins a pass that uses the weights of these buckets in this order, and starts the first gather. With `keeps` a
  // bucket stays whole until its last use (as with reshard_after_forward = false). Otherwise at most one bucket is
  // gathered ahead of those in use. All ranks that share the weights begin the same passes.
  void begin(std::vector<int64_t> uses, bool keeps);

  // The bucket is whole from use() to release(). Within a pass, calls of use() follow the order of begin().
  void use(int64_t bucket);
  void release(int64_t bucket);

  // Ends the pass after all its uses. No bucket stays gathered.
  void end();

 private:
  Work start_gather(const Bucket& bucket);
  void gather(int64_t bucket);
  void gather_next();

  const ParameterStore& parameters_;
  Communicator& group_;
  StepRecorder& recorder_;
  const bool is_cut_;
  bool keeps_ = false;
  std::vector<int64_t> uses_;
  size_t next_ = 0;                       // the first use that has not begun
  size_t next_gather_ = 0;                // with `keeps`: the first use whose bucket may not be gathered yet
  std::map<int64_t, int64_t> uses_left_;  // by bucket
  std::map<int64_t, Work> gathered_;  // by bucket, under way or done; with ZeRO-1 and 2 only those not waited for yet
  int64_t in_use_ = 0;
};

}  // namespace copus
