// Squared norms of gradients of smaller batches than the global one, read while a step goes on: the online source of
// the gradient noise scale (copus/statistics). What counts once, what several ranks hold, what is partial and what is
// tied follows from each parameter's Sharding, so that the norm is that of the logical parameter vector in any layout.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <vector>

#include "copus/base/exact_sum.h"
#include "copus/model/kernels.h"
#include "copus/model/model_chunk.h"
#include "copus/model/parameters.h"
#include "copus/train/gradient_ranges.h"
#include "copus/train/probe_plan.h"
#include "copus/train/rank_groups.h"
#include "copus/train/step_recorder.h"

namespace copus {

// A backward pass adds to some parameters' gradients in B and to others' in W, which may come later.
enum class GradientPart { input_pass, weight_pass };

// In every step: begin, then what the executor and the reduction tell, then finish. All ranks of a layout do so.
class GradientProbe {
 public:
  // Refers to all of them for its whole life.
  GradientProbe(ParameterStore& parameters, RankGroups& groups, StepRecorder& recorder);

  // Before the first action of a step. `first`: this rank's first micro-batch, whose tokens name the rows of a tied
  // embedding that have a gradient from the embedding's side.
  void begin(ProbeSource source, const MicroBatch& first);

  // prefix: this part of the first micro-batch's gradients of a chunk is complete, and nothing else has been added yet.
  void first_micro_batch_done(int64_t chunk, GradientPart part);

  // prefix: the last action of the schedule is done, so that no message of the pipeline is under way to this rank.
  void schedule_done();

  // rank: partial and tied gradients of the bucket are added; its data-parallel reduction has not begun.
  void before_data_parallel(int64_t bucket);

  // The end of the step's gradients: what is under way arrives, in the order of the device's work.
  void finish();
  // This rank's share of the sum, over data-parallel ranks, of the squared norms of their small-batch gradients, as
  // they stood in the main gradients (with the step's loss scale); summed over all ranks it counts every logical
  // element of each once. Once after each finish. Waits for the device.
  ExactSum take();

 private:
  static constexpr size_t num_parts = 2;
  static size_t index(GradientPart part) { return static_cast<size_t>(part); }

  // Where a range of partial gradients is copied to.
  struct PartialRange {
    GradientRange from;
    int64_t chunk;
    GradientPart part;
    int64_t to;
  };
  // All gradients of this rank that are partial over the same group.
  struct PartialVector {
    Communicator* group;
    bool counts;  // this rank is the first of the group
    std::vector<PartialRange> ranges;
    at::Tensor values;  // flat, master dtype; kept over the run
    Work work;
  };

  void list_ranges();
  void list_partial(int64_t bucket, GradientPart part);
  PartialVector& partial_vector(const Parameter& parameter);
  void find_tied();
  void list_rows(const std::vector<int64_t>& tokens);
  void copy_partial(int64_t chunk, GradientPart part);
  void start_partial();
  void read_tied(int64_t chunk);
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
  // The two copies of a tied embedding, those that lie here.
  const Parameter* embedding_ = nullptr;
  const Parameter* head_ = nullptr;

  // Of one step.
  ProbeSource source_ = ProbeSource::none;
  kernels::NormSum sum_, subtracted_;
  size_t parts_to_come_ = 0;
  // The distinct tokens of the first micro-batch that are in this rank's part of the vocabulary, as ascending rows of
  // the part, and the gradients of these rows, [rows, hidden].
  at::Tensor rows_, embedding_rows_, head_rows_;
  std::vector<uint8_t> is_row_;
  Work sent_;
};

}  // namespace copus
