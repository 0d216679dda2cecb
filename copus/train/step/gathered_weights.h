// All-gathers weights on ranks that update only their shard. With ZeRO-1 and 2, weights stay unsharded: each update
// starts to gather all buckets, and a bucket's first use waits for the gather of this bucket. With ZeRO-3 a bucket is
// unsharded only while it is in use. Gathering a bucket overlaps with the computation on the previous bucket.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "copus/comm/communicator.h"
#include "copus/model/memory/parameters.h"
#include "copus/train/recording/step_recorder.h"
#include "copus/train/step/rank_groups.h"

namespace copus {

// Without ZeRO it does nothing, because every rank updates all weights.
class GatheredWeights {
 public:
  // All three arguments must outlive this object.
  GatheredWeights(const ParameterStore& parameters, RankGroups& groups, StepRecorder& recorder);
  // Waits until all gathers in flight are done or have failed.
  ~GatheredWeights();
  GatheredWeights(const GatheredWeights&) = delete;
  GatheredWeights& operator=(const GatheredWeights&) = delete;

  // With ZeRO-1 and 2, starts to gather all buckets in the order of a forward pass. All ranks that share the weights
  // call it after their shards have changed. Until finish(), read a bucket only after use().
  void start();

  // Waits for all gathers in flight. With ZeRO-1 and 2 all weights are then unsharded.
  void finish();

  // Returns whether weights may be used only in passes (begin, use, release, end): true with ZeRO-3.
  bool needs_passes() const { return is_cut_; }

  // Begins a pass that uses these buckets' weights in this order, and starts the first gather. With `keeps` a bucket
  // stays unsharded until its last use (as with reshard_after_forward = false); otherwise at most one bucket is
  // gathered in advance. All ranks that share the weights begin the same passes.
  void begin(std::vector<int64_t> uses, bool keeps);

  // A bucket is unsharded from use() to release(). Within a pass, calls of use() follow the order given to begin().
  void use(int64_t bucket);
  void release(int64_t bucket);

  // Ends the pass after its last use. No bucket stays gathered.
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
  size_t next_ = 0;                       // next use
  size_t next_gather_ = 0;                // with `keeps`: the first use whose bucket may not be gathered yet
  std::map<int64_t, int64_t> uses_left_;  // by bucket
  std::map<int64_t, Work> gathered_;      // by bucket, in flight or done; with ZeRO-1 and 2 only until their wait
  int64_t in_use_ = 0;
};

}  // namespace copus
