// How a job is distributed over its ranks, and its batches: ParallelStrategy and Configuration, and which of them a
// model allows.
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
  one_f_one_b,       // "1f1b": as few micro-batches in flight as the pipeline is deep (Narayanan et al. 2019)
  interleaved_1f1b,  // "interleaved": several model chunks per rank (Narayanan et al. 2021)
  zb_h1,             // "zb-h1": weight gradients fill the bubble, at 1F1B's memory (Qi et al. 2023)
};

template <>
inline constexpr auto named_values<PipelineSchedule> =
    std::to_array<NamedValue<PipelineSchedule>>({{PipelineSchedule::gpipe, "gpipe"},
                                                 {PipelineSchedule::one_f_one_b, "1f1b"},
                                                 {PipelineSchedule::interleaved_1f1b, "interleaved"},
                                                 {PipelineSchedule::zb_h1, "zb-h1"}});

// What the backward pass computes again instead of keeping it from the forward pass.
enum class Recompute { none, attention, full };

template <>
inline constexpr auto named_values<Recompute> = std::to_array<NamedValue<Recompute>>(
    {{Recompute::none, "none"}, {Recompute::attention, "attention"}, {Recompute::full, "full"}});

// How a job is distributed, and how its pipeline works. All degrees are at least 1. configuration_fields.h lists the
// fields.
struct ParallelStrategy {
  int64_t data_parallel = 1;      // d
  int64_t tensor_parallel = 1;    // t
  int64_t pipeline_parallel = 1;  // p
  int64_t virtual_stages = 1;     // v: model chunks per pipeline rank
  PipelineSchedule schedule = PipelineSchedule::one_f_one_b;
  // Whether activations outside attention and feed-forward are sharded over the tensor-parallel ranks.
  bool sequence_parallel = false;
  // The state that is sharded over the data-parallel ranks (Rajbhandari et al. 2020): master weights and moments from
  // stage 1 on, gradients from stage 2 on, and compute weights in stage 3.
  int64_t zero_stage = 0;
  Recompute recompute = Recompute::none;
  // With ZeRO-3: whether gathered weights are freed after a forward pass and gathered again for the backward pass, or
  // kept until the step no longer needs them (as in FSDP2).
  bool reshard_after_forward = true;
  // Number of groups of neighbouring data-parallel ranks that each hold one copy of the sharded state (hybrid
  // sharding): 1 is one group of all.
  int64_t zero_replicas = 1;

  // Number of ranks over which ZeRO shards: data-parallel rank i has share i mod zero_shards().
  int64_t zero_shards() const { return data_parallel / zero_replicas; }
  // What is sharded. Over one rank nothing is, whatever the stage.
  bool cuts_optimizer() const { return zero_stage >= 1 && zero_shards() > 1; }
  bool cuts_gradients() const { return zero_stage >= 2 && zero_shards() > 1; }
  bool cuts_weights() const { return zero_stage >= 3 && zero_shards() > 1; }
  // Number of ranks over which the optimizer's state is sharded: 1 without ZeRO.
  int64_t optimizer_shards() const { return zero_stage >= 1 ? zero_shards() : 1; }

  int64_t world_size() const;  // the product of all degrees
  // Number of ranks that hold the layers of one pipeline rank.
  int64_t ranks_per_stage() const { return world_size() / pipeline_parallel; }
  // The pipeline has v stages on each of its p ranks. Stage s is on pipeline rank s mod p as its chunk s / p.
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

// The layout of a strategy: its degrees, which determine the roles of the ranks. All other fields have their defaults.
inline ParallelStrategy layout_of(const ParallelStrategy& strategy) {
  ParallelStrategy layout;
  for (const MeshAxisInfo& axis : mesh_axes) layout.*axis.degree = strategy.*axis.degree;
  return layout;
}

// The configuration of a run, which the orchestrator chooses.
struct Configuration {
  ParallelStrategy strategy;
  int64_t global_batch = 1;  // B: sequences of a step
  int64_t micro_batch = 1;   // b: sequences of one forward and backward pass

  // Micro-batches that each data-parallel rank runs in a step. The configuration must be feasible.
  int64_t num_microbatches() const { return global_batch / (strategy.data_parallel * micro_batch); }
  auto operator<=>(const Configuration&) const = default;
};

// Texts in the notation of configuration_text.h, without defaults: "d=2,t=1,p=2,zero=1" and
// "d=2,t=1,p=2,B=32,b=4,zero=1".
std::string to_string(const ParallelStrategy& strategy);
std::string to_string(const Configuration& configuration);

// An interleaved schedule takes micro-batches in rounds of at least p: the micro-batches of a round pass one chunk of a
// rank before they pass the next chunk.
constexpr int64_t interleaved_rounds(int64_t num_microbatches, int64_t pipeline_parallel) {
  return num_microbatches < pipeline_parallel ? 1 : num_microbatches / pipeline_parallel;
}

// Which numbers of micro-batches a program's interleaved schedule accepts.
enum class InterleavedRounds {
  of_pipeline_ranks,  // rounds of p micro-batches: Copus, Megatron-LM
  equal,              // rounds of equal size: torch.distributed.pipelining
};

// Returns the smallest global batch with this micro-batch; all others are multiples of it.
int64_t smallest_global_batch(const ParallelStrategy& strategy, int64_t micro_batch, InterleavedRounds rounds);

// Explains why `configuration` cannot train `model` on sequences of this length, with the keys of a run's configuration
// and the nearest possible values: "train.global_batch 16 is no multiple of train.micro_batch 4 x
// parallel.data_parallel 3; the nearest are 12 and 24". Empty if it can. Does not check memory.
std::optional<std::string> infeasible_reason(const ModelDescription& model, const Configuration& configuration,
                                             int64_t sequence_length,
                                             InterleavedRounds rounds = InterleavedRounds::of_pipeline_ranks);
// The same for an unknown model, whose shape is not checked.
std::optional<std::string> infeasible_reason(const Configuration& configuration, int64_t sequence_length);

}  // namespace copus
