// For tests: short names for what a layout changes in a run's configuration.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "copus/config/run_config.h"

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
inline const Change zero_1 = [](RunConfig& config) { config.parallel.zero_stage = 1; };
inline const Change sequence_parallel = [](RunConfig& config) { config.parallel.sequence_parallel = true; };
inline const Change tied = [](RunConfig& config) { config.model.tie_word_embeddings = true; };
inline const Change biases = [](RunConfig& config) {
  config.model.architecture = Architecture::qwen2;
  config.model.qkv_bias = true;
};
inline const Change fp32 = [](RunConfig& config) { config.train.precision = Precision::fp32; };
inline const Change bf16 = [](RunConfig& config) { config.train.precision = Precision::bf16; };
inline Change recompute(Recompute mode) {
  return [=](RunConfig& config) { config.train.recompute = mode; };
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

// `base` with one layout's changes after it.
inline std::vector<Change> join(std::vector<Change> base, const std::vector<Change>& layout) {
  base.insert(base.end(), layout.begin(), layout.end());
  return base;
}

}  // namespace copus::layouts
