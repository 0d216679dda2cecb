#include "copus/train/gradient_reduction.h"

#include <algorithm>
#include <utility>

#include "copus/base/error.h"
#include "copus/model/tensor_messages.h"

namespace copus {

namespace {

bool is_zero_1(const ParameterStore& parameters) { return parameters.placement().strategy.zero_stage == 1; }

}  // namespace

GradientReduction::GradientReduction(ParameterStore& parameters, RankGroups& groups, GradientProbe& probe)
    : parameters_(parameters), groups_(groups), probe_(probe), partial_(parameters.buckets().size()) {
  for (size_t b = 0; b < parameters.buckets().size(); ++b) {
    bool tied = false;
    int64_t previous_end = 0;
    for (const int64_t index : parameters.buckets()[b].parameters) {
      const Parameter& parameter = parameters.parameters()[index];
      tied = tied || parameter.sharding.tied;
      const int64_t end = parameter.offset + parameter.box.num_elements();
      const int64_t end_of_previous = std::exchange(previous_end, end);
      if (!parameter.sharding.partial) continue;
      Communicator& group = groups.replicas(parameter.sharding);
      // Adjacent ranges are joined; the padding between them is zero.
      std::vector<PartialRange>& ranges = partial_[b];
      if (!ranges.empty() && ranges.back().group == &group && ranges.back().end == end_of_previous) {
        ranges.back().end = end;
      } else {
        ranges.push_back({&group, parameter.offset, end});
      }
    }
    if (tied) tied_.push_back(static_cast<int64_t>(b));
  }
  done_.resize(partial_.size());
}

void GradientReduction::bucket_done(int64_t bucket) {
  COPUS_CHECK(!done_[bucket], "bucket ", bucket, " is done twice in a step");
  done_[bucket] = true;
  if (std::find(tied_.begin(), tied_.end(), bucket) != tied_.end()) return;  // finish() reduces it
  start_partial(bucket);
}

// Starts the sums of a bucket's partial gradients. The data-parallel reduction of a bucket starts with the next bucket,
// when these sums have had time to finish: at a fixed point of the step and so in the same order on every rank.
void GradientReduction::start_partial(int64_t bucket) {
  finish_partial();
  const at::Tensor& gradient = parameters_.buckets()[bucket].gradient;
  pending_ = {bucket, {}};
  for (const PartialRange& range : partial_[bucket]) {
    const at::Tensor part = gradient.narrow(0, range.begin, range.end - range.begin);
    pending_->works.push_back(
        range.group->start_all_reduce(part.data_ptr(), part.numel(), data_type_of(part), Reduction::sum));
  }
  if (pending_->works.empty()) finish_partial();
}

void GradientReduction::finish_partial() {
  if (!pending_) return;
  for (const Work& work : pending_->works) work.wait();
  start_data_parallel(pending_->bucket);
  pending_.reset();
}

void GradientReduction::start_data_parallel(int64_t bucket) {
  probe_.before_data_parallel(bucket);
  Communicator& group = groups_.data();
  if (group.size() == 1) return;
  const Bucket& b = parameters_.buckets()[bucket];
  const DataType type = data_type_of(b.gradient);
  if (is_zero_1(parameters_)) {
    works_.push_back(group.start_reduce_scatter(b.gradient.data_ptr(),
                                                b.gradient.narrow(0, b.shard_begin, b.master.numel()).data_ptr(),
                                                shard_sizes(b.size(), group.size()), type, Reduction::sum));
  } else {
    works_.push_back(group.start_all_reduce(b.gradient.data_ptr(), b.size(), type, Reduction::sum));
  }
}

void GradientReduction::add_tied() {
  if (tied_.empty()) return;
  const at::Tensor& gradient = parameters_.buckets()[tied_.front()].gradient;
  if (tied_.size() == 2) {  // both copies lie here, the embedding first
    add_tied_gradient(parameters_);
  } else {
    groups_.tie().all_reduce(gradient.data_ptr(), gradient.numel(), data_type_of(gradient));
  }
  start_data_parallel(tied_.front());
}

void GradientReduction::finish() {
  finish_partial();
  COPUS_CHECK(std::find(done_.begin(), done_.end(), false) == done_.end(), "a bucket was never done");
  add_tied();
  for (const Work& work : works_) work.wait();
  works_.clear();
  done_.assign(done_.size(), false);
}

void add_tied_gradient(const ParameterStore& parameters) {
  const Parameter* head = parameters.find_tied_copy();
  if (head == nullptr || parameters.buckets()[head->bucket].weight.defined()) return;
  parameters.find(head->info.name).gradient.add_(head->gradient);
}

void gather_weights(const ParameterStore& parameters, RankGroups& groups) {
  Communicator& group = groups.data();
  if (!is_zero_1(parameters) || group.size() == 1) return;
  std::vector<Work> works;
  for (const Bucket& bucket : parameters.buckets()) {
    if (!bucket.weight.defined()) continue;  // a tied head whose embedding lies here too
    const at::Tensor mine = bucket.weight.narrow(0, bucket.shard_begin, bucket.shard_end - bucket.shard_begin);
    works.push_back(group.start_all_gather(mine.data_ptr(), bucket.weight.data_ptr(),
                                           shard_sizes(bucket.size(), group.size()), data_type_of(bucket.weight)));
  }
  for (const Work& work : works) work.wait();
}

}  // namespace copus
