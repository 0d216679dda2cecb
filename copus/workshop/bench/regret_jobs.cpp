#include "copus/workshop/bench/regret_jobs.h"

#include <string>

#include "copus/config/descriptions.h"

namespace copus {

namespace {

// The inputs of a job. Its global batches are the powers of two between the given limits, and `more_batches`.
struct JobParts {
  std::string name;
  ModelDescription model;
  ClusterDescription cluster;
  int64_t ranks, sequence_length;
  int64_t smallest_batch, largest_batch;
  std::vector<int64_t> more_batches, first_batches;
};

// The model of configs/runs/quickstart.toml.
ModelDescription quickstart_model() {
  ModelDescription model;
  model.vocab_size = 256;
  model.hidden_size = 128;
  model.intermediate_size = 352;
  model.num_layers = 4;
  model.num_heads = model.num_kv_heads = 4;
  model.head_dim = 32;
  return model;
}

ClusterDescription with_links_between_nodes(ClusterDescription cluster, double bytes_per_second) {
  cluster.between_nodes = {.latency_seconds = 50e-6, .bytes_per_second = bytes_per_second};
  return cluster;
}

SimulatedJob job_of(const JobParts& parts, bool is_on_gpus) {
  RunConfig config;
  config.model = parts.model;
  config.data.train = {{.path = "simulated.txt"}};  // never opened
  config.cluster.clock = ClockKind::wall;
  config.cluster.description = parts.cluster;
  config.cluster.description.num_ranks = parts.ranks;
  config.train.sequence_length = parts.sequence_length;
  config.train.global_batch = parts.largest_batch;
  config.train.micro_batch = 1;
  config.execution.device = is_on_gpus ? "cuda" : "cpu";
  config.execution.precision = is_on_gpus ? Precision::bf16 : Precision::fp32;
  config.train.max_steps = 1;  // scenarios set their own limits
  config.parallel.data_parallel = parts.ranks;
  AdaptConfig& adapt = config.adapt;
  adapt.global_batches = parts.more_batches;
  for (int64_t batch = parts.smallest_batch; batch <= parts.largest_batch; batch *= 2) {
    adapt.global_batches.push_back(batch);
  }
  adapt.schedules = {PipelineSchedule::one_f_one_b};
  adapt.virtual_stages = {1};
  adapt.recomputes = is_on_gpus ? std::vector{Recompute::none, Recompute::full} : std::vector{Recompute::none};
  adapt.sequence_parallel = is_on_gpus ? std::vector{false, true} : std::vector{false};
  adapt.zero_stages = is_on_gpus ? std::vector<int64_t>{0, 1} : std::vector<int64_t>{0};
  return make_simulated_job(parts.name, config, parts.first_batches);
}

}  // namespace

std::vector<SimulatedJob> regret_jobs() {
  return {
      job_of({"quickstart on a laptop",
              quickstart_model(),
              find_cluster("laptop-two-nodes"),
              4,
              256,
              2,
              128,
              {12, 24, 48, 96},
              {4, 8, 16}},
             false),
      job_of({"8B on 64 GPUs",
              find_model("llama-3.1-8b"),
              find_cluster("h100-sxm"),
              64,
              4096,
              32,
              4096,
              {},
              {64, 128, 256}},
             true),
      job_of({"1B across slow nodes",
              find_model("llama-3.2-1b"),
              with_links_between_nodes(find_cluster("a100-sxm"), 1.25e9),
              16,
              2048,
              16,
              2048,
              {},
              {32, 64, 128}},
             true),
      job_of({"70B on 512 GPUs",
              find_model("llama-3.1-70b"),
              find_cluster("h100-sxm"),
              512,
              4096,
              128,
              8192,
              {},
              {256, 512}},
             true),
  };
}

}  // namespace copus
