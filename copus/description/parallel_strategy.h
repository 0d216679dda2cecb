// How a job is distributed over its ranks (ParallelStrategy, and with its batches Configuration), and which
// configurations a model allows.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "copus/description/model_description.h"

namespace copus {

// The order in which a pipeline rank processes its micro-batches.
enum class PipelineSchedule {
  gpipe,             // all forward, then all backward (Huang et al. 2019)
  one_f_one_b,       // "1f1b": at most as many micro-batches in flight as stages (Narayanan et al. 2019)
  interleaved_1f1b,  // "interleaved": several model chunks per rank (Narayanan et al. 2021)
  zb_h1,             // "zb-h1": weight gradients fill the bubble, with the memory of 1F1B (Qi et al. 2023)
};

template <>
inline constexpr auto named_values<PipelineSchedule> =
    std::to_array<NamedValue<PipelineSchedule>>({{PipelineSchedule::gpipe, "gpipe"},
                                                 {PipelineSchedule::one_f_one_b, "1f1b"},
                                                 {PipelineSchedule::interleaved_1f1b, "interleaved"},
                                                 {PipelineSchedule::zb_h1, "zb-h1"}});

// What the backward pass recomputes instead of keeping it from the forward pass.
enum class Recompute { none, attention, full };

template <>
inline constexpr auto named_values<Recompute> = std::to_array<NamedValue<Recompute>>(
    {{Recompute::none, "none"}, {Recompute::attention, "attention"}, {Recompute::full, "full"}});

// The distribution of a job over its ranks. All degrees are at least 1. configuration_fields.h lists the fields.
struct ParallelStrategy {
  int64_t data_parallel = 1;      // d
  int64_t tensor_parallel = 1;    // t
  int64_t pipeline_parallel = 1;  // p
  int64_t virtual_stages = 1;     // v: model chunks per pipeline rank
  PipelineSchedule schedule = PipelineSchedule::one_f_one_b;
  // Whether activations outside attention and feed-forward are split over tensor-parallel ranks, along the sequence.
  bool sequence_parallel = false;
  // The stage of ZeRO, which shards state over data-parallel ranks (Rajbhandari et al. 2020): stage 1 shards master
  // weights and moments, stage 2 also gradients, stage 3 also compute weights.
  int64_t zero_stage = 0;
  Recompute recompute = Recompute::none;
  // With ZeRO-3: whether gathered weights are freed after a forward pass and gathered again for the backward pass.
  // Otherwise they stay until the step no longer needs them (as in FSDP2).
  bool reshard_after_forward = true;
  // Number of copies of the sharded state (hybrid sharding); each copy is spread over neighbouring data-parallel ranks.
  int64_t zero_replicas = 1;

  // Number of ranks over which ZeRO shards. Data-parallel rank i holds share i mod zero_shards().
  int64_t zero_shards() const { return data_parallel / zero_replicas; }
  // Whether each kind of state is sharded; never over a single rank.
  bool cuts_optimizer() const { return zero_stage >= 1 && zero_shards() > 1; }
  bool cuts_gradients() const { return zero_stage >= 2 && zero_shards() > 1; }
  bool cuts_weights() const { return zero_stage >= 3 && zero_shards() > 1; }
  // Number of ranks over which the optimizer's state is sharded: 1 without ZeRO.
  int64_t optimizer_shards() const { return zero_stage >= 1 ? zero_shards() : 1; }

