// Random configurations are written and read back equal.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "copus/config/run_config.h"

namespace copus {
namespace {

// Draws a random value for every field.
class RandomConfigs {
 public:
  RunConfig draw() {
    RunConfig config;
    config.model = draw_model();
    for (int64_t i = whole(1, 4); i > 0; --i) config.data.train.push_back({"train" + text(), positive()});
    for (int64_t i = whole(0, 3); i > 0; --i) config.data.held_out.push_back("held out" + text());
    config.data.held_out_fraction = share();
    config.data.document_separator = text();
    config.data.mask_document_ends = coin();
    if (coin()) config.data.mask_across_documents = coin();
    config.data.document_length = positive();
    config.data.shuffle_shards = coin();
    if (config.data.shuffle_shards) config.data.held_out_fraction = 0;
    config.data.shard_timeout = 1 + positive();
    config.train.sequence_length = whole(1, config.model.max_position_embeddings);
    config.train.micro_batch = whole(1, 100);
    config.train.max_steps = whole(1, INT64_MAX);
    config.train.max_tokens = whole(0, INT64_MAX);
    config.train.step_batch = whole(0, 1 << 24);
    config.train.max_seconds = coin() ? 0 : positive();
    config.execution.seed = static_cast<uint64_t>(whole(0, INT64_MAX));
    config.execution.precision = static_cast<Precision>(whole(0, 2));
    config.parallel.recompute = static_cast<Recompute>(whole(0, 2));
    config.train.clip_norm = positive();
    config.execution.threads = whole(0, 64);
    config.execution.device =
        config.model.attention_softcap > 0 || config.model.has_window(config.train.sequence_length) ? "cpu"
                                                                                                    : "device" + text();
    config.optimizer.lr = positive();
    config.optimizer.min_lr_ratio = share();
    config.optimizer.beta1 = share();
    if (coin()) {
      config.optimizer.kind = OptimizerKind::signum;
    } else {
      if (coin()) {
        config.optimizer.kind = OptimizerKind::muon;
        config.optimizer.muon = {.momentum = share(),
                                 .nesterov = coin(),
                                 .newton_schulz = static_cast<NewtonSchulz>(whole(0, 1)),
                                 .newton_schulz_steps = whole(1, 100),
                                 .newton_schulz_precision = static_cast<Precision>(whole(0, 2)),
                                 .update_scale = static_cast<UpdateScale>(whole(0, 1)),
                                 .adamw_lr_ratio = positive()};
      }
      config.optimizer.beta2 = share();
      config.optimizer.epsilon = positive();
      config.optimizer.scale_beta2 = coin();
    }
    config.optimizer.weight_decay = positive();
    config.optimizer.schedule = static_cast<LearningRateSchedule>(whole(0, 2));
    config.optimizer.warmup_tokens = coin() ? share() / 2 : 1 + positive();
    config.optimizer.decay_tokens = coin() ? share() / 2 : 1 + positive();
    config.optimizer.batch_scaling = static_cast<BatchScaling>(whole(0, 2));
    config.optimizer.reference_batch = whole(0, 1 << 24);
    config.optimizer.scale_weight_decay = coin();
    config.noise_scale.enabled = coin();
    config.noise_scale.window_samples = 1 + positive();
    config.noise_scale.split_interval = whole(1, 1000);
    config.noise_scale.dual_interval = whole(0, 1000);
    if (coin()) {
      config.noise_scale.calibration = positive();
    } else {
      for (int64_t i = whole(1, 3); i > 0; --i) {
        config.noise_scale.critical_batches.push_back({positive(), positive(), positive(), 1e-6 + share()});
      }
    }
    draw_layout(config);
    config.wait_limit = 1 + positive();
    if (coin()) {
      config.cluster.clock = static_cast<ClockKind>(whole(0, 3));
      config.cluster.description = draw_cluster();
      if (config.cluster.is_modelled()) draw_modelled_job(config);
    }
    config.cluster.profile = text();
    draw_adaptation(config);
    config.evaluate.interval = whole(0, 1000);
    config.evaluate.max_batches = whole(0, 1000);
    config.checkpoint.interval = whole(0, 1000);
    config.checkpoint.keep_last = whole(1, 1000);
    config.log.interval = whole(1, 1000);
    config.log.tensorboard = coin();
    config.ignore_dropout = coin();
    if (coin()) config.init_from = "/no such directory" + text();
    return config;
  }

