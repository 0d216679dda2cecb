// Reduces gradients over the ranks that hold the same parameters, bucket by bucket, while the backward pass continues.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "copus/model/memory/parameters.h"
#include "copus/train/step/gradient_probe.h"
#include "copus/train/step/rank_groups.h"

namespace copus {

// Reduces the gradients of every step, according to the Sharding of the parameters. A bucket is summed
// 1. for partial parameters: over their replica groups,
// 2. for a tied embedding: over its two copies,
// 3. over the data-parallel ranks: by an all-reduce, or with ZeRO by a reduce-scatter into this rank's shard
//    (the other elements of the gradient are then undefined),
// 4. with several copies of the shards: over the ranks with the same shard, once the step's shard is complete.
//
// Sums follow the order of the ranks. Sums of tied embeddings are embedding + head.
//
// With ZeRO-2 and 3 a rank keeps only its shard. Each micro-batch's gradients are reduced separately and added to the
// shard, so an unsharded bucket exists only from the beginning of a pass until it is reduced. At most two unsharded
// buckets exist at once: one to which a pass adds, and one that is being reduced. If there are partial parameters,
// whose gradients are summed first, a third unsharded bucket exists.
//
// With one micro-batch, a tied embedding's two gradients are summed before the reduction, so that the bits are the same
// as in the other ZeRO stages. With several micro-batches, the shards of the two gradients are summed at the end of the
// step. Summing shards saves the memory of unsharded buckets, and one message between pipeline stages per micro-batch.
class GradientReduction {
 public:
  // All three arguments must outlive this object. `probe` sees each bucket between steps 2 and 3.
  GradientReduction(ParameterStore& parameters, RankGroups& groups, GradientProbe& probe);

  // Returns whether ranks keep only their share, so that every micro-batch's gradients are reduced.
  bool reduces_each_micro_batch() const { return cuts_gradients_; }

  // Begins a step in which this rank runs `micro_batches` micro-batches.
  void begin(int64_t micro_batches);

  // Call before a micro-batch's gradients are added to a bucket. With ZeRO-2 and 3 allocates the bucket, zeroed.
  void pass_begins(int64_t bucket);

  // Starts to reduce a bucket whose gradient is complete on this rank, for the step or (with ZeRO-2 and 3) for a
  // micro-batch. All ranks of a data-parallel group call it for the same buckets in the same order.
  void bucket_done(int64_t bucket);

  // Waits until all gradients are reduced. Call it after the last bucket.
  void finish();

 private:
  // A range of a bucket with parameters that are partial over the same group.
  struct PartialRange {
    Communicator* group;
    int64_t begin;
    int64_t end;
  };
  // A bucket whose partial ranges are being summed.
  struct Pending {
    int64_t bucket;
    std::vector<Work> works;
  };
  // With ZeRO-1: a bucket whose share has yet to be summed over the copies.
  struct Scattering {
    int64_t bucket;
    Work work;
  };
  // An unsharded bucket that is being reduced into this rank's share, or into `addend`, which is then added to the
  // share.
  struct Reducing {
    int64_t bucket;
    Work work;
    at::Tensor addend;
  };

  bool is_tied(int64_t bucket) const;
  bool adds_tied_whole() const { return !cuts_gradients_ || micro_batches_ == 1; }
  void start_partial(int64_t bucket);
  void finish_partial();
  void start_data_parallel(int64_t bucket);
  void finish_scattering();
  void add_copies(int64_t bucket);
  void reduce_into_share(int64_t bucket);
  bool is_under_way(int64_t bucket) const;
  int64_t num_under_way() const { return std::ssize(reducing_) + (pending_ ? 1 : 0); }
  void finish_oldest();
  void add_tied();
  void add_tied_shares();

  ParameterStore& parameters_;
  RankGroups& groups_;
  GradientProbe& probe_;
  const bool cuts_gradients_;
  std::vector<std::vector<PartialRange>> partial_;  // by bucket
  std::vector<int64_t> tied_;                       // buckets with one or both copies of a tied embedding
  int64_t most_whole_ = 2;
  int64_t micro_batches_ = 0;
  std::vector<int64_t> times_done_;  // by bucket, in this step
  std::vector<bool> has_share_;      // by bucket: whether the share has gradients of this step
  std::optional<Pending> pending_;
  std::optional<Scattering> scattering_;
  std::deque<Reducing> reducing_;  // oldest first
  std::vector<Work> works_;
};

// Adds a tied head's gradient to the gradient of the embedding, if this rank has both.
void add_tied_gradient(const ParameterStore& parameters);

}  // namespace copus
