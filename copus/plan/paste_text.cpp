// Names of flags and keys come from the sources that planned_system.cpp lists, and from torchtitan 0.3.0. torchtitan's
// main branch of 21 August 2026 (b5bcd76c) counts batches in tokens, under other names, which are not supported here.
#include "copus/plan/paste_text.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>
#include <utility>

#include "copus/base/error.h"
#include "copus/base/text/text_distance.h"
#include "copus/base/text/units.h"
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

// Writes every key of a section, even settings at their defaults, because the user's file may contain different values.
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

// All nodes except the last one are full, as the plan places groups.
std::string torchrun(const PlanQuestion& question, const ParallelStrategy& strategy) {
  const int64_t ranks = strategy.world_size(), on_node = question.cluster.ranks_per_node;
  if (ranks <= on_node) return concat("torchrun --nproc-per-node ", ranks);
  return concat("torchrun --nnodes ", (ranks + on_node - 1) / on_node, " --nproc-per-node ", on_node,
                " --rdzv-backend c10d --rdzv-endpoint \"$HEAD_NODE:29500\"");
}

// "16 GPUs". If the last node is not full, adds a note that this node needs a different number.
std::string gpus_in_words(const PlanQuestion& question, const ParallelStrategy& strategy) {
  const int64_t ranks = strategy.world_size(), left = ranks % question.cluster.ranks_per_node;
  if (ranks < question.cluster.ranks_per_node || left == 0) return concat(ranks, " GPUs");
  return concat(ranks, " GPUs (on the last node, which has ", left, ", with --nproc-per-node ", left, ")");
}

// Sets CUDA_DEVICE_MAX_CONNECTIONS=1 where needed: on GPUs before Blackwell, Megatron-LM and nanotron rely on the order
// of launches to overlap tensor-parallel communication.
std::string one_connection(const ParallelStrategy& strategy) {
  return strategy.tensor_parallel > 1 ? "CUDA_DEVICE_MAX_CONNECTIONS=1 " : "";
}

std::string number(double value) { return format_number("%.10g", value); }

// PyYAML reads a number without a decimal point and with an exponent, such as 1e-05, as a string.
std::string yaml_float(double value) {
  std::string text = number(value);
  if (text.find('.') == std::string::npos) text.insert(std::min(text.find('e'), text.size()), ".0");
  return text;
}

// Writes the interval if it divides the number of layers, as Megatron-LM requires. Otherwise writes the list of layers,
// in which 1 means no rotary embeddings.
std::string layers_without_rope(const ModelDescription& model) {
  const int64_t interval = model.no_rope_interval, rest = model.num_layers % interval;
  if (rest == 0) return concat(interval);
  return concat("\"([0]*", interval - 1, "+[1])*", model.num_layers / interval, "+[0]*", rest, "\"");
}

// The flags of the model and of related settings. Dropout is off, because the predictions assume it.
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
  if (model.qk_norm == QkNorm::head) flags.back() += " --qk-layernorm";
  // Megatron-LM reads the base as a Python integer; lacking_model refuses a fraction.
  flags.push_back(concat("--position-embedding-type rope --rotary-base ", format_number("%.0f", model.rope_theta)));
  if (model.no_rope_interval > 0) flags.back() += concat(" --no-rope-freq ", layers_without_rope(model));
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
  return {{concat("a shell in Megatron-LM's folder, on ", gpus_in_words(question, strategy),
                  "; data, steps and rate in the last line are for you to choose"),
           join(flags, " \\\n") + "\n"}};
}

// Writes the entries of nanotron's configuration that do not depend on the plan: dummy data, and the same steps and
// learning rate as in Megatron-LM's command.
constexpr std::string_view nanotron_needs =
    "general:\n  project: planned\n"
    "tokenizer:\n  tokenizer_name_or_path: null\n"
    "data_stages:\n- name: stage\n  start_training_step: 1\n  data:\n    dataset: null\n    seed: 42\n"
    "    num_loading_workers: 1\n"
    "checkpoints:\n  checkpoints_path: checkpoints\n  checkpoint_interval: 1000\n";
constexpr std::string_view nanotron_optimizer =
    "\n  weight_decay: 0.1\n  clip_grad: 1.0\n  optimizer_factory:\n    name: adamW\n    adam_beta1: 0.9\n"
    "    adam_beta2: 0.95\n    adam_eps: 1.0e-08\n    torch_adam_is_fused: true\n"
    "  learning_rate_scheduler:\n    learning_rate: 0.0001\n    lr_warmup_steps: 2\n    lr_warmup_style: linear\n"
    "    lr_decay_style: cosine\n    lr_decay_steps: 98\n    min_decay_lr: 1.0e-05\n";

