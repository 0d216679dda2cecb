// Whole weights of a rank that updates only its share of them. With ZeRO-1 and 2 the weights stay whole: an update
// starts to gather all buckets, and each is waited for where it is used first. With ZeRO-3 a bucket is gathered for as
// long as it is in use, the next one while the one in use is computed with.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "copus/comm/communicator.h"
#include "copus/model/parameters.h"
#include "copus/train/rank_groups.h"
#include "copus/train/step_recorder.h"

namespace copus {

// Without ZeRO it does nothing: weights are whole and everybody's own.
class GatheredWeights {
 public:
  // Refers to all three for its whole life.
  GatheredWeights(const ParameterStore& parameters, RankGroups& groups, StepRecorder& recorder);
  // Waits for what is under way, or until it has failed.
  ~GatheredWeights();
  GatheredWeights(const GatheredWeights&) = delete;
  GatheredWeights& operator=(const GatheredWeights&) = delete;

  // Starts to gather all buckets with ZeRO-1 and 2, in the order in which a forward pass uses them. Call on all ranks
  // that share the weights, when their shares have changed. Until finish(), only use() says when a bucket may be read.
  void start();

  // Waits until nothing is under way: the weights are whole with ZeRO-1 and 2.
  void finish();

  // Tells whether weights are used in passes: with ZeRO-3. Else passes need not be begun.
  bool needs_passes() const { return is_cut_; }

  // Begins a pass that uses the weights of these buckets in this order, and the gather of the first. With `keeps` a
  // bucket stays until its last use (as with reshard_after_forward = false), otherwise at most one is there beside
  // those in use: the next. All ranks that share the weights begin the same passes.
  void begin(std::vector<int64_t> uses, bool keeps);

  // The bucket is whole from use() to release(). In a pass, use() follows the order of begin().
  void use(int64_t bucket);
  void release(int64_t bucket);

  // Ends the pass, all of whose uses are done. Nothing is left gathered.
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
  size_t next_gather_ = 0;                // where buckets stay: the first use whose bucket may not be there
  std::map<int64_t, int64_t> uses_left_;  // by bucket
  std::map<int64_t, Work> gathered_;      // by bucket, under way or done; with ZeRO-1 and 2 those not waited for yet
  int64_t in_use_ = 0;
};

}  // namespace copus