 private:
  ModelDescription draw_model() {
    ModelDescription model;
    model.architecture = static_cast<Architecture>(whole(0, std::ssize(named_values<Architecture>) - 1));
    const auto may = [&](const char* field) {
      const auto owners = architectures_with(field);
      return std::ranges::find(owners, model.architecture) != owners.end() && coin();
    };
    model.attention_output_bias = may("attention_bias");
    model.qkv_bias = model.attention_output_bias || model.architecture == Architecture::qwen2;
    model.feed_forward_bias = may("mlp_bias");
    if (model.architecture == Architecture::qwen3) model.qk_norm = QkNorm::head;
    if (model.architecture == Architecture::olmo2 || model.architecture == Architecture::olmo3) {
      model.qk_norm = QkNorm::projection;
      model.block_norm = BlockNorm::output;
    }
    model.vocab_size = whole(1, 300000);
    model.num_kv_heads = whole(1, 16);
    model.num_heads = model.num_kv_heads * whole(1, 16);
    model.hidden_size = model.num_heads * whole(1, 100);
    model.head_dim = 2 * whole(1, 200);
    model.intermediate_size = whole(1, 100000);
    model.num_layers = whole(1, 100);
    if (model.architecture == Architecture::smollm3) model.no_rope_interval = whole(0, model.num_layers);
    model.max_position_embeddings = whole(2, INT32_MAX);
    const bool is_gemma = model.architecture == Architecture::gemma3_text || model.architecture == Architecture::gemma2;
    const bool has_layer_types =
        model.architecture == Architecture::olmo3 || model.architecture == Architecture::copus || is_gemma;
    const bool may_have_window =
        has_layer_types || model.architecture == Architecture::mistral || model.architecture == Architecture::phi3;
    if (may_have_window && coin()) {
      model.attention_window = whole(1, model.max_position_embeddings - 1);
    }
    if (model.architecture == Architecture::gemma3_text) model.qk_norm = QkNorm::head;
    if (may("attn_logit_softcapping")) model.attention_softcap = positive();
    if (may("final_logit_softcapping")) model.logits_softcap = positive();
    if (is_gemma) {
      model.activation = ActivationFunction::gelu_tanh;
      model.block_norm = BlockNorm::both;
      model.norms_add_one = true;
      model.embedding_multiplier = std::sqrt(static_cast<double>(model.hidden_size));
      model.rounds_embedding_multiplier = true;
      const int64_t scalar = whole(1, 1000);
      if (scalar != model.head_dim) model.attention_multiplier = 1 / std::sqrt(static_cast<double>(scalar));
    }
    if (model.architecture == Architecture::granite) {
      model.embedding_multiplier = positive();
      model.residual_multiplier = positive();
      model.attention_multiplier = coin() ? 0 : positive();
      model.logits_scaling = positive();
    }
    if (has_layer_types && coin()) model.full_attention_interval = whole(0, model.num_layers);
    model.rms_norm_eps = positive();
    model.rope_theta = positive();
    if (model.architecture == Architecture::copus) {
      model.norm = static_cast<NormKind>(whole(0, 1));
      model.block_norm = static_cast<BlockNorm>(whole(0, 2));
      model.qk_norm = static_cast<QkNorm>(whole(0, 2));
      model.activation = static_cast<ActivationFunction>(whole(0, 2));
      model.gated_feed_forward = coin();
      model.learned_positions = coin();
      model.parallel_residual = coin();
      model.no_rope_interval = whole(0, model.num_layers);
      model.embedding_multiplier = positive();
      model.residual_multiplier = positive();
      model.attention_multiplier = coin() ? 0 : positive();
      model.logits_scaling = positive();
      if (model.learned_positions) model.rope_theta = ModelDescription().rope_theta;
    }
    if (model.architecture == Architecture::gpt2 || model.architecture == Architecture::gpt_neox) {
      model.norm = NormKind::layer;
      model.gated_feed_forward = false;
      model.feed_forward_bias = true;
      model.num_kv_heads = model.num_heads;
      model.hidden_size = model.num_heads * model.head_dim;
    }
    if (model.architecture == Architecture::gpt2) {
      model.learned_positions = model.scales_residual_initializer = true;
      model.activation = ActivationFunction::gelu_tanh;
      model.qkv_bias = model.attention_output_bias = true;
      model.rope_theta = ModelDescription().rope_theta;
    }
    if (model.architecture == Architecture::gpt_neox) {
      model.activation = ActivationFunction::gelu;
      model.parallel_residual = coin();
    }
    model.tie_word_embeddings = coin();
    model.initializer_range = 1 - share();
    if (!model.learned_positions && may("partial_rotary_factor") && model.head_dim % 4 == 0)
      model.partial_rotary_factor = 0.5;
    if (!model.learned_positions && coin()) {
      RopeScaling& scaling = model.rope_scaling.emplace();
      scaling.type = model.architecture == Architecture::phi3 ? RopeType::longrope : static_cast<RopeType>(whole(0, 4));
      if (model.architecture == Architecture::phi3) model.hidden_size = model.num_heads * model.head_dim;
      scaling.factor = 1 + share();
      if (scaling.has_original_context()) scaling.original_max_position_embeddings = whole(2, 100000);
      if (scaling.type == RopeType::llama3 || scaling.type == RopeType::yarn) {
        scaling.low_frequency_factor = share() + 1e-3;
        scaling.high_frequency_factor = 2 + share();
      }
      if (scaling.type == RopeType::longrope) {
        scaling.attention_factor = 1 + share();
        for (int64_t i = 0; i < model.rotary_dim() / 2; ++i) {
          scaling.short_factor.push_back(positive());
          scaling.long_factor.push_back(positive());
        }
      }
      if (scaling.type == RopeType::yarn) {
        scaling.attention_factor = 1 + share();
        model.rope_theta = 2 + share();
      }
    }
    if (may("sliding_rope_theta")) model.sliding_rope_theta = positive();
    return model;
  }

