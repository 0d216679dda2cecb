// Decides which configurations each program accepts, according to its code: Megatron-LM of August 2026
// (megatron/training/arguments.py and megatron/core/transformer/transformer_config.py at d98e8a64), nanotron of April
// 2026 (config/, models/ and parallel/pipeline_parallel/engine.py at 2411b022) and torchtitan 0.2.2
// (models/llama3/infra/parallelize.py and distributed/), whose pipelines come from torch.distributed.pipelining.
#include "copus/plan/planned_system.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "copus/base/error.h"
#include "copus/base/text/text_distance.h"
#include "copus/plan/other_systems.h"

namespace copus {

namespace {

using Reason = std::optional<std::string>;

template <class Value>
Reason unknown(PlannedSystem system, const char* part, Value value, const std::vector<Value>& known) {
  if (std::find(known.begin(), known.end(), value) != known.end()) return std::nullopt;
  std::vector<std::string> names;
  for (const Value one : known) names.push_back(value_text(one));
  return concat(full_name(system), ", as it is described here, does not run with ", part, " ", value_text(value),
                " (it does with ", join(names, ", "), ")");
}

// Checks a part only if it has an effect in this configuration.
Reason unknown_value(PlannedSystem system, const ParallelStrategy& strategy) {
  const SearchSpace known = abilities(system);
  Reason reason = unknown(system, "recompute", strategy.recompute, known.recomputes);
  if (!reason && strategy.pipeline_parallel > 1) {
    reason = unknown(system, "schedule", strategy.schedule, known.schedules);
  }
  if (!reason && strategy.virtual_stages > 1 && !known.virtual_stages.empty()) {
    reason = unknown(system, "virtual stages", strategy.virtual_stages, known.virtual_stages);
  }
  if (!reason && strategy.tensor_parallel > 1) {
    reason = unknown<bool>(system, "sp", strategy.sequence_parallel, known.sequence_parallel);
  }
  if (!reason && strategy.data_parallel > 1) reason = unknown(system, "zero", strategy.zero_stage, known.zero_stages);
  return reason;
}

Reason misfit_in_megatron(const ModelDescription& model, const Configuration& configuration) {
  const ParallelStrategy& strategy = configuration.strategy;
  if (strategy.zero_replicas > 1) return "copies of what ZeRO shares out are not described for Megatron-LM";
  const int64_t stages = strategy.num_stages();
  if (!even_ends(model.num_layers, stages)) {
    return concat("Megatron-LM gives every stage as many layers, where embedding and loss may count as one each, and ",
                  stages, " stages divide none of ", model.num_layers, " to ", model.num_layers + 2, " layers");
  }
  return std::nullopt;
}

Reason misfit_in_nanotron(const ModelDescription& model, const Configuration& configuration, int64_t sequence_length) {
  const ParallelStrategy& strategy = configuration.strategy;
  const int64_t p = strategy.pipeline_parallel;
  if (strategy.zero_replicas > 1) return "nanotron shares the optimizer's state out among all data-parallel ranks";
  if (model.num_kv_heads % strategy.tensor_parallel != 0) {
    return concat("nanotron cuts key/value heads whole, and t=", strategy.tensor_parallel, " does not divide ",
                  model.num_kv_heads);
  }
  if (strategy.schedule == PipelineSchedule::one_f_one_b && configuration.num_microbatches() < p - 1) {
    return concat("nanotron's 1f1b needs ", p - 1, " micro-batches at least, and there are ",
                  configuration.num_microbatches());
  }
  const std::vector<LayerRange> stages = cut_stages(describe(PlannedSystem::nanotron), model, sequence_length, p);
  for (int64_t stage = 0; stage < p - 1; ++stage) {  // the last stage may have only the head
    if (stages[stage].end == stages[stage].begin) {
      return concat("nanotron, which cuts by operations, leaves stage ", stage, " of ", p, " without a layer");
    }
  }
  return std::nullopt;
}

constexpr int64_t loss_chunks = 8;

Reason misfit_in_torchtitan(PlannedSystem system, const ModelDescription& model, const Configuration& configuration,
                            int64_t sequence_length) {
  const ParallelStrategy& strategy = configuration.strategy;
  const int64_t t = strategy.tensor_parallel, p = strategy.pipeline_parallel;
  if (strategy.zero_shards() < 2) return "torchtitan trains in bf16 through FSDP2, which needs two ranks that share";
  if (p == 1 && strategy.zero_stage != 3) return "FSDP2 without a pipeline is ZeRO-3 (zero=3)";
  if (p > 1 && strategy.zero_stage != 1) {
    return "in a pipeline FSDP2 keeps whole weights and gradients until the last micro-batch, as ZeRO-1 (zero=1)";
  }
  if (model.num_kv_heads % t != 0) {
    return concat("torchtitan cuts key/value heads whole, and t=", t, " does not divide ", model.num_kv_heads);
  }
  if (sequence_length % (2 * t) != 0) {
    return concat("torchtitan needs sequences that 2 x t = ", 2 * t, " divides, and these have ", sequence_length);
  }
  if (system == PlannedSystem::torchtitan_0_3 && sequence_length % loss_chunks != 0) {
    return concat("torchtitan 0.3 computes its loss in ", loss_chunks, " pieces of each sequence, which do not divide ",
                  sequence_length, " tokens");
  }
  if (p == 1) return std::nullopt;
  if (strategy.schedule == PipelineSchedule::one_f_one_b && configuration.num_microbatches() < p) {
    return concat("PyTorch's 1f1b needs ", p, " micro-batches at least, and there are ",
                  configuration.num_microbatches());
  }
  for (const LayerRange& stage : cut_stages(describe(system), model, sequence_length, strategy.num_stages())) {
    if (stage.end == stage.begin) return concat("torchtitan leaves one of ", strategy.num_stages(), " stages empty");
  }
  return std::nullopt;
}

}  // namespace

std::string full_name(PlannedSystem system) {
  switch (system) {
    case PlannedSystem::copus:
      return "Copus";
    case PlannedSystem::megatron:
      return "Megatron-LM";
    case PlannedSystem::nanotron:
      return "nanotron";
    case PlannedSystem::torchtitan:
      return "torchtitan 0.2";
    case PlannedSystem::torchtitan_0_3:
      return "torchtitan 0.3";
  }
  fail_check("known system", __FILE__, __LINE__, "");
}

TrainingSystem describe(PlannedSystem system) {
  switch (system) {
    case PlannedSystem::copus:
      return copus_in_bf16();
    case PlannedSystem::megatron:
      return megatron();
    case PlannedSystem::nanotron:
      return nanotron();
    case PlannedSystem::torchtitan:
      return torchtitan(TorchtitanVersion::v0_2);
    case PlannedSystem::torchtitan_0_3:
      return torchtitan(TorchtitanVersion::v0_3);
  }
  fail_check("known system", __FILE__, __LINE__, "");
}

std::string basis_of(PlannedSystem system) {
  switch (system) {
    case PlannedSystem::copus:
      return "";
    case PlannedSystem::megatron:
    case PlannedSystem::nanotron:
      return concat("Time and memory are those of ", full_name(system),
                    ", as it is described to compare predictions with published runs.");
    case PlannedSystem::torchtitan:
    case PlannedSystem::torchtitan_0_3:
      return "Memory is torchtitan's; times are those of Copus' own layers and communication, cut as torchtitan cuts.";
  }
  fail_check("known system", __FILE__, __LINE__, "");
}

SearchSpace abilities(PlannedSystem system) {
  using enum PipelineSchedule;
  SearchSpace known;
  if (system == PlannedSystem::copus) return known;
  known.recomputes = {Recompute::none, Recompute::full};
  switch (system) {
    case PlannedSystem::copus:
      break;
    case PlannedSystem::megatron:
      known.schedules = {one_f_one_b, interleaved_1f1b};
      known.zero_stages = {0, 1};
      break;
    case PlannedSystem::nanotron:
      known.schedules = {gpipe, one_f_one_b};
      known.zero_stages = {0, 1};
      break;
    case PlannedSystem::torchtitan:
    case PlannedSystem::torchtitan_0_3:
      known.schedules = {gpipe, one_f_one_b, interleaved_1f1b};
      known.interleaved_rounds = InterleavedRounds::equal;
      known.virtual_stages = {2};
      known.sequence_parallel = {true};
      known.zero_stages = {1, 3};
      break;
  }
  return known;
}

std::optional<std::string> unable_reason(PlannedSystem system, const ModelDescription& model,
                                         const Configuration& configuration, int64_t sequence_length) {
  if (system == PlannedSystem::copus) return std::nullopt;
  const ParallelStrategy& strategy = configuration.strategy;
  if (Reason reason = unknown_value(system, strategy)) return reason;
  if (strategy.sequence_parallel && sequence_length % strategy.tensor_parallel != 0) {
    return concat(full_name(system), " cuts each sequence by itself, and t=", strategy.tensor_parallel,
                  " does not divide ", sequence_length, " tokens");
  }
  switch (system) {
    case PlannedSystem::copus:
      break;
    case PlannedSystem::megatron:
      return misfit_in_megatron(model, configuration);
    case PlannedSystem::nanotron:
      return misfit_in_nanotron(model, configuration, sequence_length);
    case PlannedSystem::torchtitan:
    case PlannedSystem::torchtitan_0_3:
      return misfit_in_torchtitan(system, model, configuration, sequence_length);
  }
  return std::nullopt;
}

std::string_view demands(PlannedSystem system) {
  switch (system) {
    case PlannedSystem::copus:
      break;
    case PlannedSystem::megatron:
      return "Megatron-LM gives every stage of a pipeline as many layers, where embedding and loss may count as one "
             "each";
    case PlannedSystem::nanotron:
      return "nanotron cuts key/value heads whole, and its 1f1b needs p - 1 micro-batches";
    case PlannedSystem::torchtitan:
    case PlannedSystem::torchtitan_0_3:
      return "torchtitan needs d of at least 2, t that divides the key/value heads, and for 1f1b p micro-batches";
  }
  return "";
}

// Checks, among other things, the head size: some programs cannot set it, because their attention is as wide as the
// hidden size.
std::optional<std::string> lacking_model(PlannedSystem system, const ModelDescription& model, int64_t sequence_length) {
  const auto lacks = [&](const std::string& what) { return concat(full_name(system), " has no ", what); };
  const bool has_wide_attention = model.num_heads * model.head_dim != model.hidden_size;
  const auto& scaling = model.rope_scaling;
  if (model.has_window(sequence_length)) {
    return concat("plans do not cover sliding windows; use sequences of at most ", model.attention_window,
                  " tokens (sliding_window)");
  }
  if (system != PlannedSystem::copus && model.has_output_norms()) {
    return concat("Copus does not plan norms of the outputs of attention and feed-forward (OLMo 2 and 3, Gemma) for ",
                  full_name(system));
  }
  const bool has_multipliers = model.embedding_multiplier != 1 || model.residual_multiplier != 1 ||
                               model.attention_multiplier != 0 || model.logits_scaling != 1;
  if (system != PlannedSystem::copus && has_multipliers) {
    return concat("Copus does not plan multipliers (Granite) for ", full_name(system));
  }
  if (model.attention_softcap > 0) {
    return "plans do not cover soft-caps of attention (attn_logit_softcapping)";
  }
  if (system != PlannedSystem::copus && model.logits_softcap > 0) {
    return concat("Copus does not plan soft-caps (Gemma 2) for ", full_name(system));
  }
  if (system != PlannedSystem::copus && (model.parallel_residual || model.architecture == Architecture::gpt_neox)) {
    return concat("Copus does not plan GPT-NeoX for ", full_name(system));
  }
  if (system != PlannedSystem::copus && model.architecture == Architecture::copus) {
    return lacks("Copus' own architecture \"copus\"");
  }
  if (system != PlannedSystem::copus && model.architecture == Architecture::phi3) {
    return concat("Copus does not plan Phi-3 for ", full_name(system));
  }
  if (system != PlannedSystem::copus && scaling && scaling->type != RopeType::llama3) {
    return concat("Copus does not plan rope_scaling other than \"llama3\" for ", full_name(system));
  }
  if (system != PlannedSystem::copus && (model.norm == NormKind::layer || model.learned_positions)) {
    return concat("Copus does not plan LayerNorm or learned positions (GPT-2) for ", full_name(system));
  }
  if (system != PlannedSystem::copus && (model.activation != ActivationFunction::silu || !model.gated_feed_forward)) {
    return concat("Copus does not plan feed-forwards other than SwiGLU for ", full_name(system));
  }
  if (system != PlannedSystem::copus && (model.attention_output_bias || model.feed_forward_bias)) {
    return concat("Copus does not plan biases of the output projection or the feed-forward (attention_bias, mlp_bias) ",
                  "for ", full_name(system));
  }
  switch (system) {
    case PlannedSystem::copus:
      break;
    case PlannedSystem::megatron:
      if (std::trunc(model.rope_theta) != model.rope_theta) {
        return lacks(concat("flag for a rope_theta with a fraction, such as ", model.rope_theta,
                            ": --rotary-base takes a whole number"));
      }
      if (scaling && *scaling != RopeScaling{.factor = scaling->factor}) {
        return lacks("flags for a rope_scaling other than Llama 3.1's but for its factor");
      }
      break;
    case PlannedSystem::nanotron:
      if (model.qk_norm != QkNorm::none) return lacks("norms of query and key heads");
      if (model.no_rope_interval > 0) {
        return concat("Copus does not plan layers without rotary embeddings for ", full_name(system));
      }
      if (has_wide_attention) return lacks("attention that is not as wide as hidden_size");
      break;
    case PlannedSystem::torchtitan:
    case PlannedSystem::torchtitan_0_3:
      if (model.qk_norm != QkNorm::none) {
        return concat("Copus does not plan Qwen3 for ", full_name(system), ": its qwen3 was not measured");
      }
      if (model.no_rope_interval > 0) return lacks("SmolLM3");
      if (model.architecture == Architecture::qwen2) return lacks("Qwen2 or Qwen2.5 (its qwen3 has other attention)");
      if (model.architecture == Architecture::mistral) return lacks("Mistral");
      if (model.qkv_bias) return lacks("biases of queries, keys and values in its llama3");
      if (has_wide_attention) return lacks("attention that is not as wide as hidden_size");
      if (model.tie_word_embeddings && system == PlannedSystem::torchtitan) {
        return lacks("tied embeddings in its llama3; 0.3 has (--system torchtitan-0.3)");
      }
      break;
  }
  return std::nullopt;
}

// Megatron-LM divides into equal stages the layers together with the embedding, the loss, both, or neither.
std::vector<int64_t> possible_virtual_stages(PlannedSystem system, const ModelDescription& model) {
  std::vector<int64_t> stages = abilities(system).virtual_stages;
  if (system != PlannedSystem::megatron) return stages;
  for (int64_t count = 2; count <= model.num_layers; ++count) {
    if (even_ends(model.num_layers, count)) stages.push_back(count);
  }
  return stages;
}

void take_what_is_usual(PlannedSystem system, const ConfigurationChange& asked, ParallelStrategy& strategy) {
  if (system != PlannedSystem::torchtitan && system != PlannedSystem::torchtitan_0_3) return;
  if (!asked.names("zero")) strategy.zero_stage = strategy.pipeline_parallel > 1 ? 1 : 3;
  if (!asked.names("sp")) strategy.sequence_parallel = strategy.tensor_parallel > 1;
}

}  // namespace copus
