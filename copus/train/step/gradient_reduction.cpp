#include "copus/train/step/gradient_reduction.h"

#include <algorithm>
#include <utility>

#include "copus/base/error.h"
#include "copus/model/kernels/kernels.h"
#include "copus/model/memory/flat_memory.h"
#include "copus/model/tensor_messages.h"

namespace copus {

GradientReduction::GradientReduction(ParameterStore& parameters, RankGroups& groups, GradientProbe& probe)
    : parameters_(parameters),
      groups_(groups),
      probe_(probe),
      cuts_gradients_(parameters.placement().strategy.cuts_gradients()),
      partial_(parameters.buckets().size()),
      times_done_(parameters.buckets().size()),
      has_share_(parameters.buckets().size()) {
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
      // Merges adjacent ranges; the padding between them is zero.
      std::vector<PartialRange>& ranges = partial_[b];
      if (!ranges.empty() && ranges.back().group == &group && ranges.back().end == end_of_previous) {
        ranges.back().end = end;
      } else {
        ranges.push_back({&group, parameter.offset, end});
      }
    }
    if (tied) tied_.push_back(static_cast<int64_t>(b));
    if (!partial_[b].empty()) most_whole_ = 3;
  }
}

void GradientReduction::begin(int64_t micro_batches) {
  micro_batches_ = micro_batches;
  times_done_.assign(times_done_.size(), 0);
  has_share_.assign(has_share_.size(), false);
}

void GradientReduction::pass_begins(int64_t bucket) {
  if (!cuts_gradients_) return;
  // Without a pipeline, a whole forward pass lies between two backward passes. So waiting here for older reductions
  // costs little, and gradients of embedding and head need not exist at the same time.
  const bool is_next_pass =
      parameters_.placement().strategy.pipeline_parallel == 1 && !reducing_.empty() && reducing_.back().bucket < bucket;
  while (num_under_way() >= (is_next_pass ? 1 : most_whole_) || is_under_way(bucket)) finish_oldest();
  const at::Tensor& gradient = parameters_.buckets()[bucket].gradient;
  give_memory(gradient);
  gradient.zero_();
}

void GradientReduction::bucket_done(int64_t bucket) {
  ++times_done_[bucket];
  COPUS_CHECK(times_done_[bucket] <= (cuts_gradients_ ? micro_batches_ : 1), "bucket ", bucket, " is done again");
  if (is_tied(bucket) && adds_tied_whole()) return;  // finish() reduces it
  start_partial(bucket);
}

bool GradientReduction::is_tied(int64_t bucket) const {
  return std::find(tied_.begin(), tied_.end(), bucket) != tied_.end();
}

// Starts the all-reduces of the bucket's partial gradients. Its data-parallel reduction is issued in the call for the
// next bucket, when these all-reduces have probably finished. All ranks reach that call at the same point of the step,
// so they issue collectives in the same order.
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
  if (!has_share_[bucket]) probe_.before_data_parallel(bucket);
  if (cuts_gradients_) return reduce_into_share(bucket);
  if (groups_.data().size() == 1) return;
  const Bucket& b = parameters_.buckets()[bucket];
  const DataType type = data_type_of(b.gradient);
  if (parameters_.placement().strategy.cuts_optimizer()) {
    Communicator& group = groups_.shards();
    const Work work = group.start_reduce_scatter(b.gradient.data_ptr(), b.gradient_shard.data_ptr(),
                                                 shard_sizes(b.size(), group.size()), type, Reduction::sum);
    if (groups_.copies().size() == 1) return works_.push_back(work);
    finish_scattering();
    scattering_ = {bucket, work};
  } else {
    works_.push_back(groups_.data().start_all_reduce(b.gradient.data_ptr(), b.size(), type, Reduction::sum));
  }
}

// The sum of a bucket's share over the copies also starts with the next bucket, a fixed point of the step.
void GradientReduction::finish_scattering() {
  if (!scattering_) return;
  scattering_->work.wait();
  add_copies(scattering_->bucket);
  scattering_.reset();
}

