// Exchange in a step between the ranks that hold the same parameters: gradients are added up bucket by bucket while the
// backward pass goes on.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "copus/model/parameters.h"
#include "copus/train/gradient_probe.h"
#include "copus/train/rank_groups.h"

namespace copus {

// The reduction of every step's gradients, driven by the parameters' Sharding. A bucket goes through
// 1. the replica groups of its partial parameters,
// 2. where it is a tied embedding: the sum with the gradient of the other copy,
// 3. the data-parallel ranks: an all-reduce, or with ZeRO a reduce-scatter into this rank's share of the bucket (after
//    which the rest of its gradient means nothing),
// 4. with several copies of the shares: the ranks that have the same share, once the share of the step is complete.
// Sums are formed in the order of the ranks, those of tied embeddings as embedding + head.
//
// With ZeRO-2 and 3 a rank keeps only its share, so each micro-batch's gradients are reduced by themselves and added to
// it: a whole bucket exists from a pass's beginning until it is reduced. At most two do at once, the one that a pass
// adds to and the one that is being reduced, and a third one where there are partial parameters to add first. A tied
// embedding's two gradients are still added before they are reduced where there is one micro-batch, so that the sum is
// that of the other stages; for several, adding the shares at the end spares whole buckets and a message between the
// stages each time.
class GradientReduction {
 public:
  // Refers to all three for its whole life. `probe` sees each bucket between steps 2 and 3.
  GradientReduction(ParameterStore& parameters, RankGroups& groups, GradientProbe& probe);

  // Tells whether a rank keeps only its share, so that every micro-batch's gradients are reduced.
  bool reduces_each_micro_batch() const { return cuts_gradients_; }

  // Begins a step in which this rank runs so many micro-batches.
  void begin(int64_t micro_batches);

  // Gradients of a micro-batch are going to be added to a bucket: with ZeRO-2 and 3 it gets memory, zeroed.
  void pass_begins(int64_t bucket);

  // Starts the reduction of a bucket, this rank's gradient of which is complete: that of the step, or with ZeRO-2 and 3
  // that of a micro-batch. All ranks of a data-parallel group call it in the same order.
  void bucket_done(int64_t bucket);

  // Waits until all gradients are reduced; call after the last bucket.
  void finish();

 private:
  // A stretch of a bucket whose parameters are partial over the same group.
  struct PartialRange {
    Communicator* group;
    int64_t begin;
    int64_t end;
  };
  // A bucket whose partial ranges are being added.
  struct Pending {
    int64_t bucket;
    std::vector<Work> works;
  };
  // With ZeRO-1, a bucket whose share is to be added to those of other copies.
  struct Scattering {
    int64_t bucket;
    Work work;
  };
  // A whole bucket that is being reduced into this rank's share, or into `addend`, which is added to the share then.
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
  std::vector<int64_t> tied_;                       // buckets that hold a tied embedding: one copy, or both
  int64_t most_whole_ = 2;
  int64_t micro_batches_ = 0;
  std::vector<int64_t> times_done_;  // by bucket, in this step
  std::vector<bool> has_share_;      // by bucket: whether the share holds gradients of this step
  std::optional<Pending> pending_;
  std::optional<Scattering> scattering_;
  std::deque<Reducing> reducing_;  // in the order in which they were started
  std::vector<Work> works_;
};

// Adds the gradient of a tied head to that of the embedding beside it; nothing where there are no two copies.
void add_tied_gradient(const ParameterStore& parameters);

}  // namespace copus
