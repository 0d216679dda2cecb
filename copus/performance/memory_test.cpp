#include "copus/performance/memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>
#include <vector>

#include "copus/description/configuration_text.h"
#include "copus/description/muon.h"
#include "copus/performance/testing/predicted_memory.h"
#include "copus/placement/sharding.h"

namespace copus {
namespace {

TEST(Memory, OneRankCountedByHand) {
  const ModelDescription model = grouped_query_model();
  const auto parameters = static_cast<double>(count_parameters(model));
  const MemoryParts parts = parts_of(batches_of({}));
  EXPECT_EQ(parts.weights, 2 * parameters);
  EXPECT_EQ(parts.gradients, 4 * parameters);
  EXPECT_EQ(parts.optimizer, 12 * parameters);
  // Activations of 256 tokens, one micro-batch at a time. Per layer: 4 x 128 of the stream, 2 x 128 of queries and
  // attention's output, 2 x 64 of keys and values, 2 x 256 of gate and up.
  EXPECT_EQ(parts.activations, 8 * 256 * (4 * 128 + 2 * 128 + 2 * 64 + 2 * 256) * 2);
  // The head has 256 x 1024 logits, which is below the limit of one piece, and five tensors of 256 x 128.
  EXPECT_EQ(parts.logits, 256 * 1024 * 2 + 5 * 256 * 128 * 2);
  // The workspace holds the current layer's gradients (2 x 128 of the stream, 8 x 128 and 4 x 64 of attention, 256 of
  // the feed-forward) and the device's fixed bytes.
  EXPECT_EQ(parts.workspace, 256 * (2 * 128 + 8 * 128 + 4 * 64 + 256) * 2 + (1 << 30));
  EXPECT_EQ(parts.total(),
            parts.weights + parts.gradients + parts.optimizer + parts.activations + parts.logits + parts.workspace);
}

// Logits are free before attention's backward pass, so only memory beyond theirs is added.
TEST(Memory, GradientsOfScoresTakeThePlaceOfTheLogits) {
  TrainingSystem without = copus_in_bf16();
  without.memory.writes_score_gradients = false;
  ModelDescription model = grouped_query_model();
  const auto added = [&](int64_t length, const ParallelStrategy& strategy = {}) {
    const Configuration configuration = batches_of(strategy);
    const auto workspace = [&](const TrainingSystem& system) {
      return MemoryModel(model, length, system).predict(configuration).parts.workspace;
    };
    return workspace(copus_in_bf16()) - workspace(without);
  };
  const double length = 4096, rows = 2 * length, scores = 2 * 8 * length * length * 2;
  EXPECT_EQ(added(64), 0);
  EXPECT_EQ(added(4096), scores - rows * (1024 * 2 + 5 * 128 * 2));
  // With ZeRO-2 the peak is a single moment, here within the layers, where no logits exist.
  EXPECT_EQ(added(4096, {.data_parallel = 2, .zero_stage = 2}), scores);
  // One sequence of 16384 would need 4 GiB, so another attention kernel runs.
  EXPECT_EQ(added(16384), 0);
}

// A step that measures noise in dual norms copies gradients of one group of matrices in fp32, which ZeRO does not
// shard.
TEST(Memory, StepsThatMeasureDualNormsCopyGradients) {
  TrainingSystem measures = copus_in_bf16();
  measures.measures_dual_norms = true;
  const ModelDescription model = grouped_query_model();
  const int64_t groups = num_dual_groups(model);
  std::vector<double> elements(groups);
  int64_t index = 0;
  for (const ParameterInfo& parameter : list_parameters(model)) {
    if (!is_hidden_matrix(parameter)) continue;
    elements[dual_group_of(index++, groups)] += static_cast<double>(parameter.num_elements());
  }
  const double copied = 4 * std::ranges::max(elements);
  const auto added = [&](const ParallelStrategy& strategy) {
    return parts_of(batches_of(strategy), measures).total() - parts_of(batches_of(strategy)).total();
  };
  EXPECT_EQ(groups, 3) << "eight layers of seven matrices";
  EXPECT_EQ(added({}), copied);
  EXPECT_EQ(added({.data_parallel = 4, .zero_stage = 3}), copied);
  EXPECT_EQ(added({.tensor_parallel = 2}), copied / 2);
  const double of_a_half = added({.pipeline_parallel = 2});
  EXPECT_GT(of_a_half, copied / 6) << "a group is not spread evenly over pipeline ranks";
  EXPECT_LE(of_a_half, copied);
}

// predict() skips ranks that cannot need most.
TEST(Memory, ThePredictedRankIsTheOneThatNeedsMost) {
  ModelDescription model = grouped_query_model();
  model.num_layers = 27;
  int64_t compared = 0;
  for (const PipelineSchedule schedule :
       {PipelineSchedule::one_f_one_b, PipelineSchedule::interleaved_1f1b, PipelineSchedule::zb_h1}) {
    for (const int64_t stages : {2, 4, 8, 16}) {
      for (const int64_t zero : {0, 1, 2, 3}) {
        for (const int64_t num_microbatches : {4, 16, 64}) {
          ParallelStrategy strategy{.data_parallel = 2, .pipeline_parallel = stages, .zero_stage = zero};
          strategy.schedule = schedule;
          if (schedule == PipelineSchedule::interleaved_1f1b) strategy.virtual_stages = stages == 16 ? 1 : 3;
          const Configuration configuration = batches_of(strategy, 1, num_microbatches);
          if (infeasible_reason(model, configuration, sequence)) continue;
          ++compared;
          MemoryModel memory(model, sequence, copus_in_bf16());
          const std::vector<MemoryParts> ranks = memory.predict_every_rank(configuration);
          const MemoryPrediction most = memory.predict(configuration);
          EXPECT_EQ(most.parts.total(), std::ranges::max(ranks, {}, &MemoryParts::total).total())
              << to_string(configuration);
          EXPECT_EQ(most.parts, ranks[most.pipeline_rank]);
        }
      }
    }
  }
  EXPECT_GT(compared, 60);
}

TEST(Memory, SinglePrecisionKeepsNoMasterWeights) {
  const auto parameters = static_cast<double>(count_parameters(grouped_query_model()));
  const MemoryParts parts = parts_of(batches_of({}), copus_in_fp32());
  EXPECT_EQ(parts.weights, 4 * parameters);
  EXPECT_EQ(parts.gradients, 4 * parameters);
  EXPECT_EQ(parts.optimizer, 8 * parameters);
  EXPECT_EQ(parts.activations, 2 * parts_of(batches_of({})).activations);
  EXPECT_EQ(parts.logits, 256 * 1024 * 4 + 5 * 256 * 128 * 4);
  EXPECT_EQ(parts.workspace, 256 * (2 * 128 + 256) * 4);
}

TEST(Memory, AnOptimizerWithOneSlotNeedsAMomentLess) {
  const auto parameters = static_cast<double>(count_parameters(grouped_query_model()));
  const auto optimizer = [](const TrainingSystem& system) { return parts_of(batches_of({}), system).optimizer; };
  EXPECT_EQ(optimizer(copus_in_fp32(Processor::cpu, OptimizerKind::signum)), 4 * parameters);
  EXPECT_EQ(optimizer(copus_in_bf16(Processor::gpu, OptimizerKind::signum)), 8 * parameters);
  EXPECT_EQ(copus_in_fp32().optimizer_traffic, 28);
  EXPECT_EQ(copus_in_bf16().optimizer_traffic, 38);
  EXPECT_EQ(copus_in_fp32(Processor::cpu, OptimizerKind::signum).optimizer_traffic, 20);
}

// Compares with the parameters that training lists for every rank of a layout.
TEST(Memory, WeightsAreThoseThatTheLayoutLists) {
  for (const bool tied : {false, true}) {
    ModelDescription model = grouped_query_model();
    model.tie_word_embeddings = tied;
    model.qkv_bias = true;
    const ParallelStrategy strategies[] = {
        {.pipeline_parallel = 4},
        {.tensor_parallel = 4},
        {.tensor_parallel = 8, .sequence_parallel = true},  // more ranks than key-value heads
        {.data_parallel = 2, .tensor_parallel = 2, .pipeline_parallel = 3},
        {.pipeline_parallel = 2, .virtual_stages = 3, .schedule = PipelineSchedule::interleaved_1f1b}};
    for (const ParallelStrategy& strategy : strategies) {
      SCOPED_TRACE(to_string(strategy) + (tied ? " tied" : ""));
      MemoryModel memory(model, sequence, copus_in_bf16());
      const std::vector<MemoryParts> predicted = memory.predict_every_rank(batches_of(strategy, 2, 12));
      const Mesh mesh(strategy);
      for (int64_t rank = 0; rank < mesh.size(); ++rank) {
        const Placement placement = place(model, strategy, sequence, rank);
        double weights = 0, gradients = 0;
        for (const LocalParameter& held : list_local_parameters(model, placement)) {
          const auto elements = static_cast<double>(held.box.num_elements());
          gradients += 4 * elements;
          if (!(held.tied_copy && strategy.pipeline_parallel == 1)) weights += 2 * elements;
        }
        EXPECT_EQ(predicted[placement.here.pipeline].weights, weights);
        EXPECT_EQ(predicted[placement.here.pipeline].gradients, gradients);
        EXPECT_EQ(predicted[placement.here.pipeline].optimizer, 6 * weights);
      }
    }
  }
}

TEST(Memory, RanksAddUpToTheWholeModel) {
  const auto parameters = static_cast<double>(count_parameters(grouped_query_model()));
  const auto sum = [](const std::vector<MemoryParts>& ranks) {
    return std::accumulate(ranks.begin(), ranks.end(), 0.0,
                           [](double total, const MemoryParts& parts) { return total + parts.weights; });
  };
  MemoryModel memory(grouped_query_model(), sequence, copus_in_bf16());
  for (const int64_t stages : {1, 2, 3, 5, 8}) {
    EXPECT_EQ(sum(memory.predict_every_rank(batches_of({.pipeline_parallel = stages}))), 2 * parameters) << stages;
  }
  // Every tensor-parallel rank holds the norms.
  const double norms = (2 * 8 + 1) * 128;
  EXPECT_EQ(4 * sum(memory.predict_every_rank(batches_of({.tensor_parallel = 4}))), 2 * (parameters + 3 * norms));
}

// Elements of one rank's buckets of grouped_query_model; the head includes the final norm.
constexpr double layer_elements = 2 * 128 * 128 + 2 * 64 * 128 + 3 * 256 * 128 + 2 * 128;
constexpr double embedding_elements = 1024 * 128, head_elements = embedding_elements + 128;

// Copus in bf16, but without memory for activations.
TrainingSystem without_activations() {
  TrainingSystem system = copus_in_bf16();
  system.activation_bytes = 0;
  system.memory.logit_bytes = 0;
  return system;
}

TEST(Memory, ZeroSharesOutByStage) {
  ParallelStrategy strategy{.data_parallel = 4};
  const auto parts_of = [](const Configuration& configuration) {
    return MemoryModel(grouped_query_model(), sequence, without_activations()).predict(configuration).parts;
  };
  const MemoryParts whole = parts_of(batches_of(strategy));
  strategy.zero_stage = 1;
  MemoryParts expected = whole;
  expected.optimizer = whole.optimizer / 4;
  EXPECT_EQ(parts_of(batches_of(strategy)), expected);
  // Two layers have more elements than a layer and the head. One layer's reduced gradient waits to be added.
  strategy.zero_stage = 2;
  expected.gradients = whole.gradients / 4 + 4 * (2 * layer_elements + layer_elements / 4);
  EXPECT_EQ(parts_of(batches_of(strategy)), expected);
  strategy.zero_stage = 3;
  expected.weights = whole.weights / 4 + 2 * 2 * layer_elements;
  EXPECT_EQ(parts_of(batches_of(strategy)), expected);
  strategy.reshard_after_forward = false;
  expected.weights = whole.weights / 4 + whole.weights;
  EXPECT_EQ(parts_of(batches_of(strategy)), expected);
  // Two copies, each sharded over two ranks.
  strategy.zero_replicas = 2;
  expected.weights = whole.weights / 2 + whole.weights;
  expected.gradients = whole.gradients / 2 + 4 * (2 * layer_elements + layer_elements / 2);
  expected.optimizer = whole.optimizer / 2;
  EXPECT_EQ(parts_of(batches_of(strategy)), expected);
  strategy.zero_replicas = 4;  // nothing is sharded
  EXPECT_EQ(parts_of(batches_of(strategy)), whole);

  TrainingSystem in_pairs = copus_in_bf16();
  in_pairs.optimizer_group = 2;
  strategy = {.data_parallel = 4, .zero_stage = 1};
  EXPECT_EQ(MemoryModel(grouped_query_model(), sequence, in_pairs).predict(batches_of(strategy)).parts.optimizer,
            whole.optimizer / 2);
}

// With ZeRO-3 and without activations: returns the elements of gradients and weights that are unsharded at the memory
// peak, in addition to the shares.
std::pair<double, double> whole_elements(const ModelDescription& model, ParallelStrategy strategy,
                                         int64_t num_microbatches, int64_t pipeline_rank) {
  strategy.zero_stage = 0;
  MemoryModel memory(model, sequence, without_activations());
  const MemoryParts whole = memory.predict_every_rank(batches_of(strategy, 2, num_microbatches)).at(pipeline_rank);
  strategy.zero_stage = 3;
  const MemoryParts cut = memory.predict_every_rank(batches_of(strategy, 2, num_microbatches)).at(pipeline_rank);
  const auto shares = static_cast<double>(strategy.data_parallel);
  return {(cut.gradients - whole.gradients / shares) / 4, (cut.weights - whole.weights / shares) / 2};
}

TEST(Memory, TheLargestNeighboursAreWhole) {
  using Whole = std::pair<double, double>;
  ModelDescription model = grouped_query_model();
  model.vocab_size = 2048;
  const double embedding = 2 * embedding_elements, head = embedding + 128;
  const auto whole = [&](const ParallelStrategy& strategy, int64_t num_microbatches, int64_t rank) {
    return whole_elements(model, strategy, num_microbatches, rank);
  };
  ParallelStrategy strategy{.data_parallel = 4};
  // Memory peaks at the end of the backward pass, with the first layer and the embedding. The head's weights are
  // already free when its gradient and a layer's are both whole.
  EXPECT_EQ(whole(strategy, 1, 0), Whole(embedding + layer_elements, embedding + layer_elements));
  EXPECT_EQ(whole(strategy, 2, 0), Whole(embedding + layer_elements + head / 4, embedding + layer_elements));
  strategy.pipeline_parallel = 4;
  EXPECT_EQ(whole(strategy, 1, 0), Whole(embedding + layer_elements, embedding + layer_elements));
  EXPECT_EQ(whole(strategy, 1, 1), Whole(2 * layer_elements, 2 * layer_elements));
  EXPECT_EQ(whole(strategy, 1, 3), Whole(head + layer_elements, layer_elements));  // this rank has one layer
  // With one layer per rank there is no pair of layers at once.
  model.num_layers = 4;
  EXPECT_EQ(whole(strategy, 1, 1), Whole(layer_elements, layer_elements));
}

// With ZeRO-3, d = 4 and more memory for activations than for weights, memory peaks at the last layer's gradient, while
// the head's is reduced: the logits are free by then, but no activations are.
TEST(Memory, ThePeakIsWhereActivationsAndWholeBucketsMeet) {
  const Configuration whole = batches_of({.data_parallel = 4}, 8),
                      cut = batches_of({.data_parallel = 4, .zero_stage = 3}, 8);
  const MemoryParts all = parts_of(whole), peak = parts_of(cut);
  EXPECT_EQ(peak.activations, all.activations);
  EXPECT_EQ(peak.logits, 0);
  // Gradients of the scores of 8 sequences with 8 heads; at other moments logits need this memory.
  EXPECT_EQ(peak.workspace, all.workspace + 8 * 8 * 128 * 128 * 2);
  EXPECT_EQ(peak.weights, all.weights / 4 + 2 * 2 * layer_elements);
  const double of_reduced = head_elements > layer_elements ? head_elements : layer_elements;
  EXPECT_EQ(peak.gradients, all.gradients / 4 + 4 * (head_elements + layer_elements + of_reduced / 4));

  // With a large vocabulary memory peaks in the head, when no layer needs working memory.
  ModelDescription model = grouped_query_model();
  model.vocab_size = 1 << 20;
  TrainingSystem at_once = copus_in_bf16();
  at_once.memory.logits_at_once = 0;
  MemoryModel memory(model, sequence, at_once);
  const MemoryParts in_head = memory.predict(cut).parts, in_layers = memory.predict(whole).parts;
  EXPECT_EQ(in_head.logits, in_layers.logits);
  EXPECT_EQ(in_head.activations, in_layers.activations);
  EXPECT_LT(in_head.workspace, in_layers.workspace);
  const double head = 128 * ((1 << 20) + 1);
  EXPECT_EQ(in_head.weights, in_layers.weights / 4 + 2 * (head + layer_elements));
  EXPECT_EQ(in_head.gradients, in_layers.gradients / 4 + 4 * (head + head / 4));
}

TEST(Memory, SumsOverTensorParallelNeighboursKeepOneBucketMore) {
  const auto layers_whole = [](const ParallelStrategy& strategy) {
    const double layer = BlockCounter(grouped_query_model()).of(strategy).layers.front().weights;
    return whole_elements(grouped_query_model(), strategy, 1, 0).first / layer;
  };
  ParallelStrategy strategy{.data_parallel = 2, .tensor_parallel = 4};
  EXPECT_DOUBLE_EQ(layers_whole(strategy), 2);
  strategy.sequence_parallel = true;  // norms have partial gradients
  EXPECT_DOUBLE_EQ(layers_whole(strategy), 3);
  strategy = {.data_parallel = 2, .tensor_parallel = 8};  // the 4 key-value heads have partial gradients too
  EXPECT_DOUBLE_EQ(layers_whole(strategy), 3);
}

TEST(Memory, TiedGradientsAreWholeUntilTheOnlyMicroBatchEnds) {
  ModelDescription model = grouped_query_model();
  model.tie_word_embeddings = true;
  const auto gradients = [&](const ParallelStrategy& strategy, int64_t num_microbatches, int64_t rank) {
    return whole_elements(model, strategy, num_microbatches, rank).first;
  };
  ParallelStrategy strategy{.data_parallel = 4};
  EXPECT_EQ(gradients(strategy, 1, 0), embedding_elements + 2 * layer_elements);
  EXPECT_EQ(gradients(strategy, 2, 0), 2 * layer_elements + layer_elements / 4);
  model.vocab_size = 4096;
  const double embedding = 4 * embedding_elements;
  EXPECT_EQ(gradients(strategy, 1, 0), embedding + (embedding + layer_elements));
  strategy.pipeline_parallel = 2;
  EXPECT_EQ(gradients(strategy, 1, 0), embedding + layer_elements);
  EXPECT_EQ(gradients(strategy, 1, 1), embedding + 2 * layer_elements);
}

TEST(Memory, ALaterStageNeedsLessOfADeepModel) {
  for (const int64_t num_microbatches : {1, 8}) {
    double before = parts_of(batches_of({.data_parallel = 8}, 2, num_microbatches)).total();
    for (const int64_t stage : {1, 2, 3}) {
      const double total = parts_of(batches_of({.data_parallel = 8, .zero_stage = stage}, 2, num_microbatches)).total();
      EXPECT_LT(total, before) << stage;
      before = total;
    }
  }
}

TEST(Memory, MicroBatchesUnderWayFollowTheSchedule) {
  MemoryModel memory(grouped_query_model(), sequence, copus_in_bf16());
  const double one = parts_of(batches_of({})).activations / 8;  // per layer
  const auto layers_kept = [&](const ParallelStrategy& strategy, int64_t num_microbatches) {
    std::vector<double> kept;
    for (const MemoryParts& parts : memory.predict_every_rank(batches_of(strategy, 2, num_microbatches))) {
      kept.push_back(parts.activations / one);
    }
    return kept;
  };
  using Kept = std::vector<double>;
  ParallelStrategy strategy{.pipeline_parallel = 4};
  EXPECT_EQ(layers_kept(strategy, 8), (Kept{2 * 4, 2 * 3, 2 * 2, 2}));
  EXPECT_EQ(layers_kept(strategy, 2), (Kept{2 * 2, 2 * 2, 2 * 2, 2}));
  strategy.schedule = PipelineSchedule::gpipe;
  EXPECT_EQ(layers_kept(strategy, 8), (Kept{2 * 8, 2 * 8, 2 * 8, 2 * 8}));
  // A rank has two chunks of one layer: 2 (p - 1 - rank) + p warm-up forwards, plus one.
  strategy = {.pipeline_parallel = 4, .virtual_stages = 2, .schedule = PipelineSchedule::interleaved_1f1b};
  EXPECT_EQ(layers_kept(strategy, 8), (Kept{11, 9, 7, 5}));
}

TEST(Memory, WaitingWeightGradientsKeepInputsAndOutputGradients) {
  const ParallelStrategy usual{.pipeline_parallel = 4};
  ParallelStrategy zero_bubble = usual;
  zero_bubble.schedule = PipelineSchedule::zb_h1;
  MemoryModel memory(grouped_query_model(), sequence, copus_in_bf16());
  const std::vector<MemoryParts> before = memory.predict_every_rank(batches_of(usual));
  const std::vector<MemoryParts> after = memory.predict_every_rank(batches_of(zero_bubble));
  const double waiting = 2 * 256 * (4 * 128 + 2 * 128 + 2 * 64 + 3 * 256) * 2;  // for two layers
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(after[rank].activations - before[rank].activations, rank * waiting) << rank;
  }
}

// Each micro-batch in flight keeps its rows' positions, and their cosines and sines once for all layers.
TEST(Memory, DocumentsThatStayApartKeepPositionsAndRotations) {
  TrainingSystem system = copus_in_fp32(Processor::cpu);
  const auto activations = [&](ModelDescription model, const ParallelStrategy& strategy = {}) {
    return MemoryModel(std::move(model), 128, system).predict(batches_of(strategy)).parts.activations;
  };
  ModelDescription model = grouped_query_model(), other_base = model;
  other_base.attention_window = 64;
  other_base.sliding_rope_theta = 1e4;
  const double together = activations(model), sliding = activations(other_base);
  const double pipeline = activations(model, {.pipeline_parallel = 2});
  system.document_length = 32;
  const double tokens = 256, rotary = static_cast<double>(model.rotary_dim());
  EXPECT_EQ(activations(model) - together, tokens * (8 + rotary * 4));
  EXPECT_EQ(activations(other_base) - sliding, tokens * (8 + 2 * rotary * 4));
  EXPECT_EQ(activations(model, {.pipeline_parallel = 2}) - pipeline, 2 * tokens * (8 + rotary * 4)) << "of two";
}

TEST(Memory, TensorParallelRanksShareHeadsAndSequenceParallelOnesRows) {
  ParallelStrategy strategy{.tensor_parallel = 4};
  const double layer_rows = 8 * 256 * 2;
  EXPECT_EQ(parts_of(batches_of(strategy)).activations, layer_rows * (4 * 128 + (2 * 128 + 2 * 64 + 2 * 256) / 4.0));
  strategy.sequence_parallel = true;
  EXPECT_EQ(parts_of(batches_of(strategy)).activations, layer_rows * (4 * 128 + 2 * 128 + 2 * 64 + 2 * 256) / 4);
  strategy.tensor_parallel = 8;  // one key/value head per rank, although there are only 4 heads
  EXPECT_EQ(parts_of(batches_of(strategy)).activations, layer_rows * ((4 * 128 + 2 * 128 + 2 * 256) / 8.0 + 2 * 16));
}

// Sequence-parallel ranks keep the inputs that a recompute gathers for the weight gradients, and so gather only once.
TEST(Memory, RecomputedInputsStayGathered) {
  TrainingSystem twice = copus_in_bf16();
  twice.gathers_after_recompute = true;
  const auto inputs = [&](Recompute recompute) {
    const Configuration configuration =
        batches_of({.tensor_parallel = 4, .sequence_parallel = true, .recompute = recompute});
    return (parts_of(configuration).workspace - parts_of(configuration, twice).workspace) / (256 * 128 * 2);
  };
  EXPECT_EQ(inputs(Recompute::none), 0);
  EXPECT_EQ(inputs(Recompute::attention), 1);
  EXPECT_EQ(inputs(Recompute::full), 2);
}

// With norms of inputs and outputs, the input of each norm is kept, unless everything is recomputed.
TEST(Memory, NormsOfInputsAndOutputsKeepTheOutputsToo) {
  ModelDescription model = grouped_query_model();
  const auto activations = [&](Recompute recompute) {
    return MemoryModel(model, sequence, copus_in_bf16())
        .predict(batches_of({.recompute = recompute}))
        .parts.activations;
  };
  for (const auto& [recompute, kept] :
       {std::pair{Recompute::none, 2}, {Recompute::attention, 2}, {Recompute::full, 0}}) {
    model.block_norm = BlockNorm::input;
    const double of_inputs = activations(recompute);
    model.block_norm = BlockNorm::both;
    EXPECT_EQ(activations(recompute) - of_inputs, 8 * 256 * kept * 128 * 2);
  }
}

TEST(Memory, ParallelBlocksDoNotKeepTheStreamBetweenThem) {
  ModelDescription model = grouped_query_model();
  const auto activations = [&](Recompute recompute) {
    return MemoryModel(model, sequence, copus_in_bf16())
        .predict(batches_of({.recompute = recompute}))
        .parts.activations;
  };
  for (const auto& [recompute, less] :
       {std::pair{Recompute::none, 1}, {Recompute::attention, 1}, {Recompute::full, 0}}) {
    model.parallel_residual = false;
    const double in_turn = activations(recompute);
    model.parallel_residual = true;
    EXPECT_EQ(in_turn - activations(recompute), 8 * 256 * less * 128 * 2);
  }
}

TEST(Memory, RecomputeKeepsLessAndNeverNeedsMore) {
  const auto recomputing = [](ParallelStrategy strategy, Recompute recompute) {
    strategy.recompute = recompute;
    return batches_of(strategy);
  };
  EXPECT_EQ(parts_of(recomputing({}, Recompute::full)).activations, 8 * 256 * 128 * 2);
  EXPECT_EQ(parts_of(recomputing({}, Recompute::attention)).activations, 8 * 256 * (4 * 128 + 2 * 256) * 2);
  for (const int64_t stages : {1, 2, 8}) {
    const ParallelStrategy strategy{.pipeline_parallel = stages};
    MemoryModel memory(grouped_query_model(), sequence, copus_in_bf16());
    const auto none = memory.predict_every_rank(recomputing(strategy, Recompute::none));
    const auto attention = memory.predict_every_rank(recomputing(strategy, Recompute::attention));
    const auto full = memory.predict_every_rank(recomputing(strategy, Recompute::full));
    for (int64_t rank = 0; rank < stages; ++rank) {
      EXPECT_LE(attention[rank].total(), none[rank].total());
      EXPECT_LE(full[rank].total(), attention[rank].total());
    }
  }
}

TEST(Memory, GrowsWithTheMicroBatchAndPieceByPieceInTheHead) {
  double before = 0;
  for (int64_t micro_batch = 1; micro_batch <= 64; micro_batch *= 2) {
    const MemoryParts parts = parts_of(batches_of({.pipeline_parallel = 2}, micro_batch));
    EXPECT_GT(parts.total(), before);
    before = parts.total();
  }
  // The 64 x 128 x 1024 logits exceed a CPU's limit per piece, but not a GPU's.
  const double hidden = 5 * 64 * 128 * 128 * 2;
  EXPECT_EQ(parts_of(batches_of({}, 64), copus_in_bf16(Processor::cpu)).logits, 2.0 * (1 << 22) + hidden);
  EXPECT_EQ(parts_of(batches_of({}, 64)).logits, 2.0 * 64 * 128 * 1024 + hidden);
  EXPECT_EQ(parts_of(batches_of({}, 64 * 128)).logits, 2.0 * (1 << 29) + 128 * hidden);
}

TEST(Memory, NamesTheRankThatNeedsMost) {
  MemoryModel memory(grouped_query_model(), sequence, copus_in_bf16());
  EXPECT_EQ(memory.predict(batches_of({.pipeline_parallel = 4}, 32)).pipeline_rank, 0) << "it has most micro-batches";
  ModelDescription wide = grouped_query_model();
  wide.vocab_size = 1 << 20;
  MemoryModel large_head(wide, sequence, copus_in_bf16());
  EXPECT_EQ(large_head.predict(batches_of({.pipeline_parallel = 4})).pipeline_rank, 3) << "it has the logits";
}

TEST(Memory, SaysWhatIsNeededAndWhatIsThere) {
  constexpr double gibibyte = 1 << 30;
  const MemoryPrediction prediction{.pipeline_rank = 2,
                                    .parts = {.weights = 12.1 * gibibyte,
                                              .gradients = 2.5 * gibibyte,
                                              .optimizer = 36.2 * gibibyte,
                                              .activations = 41.3 * gibibyte,
                                              .logits = 0,
                                              .workspace = 1 * gibibyte}};
  EXPECT_EQ(out_of_memory_reason(prediction, 79.6 * gibibyte),
            "needs 93.1 GiB on pipeline rank 2: weights 12.1, gradients 2.5, optimizer 36.2, activations 41.3, "
            "workspace 1.0; has 79.6");
  EXPECT_EQ(out_of_memory_reason(prediction, 93.2 * gibibyte), std::nullopt);
  EXPECT_EQ(out_of_memory_reason(prediction, 0), std::nullopt) << "not known";
  EXPECT_THAT(*out_of_memory_reason(prediction, 93.098 * gibibyte),
              testing::AllOf(testing::HasSubstr("needs 93.100 GiB"), testing::HasSubstr("has 93.098")));
}

}  // namespace
}  // namespace copus