// With hybrid sharding, starts to sum this rank's share of a bucket over the copies.
void GradientReduction::add_copies(int64_t bucket) {
  Communicator& copies = groups_.copies();
  if (copies.size() == 1) return;
  const at::Tensor& shard = parameters_.buckets()[bucket].gradient_shard;
  works_.push_back(copies.start_all_reduce(shard.data_ptr(), shard.numel(), data_type_of(shard), Reduction::sum));
}

void GradientReduction::reduce_into_share(int64_t bucket) {
  const Bucket& b = parameters_.buckets()[bucket];
  Reducing& reducing = reducing_.emplace_back(Reducing{bucket, {}, {}});
  const bool is_first = !has_share_[bucket];
  has_share_[bucket] = true;
  if (!is_first) {
    reducing.addend = kernels::empty({b.kept_gradient.numel()}, b.kept_gradient.scalar_type(), parameters_.device());
  }
  const at::Tensor& to = is_first ? b.kept_gradient : reducing.addend;
  Communicator& group = groups_.shards();
  reducing.work = group.start_reduce_scatter(b.gradient.data_ptr(), to.data_ptr(), shard_sizes(b.size(), group.size()),
                                             data_type_of(b.gradient), Reduction::sum);
}

bool GradientReduction::is_under_way(int64_t bucket) const {
  const auto is_it = [&](const auto& one) { return one.bucket == bucket; };
  return (pending_ && is_it(*pending_)) || std::any_of(reducing_.begin(), reducing_.end(), is_it);
}

// Waits for the oldest reduction in flight.
void GradientReduction::finish_oldest() {
  if (reducing_.empty()) finish_partial();
  const Reducing& oldest = reducing_.front();
  oldest.work.wait();
  const Bucket& bucket = parameters_.buckets()[oldest.bucket];
  if (oldest.addend.defined()) bucket.kept_gradient.add_(oldest.addend);
  take_memory(bucket.gradient);
  const bool is_complete = times_done_[oldest.bucket] == micro_batches_;
  if (is_complete && (adds_tied_whole() || !is_tied(oldest.bucket))) add_copies(oldest.bucket);
  reducing_.pop_front();
}

void GradientReduction::add_tied() {
  if (tied_.empty()) return;
  const at::Tensor& gradient = parameters_.buckets()[tied_.front()].gradient;
  if (tied_.size() == 2) {  // this rank has both copies, the embedding first
    add_tied_gradient(parameters_);
    if (cuts_gradients_) take_memory(parameters_.buckets()[tied_.back()].gradient);
  } else {
    groups_.tie().all_reduce(gradient.data_ptr(), gradient.numel(), data_type_of(gradient));
  }
  start_data_parallel(tied_.front());
}

void GradientReduction::add_tied_shares() {
  if (tied_.empty()) return;
  const at::Tensor& share = parameters_.buckets()[tied_.front()].kept_gradient;
  if (tied_.size() == 2) {
    share.add_(parameters_.buckets()[tied_.back()].kept_gradient);
  } else {
    groups_.tie().all_reduce(share.data_ptr(), share.numel(), data_type_of(share));
  }
  add_copies(tied_.front());
}

void GradientReduction::finish() {
  finish_partial();
  const auto is_incomplete = [&](int64_t times) { return times != (cuts_gradients_ ? micro_batches_ : 1); };
  COPUS_CHECK(std::none_of(times_done_.begin(), times_done_.end(), is_incomplete), "a bucket was never done");
  if (adds_tied_whole()) add_tied();
  finish_scattering();
  while (!reducing_.empty()) finish_oldest();
  if (!adds_tied_whole()) add_tied_shares();
  for (const Work& work : std::exchange(works_, {})) work.wait();
}

void add_tied_gradient(const ParameterStore& parameters) {
  const Parameter* head = parameters.find_tied_copy();
  if (head == nullptr || parameters.buckets()[head->bucket].weight.defined()) return;
  parameters.find(head->info.name).gradient.add_(head->gradient);
}

}  // namespace copus
