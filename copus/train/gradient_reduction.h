// What the ranks that hold the same parameters tell each other in a step: their gradients, added up bucket by bucket
// while the backward pass goes on, and with ZeRO-1 afterwards the weights that each of them has updated.
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
// 3. the data-parallel group: an all-reduce, or with ZeRO-1 a reduce-scatter into this rank's share of the bucket
//    (then the rest of its gradient means nothing any more).
// Sums are formed in the order of the ranks, those of tied embeddings as embedding + head.
class GradientReduction {
 public:
  // Refers to all of them for its whole life. `probe` sees each bucket between steps 2 and 3.
  GradientReduction(ParameterStore& parameters, RankGroups& groups, GradientProbe& probe);

  // This rank's gradient of the bucket is complete: starts its reduction. All ranks of a data-parallel group call it in
  // the same order.
  void bucket_done(int64_t bucket);

  // After the last bucket: waits until all gradients are reduced.
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

// With ZeRO-1: every data-parallel rank's share of the compute weights to all of them. Call when shares have changed.
void gather_weights(const ParameterStore& parameters, RankGroups& groups);

}  // namespace copus
