// Names of flags and keys were read in the code that planned_system.cpp names, and in torchtitan 0.3.0. torchtitan's
// main branch of 21 August 2026 (b5bcd76c) counts batches in tokens, under other names, which are not written.
#include "copus/plan/paste_text.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>
#include <utility>

#include "copus/base/error.h"
#include "copus/base/text_distance.h"
#include "copus/base/units.h"
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

// Nodes are filled alike: ranks of a node divide those of the job.
std::string torchrun(const PlanQuestion& question, const ParallelStrategy& strategy) {
  const int64_t ranks = strategy.world_size();
  int64_t on_node = std::min(ranks, question.cluster.ranks_per_node);
  while (ranks % on_node != 0) --on_node;
  if (on_node == ranks) return concat("torchrun --nproc-per-node ", ranks);
  return concat("torchrun --nnodes ", ranks / on_node, " --nproc-per-node ", on_node,
                " --rdzv-backend c10d --rdzv-endpoint \"$HEAD_NODE:29500\"");
}

// Megatron-LM and nanotron overlap tensor-parallel communication by the order of launches, before Blackwell.
std::string one_connection(const ParallelStrategy& strategy) {
  return strategy.tensor_parallel > 1 ? "CUDA_DEVICE_MAX_CONNECTIONS=1 " : "";
}

std::string number(double value) { return format_number("%.10g", value); }

// The model and what goes with it: memory and time are those of this model, without dropout.
std::vector<std::string> megatron_model_flags(const ModelDescription& model) {
  std::vector<std::string> flags = {
      concat("--num-layers ", model.num_layers, " --hidden-size ", model.hidden_size, " --ffn-hidden-size ",
             model.intermediate_size),
      concat("--num-attention-heads ", model.num_heads, " --kv-channels ", model.head_dim),
  };
  if (model.num_kv_heads != model.num_heads) {
    flags.back() += concat(" --group-query-attention --num-query-groups ", model.num_kv_heads);
  }
  flags.push_back(concat("--swiglu --normalization RMSNorm --norm-epsilon ", number(model.rms_norm_eps)));
  flags.push_back(concat("--disable-bias-linear", model.qkv_bias ? " --add-qkv-bias" : "",
                         model.tie_word_embeddings ? "" : " --untie-embeddings-and-output-weights"));
  flags.push_back(concat("--position-embedding-type rope --rotary-base ", number(model.rope_theta)));
  if (model.rope_scaling) {
    flags.back() += concat(" --use-rope-scaling --rope-scaling-factor ", number(model.rope_scaling->factor));
  }
  flags.emplace_back("--attention-dropout 0 --hidden-dropout 0");
  flags.push_back(concat("--max-position-embeddings ", model.max_position_embeddings, " --init-method-std ",
                         number(model.initializer_range)));
  return flags;
}

std::vector<PasteText> for_megatron(const PlanQuestion& question, const Configuration& configuration) {
  const ParallelStrategy& strategy = configuration.strategy;
  const ModelDescription& model = question.model;
  std::vector<std::string> flags = {concat(one_connection(strategy), torchrun(question, strategy), " pretrain_gpt.py")};
  for (std::string& flag : megatron_model_flags(model)) flags.push_back(std::move(flag));
  flags.push_back(concat("--tensor-model-parallel-size ", strategy.tensor_parallel));
  flags.push_back(concat("--pipeline-model-parallel-size ", strategy.pipeline_parallel));
  const std::optional<CountedEnds> ends = even_ends(model.num_layers, strategy.num_stages());
  COPUS_CHECK(ends, "stages that Megatron-LM can run");
  if (strategy.virtual_stages > 1) {
    flags.push_back(concat("--num-layers-per-virtual-pipeline-stage ",
                           (model.num_layers + ends->layers()) / strategy.num_stages()));
  }
  if (ends->embedding) flags.emplace_back("--account-for-embedding-in-pipeline-split");
  if (ends->head) flags.emplace_back("--account-for-loss-in-pipeline-split");
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
  flags.push_back(concat("--tokenizer-type NullTokenizer --vocab-size ", model.vocab_size,
                         " --mock-data --train-iters 100 --lr 1e-4"));
  return {{concat("a shell in Megatron-LM's folder, on ", strategy.world_size(),
                  " GPUs (data, steps and rate in the last line are for you to choose)"),
           join(flags, " \\\n") + "\n"}};
}

