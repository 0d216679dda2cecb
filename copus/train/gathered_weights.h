// Whole weights of a rank that keeps only its share of them (ZeRO-3): gathered bucket by bucket for as long as they are
// in use, the next one while the one in use is computed with.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "copus/comm/communicator.h"
#include "copus/model/parameters.h"
#include "copus/train/rank_groups.h"

namespace copus {

// Starts to gather a bucket's whole weights from the shards of the ranks of `group`, which share it.
Work start_gather(const Bucket& bucket, Communicator& group);

// Where weights are not cut it does nothing: they are always there.
class GatheredWeights {
 public:
  // Refers to both for its whole life.
  GatheredWeights(const ParameterStore& parameters, RankGroups& groups);

  // Tells whether there is anything to gather. Where not, passes need not be begun.
  bool is_needed() const { return is_cut_; }

  // Begins a pass that uses the weights of these buckets in this order, and the gather of the first. With `keeps` a
  // bucket stays until its last use (as with reshard_after_forward = false), otherwise at most one is there beside
  // those in use: the next. All ranks that share the weights begin the same passes.
  void begin(std::vector<int64_t> uses, bool keeps);

  // The bucket's whole weights are there from the one to the other. The bucket is the next of the pass.
  void use(int64_t bucket);
  void release(int64_t bucket);

  // Ends the pass, all of whose uses are done. Nothing is left gathered.
  void end();

 private:
  void gather(int64_t bucket);
  void gather_next();

  const ParameterStore& parameters_;
  Communicator& group_;
  const bool is_cut_;
  bool keeps_ = false;
  std::vector<int64_t> uses_;
  size_t next_ = 0;                       // the first use that has not begun
  size_t next_gather_ = 0;                // where buckets stay: the first use whose bucket may not be there
  std::map<int64_t, int64_t> uses_left_;  // by bucket
  std::map<int64_t, Work> gathered_;      // by bucket, under way or done
  int64_t in_use_ = 0;
};

}  // namespace copus
