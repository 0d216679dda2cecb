// Squared norms of gradients of smaller batches than the global one, read while a step goes on: the online source of
// the gradient noise scale (copus/statistics). What counts once, what several ranks hold, what is partial and what is
// tied follows from each parameter's Sharding, so that the norm is that of the logical parameter vector in any layout.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "copus/base/exact_sum.h"
#include "copus/model/model_chunk.h"
#include "copus/model/parameters.h"
#include "copus/train/rank_groups.h"

namespace copus {

// Where a step's small batch comes from.
enum class ProbeSource {
  none,
  prefix,  // the main gradients after the first micro-batch (several micro-batches a rank)
  rank,    // those of a data-parallel rank before they are reduced (one micro-batch a rank, several ranks)
};

// A backward pass adds to some parameters' gradients in B and to others' in W, which may come later.
enum class GradientPart { input_pass, weight_pass };

class GradientProbe {
 public:
  // Refers to both for its whole life.
  GradientProbe(ParameterStore& parameters, RankGroups& groups);

  // Before the first action of a step. `first`: this rank's first micro-batch, whose tokens name the rows of a tied
  // embedding that have a gradient from the embedding's side.
  void begin(ProbeSource source, const MicroBatch& first);

  // prefix: this part of the first micro-batch's gradients of a chunk is complete, and nothing else has been added yet.
  void first_micro_batch_done(int64_t chunk, GradientPart part);

  // rank: partial and tied gradients of the bucket are added; its data-parallel reduction has not begun.
  void before_data_parallel(int64_t bucket);

  // Waits for what is under way. This rank's share of the sum, over data-parallel ranks, of the squared norms of their
  // small-batch gradients, as they stand in the main gradients (with the step's loss scale); summed over all ranks it
  // counts every logical element of each once.
  ExactSum finish();
};

}  // namespace copus