// Every row-parallel product of some of its models refuses asynchronous communication with all-reduces. A model of
// Mistral's form is Llama's to it.
std::vector<PasteText> for_nanotron(const PlanQuestion& question, const Configuration& configuration) {
  const ParallelStrategy& strategy = configuration.strategy;
  const ModelDescription& model = question.model;
  const bool all_forward_first = strategy.schedule == PipelineSchedule::gpipe;
  const auto truth = [](bool value) { return value ? "true" : "false"; };
  std::string scaling = "null";
  if (model.rope_scaling) {
    scaling = concat("{rope_type: llama3, factor: ", number(model.rope_scaling->factor),
                     ", low_freq_factor: ", number(model.rope_scaling->low_frequency_factor),
                     ", high_freq_factor: ", number(model.rope_scaling->high_frequency_factor),
                     ", original_max_position_embeddings: ", model.rope_scaling->original_max_position_embeddings, "}");
  }
  const bool is_qwen = model.architecture == Architecture::qwen2;
  const std::string yaml =
      concat("model:\n  dtype: bfloat16\n  make_vocab_size_divisible_by: 1\n  model_config:\n    ",
             is_qwen ? "is_qwen2_config" : "is_llama_config", ": true\n    vocab_size: ", model.vocab_size,
             "\n    hidden_size: ", model.hidden_size, "\n    intermediate_size: ", model.intermediate_size,
             "\n    num_hidden_layers: ", model.num_layers, "\n    num_attention_heads: ", model.num_heads,
             "\n    num_key_value_heads: ", model.num_kv_heads, "\n    attention_bias: ", truth(model.qkv_bias),
             "\n    max_position_embeddings: ", model.max_position_embeddings,
             "\n    rms_norm_eps: ", format_number("%.9f", model.rms_norm_eps),
             "\n    rope_theta: ", format_number("%.1f", model.rope_theta), "\n    rope_scaling: ", scaling,
             "\n    tie_word_embeddings: ", truth(model.tie_word_embeddings), "\n    hidden_act: silu\n");
  return {{"nanotron's YAML file",
           concat(yaml, "parallelism:\n  dp: ", strategy.data_parallel, "\n  tp: ", strategy.tensor_parallel,
                  "\n  pp: ", strategy.pipeline_parallel, "\n  pp_engine: ", all_forward_first ? "afab" : "1f1b",
                  "\n  tp_mode: ", strategy.sequence_parallel ? "REDUCE_SCATTER" : "ALL_REDUCE",
                  "\n  tp_linear_async_communication: ", toml_value(strategy.sequence_parallel),
                  "\n  recompute_layer: ", toml_value(strategy.recompute == Recompute::full),
                  "\noptimizer:\n  zero_stage: ", strategy.zero_stage, "\n  accumulate_grad_in_fp32: true",
                  "\ntokens:\n  micro_batch_size: ", configuration.micro_batch, "\n  batch_accumulation_per_replica: ",
                  configuration.num_microbatches(), "\n  sequence_length: ", question.sequence_length, "\n")},
          {concat("a shell in nanotron's folder, on ", strategy.world_size(), " GPUs"),
           concat(one_connection(strategy), torchrun(question, strategy), " run_train.py --config-file RUN.yaml\n")}};
}

// The sizes that torchtitan's llama3 comes in.
struct Flavor {
  std::string_view name;
  int64_t num_layers, hidden_size, intermediate_size, num_heads, num_kv_heads;
  bool tied;
};
constexpr std::array flavors = {Flavor{"1B", 16, 2048, 8192, 32, 8, true}, Flavor{"3B", 28, 3072, 8192, 24, 8, true},
                                Flavor{"8B", 32, 4096, 14336, 32, 8, false},
                                Flavor{"70B", 80, 8192, 28672, 64, 8, false},
                                Flavor{"405B", 126, 16384, 53248, 128, 8, false}};

// Returns nothing where the model has none of these sizes.
std::optional<std::string_view> flavor_of(const ModelDescription& model) {
  constexpr int64_t vocabulary = 128256;
  for (const Flavor& flavor : flavors) {
    const bool same = flavor.num_layers == model.num_layers && flavor.hidden_size == model.hidden_size &&
                      flavor.intermediate_size == model.intermediate_size && flavor.num_heads == model.num_heads &&
                      flavor.num_kv_heads == model.num_kv_heads && flavor.tied == model.tie_word_embeddings &&
                      model.vocab_size == vocabulary;
    if (same) return flavor.name;
  }
  return std::nullopt;
}

// Says how 0.2 comes to know a model of a size of its own. Its feed-forward is as wide as the multiple that it is
// rounded up to, of anything smaller.
std::string torchtitan_arguments(const ModelDescription& model) {
  return concat("TransformerModelArgs(dim=", model.hidden_size, ", n_layers=", model.num_layers,
                ", n_heads=", model.num_heads, ", n_kv_heads=", model.num_kv_heads, ", vocab_size=", model.vocab_size,
                ", multiple_of=", model.intermediate_size,
                ", ffn_dim_multiplier=0.1, norm_eps=", number(model.rms_norm_eps),
                ", rope_theta=", number(model.rope_theta), ")");
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

  const std::optional<std::string_view> flavor = flavor_of(question.model);
  const std::string_view name = flavor.value_or("planned");
  std::string toml = concat("[model]\nname = \"llama3\"\nflavor = ", in_quotes(name), "\n");
  if (!flavor)
    toml += concat("# In torchtitan/models/llama3/__init__.py: llama3_args[\"planned\"] = ",
                   torchtitan_arguments(question.model), "\n");
  toml += '\n';
  std::string python = flavor ? concat("config.model_spec = model_registry(", in_quotes(name), ")\n")
                              : "# model_spec: none of llama3's sizes is this model's; give it one of your own.\n";
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
  const std::string shell = concat("a shell, on ", strategy.world_size(), " GPUs");
  const std::string start = concat(torchrun(question, strategy), " -m torchtitan.train ");
  if (question.program == PlannedSystem::torchtitan) {
    return {{"the TOML file of torchtitan 0.2", toml}, {shell, concat(start, "--job.config_file RUN.toml\n")}};
  }
  return {{"a configuration function of torchtitan 0.3, in models/llama3/config_registry.py", python},
          {shell, concat(start, "--module llama3 --config YOUR_FUNCTION\n")}};
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
    case PlannedSystem::torchtitan_0_3:
      return for_torchtitan(question, configuration);
  }
  fail_check("known system", __FILE__, __LINE__, "");
}

}  // namespace copus
