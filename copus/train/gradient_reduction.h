// Exchange in a step between the ranks that hold the same parameters: gradients are added up bucket by bucket while the
// backward pass goes on, and with ZeRO-1 each rank's updated weights are gathered afterwards.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "copus/model/parameters.h"
#include "copus/train/gradient_probe.h"
#include "copus/train/rank_groups.h"

namespace copus {

// The reduction of every step's gradients, driven by the parameters' Sharding. A bucket goes through
// 1. the replica groups of its partial parameters,
// 2. where it is a tied embedding: the sum with the gradient of the other copy,
// 3. the data-parallel group: an all-reduce, or with ZeRO-1 a reduce-scatter into this rank's share of the bucket (then
//    the rest of its gradient means nothing any more).
// Sums are formed in the order of the ranks, those of tied embeddings as embedding + head.
class GradientReduction {
 public:
  // Refers to all three for its whole life. `probe` sees each bucket between steps 2 and 3.
  GradientReduction(ParameterStore& parameters, RankGroups& groups, GradientProbe& probe);

  // Starts the reduction of a bucket, this rank's gradient of which is complete. All ranks of a data-parallel group
  // call it in the same order.
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

  void start_partial(int64_t bucket);
  void finish_partial();
  void start_data_parallel(int64_t bucket);
  void add_tied();

  ParameterStore& parameters_;
  RankGroups& groups_;
  GradientProbe& probe_;
  std::vector<std::vector<PartialRange>> partial_;  // by bucket
  std::vector<int64_t> tied_;                       // buckets that hold a tied embedding: one copy, or both
  std::vector<bool> done_;                          // by bucket, in this step
  std::optional<Pending> pending_;
  std::vector<Work> works_;
};

// Adds the gradient of a tied head to that of the embedding beside it; nothing where there are no two copies.
void add_tied_gradient(const ParameterStore& parameters);

// Gathers the compute weights with ZeRO-1: every data-parallel rank's share goes to all of them. Call when shares have
// changed.
void gather_weights(const ParameterStore& parameters, RankGroups& groups);

}  // namespace copus