  // Repeats until the layout is feasible; one rank always is.
  void draw_layout(RunConfig& config) {
    ParallelStrategy& parallel = config.parallel;
    do {
      parallel.data_parallel = whole(1, 3);
      parallel.tensor_parallel = whole(1, 4);
      parallel.pipeline_parallel = whole(1, 4);
      parallel.virtual_stages = coin() ? 1 : whole(1, 3);
      parallel.schedule = static_cast<PipelineSchedule>(whole(0, 3));
      parallel.sequence_parallel = coin();
      parallel.zero_stage = whole(0, 3);
      parallel.reshard_after_forward = coin();
      parallel.zero_replicas = whole(1, 3);
      config.train.global_batch =
          config.train.micro_batch * parallel.data_parallel * parallel.pipeline_parallel * whole(1, 100);
    } while (infeasible_reason(config.model, configuration_of(config), config.train.sequence_length));
  }

  // Draws the job of the modelled clock, which is sometimes the run itself.
  void draw_modelled_job(RunConfig& config) {
    ClusterConfig& cluster = config.cluster;
    cluster.description.flops_per_second = (share() + 1e-3) * 1e12;
    if (coin()) {
      cluster.stands_for = config.model;
      cluster.stands_for->vocab_size = whole(1, 300000);
      cluster.stands_for_sequence_length = config.train.sequence_length;
      cluster.stands_for_precision = static_cast<Precision>(whole(0, 2));
    }
    if (coin()) {
      cluster.truth = draw_cluster();
      cluster.truth->flops_per_second = (share() + 1e-3) * 1e12;
      cluster.truth_layout_error = share();
      cluster.truth_seed = static_cast<uint64_t>(whole(0, 1000));
    }
  }

  // Repeats until no values contradict each other.
  void draw_adaptation(RunConfig& config) {
    AdaptConfig& adapt = config.adapt;
    const auto lacks_workers = [&] {
      const bool cuts = config.parallel.cuts_gradients();
      return adapt.policy == PolicyKind::fsdp_norm
                 ? !cuts
                 : adapt.policy == PolicyKind::ddp_norm && (cuts || config.parallel.data_parallel == 1);
    };
    do {
      adapt.policy = static_cast<PolicyKind>(whole(0, std::ssize(named_values<PolicyKind>) - 1));
      if (adapt.policy == PolicyKind::copus_paper) config.optimizer.batch_scaling = BatchScaling::square_root;
      if (adapt.policy == PolicyKind::seesaw) {
        config.optimizer.schedule = LearningRateSchedule::cosine;
        config.optimizer.min_lr_ratio /= 2;
      }
    } while (lacks_workers() || (traits_of(adapt.policy).reads_noise_scale && !config.noise_scale.enabled) ||
             (adapt.policy != PolicyKind::none && config.cluster.description.device.matmul_flops_per_second == 0));
    adapt.advise = adapt.policy != PolicyKind::none && coin();
    const auto list = [this](auto& values, int64_t low, int64_t high) {
      using Value = std::decay_t<decltype(values)>::value_type;
      for (int64_t i = whole(0, 3); i > 0; --i) values.push_back(static_cast<Value>(whole(low, high)));
    };
    list(adapt.global_batches, 1, 1 << 24);
    list(adapt.micro_batches, 1, 1 << 24);
    list(adapt.schedules, 0, 3);
    list(adapt.virtual_stages, 1, 8);
    list(adapt.recomputes, 0, 2);
    list(adapt.sequence_parallel, 0, 1);
    list(adapt.zero_stages, 0, 3);
    list(adapt.hold_in, 0, 2);
    adapt.max_tensor_parallel = coin() ? 0 : whole(4, 64);
    adapt.alpha = share();
    adapt.objective = static_cast<Objective>(whole(0, 2));
    adapt.least_efficiency = share();
    adapt.relayout_threshold = share();
    adapt.batch_threshold = share();
    adapt.interval_samples = whole(1, INT64_MAX);
    adapt.dwell_samples = whole(0, INT64_MAX);
    adapt.dwell_steps = whole(0, INT64_MAX);
    adapt.dwell_pauses = share() * 100;
    adapt.most_relayouts = whole(0, INT64_MAX);
    adapt.loss_contract = share();
    adapt.schedule = adapt.policy == PolicyKind::steps ? concat("0:", config.train.global_batch) : "0:1" + text();
    adapt.late_switch_share = share();
    adapt.late_switch_batch = config.train.global_batch + whole(1, 1 << 20);
    adapt.norm_test_eta = positive();
    adapt.norm_test_interval = whole(1, INT64_MAX);
    adapt.file = "file" + text();
    adapt.verify = coin();
  }

