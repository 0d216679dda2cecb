// Names of flags and keys were read in the code that planned_system.cpp names, and in torchtitan 0.3.0. torchtitan's
// main branch of 21 August 2026 (b5bcd76c) counts batches in tokens, under other names, which are not written.
#include "copus/plan/paste_text.h"

#include <utility>

#include "copus/base/error.h"
#include "copus/base/text_distance.h"
#include "copus/description/configuration_fields.h"

namespace copus {

namespace {

std::string in_quotes(std::string_view text) { return concat('"', text, '"'); }

std::string toml_value(int64_t value) { return std::to_string(value); }
std::string toml_value(bool value) { return value ? "true" : "false"; }
template <HasNames Enum>
std::string toml_value(Enum value) {
  return in_quotes(to_string(value));
}

// Every key stands in its section's table, at its default or not, since a run's file may have had another value.
std::vector<PasteText> for_copus(const PlanQuestion& question, const Configuration& configuration) {
  std::string parallel = "[parallel]\n";
  std::string train = concat("[train]\nsequence_length = ", question.sequence_length,
                             "\nprecision = ", in_quotes(question.precision), "\n");
  const auto write = [&](const ConfigurationField& field, const auto& value) {
    std::string& section = field.section == std::string_view("parallel") ? parallel : train;
    section += concat(field.name, " = ", toml_value(value), "\n");
  };
  visit_configuration(write, configuration);
  return {{"a run's TOML file", concat(parallel, "\n", train)}};
}

std::vector<PasteText> for_megatron(const PlanQuestion& question, const Configuration& configuration) {
  const ParallelStrategy& strategy = configuration.strategy;
  std::vector<std::string> flags = {concat("--tensor-model-parallel-size ", strategy.tensor_parallel),
                                    concat("--pipeline-model-parallel-size ", strategy.pipeline_parallel)};
  if (strategy.virtual_stages > 1) {
    flags.push_back(
        concat("--num-layers-per-virtual-pipeline-stage ", question.model.num_layers / strategy.num_stages()));
  }
  if (strategy.sequence_parallel) flags.emplace_back("--sequence-parallel");
  if (strategy.zero_stage == 1) flags.emplace_back("--use-distributed-optimizer");
  if (strategy.data_parallel > 1) flags.emplace_back("--overlap-grad-reduce");
  if (strategy.recompute == Recompute::full) {
    flags.emplace_back("--recompute-granularity full --recompute-method uniform --recompute-num-layers 1");
  }
  flags.push_back(concat("--micro-batch-size ", configuration.micro_batch));
  flags.push_back(concat("--global-batch-size ", configuration.global_batch));
  flags.push_back(concat("--seq-length ", question.sequence_length));
  flags.emplace_back("--bf16");
  return {{concat("the command line of Megatron-LM's pretrain_gpt.py, on ", strategy.world_size(), " GPUs"),
           join(flags, " \\\n") + "\n"}};
}

// Every row-parallel product of some of its models refuses asynchronous communication with all-reduces.
std::vector<PasteText> for_nanotron(const PlanQuestion& question, const Configuration& configuration) {
  const ParallelStrategy& strategy = configuration.strategy;
  const bool all_forward_first = strategy.schedule == PipelineSchedule::gpipe;
  return {{"nanotron's YAML file",
           concat("parallelism:\n  dp: ", strategy.data_parallel, "\n  tp: ", strategy.tensor_parallel,
                  "\n  pp: ", strategy.pipeline_parallel, "\n  pp_engine: ", all_forward_first ? "afab" : "1f1b",
                  "\n  tp_mode: ", strategy.sequence_parallel ? "REDUCE_SCATTER" : "ALL_REDUCE",
                  "\n  tp_linear_async_communication: ", toml_value(strategy.sequence_parallel),
                  "\n  recompute_layer: ", toml_value(strategy.recompute == Recompute::full),
                  "\noptimizer:\n  zero_stage: ", strategy.zero_stage, "\n  accumulate_grad_in_fp32: true",
                  "\ntokens:\n  micro_batch_size: ", configuration.micro_batch, "\n  batch_accumulation_per_replica: ",
                  configuration.num_microbatches(), "\n  sequence_length: ", question.sequence_length, "\n")}};
}

std::string_view torchtitan_schedule(PipelineSchedule schedule) {
  switch (schedule) {
    case PipelineSchedule::gpipe:
      return "GPipe";
    case PipelineSchedule::one_f_one_b:
      return "1F1B";
    case PipelineSchedule::interleaved_1f1b:
      return "Interleaved1F1B";  // which has two stages on each rank, where nothing else is said
    case PipelineSchedule::zb_h1:
      break;
  }
  fail_check("a schedule that torchtitan knows", __FILE__, __LINE__, std::string(to_string(schedule)));
}

// With a pipeline the local batch is a rank's whole one, cut into micro-batches; without, it is a micro-batch, of which
// as many follow each other as the global batch needs.
std::vector<PasteText> for_torchtitan(const PlanQuestion& question, const Configuration& configuration) {
  const ParallelStrategy& strategy = configuration.strategy;
  using Settings = std::vector<std::pair<std::string, std::string>>;
  const bool has_pipeline = strategy.pipeline_parallel > 1, recomputes = strategy.recompute == Recompute::full;
  const bool reshards = strategy.zero_stage == 3 && strategy.reshard_after_forward;
  Settings parallelism = {{"data_parallel_replicate_degree", toml_value(strategy.zero_replicas)},
                          {"data_parallel_shard_degree", toml_value(strategy.zero_shards())},
                          {"fsdp_reshard_after_forward", in_quotes(reshards ? "always" : "never")},
                          {"tensor_parallel_degree", toml_value(strategy.tensor_parallel)},
                          {"pipeline_parallel_degree", toml_value(strategy.pipeline_parallel)}};
  if (has_pipeline) {
    parallelism.emplace_back("pipeline_parallel_schedule", in_quotes(torchtitan_schedule(strategy.schedule)));
    parallelism.emplace_back("pipeline_parallel_microbatch_size", toml_value(configuration.micro_batch));
  }
  const int64_t local_batch =
      has_pipeline ? configuration.global_batch / strategy.data_parallel : configuration.micro_batch;
  const Settings training = {{"local_batch_size", toml_value(local_batch)},
                             {"global_batch_size", toml_value(configuration.global_batch)},
                             {"seq_len", toml_value(question.sequence_length)}};

  std::string toml, python;
  const auto write = [&](const char* section, const Settings& settings) {
    toml += concat("[", section, "]\n");
    for (const auto& [key, value] : settings) {
      toml += concat(key, " = ", value, "\n");
      python += concat("config.", section, ".", key, " = ", value, "\n");
    }
    toml += '\n';
  };
  write("parallelism", parallelism);
  write("training", training);
  toml += concat("[activation_checkpoint]\nmode = ", in_quotes(recomputes ? "full" : "none"),
                 "\n\n[compile]\nenable = true\n");
  python += concat("config.activation_checkpoint = ", recomputes ? "FullAC.Config()" : "None",
                   "\nconfig.compile.enable = True\n");
  return {{"the TOML file of torchtitan 0.2", toml}, {"a configuration function of torchtitan 0.3", python}};
}

}  // namespace

std::vector<PasteText> paste_texts(const PlanQuestion& question, const Configuration& configuration) {
  switch (question.program) {
    case PlannedSystem::copus:
      return for_copus(question, configuration);
    case PlannedSystem::megatron:
      return for_megatron(question, configuration);
    case PlannedSystem::nanotron:
      return for_nanotron(question, configuration);
    case PlannedSystem::torchtitan:
      return for_torchtitan(question, configuration);
  }
  fail_check("known system", __FILE__, __LINE__, "");
}

}  // namespace copus
