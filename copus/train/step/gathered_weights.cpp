#include "copus/train/step/gathered_weights.h"

#include <exception>
#include <utility>

#include "copus/base/error.h"
#include "copus/model/memory/flat_memory.h"
#include "copus/model/tensor_messages.h"

namespace copus {

namespace {

constexpr const char* gathering = "gathering the weights";  // shown as the rank's place

}  // namespace

GatheredWeights::GatheredWeights(const ParameterStore& parameters, RankGroups& groups, StepRecorder& recorder)
    : parameters_(parameters),
      group_(groups.shards()),
      recorder_(recorder),
      is_cut_(parameters.placement().strategy.cuts_weights()) {}

GatheredWeights::~GatheredWeights() {
  for (const auto& [bucket, work] : gathered_) {
    try {
      work.wait();
    } catch (const std::exception&) {
      // The gather has ended; a healing job gathers again from the shares.
    }
  }
}

void GatheredWeights::start() {
  if (!parameters_.placement().strategy.cuts_optimizer() || is_cut_) return;
  COPUS_CHECK(gathered_.empty(), "an update has begun before the weights of the one before were whole");
  const std::vector<Bucket>& buckets = parameters_.buckets();
  for (int64_t b = 0; b < std::ssize(buckets); ++b) {
    // A tied head on its embedding's rank has no weight of its own.
    if (buckets[b].weight.defined()) gathered_[b] = start_gather(buckets[b]);
  }
}

void GatheredWeights::finish() {
  COPUS_CHECK(!is_cut_ || gathered_.empty(), "weights are in use");
  if (gathered_.empty()) return;
  recorder_.wait_aside(gathering, [&] {
    for (const auto& [bucket, work] : gathered_) work.wait();
  });
  gathered_.clear();
}

void GatheredWeights::begin(std::vector<int64_t> uses, bool keeps) {
  COPUS_CHECK(is_cut_, "weights that are whole need no pass");
  COPUS_CHECK(next_ == uses_.size() && gathered_.empty(), "a pass begins before the one before has ended");
  uses_ = std::move(uses);
  keeps_ = keeps;
  next_ = 0;
  next_gather_ = 0;
  uses_left_.clear();
  for (const int64_t bucket : uses_) ++uses_left_[bucket];
  gather_next();
}

void GatheredWeights::use(int64_t bucket) {
  if (!is_cut_) {
    const auto under_way = gathered_.find(bucket);
    if (under_way == gathered_.end()) return;
    recorder_.wait_aside(gathering, [&] { under_way->second.wait(); });
    gathered_.erase(under_way);
    return;
  }
  COPUS_CHECK(next_ < uses_.size() && uses_[next_] == bucket, "bucket ", bucket, " is not the next to be used");
  ++next_;
  --uses_left_[bucket];
  ++in_use_;
  gathered_.at(bucket).wait();
  gather_next();
}

void GatheredWeights::release(int64_t bucket) {
  if (!is_cut_) return;
  --in_use_;
  const bool is_next = next_ < uses_.size() && uses_[next_] == bucket;
  if (is_next || (keeps_ && uses_left_.at(bucket) > 0)) return;
  take_memory(parameters_.buckets()[bucket].weight);
  gathered_.erase(bucket);
}

void GatheredWeights::end() {
  COPUS_CHECK(next_ == uses_.size() && gathered_.empty(), gathered_.size(), " buckets are left gathered, and ",
              uses_.size() - next_, " uses undone");
}

Work GatheredWeights::start_gather(const Bucket& bucket) {
  return group_.start_all_gather(bucket.weight_shard.data_ptr(), bucket.weight.data_ptr(),
                                 shard_sizes(bucket.size(), group_.size()), data_type_of(bucket.weight));
}

void GatheredWeights::gather(int64_t bucket) {
  const Bucket& b = parameters_.buckets()[bucket];
  give_memory(b.weight);
  gathered_[bucket] = start_gather(b);
}

// Starts to gather the next used bucket that is not gathered yet, if there is room for it.
void GatheredWeights::gather_next() {
  if (!keeps_) {
    if (static_cast<int64_t>(gathered_.size()) > in_use_) return;
    next_gather_ = next_;
    if (next_ < uses_.size() && gathered_.count(uses_[next_]) != 0) ++next_gather_;  // the current bucket, used again
    if (next_gather_ < uses_.size() && gathered_.count(uses_[next_gather_]) == 0) gather(uses_[next_gather_]);
    return;
  }
  // Each use is checked only once, because a gathered bucket stays until its last use.
  while (next_gather_ < uses_.size() && gathered_.count(uses_[next_gather_]) != 0) ++next_gather_;
  if (next_gather_ < uses_.size()) gather(uses_[next_gather_]);
}

}  // namespace copus