  int64_t world_size() const;  // the product of all degrees
  // Number of ranks that hold the layers of one pipeline rank.
  int64_t ranks_per_stage() const { return world_size() / pipeline_parallel; }
  // Each of the p pipeline ranks has v stages. Stage s is chunk s / p of pipeline rank s mod p.
  int64_t num_stages() const { return pipeline_parallel * virtual_stages; }
  // An arbitrary order, for maps by strategy.
  auto operator<=>(const ParallelStrategy&) const = default;
};

enum class MeshAxis { data, tensor, pipeline };

struct MeshCoordinates {
  int64_t data = 0;
  int64_t tensor = 0;
  int64_t pipeline = 0;
  bool operator==(const MeshCoordinates&) const = default;
};

// An axis along which ranks share the work.
struct MeshAxisInfo {
  MeshAxis axis;
  const char* name;    // of its groups
  const char* symbol;  // short name of its degree: the d of "d=2,t=1,p=2"
  const char* key;     // the degree's key in [parallel] of a run's configuration
  const char* words;   // the degree's name in a sentence
  int64_t ParallelStrategy::* degree;
  int64_t MeshCoordinates::* coordinate;
  int64_t distance;  // ranks along the axis with the smallest one are neighbours
};

// All axes, in the order in which texts list their degrees.
inline constexpr std::array<MeshAxisInfo, 3> mesh_axes = {
    {{MeshAxis::data, "data", "d", "data_parallel", "data parallelism", &ParallelStrategy::data_parallel,
      &MeshCoordinates::data, 1},
     {MeshAxis::tensor, "tensor", "t", "tensor_parallel", "tensor parallelism", &ParallelStrategy::tensor_parallel,
      &MeshCoordinates::tensor, 0},
     {MeshAxis::pipeline, "pipeline", "p", "pipeline_parallel", "pipeline parallelism",
      &ParallelStrategy::pipeline_parallel, &MeshCoordinates::pipeline, 2}}};

inline int64_t ParallelStrategy::world_size() const {
  int64_t ranks = 1;
  for (const MeshAxisInfo& axis : mesh_axes) ranks *= this->*axis.degree;
  return ranks;
}

// Returns the strategy's degrees, which determine the roles of ranks, with all other fields at their defaults.
inline ParallelStrategy layout_of(const ParallelStrategy& strategy) {
  ParallelStrategy layout;
  for (const MeshAxisInfo& axis : mesh_axes) layout.*axis.degree = strategy.*axis.degree;
  return layout;
}

// The configuration of a run, which the orchestrator chooses.
struct Configuration {
  ParallelStrategy strategy;
  int64_t global_batch = 1;  // B: sequences per step
  int64_t micro_batch = 1;   // b: sequences per forward and backward pass

  // Micro-batches of each data-parallel rank per step, for a feasible configuration.
  int64_t num_microbatches() const { return global_batch / (strategy.data_parallel * micro_batch); }
  auto operator<=>(const Configuration&) const = default;
};

// Return the notation of configuration_text.h without defaults: "d=2,t=1,p=2,zero=1" and "d=2,t=1,p=2,B=32,b=4,zero=1".
std::string to_string(const ParallelStrategy& strategy);
std::string to_string(const Configuration& configuration);

// Returns the number of rounds of an interleaved schedule. A round consists of at least p micro-batches, which all pass
// one chunk of a rank before any of them passes the next chunk.
constexpr int64_t interleaved_rounds(int64_t num_microbatches, int64_t pipeline_parallel) {
  return num_microbatches < pipeline_parallel ? 1 : num_microbatches / pipeline_parallel;
}

// The numbers of micro-batches that a program's interleaved schedule accepts.
enum class InterleavedRounds {
  of_pipeline_ranks,  // rounds of p micro-batches: Copus, Megatron-LM
  equal,              // rounds of equal size: torch.distributed.pipelining
};

// Returns the smallest global batch for this micro-batch; all possible ones are its multiples.
int64_t smallest_global_batch(const ParallelStrategy& strategy, int64_t micro_batch, InterleavedRounds rounds);

// Explains why `configuration` cannot train `model` on sequences of this length, with configuration keys and the
// nearest possible values: "train.global_batch 16 is no multiple of train.micro_batch 4 x parallel.data_parallel 3; the
// nearest are 12 and 24". Empty if it can. Does not check memory.
std::optional<std::string> infeasible_reason(const ModelDescription& model, const Configuration& configuration,
                                             int64_t sequence_length,
                                             InterleavedRounds rounds = InterleavedRounds::of_pipeline_ranks);
// Like the above, without checks that depend on the model.
std::optional<std::string> infeasible_reason(const Configuration& configuration, int64_t sequence_length);

}  // namespace copus
