// The table of a run configuration's fields: section, key, member and range, each written once. Parsing, range checks,
// the detection of unknown keys and writing all visit this table. Only sources of this room include this header.
#pragma once

#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "copus/base/numbers/range.h"
#include "copus/base/process/cores.h"
#include "copus/base/text/duration.h"
#include "copus/config/run_config.h"
#include "copus/description/configuration_fields.h"

namespace copus {

inline constexpr Range<int64_t> at_least_one{1};
inline constexpr Range<int64_t> newton_schulz_steps{1, 100};
inline constexpr Range<int64_t> at_least_zero{0};
inline constexpr Range<int64_t> sequence_tokens{1, std::numeric_limits<int32_t>::max()};
inline constexpr Range<int64_t> sequence_tokens_or_zero{0, sequence_tokens.high};
inline constexpr Range<int64_t> batch_or_zero{0, allowed_batches.high};
inline constexpr Range<int64_t> micro_batches_or_zero{0, int64_t{1} << 32};  // times a micro-batch stays below 2^63
inline constexpr Range<int64_t> devices_of_node{1, int64_t{1} << 16};
inline constexpr Range<int64_t> devices_of_node_or_zero{0, devices_of_node.high};
inline constexpr Range<int64_t> cluster_size{0, int64_t{1} << 24};  // number of ranks; 0: not given
inline constexpr Range<double> seconds_or_zero{0.0, longest_duration};
inline constexpr Range<double> at_least_one_second{1.0, longest_duration};
inline constexpr Range<double> window_of_samples{1.0, 1e18};
inline constexpr Range<double> amount_or_zero{0.0, 1e18};  // number of tokens or updates
inline constexpr Range<double> amount_of_tokens{1e-9, 1e18};
inline constexpr Range<double> deviation_of_measurement{1e-6, 10.0};
inline constexpr Range<double> any_factor{1e-9, 1e9};
inline constexpr Range<double> any_factor_or_zero{0.0, 1e9};
inline constexpr Range<double> single_precision_or_zero{0.0, single_precision.high};
inline constexpr Range<double> share{0.0, 1.0};
inline constexpr Range<double> share_below_one{.low = 0.0, .high = 1.0, .below_high = true};
inline constexpr Range<double> blend_weight{1e-300, 1e300};
inline constexpr Range<double> logarithm_deviation{0.0, 10.0};
// Ranges for clusters, wide enough for imaginary ones. Divisors stay far from zero.
inline constexpr Range<double> link_latency{0.0, 1e9};     // microseconds
inline constexpr Range<double> link_bandwidth{1e-9, 1e9};  // gigabytes per second
inline constexpr Range<double> compute_rate{1e-9, 1e9};    // teraflops
inline constexpr Range<double> storage{1e-9, 1e9};         // gigabytes
inline constexpr Range<double> launch_time{0.0, 1e9};      // microseconds
inline constexpr Range<double> megabytes{1e-9, 1e9};
inline constexpr Range<double> split_time{1e-9, 1e9};  // milliseconds

// The keys of [model] that replace inline fields by a description elsewhere.
inline constexpr const char* model_config_key = "config";
inline constexpr const char* model_init_from_key = "init_from";
inline constexpr const char* model_ignore_dropout_key = "ignore_dropout";  // allowed beside any description
// The key of [cluster] that replaces inline fields by a file.
inline constexpr const char* cluster_config_key = "config";

// A unit in a cluster file; names of keys end with their unit. The program itself uses seconds, bytes and operations. A
// conversion rounds once, so that a value that is read, written and read again stays the same.
struct Unit {
  double multiplier;
  double divisor;
  double to_ours(double value) const { return value * multiplier / divisor; }
  double to_theirs(double value) const { return value * divisor / multiplier; }
};
inline constexpr Unit microseconds{1, 1e6};
inline constexpr Unit milliseconds{1, 1e3};
inline constexpr Unit mega{1e6, 1};
inline constexpr Unit giga{1e9, 1};
inline constexpr Unit tera{1e12, 1};
inline constexpr const char* latency_key = "latency_microseconds";
inline constexpr const char* bandwidth_key = "gigabytes_per_second";
inline constexpr const char* efficiency_key = "efficiency";
inline constexpr const char* tree_key = "tree_microseconds";
// The points of a curve are at positive sizes. A point's value is relative to the value at one fitted or measured size,
// and may be above 1. (On a CPU with small caches, a matrix product of size 512 ran at 0.35 times the speed of one of
// size 16.)
inline constexpr Range<double> curve_place{1e-9, 1e18};
inline constexpr Range<double> curve_share{1e-9, 10.0};

// Visits the fields of a model's description.
//
// A visitor has these functions:
// - section(name);
// - field(key, member), and field(key, member, range) for numbers;
// - quantity(key, member, unit, range) for numbers in a unit that differs from the program's own;
// - duration(key, member, range) for seconds that may also be given as text;
// - cluster(member), for which a visitor may call visit_cluster.
//
// For fields of type Device or CommunicatorCosts a visitor may call visit_device or visit_communicators.
template <class Model, class Visitor>
void visit_model_fields(Model& model, Visitor& visitor) {
  visitor.field("architecture", model.architecture);
  visit_sizes([&](const char* key, auto& size) { visitor.field(key, size, at_least_one); }, model);
  visitor.field("max_position_embeddings", model.max_position_embeddings, at_least_one);
  visitor.field("rms_norm_eps", model.rms_norm_eps, single_precision);
  visitor.field("rope_theta", model.rope_theta, single_precision);
  visitor.field("rope_scaling", model.rope_scaling);
  visitor.field("partial_rotary_factor", model.partial_rotary_factor, single_precision);
  visitor.field("no_rope_layer_interval", model.no_rope_interval, at_least_zero);
  visitor.field("sliding_window", model.attention_window, at_least_zero);
  visitor.field("full_attention_interval", model.full_attention_interval, at_least_zero);
  visitor.field("sliding_rope_theta", model.sliding_rope_theta, single_precision_or_zero);
  visitor.field("embedding_multiplier", model.embedding_multiplier, single_precision);
  visitor.field("residual_multiplier", model.residual_multiplier, single_precision);
  visitor.field("attention_multiplier", model.attention_multiplier, single_precision_or_zero);
  visitor.field("logits_scaling", model.logits_scaling, single_precision);
  visitor.field("attn_logit_softcapping", model.attention_softcap, single_precision_or_zero);
  visitor.field("final_logit_softcapping", model.logits_softcap, single_precision_or_zero);
  visitor.field("use_parallel_residual", model.parallel_residual);
  visitor.field("norm", model.norm);
  visitor.field("block_norm", model.block_norm);
  visitor.field("qk_norm", model.qk_norm);
  visitor.field("hidden_act", model.activation);
  visitor.field("gated_feed_forward", model.gated_feed_forward);
  visitor.field("learned_positions", model.learned_positions);
  visitor.field("attention_bias", model.attention_output_bias);
  visitor.field("mlp_bias", model.feed_forward_bias);
  visitor.field("tie_word_embeddings", model.tie_word_embeddings);
  visitor.field("initializer_range", model.initializer_range, single_precision);
}

// Visits the fields of [model]. `Run` is RunConfig or const RunConfig.
template <class Run, class Visitor>
void visit_model(Run& run, Visitor& visitor) {
  visitor.section("model");
  visitor.field(model_init_from_key, run.init_from);
  visitor.field(model_ignore_dropout_key, run.ignore_dropout);
  visit_model_fields(run.model, visitor);
}

// A visitor that collects the known keys, to detect unknown ones: "section.key", or "key" outside of sections.
class FieldKeys {
 public:
  // Whether to collect the keys of every optimizer, or only those of the visited job's optimizer.
  enum class Optimizers { all, own };
  explicit FieldKeys(Optimizers optimizers = Optimizers::all) : optimizers_(optimizers) {}
  bool wants_every_optimizer() const { return optimizers_ == Optimizers::all; }

