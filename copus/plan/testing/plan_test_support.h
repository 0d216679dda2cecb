// For tests: a small question, and plans whose numbers are given instead of predicted.
#pragma once

#include <cmath>
#include <string>
#include <vector>

#include "copus/plan/plan.h"

namespace copus {

// A question about a model with 1 billion parameters on two nodes of four devices with 16 GB.
inline PlanQuestion small_question(const std::vector<int64_t>& global_batches) {
  PlanQuestion question;
  question.model_name = "small";
  question.cluster_name = "lab";
  question.model = {.architecture = Architecture::llama,
                    .vocab_size = 32000,
                    .hidden_size = 2048,
                    .intermediate_size = 5632,
                    .num_layers = 20,
                    .num_heads = 16,
                    .num_kv_heads = 16,
                    .head_dim = 128,
                    .rope_scaling = std::nullopt};
  question.cluster = {.num_ranks = 8,
                      .ranks_per_node = 4,
                      .within_node = {1e-6, 200e9},
                      .between_nodes = {5e-6, 12.5e9},
                      .device = {.name = "GPU",
                                 .memory_bytes = 16e9,
                                 .memory_bytes_per_second = 1e12,
                                 .peak_flops_per_second = 200e12,
                                 .matmul_flops_per_second = 150e12}};
  question.precision = "bf16";
  question.system = copus_in_bf16();
  question.sequence_length = 1024;
  question.space.world_size = 8;
  question.space.global_batches = global_batches;
  question.space.max_tensor_parallel = 4;
  return question;
}

// A configuration with layout d x t x p that takes `seconds`, 60 % of them computing.
inline PlannedConfiguration written_down(int64_t d, int64_t t, int64_t p, int64_t global_batch, double seconds) {
  PlannedConfiguration row;
  row.configuration = {{.data_parallel = d, .tensor_parallel = t, .pipeline_parallel = p}, global_batch, 1};
  row.memory = {1, {.weights = 1e9, .gradients = 2e9, .optimizer = 3e9, .activations = 4e9, .logits = 5e8}};
  row.seconds = seconds;
  row.parts = {.compute = 0.6 * seconds, .tensor_communication = 0.3 * seconds, .bubble = 0.1 * seconds};
  row.tokens_per_second_per_gpu = 1024.0 * static_cast<double>(global_batch) / (8 * seconds);
  row.model_flops_utilization = 0.4;
  return row;
}

// d=8 is fastest at 64 and 128, d=2,t=4 at 16. Nothing fits at 32.
inline Plan written_down_plan() {
  return {.configurations = 1234,
          .too_large = 5,
          .batches = {{16, {written_down(2, 4, 1, 16, 1.0), written_down(8, 1, 1, 16, 1.25)}},
                      {32, {}},
                      {64, {written_down(8, 1, 1, 64, 3.0), written_down(2, 4, 1, 64, 3.3)}},
                      {128, {written_down(8, 1, 1, 128, 6.0)}}}};
}

}  // namespace copus
