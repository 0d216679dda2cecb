// For tests: a small model, random models and strategies, and the re-layouts between them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "copus/base/error.h"
#include "copus/base/numbers/philox.h"
#include "copus/placement/relayout_plan.h"

namespace copus::relayout_tests {

inline constexpr int64_t sequence_length = 48;

inline ModelDescription small_model() {
  ModelDescription model;
  model.vocab_size = 37;
  model.hidden_size = 12;
  model.intermediate_size = 24;
  model.num_layers = 8;
  model.num_heads = 8;
  model.num_kv_heads = 4;
  model.head_dim = 6;
  return model;
}

inline RelayoutRequest request_for(const ModelDescription& model, const ParallelStrategy& from,
                                   const ParallelStrategy& to) {
  return {.model = model,
          .sequence_length = sequence_length,
          .from = from,
          .to = to,
          .recipe = state_recipe(OptimizerKind::adamw, DType::f32)};
}

class Draw {
 public:
  explicit Draw(uint64_t trial) : trial_(trial) {}
  int64_t one_of(const std::vector<int64_t>& choices) {
    return choices[philox(stream_key(11, "re-layouts"), trial_, drawn_++)[0] % choices.size()];
  }
  bool coin() { return one_of({0, 1}) == 1; }

 private:
  uint64_t trial_, drawn_ = 0;
};

inline std::vector<int64_t> numbers_below(int64_t end) {
  std::vector<int64_t> numbers(static_cast<size_t>(end));
  std::iota(numbers.begin(), numbers.end(), int64_t{0});
  return numbers;
}

inline std::vector<int64_t> divisors(int64_t number) {
  std::vector<int64_t> all;
  for (int64_t i = 1; i <= number; ++i) {
    if (number % i == 0) all.push_back(i);
  }
  return all;
}

inline ModelDescription random_model(Draw& draw) {
  ModelDescription model;
  model.num_kv_heads = draw.one_of({1, 2, 4, 6});
  model.num_heads = model.num_kv_heads * draw.one_of({2, 4, 8});
  model.head_dim = draw.one_of({2, 6});
  model.hidden_size = draw.one_of({5, 12, 16});
  model.intermediate_size = draw.one_of({16, 24, 48});
  model.vocab_size = draw.one_of({17, 37, 64, 131});
  model.num_layers = draw.one_of({2, 4, 5, 7, 8, 11});
  model.qkv_bias = draw.coin();
  model.attention_output_bias = model.feed_forward_bias = draw.coin();
  model.qk_norm = static_cast<QkNorm>(draw.one_of({0, 1, 2}));
  model.tie_word_embeddings = draw.coin();
  model.learned_positions = draw.coin();
  model.norm = draw.coin() ? NormKind::layer : NormKind::rms;
  return model;
}

// Draws a strategy that can train this model on `ranks` ranks.
inline ParallelStrategy random_strategy(const ModelDescription& model, int64_t ranks, Draw& draw) {
  for (;;) {
    ParallelStrategy strategy;
    strategy.tensor_parallel = draw.one_of(divisors(ranks));
    strategy.pipeline_parallel = draw.one_of(divisors(ranks / strategy.tensor_parallel));
    strategy.data_parallel = ranks / strategy.tensor_parallel / strategy.pipeline_parallel;
    if (strategy.pipeline_parallel > 1) {
      strategy.schedule = static_cast<PipelineSchedule>(draw.one_of({0, 1, 2, 3}));
      if (strategy.schedule == PipelineSchedule::interleaved_1f1b) strategy.virtual_stages = draw.one_of({2, 3});
    }
    strategy.sequence_parallel = strategy.tensor_parallel > 1 && draw.coin();
    strategy.zero_stage = strategy.data_parallel > 1 ? draw.one_of({0, 1, 2, 3}) : 0;
    if (strategy.zero_stage > 0 && draw.coin()) strategy.zero_replicas = draw.one_of(divisors(strategy.data_parallel));
    strategy.recompute = static_cast<Recompute>(draw.one_of({0, 1, 2}));
    const Configuration configuration{
        .strategy = strategy, .global_batch = strategy.data_parallel * strategy.pipeline_parallel, .micro_batch = 1};
    if (!infeasible_reason(model, configuration, sequence_length)) return strategy;
  }
}

inline RelayoutRequest random_request(uint64_t trial) {
  Draw draw(trial);
  const int64_t ranks = draw.one_of({1, 2, 3, 4, 4, 6, 8, 8, 8, 16});
  RelayoutRequest request;
  request.model = random_model(draw);
  while (ranks > request.model.num_layers * request.model.num_heads) request.model = random_model(draw);
  request.sequence_length = sequence_length;
  request.from = random_strategy(request.model, ranks, draw);
  request.to = random_strategy(request.model, ranks, draw);
  request.recipe = state_recipe(OptimizerKind::adamw, draw.coin() ? DType::f32 : DType::bf16);
  if (trial % 4 == 3) request.recipe.slots.push_back({"of another optimizer"});
  request.ranks_per_node = draw.one_of({0, 1, 2, 4});
  return request;
}

// Draws a re-layout to more, fewer or as many ranks, in any order. Some processes leave, of which some are lost; others
// join.
inline RelayoutRequest random_regrouping(uint64_t trial) {
  Draw draw(trial + 100000);
  const auto most = [](const ModelDescription& model) { return model.num_layers * model.num_heads; };
  const int64_t before = draw.one_of({1, 2, 3, 4, 6, 8, 8, 12}), after = draw.one_of({1, 2, 3, 4, 5, 7, 8, 12});
  RelayoutRequest request;
  request.model = random_model(draw);
  while (std::max(before, after) > most(request.model)) request.model = random_model(draw);
  request.sequence_length = sequence_length;
  request.from = random_strategy(request.model, before, draw);
  request.to = random_strategy(request.model, after, draw);
  request.recipe = state_recipe(OptimizerKind::adamw, draw.coin() ? DType::f32 : DType::bf16);
  request.ranks_per_node = draw.one_of({0, 1, 2, 4});
  if (draw.one_of({0, 1, 2}) == 0) return request;
  // Survivors in order, then new processes, as in a job that continues; or all in any order.
  std::vector<int64_t> processes;
  const bool any_order = draw.coin();
  for (int64_t process = 0; process < before; ++process) {
    if (any_order || draw.one_of({0, 1, 2}) != 0) processes.push_back(process);
  }
  for (int64_t newcomer = before; newcomer < before + after; ++newcomer) processes.push_back(newcomer);
  while (std::ssize(processes) > after) {
    const auto left_out = any_order ? draw.one_of(numbers_below(std::ssize(processes))) : std::ssize(processes) - 1;
    processes.erase(processes.begin() + left_out);
  }
  for (int64_t i = after - 1; i > 0 && any_order; --i) {
    std::swap(processes[static_cast<size_t>(i)], processes[static_cast<size_t>(draw.one_of(numbers_below(i + 1)))]);
  }
  request.to_processes = processes;
  for (int64_t process = 0; process < before; ++process) {
    const bool leaves = std::find(processes.begin(), processes.end(), process) == processes.end();
    if (leaves && draw.one_of({0, 1, 2}) != 0) request.lost.push_back(process);
  }
  return request;
}

inline std::string describe(const RelayoutRequest& request) {
  std::string text;
  for (const ParallelStrategy& strategy : {request.from, request.to}) {
    text += concat(to_string(strategy), " v ", strategy.virtual_stages, " zero ", strategy.zero_stage, "; ");
  }
  for (const auto& [name, processes] :
       {std::pair{"become ranks", request.to_processes}, {"lost", request.lost}, {"gone", request.gone}}) {
    if (processes.empty()) continue;
    text += name;
    for (const int64_t process : processes) text += concat(" ", process);
    text += "; ";
  }
  const ModelDescription& model = request.model;
  return text + concat(model.num_layers, " layers, ", model.num_heads, "/", model.num_kv_heads, " heads, vocabulary ",
                       model.vocab_size, model.tie_word_embeddings ? ", tied" : "",
                       request.recipe.keeps_master ? ", masters apart" : "", ", nodes of ", request.ranks_per_node);
}

}  // namespace copus::relayout_tests