  void section(const std::string& name) {
    section_ = name + ".";
    if (name == "model") field(model_config_key);
  }
  template <class... Ignored>
  void field(const char* key, const Ignored&...) {
    keys_.push_back(section_ + key);
  }
  template <class... Ignored>
  void quantity(const char* key, const Ignored&...) {
    field(key);
  }
  template <class... Ignored>
  void calibration(const char* key, const Ignored&...) {
    field(key);
  }
  template <class... Ignored>
  void duration(const char* key, const Ignored&...) {
    field(key);
  }
  void cluster(const ClusterDescription& description);

  const std::vector<std::string>& keys() const { return keys_; }

 private:
  Optimizers optimizers_;
  std::string section_;
  std::vector<std::string> keys_;
};

// Visits the fields of a cluster's `device` table.
template <class DeviceOrConst, class Visitor>
void visit_device(DeviceOrConst& device, Visitor& visitor) {
  visitor.field("name", device.name);
  visitor.quantity("memory_gigabytes", device.memory_bytes, giga, storage);
  visitor.quantity("memory_gigabytes_per_second", device.memory_bytes_per_second, giga, link_bandwidth);
  visitor.quantity("peak_teraflops", device.peak_flops_per_second, tera, compute_rate);
  visitor.quantity("matmul_teraflops", device.matmul_flops_per_second, tera, compute_rate);
  visitor.field("matmul_by_rows", device.matmul_by_rows);
  visitor.field("matmul_by_columns", device.matmul_by_columns);
  visitor.field("matmul_by_depth", device.matmul_by_depth);
  visitor.field("attention_forward", device.attention_forward);
  visitor.field("attention_backward", device.attention_backward);
  visitor.quantity("launch_microseconds", device.launch_seconds, microseconds, launch_time);
}

// Visits the fields of a cluster's `communicators` table.
template <class CostsOrConst, class Visitor>
void visit_communicators(CostsOrConst& costs, Visitor& visitor) {
  visitor.quantity("collective_megabytes", costs.collective_bytes, mega, megabytes);
  visitor.quantity("exchange_megabytes", costs.exchange_bytes, mega, megabytes);
  visitor.quantity("message_megabytes", costs.message_bytes, mega, megabytes);
  visitor.quantity("context_megabytes", costs.context_bytes, mega, megabytes);
  visitor.quantity("split_milliseconds", costs.split_seconds, milliseconds, split_time);
}

// Visits the fields of a cluster file, which may also be inline fields of [cluster].
template <class Description, class Visitor>
void visit_cluster(Description& cluster, Visitor& visitor) {
  visitor.field("num_ranks", cluster.num_ranks, cluster_size);
  visitor.field("ranks_per_node", cluster.ranks_per_node, devices_of_node);
  visitor.field("devices_per_node", cluster.devices_per_node, devices_of_node_or_zero);
  visitor.field("within_node", cluster.within_node);
  visitor.field("between_nodes", cluster.between_nodes);
  visitor.field("rails", cluster.rails, devices_of_node);
  visitor.field("network_by_nodes", cluster.network_by_nodes);
  visitor.field("measured_nodes", cluster.measured_nodes, cluster_size);
  visitor.quantity("teraflops_per_rank", cluster.flops_per_second, tera, compute_rate);
  visitor.field("device", cluster.device);
  visitor.field("communicators", cluster.communicators);
}

inline void FieldKeys::cluster(const ClusterDescription& description) {
  field(cluster_config_key);
  visit_cluster(description, *this);
}

// Visits the fields of the run's initial configuration that belong to this section.
template <class Run, class Visitor>
void visit_configuration_keys(std::string_view section, Run& run, Visitor& visitor) {
  const auto visit = [&]<class Value>(const ConfigurationField& field, Value& value) {
    if (section != field.section) return;
    if constexpr (std::is_same_v<std::remove_const_t<Value>, int64_t>) {
      visitor.field(field.name, value, field.range);
    } else {
      visitor.field(field.name, value);
    }
  };
  visit_strategy(visit, run.parallel);
  visit_batches(visit, run.train);
}

// Visits the fields of a JobConfig in [train]. The caller may add a RunConfig's fields of [train] afterwards.
template <class Job, class Visitor>
void visit_train(Job& job, Visitor& visitor) {
  visitor.section("train");
  visitor.field("sequence_length", job.train.sequence_length, sequence_tokens);
  visit_configuration_keys("train", job, visitor);
  visitor.field("max_steps", job.train.max_steps, at_least_zero);
  visitor.field("step_batch", job.train.step_batch, batch_or_zero);
  visitor.field("max_tokens", job.train.max_tokens, at_least_zero);
  visitor.duration("max_seconds", job.train.max_seconds, seconds_or_zero);
  visitor.field("clip_norm", job.train.clip_norm, single_precision_or_zero);
}

// Visits the fields that the job's optimizer has.
template <class Job, class Visitor>
void visit_optimizer(Job& job, Visitor& visitor) {
  visitor.section("optimizer");
  visitor.field("kind", job.optimizer.kind);
  const auto is_of = [&](OptimizerKind kind) {
    if constexpr (requires { visitor.wants_every_optimizer(); }) {
      if (visitor.wants_every_optimizer()) return true;
    }
    return job.optimizer.kind == kind;
  };
  const bool is_muon = is_of(OptimizerKind::muon);
  const bool has_second_moment = is_muon || is_of(OptimizerKind::adamw);
  visitor.field("lr", job.optimizer.lr, single_precision);
  visitor.field("min_lr_ratio", job.optimizer.min_lr_ratio, share);
  visitor.field("beta1", job.optimizer.beta1, share_below_one);
  if (has_second_moment) visitor.field("beta2", job.optimizer.beta2, share_below_one);
  if (has_second_moment) visitor.field("epsilon", job.optimizer.epsilon, single_precision);
  visitor.field("weight_decay", job.optimizer.weight_decay, single_precision_or_zero);
  visitor.field("schedule", job.optimizer.schedule);
  visitor.field("warmup_tokens", job.optimizer.warmup_tokens, amount_or_zero);
  visitor.field("decay_tokens", job.optimizer.decay_tokens, amount_or_zero);
  visitor.field("batch_scaling", job.optimizer.batch_scaling);
  visitor.field("reference_batch", job.optimizer.reference_batch, batch_or_zero);
  if (has_second_moment) visitor.field("scale_beta2", job.optimizer.scale_beta2);
  visitor.field("scale_weight_decay", job.optimizer.scale_weight_decay);
  if (!is_muon) return;
  visitor.field("momentum", job.optimizer.muon.momentum, share_below_one);
  visitor.field("nesterov", job.optimizer.muon.nesterov);
  visitor.field("newton_schulz", job.optimizer.muon.newton_schulz);
  visitor.field("newton_schulz_steps", job.optimizer.muon.newton_schulz_steps, newton_schulz_steps);
  visitor.field("newton_schulz_precision", job.optimizer.muon.newton_schulz_precision);
  visitor.field("update_scale", job.optimizer.muon.update_scale);
  visitor.field("adamw_lr_ratio", job.optimizer.muon.adamw_lr_ratio, any_factor_or_zero);
}

template <class Job, class Visitor>
void visit_noise_scale(Job& job, Visitor& visitor) {
  visitor.section("noise_scale");
  visitor.field("enabled", job.noise_scale.enabled);
  visitor.field("window_samples", job.noise_scale.window_samples, window_of_samples);
  visitor.field("split_interval", job.noise_scale.split_interval, at_least_one);
  visitor.field("dual_interval", job.noise_scale.dual_interval, at_least_zero);
  visitor.calibration("calibration", job.noise_scale);
  visitor.field("critical_updates", job.noise_scale.critical_updates, amount_or_zero);
}

// Visits the fields of a JobConfig in [parallel].
template <class Job, class Visitor>
void visit_parallel(Job& job, Visitor& visitor) {
  visitor.section("parallel");
  visit_configuration_keys("parallel", job, visitor);
}

template <class Job, class Visitor>
void visit_adapt(Job& job, Visitor& visitor) {
  visitor.section("adapt");
  visitor.field("policy", job.adapt.policy);
  visitor.field("advise", job.adapt.advise);
  visitor.field("global_batches", job.adapt.global_batches, allowed_batches);
  visitor.field("micro_batches", job.adapt.micro_batches, allowed_batches);
  visitor.field("schedules", job.adapt.schedules);
  visitor.field("virtual_stages", job.adapt.virtual_stages, allowed_degrees);
  visitor.field("recomputes", job.adapt.recomputes);
  visitor.field("sequence_parallel", job.adapt.sequence_parallel);
  visitor.field("zero_stages", job.adapt.zero_stages, allowed_zero_stages);
  visitor.field("max_tensor_parallel", job.adapt.max_tensor_parallel, at_least_zero);
  visitor.field("alpha", job.adapt.alpha, share);
  visitor.field("objective", job.adapt.objective);
  visitor.field("least_efficiency", job.adapt.least_efficiency, share);
  visitor.field("relayout_threshold", job.adapt.relayout_threshold, any_factor_or_zero);
  visitor.field("batch_threshold", job.adapt.batch_threshold, any_factor_or_zero);
  visitor.field("interval_samples", job.adapt.interval_samples, at_least_one);
  visitor.field("dwell_samples", job.adapt.dwell_samples, at_least_zero);
  visitor.field("dwell_steps", job.adapt.dwell_steps, at_least_zero);
  visitor.field("dwell_pauses", job.adapt.dwell_pauses, any_factor_or_zero);
  visitor.field("most_relayouts", job.adapt.most_relayouts, at_least_zero);
  visitor.field("loss_contract", job.adapt.loss_contract, any_factor_or_zero);
  visitor.field("explore_budget", job.adapt.explore_budget, share_below_one);
  visitor.field("hold_in", job.adapt.hold_in);
  visitor.field("schedule", job.adapt.schedule);
  visitor.field("late_switch_share", job.adapt.late_switch_share, share_below_one);
  visitor.field("late_switch_batch", job.adapt.late_switch_batch, batch_or_zero);
  visitor.field("norm_test_eta", job.adapt.norm_test_eta, any_factor);
  visitor.field("norm_test_interval", job.adapt.norm_test_interval, at_least_one);
  visitor.field("file", job.adapt.file);
  visitor.field("verify", job.adapt.verify);
}

// Visits all fields of a JobConfig, which are also all fields of an AdvisedConfig.
template <class Job, class Visitor>
void visit_job(Job& job, Visitor& visitor) {
  visit_train(job, visitor);
  visit_optimizer(job, visitor);
  visit_noise_scale(job, visitor);
  visit_parallel(job, visitor);
  visit_adapt(job, visitor);
}

// Visits all fields of a RunConfig except those of [model].
template <class Run, class Visitor>
void visit_sections(Run& run, Visitor& visitor) {
  visitor.section("data");
  visitor.field("train", run.data.train);
  visitor.field("held_out", run.data.held_out);
  visitor.field("held_out_fraction", run.data.held_out_fraction, share_below_one);
  visitor.field("document_separator", run.data.document_separator);
  visitor.field("mask_document_ends", run.data.mask_document_ends);
  visitor.field("mask_across_documents", run.data.mask_across_documents);
  visitor.field("document_length", run.data.document_length, any_factor_or_zero);
  visitor.field("shuffle_shards", run.data.shuffle_shards);
  visitor.duration("shard_timeout", run.data.shard_timeout, at_least_one_second);

  visit_train(run, visitor);
  visitor.field("seed", run.execution.seed, at_least_zero);
  visitor.field("precision", run.execution.precision);
  visitor.field("threads", run.execution.threads, allowed_threads);
  visitor.field("device", run.execution.device);

  visit_optimizer(run, visitor);
  visit_noise_scale(run, visitor);
  visit_parallel(run, visitor);
  visitor.duration("wait_limit", run.wait_limit, at_least_one_second);

  visitor.section("heal");
  visitor.field("enabled", run.heal.enabled);
  visitor.field("replace", run.heal.replace);
  visitor.field("restarts", run.heal.restarts, at_least_zero);
  visitor.field("machines", run.heal.machines);

  visit_adapt(run, visitor);

  visitor.section("cluster");
  visitor.field("clock", run.cluster.clock);
  visitor.field("stands_for", run.cluster.stands_for);
  visitor.field("stands_for_sequence_length", run.cluster.stands_for_sequence_length, sequence_tokens_or_zero);
  visitor.field("stands_for_precision", run.cluster.stands_for_precision);
  visitor.field("truth", run.cluster.truth);
  visitor.field("truth_layout_error", run.cluster.truth_layout_error, logarithm_deviation);
  visitor.field("truth_seed", run.cluster.truth_seed, at_least_zero);
  visitor.field("profile", run.cluster.profile);
  visitor.cluster(run.cluster.description);

  visitor.section("evaluate");
  visitor.field("interval", run.evaluate.interval, at_least_zero);
  visitor.field("interval_tokens", run.evaluate.interval_tokens, at_least_zero);
  visitor.field("max_batches", run.evaluate.max_batches, micro_batches_or_zero);

  visitor.section("checkpoint");
  visitor.field("interval", run.checkpoint.interval, at_least_zero);
  visitor.field("interval_seconds", run.checkpoint.interval_seconds, at_least_zero);
  visitor.field("keep_last", run.checkpoint.keep_last, at_least_one);

  visitor.section("log");
  visitor.field("interval", run.log.interval, at_least_one);
  visitor.field("tensorboard", run.log.tensorboard);
}

// A key with its value as TOML.
struct WrittenField {
  std::string section;
  std::string key;
  std::string value;
};
std::vector<WrittenField> write_fields(const RunConfig& config);

// Throw UserError if values that are in their ranges contradict each other. `source` names the file.
void check_run_config(const RunConfig& config, const std::string& source);
void check_advised_config(const AdvisedConfig& config, const std::string& source);

}  // namespace copus
