// Measures, during a step, gradients of batches smaller than the global batch: their squared norms, and for some
// parameters the gradients themselves. The noise scale is computed from the squared norms (copus/statistics). Each
// parameter's Sharding says which gradients are replicated, partial or tied, so the norms are those of the whole
// parameter vector in any layout.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <vector>

#include "copus/base/numbers/exact_sum.h"
#include "copus/model/kernels/kernels.h"
#include "copus/model/layers/model_chunk.h"
#include "copus/model/memory/parameters.h"
#include "copus/train/optimizer/gradient_ranges.h"
#include "copus/train/recording/step_recorder.h"
#include "copus/train/step/probe_plan.h"
#include "copus/train/step/rank_groups.h"

namespace copus {

// The pass that completes a parameter's gradient: B (input_pass) or W (weight_pass), which may come later.
enum class GradientPart { input_pass, weight_pass };

// In every step, all ranks of a layout call begin() first and finish() last. The executor and the reduction call the
// other functions in between.
class GradientProbe {
 public:
  // All three arguments must outlive this object.
  GradientProbe(ParameterStore& parameters, RankGroups& groups, StepRecorder& recorder);

  // Begins a step, before its first action. `first`: this rank's first micro-batch, whose tokens are the rows of a tied
  // embedding with a gradient on the embedding's side.
  void begin(ProbeSource source, const MicroBatch& first);

  // Chooses the parameters whose small-batch gradients the next step keeps, by their indices in the store. Only linear
  // weights are possible. Discards the gradients kept so far.
  void keep(std::vector<int64_t> parameters);

  // Call with source `prefix` when this part of a chunk's gradients of the first micro-batch is complete, before later
  // micro-batches add to it.
  void first_micro_batch_done(int64_t chunk, GradientPart part);

  // Sources with a prefix: call after the schedule's last action, when no pipeline message to this rank is in flight.
  void schedule_done();

  // Call just before a bucket's gradient enters its data-parallel reduction. With source `rank`, the bucket's partial
  // and tied gradients must already have been summed. With source `prefix_of_each_rank`, which reads only the first
  // micro-batch, only the bucket's partial gradients must have been summed.
  void before_data_parallel(int64_t bucket);

  // Ends the step's gradients: waits, in the order of the device's work, for all operations in flight.
  void finish();
  // Returns and resets this rank's part of a sum: the squared norms of the small-batch gradients of all data-parallel
  // ranks, with the step's loss scale. If the parts of all ranks are added, every logical element of each data-parallel
  // rank's gradient is counted once. Call once after each finish(). Waits for the device.
  ExactSum take();

  // Returns the kept gradients in the order of keep(), summed over ranks_kept() data-parallel ranks. Each is flat, in
  // the master dtype and with the step's loss scale, and has the elements of this rank's part of the parameter. Empty
  // if the step had no source or nothing was to be kept. All ranks call it after finish().
  std::vector<at::Tensor> take_kept();
  // Returns the number of data-parallel ranks over which take_kept() sums. With source `rank` these are half of the
  // ranks, so that the gradients of the other half are independent of the sum; otherwise all ranks.
  static int64_t ranks_kept(ProbeSource source, int64_t data_parallel);

 private:
  static constexpr size_t num_parts = 2;
  static size_t index(GradientPart part) { return static_cast<size_t>(part); }

  // A range of partial gradients, and the position of its copy.
  struct PartialRange {
    GradientRange from;
    int64_t chunk;
    GradientPart part;
    int64_t to;
  };
  // This rank's gradients that are partial over the same group.
  struct PartialVector {
    Communicator* group;
    bool counts;  // whether this rank, as the first of the group, counts the norm
    std::vector<PartialRange> ranges;
    at::Tensor values;  // flat, master dtype; kept for the whole run
    Work work;
  };

  // The copy of a parameter's gradient.
  struct KeptGradient {
    int64_t parameter;
    at::Tensor values;
  };

  void list_ranges();
  template <class Condition>
  void copy_kept(const Condition& condition);
  void list_partial(int64_t bucket, GradientPart part);
  PartialVector& partial_vector(const Parameter& parameter);
  void find_tied();
  void list_rows(const std::vector<int64_t>& tokens);
  void copy_partial(int64_t chunk, GradientPart part);
  void start_partial();
  bool reads_prefix() const { return source_ == ProbeSource::prefix || source_ == ProbeSource::prefix_of_each_rank; }
  void read_tied(const Parameter& copy);
  void add_tied();
  template <class Read>
  void read(const Read& read);
  void add(const GradientRange& range);

  ParameterStore& parameters_;
  RankGroups& groups_;
  StepRecorder& recorder_;
  std::vector<std::array<std::vector<GradientRange>, num_parts>> prefix_ranges_;  // by chunk: neither partial nor tied
  std::vector<std::vector<GradientRange>> rank_ranges_;                           // by bucket
  std::vector<PartialVector> partial_;
  // This rank's copies of a tied embedding; null if it has none.
  const Parameter* embedding_ = nullptr;
  const Parameter* head_ = nullptr;

  // The state of one step.
  ProbeSource source_ = ProbeSource::none;
  kernels::NormSum sum_, subtracted_;
  size_t parts_to_come_ = 0;
  // rows_: the distinct tokens of the first micro-batch in this rank's part of the vocabulary, as ascending rows of
  // this part. The other two: the gradients of these rows in the two copies of the tied embedding, [rows, hidden].
  at::Tensor rows_, embedding_rows_, head_rows_;
  std::vector<uint8_t> is_row_;
  Work sent_;
  std::vector<KeptGradient> kept_;
  bool kept_before_partial_sums_ = false;  // whether kept gradients are partial where their parameters' are
};

}  // namespace copus
