// How a job is spread over its ranks: the degrees of data, tensor and pipeline parallelism and what goes with them, and
// which of these a model, a batch and a number of ranks allow.
#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "copus/description/model_description.h"

namespace copus {

// The order in which a pipeline rank works through its micro-batches.
enum class PipelineSchedule {
  gpipe,             // all forward, then all backward (Huang et al. 2019)
  one_f_one_b,       // "1f1b": as few micro-batches in flight as the pipeline is deep (Narayanan et al. 2019)
  interleaved_1f1b,  // "interleaved": several model chunks per rank (Narayanan et al. 2021)
  zb_h1,             // "zb-h1": weight gradients fill the bubble, at 1F1B's memory (Qi et al. 2023)
};

// What the forward pass leaves to be computed again in the backward pass.
enum class Recompute { none, attention, full };

// The names used in the configuration: "gpipe", "1f1b", "interleaved", "zb-h1"; "none", "attention", "full".
std::string_view to_string(PipelineSchedule schedule);
std::string_view to_string(Recompute recompute);

// S of the design. All degrees are at least 1.
struct ParallelStrategy {
  int64_t data_parallel = 1;      // d
  int64_t tensor_parallel = 1;    // t
  int64_t pipeline_parallel = 1;  // p
  int64_t virtual_stages = 1;     // v: model chunks per pipeline rank
  PipelineSchedule schedule = PipelineSchedule::one_f_one_b;
  bool sequence_parallel = false;  // activations outside attention and feed-forward are cut over the tensor ranks
  int64_t zero_stage = 0;          // 1: master weights and moments are cut over the data-parallel ranks (ZeRO-1)
  Recompute recompute = Recompute::none;

  int64_t world_size() const { return data_parallel * tensor_parallel * pipeline_parallel; }
  // Of the pipeline: v on each of its p ranks. Stage s lies on pipeline rank s mod p as its chunk s / p.
  int64_t num_stages() const { return pipeline_parallel * virtual_stages; }
  // Any order, to look up what is known of a strategy.
  auto operator<=>(const ParallelStrategy&) const = default;
};

// "2x4x1": data x tensor x pipeline, as in run.jsonl.
std::string to_string(const ParallelStrategy& strategy);

// What the orchestrator chooses.
struct Configuration {
  ParallelStrategy strategy;
  int64_t global_batch = 1;  // B_g, sequences
  int64_t micro_batch = 1;   // B_m, sequences

  // m: micro-batches that each data-parallel rank runs in one step. Only of a feasible configuration.
  int64_t num_microbatches() const { return global_batch / (strategy.data_parallel * micro_batch); }
  auto operator<=>(const Configuration&) const = default;
};

// Why `configuration` cannot train `model` on sequences of this length, in the words of the configuration file and with
// the nearest values that would do: "train.global_batch 16 is no multiple of train.micro_batch 4 x
// parallel.data_parallel 3; the nearest are 12 and 24". Empty where it can. Memory is not looked at here.
std::optional<std::string> infeasible_reason(const ModelDescription& model, const Configuration& configuration,
                                             int64_t sequence_length);

}  // namespace copus