  ClusterDescription draw_cluster() {
    ClusterDescription cluster;
    cluster.ranks_per_node = whole(1, 16);
    // Draws a multiple of the file's unit, as if read from a file. Not every double survives a change of unit.
    for (Link* link : {&cluster.within_node, &cluster.between_nodes}) {
      link->latency_seconds = share() * 1000 / 1e6;
      link->bytes_per_second = (share() + 1e-3) * 1e9;
    }
    if (coin()) cluster.flops_per_second = (share() + 1e-3) * 1e12;
    cluster.num_ranks = whole(0, 10000);
    cluster.devices_per_node = whole(0, 8);
    cluster.rails = whole(1, 8);
    cluster.within_node.efficiency = draw_curve();
    if (coin()) cluster.between_nodes.tree_seconds = share() * 1000 / 1e6;
    cluster.network_by_nodes = draw_curve();
    cluster.measured_nodes = whole(0, 1000);
    if (coin()) cluster.device = draw_device();
    for (double* bytes : {&cluster.communicators.collective_bytes, &cluster.communicators.exchange_bytes,
                          &cluster.communicators.message_bytes, &cluster.communicators.context_bytes}) {
      if (coin()) *bytes = (share() + 1e-3) * 1e6;
    }
    if (coin()) cluster.communicators.split_seconds = (share() + 1e-3) * 1000 / 1e3;
    return cluster;
  }

  Device draw_device() {
    Device device;
    device.name = text();
    if (coin()) device.memory_bytes = (share() + 1e-3) * 1e9;
    device.memory_bytes_per_second = (share() + 1e-3) * 1e9;
    if (coin()) device.peak_flops_per_second = (share() + 1e-3) * 1e12;
    device.matmul_flops_per_second = (share() + 1e-3) * 1e12;
    device.matmul_by_rows = draw_curve();
    device.matmul_by_columns = draw_curve();
    device.matmul_by_depth = draw_curve();
    device.attention_forward = draw_curve();
    device.attention_backward = draw_curve();
    if (coin()) device.launch_seconds = share() * 1000 / 1e6;
    return device;
  }

  Curve draw_curve() {
    std::vector<CurvePoint> points;
    for (int64_t i = whole(0, 3); i > 0; --i) {
      points.push_back({(points.empty() ? 0 : points.back().at) + positive(), share() + 1e-3});
    }
    // A small increment may vanish in rounding; the points would then not ascend.
    for (size_t i = 1; i < points.size(); ++i) {
      if (points[i].at <= points[i - 1].at) return points[0].at > 0 ? Curve({points[0]}) : Curve();
    }
    return {points};
  }

  int64_t whole(int64_t low, int64_t high) { return std::uniform_int_distribution<int64_t>(low, high)(random_); }
  bool coin() { return whole(0, 1) == 1; }
  double share() { return std::uniform_real_distribution<double>()(random_); }
  double positive() { return std::exp2(static_cast<double>(whole(-29, 29)) * share()); }
  std::string text() {
    std::string result;
    for (int64_t i = whole(0, 8); i > 0; --i) {
      static const std::vector<std::string> pieces = {"a",  " ", "\"", "\\", "\n",   "\r\n",
                                                      "\t", "#", "'",  "é",  "\x7f", "="};
      result += pieces[static_cast<size_t>(whole(0, static_cast<int64_t>(pieces.size()) - 1))];
    }
    return result;
  }

  std::mt19937_64 random_{20240229};
};

TEST(RunConfigWriting, WhatIsWrittenIsReadBackEqual) {
  RandomConfigs configs;
  for (int i = 0; i < 300; ++i) {
    const RunConfig config = configs.draw();
    const std::string toml = to_toml(config);
    const RunConfig read = parse_run_config(toml, "run.toml");
    ASSERT_EQ(read, config) << toml;
    ASSERT_EQ(to_toml(read), toml);
  }
}

}  // namespace
}  // namespace copus
