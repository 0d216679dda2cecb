// Tables of training runs that others have published, as runs of Copus's own terms: what a model of time or memory is
// judged by.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "copus/description/model_description.h"
#include "copus/description/parallel_strategy.h"

namespace copus {

struct PublishedRun {
  std::string row_id;
  std::string rank_set;  // runs of the same set differ in their configuration alone; empty: of none
  std::string group;
  std::string framework;
  std::string hardware;
  std::string notes;
  int64_t num_gpus = 0;
  int64_t gpus_per_node = 0;  // 0: not said

  ModelDescription model;
  bool gated = true;  // the feed-forward block has three matrices; otherwise two, up and down
  int64_t sequence_length = 0;
  std::string precision;

  // Of the schedules, 1F1B, or the interleaved one where vpp > 1.
  Configuration configuration;
  int64_t context_parallel = 1;                // ranks that share each sequence: world = d * t * p * this
  std::optional<bool> sequence_parallel_said;  // the cell, where it is not empty
  std::optional<int64_t> zero_stage_said;
  int64_t zero_group = 0;  // ranks that share the state, "1 (size 8)"; 0: all data-parallel ranks
  std::string recompute;   // the cell

  std::optional<double> tokens_per_second_per_gpu;
  std::optional<double> memory_gigabytes;
  std::string status;  // why it failed; empty: it ran

  // Why the run cannot be put in Copus's terms, such as a layout that is not known; the fields above are then not all
  // set. Empty: it can.
  std::string unusable;

  // The model with three feed-forward matrices: two are as many parameters and operations as three that are 2/3 as
  // wide.
  ModelDescription gated_model() const;
};

// Says whether one of a run's free texts mentions `part`.
inline bool contains(std::string_view text, std::string_view part) { return text.find(part) != std::string_view::npos; }

enum class PublishedTable {
  throughput,  // of runs that worked: has a column tokens_per_s_per_gpu
  failures,    // of runs that did not: has a column status
};

// Reads a CSV file (RFC 4180, with or without a byte order mark) with the columns that docs/benches.md lists,
// found by their names in the first line; others are passed over. `source` names the file in messages.
//
// Empty cells: degrees of virtual stages and context parallelism 1; kv_heads as heads; glu 1; sp, zero_stage and
// recompute as if off, and marked as not said; dp, grad_accum and global_batch follow from each other. vpp counts only
// with pp > 1, sp only with tp > 1. Where the three batch sizes disagree, the global batch is dp x micro_batch x
// grad_accum. Embeddings are tied where params_b says so: where it is the count of parameters, to its last decimal,
// with tied embeddings and not without. A recompute cell that is neither none nor full counts as attention.
//
// Throws UserError with line, column and what was expected for an absent column, a row with another number of cells,
// an open quote, and a value that is no number where one is due, or one above 10^9 where it has to be whole. Runs
// beyond any size that could be predicted in 64 bits are unusable.
std::vector<PublishedRun> parse_published_runs(std::string_view text, PublishedTable table, const std::string& source);

}  // namespace copus
