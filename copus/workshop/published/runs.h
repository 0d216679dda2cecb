// Tables of published training runs, read in Copus's terms. They are used to judge the models of time and memory.
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
  std::string rank_set;  // runs of the same set differ only in their configuration; empty: in no set
  std::string group;
  std::string framework;
  std::string hardware;
  std::string notes;
  int64_t num_gpus = 0;
  int64_t gpus_per_node = 0;  // 0: unknown

  ModelDescription model;
  bool gated = true;  // the feed-forward block has three matrices; otherwise two, up and down
  int64_t sequence_length = 0;
  std::string precision;

  // The schedule is 1F1B or, if vpp > 1, interleaved 1F1B.
  Configuration configuration;
  int64_t context_parallel = 1;                // ranks that split each sequence; world = d * t * p * context_parallel
  std::optional<bool> sequence_parallel_said;  // the table's cell; empty if the cell is
  std::optional<int64_t> zero_stage_said;
  int64_t zero_group = 0;  // number of ranks that share the state, from "1 (size 8)"; 0: all data-parallel ranks
  std::string recompute;   // the table's cell

  std::optional<double> tokens_per_second_per_gpu;
  std::optional<double> memory_gigabytes;
  std::string status;  // why it failed; empty: it ran

  // The reason why the run cannot be described in Copus' terms, such as an unknown layout. In this case not all fields
  // above are set. Empty if the run can be described.
  std::string unusable;

  // The model in Copus' form, with three feed-forward matrices. If the published model has two, the three are 2/3 as
  // wide, so that the numbers of parameters and operations stay the same.
  ModelDescription gated_model() const;
};

// Whether one of a run's free texts mentions `part`.
inline bool contains(std::string_view text, std::string_view part) { return text.find(part) != std::string_view::npos; }

enum class PublishedTable {
  throughput,  // of runs that worked: has a column tokens_per_s_per_gpu
  failures,    // of runs that did not: has a column status
};

// Reads a CSV file (RFC 4180, with or without a byte order mark) with the columns that docs/benches.md lists. Columns
// are found by their names in the first line; other columns are ignored. `source` names the file in messages.
//
// Meaning of empty and special cells:
// - Empty degrees of virtual stages and context parallelism are 1, kv_heads equals heads, and glu is 1.
// - Empty sp, zero_stage and recompute are off, but marked as unknown.
// - dp, grad_accum and global_batch follow from each other. If the three batch sizes disagree, the global batch is dp x
//   micro_batch x grad_accum.
// - vpp is used only with pp > 1, sp only with tp > 1.
// - Embeddings are tied if params_b equals, to its last decimal, the number of parameters with tied embeddings and not
//   the number without.
// - A recompute cell that is neither none nor full means attention.
//
// Throws UserError, with line, column and expectation, if a column is missing, a row has too few or too many cells, a
// quote is not terminated, a cell is not a number as required, or an integer is above 10^9. Runs too large for a
// prediction in 64 bits are unusable.
std::vector<PublishedRun> parse_published_runs(std::string_view text, PublishedTable table, const std::string& source);

}  // namespace copus
