// For tests of layouts: a small run, short names for changes of its layout, and its ranks as threads.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "copus/comm/gpu/device_world.h"
#include "copus/comm/testing/borrowed_world.h"
#include "copus/comm/testing/fake_device_runtime.h"
#include "copus/comm/testing/rank_threads.h"
#include "copus/config/run_config.h"
#include "copus/model/kernels/device_stream.h"
#include "copus/model/kernels/kernels.h"
#include "copus/model/testing/test_device.h"
#include "copus/train/run/device.h"
#include "copus/train/trainer/trainer.h"

namespace copus::layouts {

using Change = std::function<void(RunConfig&)>;

inline Change ranks(int64_t data, int64_t tensor, int64_t pipeline) {
  return [=](RunConfig& config) {
    config.parallel.data_parallel = data;
    config.parallel.tensor_parallel = tensor;
    config.parallel.pipeline_parallel = pipeline;
  };
}
inline Change schedule(PipelineSchedule kind, int64_t virtual_stages = 1) {
  return [=](RunConfig& config) {
    config.parallel.schedule = kind;
    config.parallel.virtual_stages = virtual_stages;
  };
}
inline const Change gpipe = schedule(PipelineSchedule::gpipe), zb_h1 = schedule(PipelineSchedule::zb_h1),
                    interleaved = schedule(PipelineSchedule::interleaved_1f1b, 2);
inline Change zero(int64_t stage, int64_t replicas = 1) {
  return [=](RunConfig& config) {
    config.parallel.zero_stage = stage;
    config.parallel.zero_replicas = replicas;
  };
}
inline const Change zero_1 = zero(1), zero_2 = zero(2), zero_3 = zero(3), zero_3_keeping = [](RunConfig& config) {
  config.parallel.zero_stage = 3;
  config.parallel.reshard_after_forward = false;
};
inline const Change sequence_parallel = [](RunConfig& config) { config.parallel.sequence_parallel = true; };
inline const Change tied = [](RunConfig& config) { config.model.tie_word_embeddings = true; };
inline const Change signum = [](RunConfig& config) { config.optimizer.kind = OptimizerKind::signum; };
inline const Change muon = [](RunConfig& config) { config.optimizer.kind = OptimizerKind::muon; };
inline const Change modelled = [](RunConfig& config) {
  config.cluster.clock = ClockKind::modelled;
  config.cluster.description = {.ranks_per_node = 2,
                                .within_node = {.latency_seconds = 1e-6, .bytes_per_second = 1e9},
                                .between_nodes = {.latency_seconds = 1e-5, .bytes_per_second = 1e8},
                                .flops_per_second = 1e10};
  config.adapt.policy = PolicyKind::fixed;
};
inline const Change dual_norms = [](RunConfig& config) { config.noise_scale.dual_interval = 1; };
inline const Change biases = [](RunConfig& config) {
  config.model.architecture = Architecture::qwen2;
  config.model.qkv_bias = true;
};
inline const Change biases_everywhere = [](RunConfig& config) {
  config.model.qkv_bias = config.model.attention_output_bias = config.model.feed_forward_bias = true;
};
inline const Change like_gpt2 = [](RunConfig& config) {
  biases_everywhere(config);
  config.model.architecture = Architecture::gpt2;
  config.model.num_kv_heads = config.model.num_heads;
  config.model.norm = NormKind::layer;
  config.model.learned_positions = config.model.scales_residual_initializer = true;
  config.model.max_position_embeddings = 21;
  config.model.activation = ActivationFunction::gelu_tanh;
  config.model.gated_feed_forward = false;
};
inline const Change normalized_heads = [](RunConfig& config) {
  config.model.architecture = Architecture::qwen3;
  config.model.qk_norm = QkNorm::head;
};
inline const Change normalized_outputs_and_projections = [](RunConfig& config) {
  config.model.architecture = Architecture::olmo2;
  config.model.qk_norm = QkNorm::projection;
  config.model.block_norm = BlockNorm::output;
};
inline const Change within_a_window = [](RunConfig& config) {
  config.model.architecture = Architecture::mistral;
  config.model.attention_window = 6;
};
inline const Change windows_in_some_layers = [](RunConfig& config) {
  normalized_outputs_and_projections(config);
  config.model.architecture = Architecture::olmo3;
  config.model.attention_window = 6;
  config.model.full_attention_interval = 3;
  config.model.sliding_rope_theta = 500;
  config.model.rope_scaling = RopeScaling{RopeType::yarn, 4.0, 1.0, 32.0, 16, 1.2};
};
inline const Change multipliers = [](RunConfig& config) {
  config.model.architecture = Architecture::granite;
  config.model.embedding_multiplier = 12;
  config.model.residual_multiplier = 0.22;
  config.model.attention_multiplier = 0.15;
  config.model.logits_scaling = 6;
};
inline const Change like_phi3 = [](RunConfig& config) {
  config.model.architecture = Architecture::phi3;
  config.model.partial_rotary_factor = 0.5;
};
inline const Change like_gemma3 = [](RunConfig& config) {
  config.model.architecture = Architecture::gemma3_text;
  config.model.activation = ActivationFunction::gelu_tanh;
  config.model.qk_norm = QkNorm::head;
  config.model.block_norm = BlockNorm::both;
  config.model.norms_add_one = true;
  config.model.embedding_multiplier = std::sqrt(static_cast<double>(config.model.hidden_size));
  config.model.attention_window = 6;
  config.model.full_attention_interval = 3;
  config.model.sliding_rope_theta = 500;
};
inline const Change like_gemma2 = [](RunConfig& config) {
  config.model.architecture = Architecture::gemma2;
  config.model.activation = ActivationFunction::gelu_tanh;
  config.model.block_norm = BlockNorm::both;
  config.model.norms_add_one = true;
  config.model.embedding_multiplier = std::sqrt(static_cast<double>(config.model.hidden_size));
  config.model.attention_multiplier = 1;  // some scores reach the cap
  config.model.attention_window = 6;
  config.model.full_attention_interval = 2;
  config.model.attention_softcap = 2;
  config.model.logits_softcap = 0.5;
};
inline const Change like_gpt_neox = [](RunConfig& config) {
  biases_everywhere(config);
  config.model.architecture = Architecture::gpt_neox;
  config.model.num_kv_heads = config.model.num_heads;
  config.model.norm = NormKind::layer;
  config.model.partial_rotary_factor = 0.5;
  config.model.activation = ActivationFunction::gelu;
  config.model.gated_feed_forward = false;
  config.model.parallel_residual = true;
};
// Properties that no published model combines.
inline const Change free_parts = [](RunConfig& config) {
  config.model.architecture = Architecture::copus;
  config.model.norm = NormKind::layer;
  config.model.block_norm = BlockNorm::both;
  config.model.qk_norm = QkNorm::projection;
  config.model.activation = ActivationFunction::gelu;
  config.model.qkv_bias = config.model.attention_output_bias = true;
  config.model.attention_window = 6;
  config.model.full_attention_interval = 3;
  config.model.no_rope_interval = 2;
  config.model.partial_rotary_factor = 0.5;
  config.model.residual_multiplier = 0.5;
  config.model.attention_softcap = 2;
  config.model.parallel_residual = true;
};
inline const Change some_layers_without_rope = [](RunConfig& config) {
  config.model.architecture = Architecture::smollm3;
  config.model.no_rope_interval = 3;
};
inline const Change documents_apart = [](RunConfig& config) { config.data.mask_across_documents = true; };
inline const Change fp32 = [](RunConfig& config) { config.execution.precision = Precision::fp32; };
inline const Change bf16 = [](RunConfig& config) { config.execution.precision = Precision::bf16; };
inline Change recompute(Recompute mode) {
  return [=](RunConfig& config) { config.parallel.recompute = mode; };
}
inline Change kv_heads(int64_t count) {
  return [=](RunConfig& config) { config.model.num_kv_heads = count; };
}
inline Change micro_batch(int64_t size) {
  return [=](RunConfig& config) { config.train.micro_batch = size; };
}
inline Change global_batch(int64_t size) {
  return [=](RunConfig& config) { config.train.global_batch = size; };
}

// Returns `base` followed by one layout's changes.
inline std::vector<Change> join(std::vector<Change> base, const std::vector<Change>& layout) {
  base.insert(base.end(), layout.begin(), layout.end());
  return base;
}

inline void write_corpus(const std::filesystem::path& path) {
  std::ofstream file(path);
  for (int i = 0; i < 300; ++i) file << "line " << i * i % 97 << " of the corpus; " << i << '\n';
}

// The common configuration of runs of a small model on `corpus`.
inline RunConfig small_run(const std::filesystem::path& corpus) {
  RunConfig config;
  config.model.vocab_size = 258;
  config.model.num_heads = 4;
  config.model.num_kv_heads = 2;
  config.data.train = {{.path = corpus.string(), .weight = 1}};
  config.data.document_separator = "\n";  // samples then differ in their tokens with loss
  config.train.global_batch = 8;
  config.train.micro_batch = 2;
  config.execution.precision = Precision::fp32;
  return config;
}

// A small run with four layers, which at most four tensor-parallel ranks can split.
inline RunConfig small_run_of_four_layers(const std::filesystem::path& corpus) {
  RunConfig config = small_run(corpus);
  config.model.hidden_size = 64;
  config.model.intermediate_size = 96;
  config.model.num_layers = 4;
  config.model.head_dim = 16;
  config.train.sequence_length = 15;
  return config;
}

// Returns the configuration with these changes, which must be feasible.
inline RunConfig with_changes(RunConfig config, const std::vector<Change>& changes) {
  for (const Change& change : changes) change(config);
  const auto reason = infeasible_reason(config.model, configuration_of(config), config.train.sequence_length);
  EXPECT_EQ(reason, std::nullopt) << reason.value_or("");
  return config;
}

inline Dataset open_data(const RunConfig& config) {
  return {config.data, config.train.sequence_length, config.model.vocab_size, config.execution.seed};
}

// Connects ranks as threads, with memory on their common device.
using Connect = std::function<std::unique_ptr<World>(World&)>;

inline std::unique_ptr<World> on_test_device(World& world) {
  auto same = std::make_unique<BorrowedWorld>(world);
  const at::Device device = test_device();
  if (device.is_cpu()) return same;
  use_device(device);
  return stage_through_host(std::move(same),
                            make_gpu_runtime(device.index(), [device] { return current_stream_handle(device); }));
}

// Connects ranks on the CPU, whose memory all counts as memory of a common device.
inline std::unique_ptr<World> as_on_a_device(World& world) {
  return stage_through_host(std::make_unique<BorrowedWorld>(world),
                            std::make_shared<FakeDeviceRuntime>(FakeDeviceRuntime::Options{.is_the_host = true}));
}

// Runs `body` with a trainer on every rank.
inline void train_on_every_rank(const RunConfig& config,
                                const std::function<void(Trainer&, World&, const Dataset&)>& body,
                                const Connect& connect = on_test_device, bool survives_failures = false) {
  run_ranks_as_threads(
      num_training_ranks(config),
      [&](World& plain) {
        kernels::set_num_threads(1);
        const std::unique_ptr<World> world = connect(plain);
        const Dataset dataset = open_data(config);
        const auto processes = survives_failures ? ranks_as_processes(*world) : std::vector<int64_t>();
        Trainer trainer(config, configuration_of(config), dataset, test_device(), *world, processes);
        body(trainer, *world, dataset);
      },
      60);
}

}  // namespace copus::layouts