// Asynchronous tensor-parallel communication is not combined with all-reduces, because row-parallel linear layers in
// some of nanotron's models then raise an error. nanotron treats models of Mistral's form as Llama.
std::vector<PasteText> for_nanotron(const PlanQuestion& question, const Configuration& configuration) {
  const ParallelStrategy& strategy = configuration.strategy;
  const ModelDescription& model = question.model;
  const bool all_forward_first = strategy.schedule == PipelineSchedule::gpipe;
  const auto truth = [](bool value) { return value ? "true" : "false"; };
  std::string scaling = "null";
  if (model.rope_scaling) {
    scaling = concat("{rope_type: llama3, factor: ", yaml_float(model.rope_scaling->factor),
                     ", low_freq_factor: ", yaml_float(model.rope_scaling->low_frequency_factor),
                     ", high_freq_factor: ", yaml_float(model.rope_scaling->high_frequency_factor),
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
             "\n    rms_norm_eps: ", yaml_float(model.rms_norm_eps), "\n    rope_theta: ", yaml_float(model.rope_theta),
             "\n    rope_scaling: ", scaling,
             model.rope_scaling ? "  # read, but not applied: nanotron rotates by rope_theta alone" : "",
             "\n    tie_word_embeddings: ", truth(model.tie_word_embeddings),
             "\n    hidden_act: silu\n  init_method:\n    std: ", yaml_float(model.initializer_range), "\n");
  return {{"nanotron's YAML file (data, steps and rate are for you to choose)",
           concat(nanotron_needs, yaml, "parallelism:\n  dp: ", strategy.data_parallel,
                  "\n  tp: ", strategy.tensor_parallel, "\n  pp: ", strategy.pipeline_parallel,
                  "\n  pp_engine: ", all_forward_first ? "afab" : "1f1b",
                  "\n  tp_mode: ", strategy.sequence_parallel ? "REDUCE_SCATTER" : "ALL_REDUCE",
                  "\n  tp_linear_async_communication: ", toml_value(strategy.sequence_parallel),
                  "\n  recompute_layer: ", toml_value(strategy.recompute == Recompute::full),
                  "\noptimizer:\n  zero_stage: ", strategy.zero_stage, "\n  accumulate_grad_in_fp32: true",
                  nanotron_optimizer, "tokens:\n  train_steps: 100\n  val_check_interval: -1\n  micro_batch_size: ",
                  configuration.micro_batch, "\n  batch_accumulation_per_replica: ", configuration.num_microbatches(),
                  "\n  sequence_length: ", question.sequence_length, "\n")},
          {concat("a shell in nanotron's folder, on ", gpus_in_words(question, strategy)),
           concat(one_connection(strategy), torchrun(question, strategy), " run_train.py --config-file RUN.yaml\n")}};
}

constexpr double torchtitan_norm_eps = 1e-5;  // default

// The sizes of torchtitan's llama3.
struct Flavor {
  std::string_view name;
  int64_t num_layers, hidden_size, intermediate_size, num_heads, num_kv_heads;
  bool tied;
};
constexpr std::array flavors = {Flavor{"1B", 16, 2048, 8192, 32, 8, true}, Flavor{"3B", 28, 3072, 8192, 24, 8, true},
                                Flavor{"8B", 32, 4096, 14336, 32, 8, false},
                                Flavor{"70B", 80, 8192, 28672, 64, 8, false},
                                Flavor{"405B", 126, 16384, 53248, 128, 8, false}};

// Returns nothing if the model has none of these sizes, or if its rotary embedding differs from theirs.
std::optional<std::string_view> flavor_of(const ModelDescription& model) {
  constexpr int64_t vocabulary = 128256;
  const bool has_rotation = model.rope_theta == 500000 && model.rope_scaling == RopeScaling{};
  if (!has_rotation || model.rms_norm_eps != torchtitan_norm_eps) return std::nullopt;
  for (const Flavor& flavor : flavors) {
    const bool same = flavor.num_layers == model.num_layers && flavor.hidden_size == model.hidden_size &&
                      flavor.intermediate_size == model.intermediate_size && flavor.num_heads == model.num_heads &&
                      flavor.num_kv_heads == model.num_kv_heads && flavor.tied == model.tie_word_embeddings &&
                      model.vocab_size == vocabulary;
    if (same) return flavor.name;
  }
  return std::nullopt;
}

// Returns keyword arguments that both versions accept. A factor of 1 disables scaling.
std::string torchtitan_scaling(const RopeScaling& scaling) {
  return concat("scaling_factor=", number(scaling.factor), ", low_freq_factor=", number(scaling.low_frequency_factor),
                ", high_freq_factor=", number(scaling.high_frequency_factor),
                ", original_max_position_embeddings=", scaling.original_max_position_embeddings);
}

// Writes the definition of a model that torchtitan 0.2 does not ship. torchtitan rounds the feed-forward width up to a
// multiple of multiple_of, so setting multiple_of to the width suffices. The scaling of rotary embeddings is always
// written, because torchtitan scales by default.
std::string torchtitan_arguments(const ModelDescription& model) {
  return concat("TransformerModelArgs(dim=", model.hidden_size, ", n_layers=", model.num_layers,
                ", n_heads=", model.num_heads, ", n_kv_heads=", model.num_kv_heads, ", vocab_size=", model.vocab_size,
                ", multiple_of=", model.intermediate_size,
                ", ffn_dim_multiplier=0.1, norm_eps=", number(model.rms_norm_eps),
                ", rope_theta=", number(model.rope_theta), ", rope_scaling_args=RoPEScalingArgs(",
                torchtitan_scaling(model.rope_scaling.value_or(RopeScaling{.factor = 1})), "))");
}

// The lines of a configuration function for torchtitan 0.3 that define a model of another size.
std::string torchtitan_model(const ModelDescription& model) {
  const bool tied = model.tie_word_embeddings;
  std::string lines = concat(
      "    from dataclasses import replace\n\n    from torchtitan.models import llama3\n\n"
      "    rope = llama3.ComplexRoPE.Config(dim=",
      model.head_dim, ", max_seq_len=", model.max_position_embeddings, ", theta=", number(model.rope_theta),
      model.rope_scaling ? concat(", scaling=\"llama\", ", torchtitan_scaling(*model.rope_scaling)) : "",
      ")\n    layers = llama3._build_llama3_layers(n_layers=", model.num_layers, ", dim=", model.hidden_size,
      ", n_heads=", model.num_heads, ", n_kv_heads=", model.num_kv_heads, ", hidden_dim=", model.intermediate_size,
      ", rope=rope, attn_backend=\"flex\")\n    model = llama3.Llama3Model.Config(\n        dim=", model.hidden_size,
      ", vocab_size=", model.vocab_size, ", enable_weight_tying=", tied ? "True" : "False",
      ", layers=layers,\n        tok_embeddings=llama3.Embedding.Config(num_embeddings=", model.vocab_size,
      ", embedding_dim=", model.hidden_size, ", param_init=llama3.", tied ? "_EMBEDDING_SKIP_INIT" : "_EMBEDDING_INIT",
      "),\n        norm=llama3.RMSNorm.Config(normalized_shape=", model.hidden_size,
      ", param_init=llama3._NORM_INIT),\n        lm_head=llama3.Linear.Config(in_features=", model.hidden_size,
      ", out_features=", model.vocab_size, ", param_init=llama3._output_linear_init(", model.hidden_size, ")))\n");
  if (model.rms_norm_eps != torchtitan_norm_eps) {
    lines += concat(
        "    for norm in [model.norm, *(n for layer in layers for n in (layer.attention_norm, layer.ffn_norm))]:\n"
        "        norm.eps = ",
        number(model.rms_norm_eps), "\n");
  }
  return lines + concat(
                     "    config.model_spec = replace(config.model_spec, flavor=\"planned\", model=model)\n"
                     "    config.loss.loss_fn.global_vocab_size = ",
                     model.vocab_size, "\n");
}

std::string_view torchtitan_schedule(PipelineSchedule schedule) {
  switch (schedule) {
    case PipelineSchedule::gpipe:
      return "GPipe";
    case PipelineSchedule::one_f_one_b:
      return "1F1B";
    case PipelineSchedule::interleaved_1f1b:
      return "Interleaved1F1B";  // has two stages on each rank by default
    case PipelineSchedule::zb_h1:
      break;
  }
  fail_check("a schedule that torchtitan knows", __FILE__, __LINE__, std::string(to_string(schedule)));
}

// With a pipeline, torchtitan's local batch is a rank's whole batch, which it splits into micro-batches. Without a
// pipeline, the local batch is one micro-batch, repeated as often as the global batch requires.
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
    toml += concat(
        "# At the end of torchtitan/models/llama3/__init__.py:\n# from .model.args import RoPEScalingArgs\n"
        "# llama3_args[\"planned\"] = ",
        torchtitan_arguments(question.model), "\n");
  toml += '\n';
  std::string python = "def planned() -> Trainer.Config:\n    config = llama3_8b()  # with its data, steps and rate\n";
  python += flavor ? concat("    config.model_spec = model_registry(", in_quotes(name), ")\n")
                   : torchtitan_model(question.model);
  const auto write = [&](const char* section, const Settings& settings) {
    toml += concat("[", section, "]\n");
    for (const auto& [key, value] : settings) {
      toml += concat(key, " = ", value, "\n");
      python += concat("    config.", section, ".", key, " = ", value, "\n");
    }
    toml += '\n';
  };
  write("parallelism", parallelism);
  write("training", training);
  toml += concat("[activation_checkpoint]\nmode = ", in_quotes(recomputes ? "full" : "none"),
                 "\n\n[compile]\nenable = true\n");
  python += concat("    config.activation_checkpoint = ", recomputes ? "FullAC.Config()" : "None",
                   "\n    config.compile.enable = True\n    return config\n");
  const std::string shell = concat("a shell in torchtitan's folder, on ", gpus_in_words(question, strategy));
  const std::string start = concat(torchrun(question, strategy), " -m torchtitan.train ");
  if (question.program == PlannedSystem::torchtitan) {
    return {{"the TOML file of torchtitan 0.2 (data, steps and rate are for you to choose)", toml},
            {shell, concat(start, "--job.config_file RUN.toml\n")}};
  }
  return {{"the end of torchtitan 0.3's models/llama3/config_registry.py", python},
          {shell, concat(start, "--module llama3 --config planned\n")}};
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
