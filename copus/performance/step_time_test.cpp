#include "copus/performance/step_time.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "copus/performance/block_time.h"
#include "copus/performance/link_cost.h"
#include "copus/performance/testing/schedule_timing.h"

namespace copus {
namespace {

constexpr int64_t sequence_length = 64;

ModelDescription small_model() {
  ModelDescription model;
  model.vocab_size = 1000;
  model.hidden_size = 128;
  model.intermediate_size = 256;
  model.num_layers = 8;
  model.num_heads = model.num_kv_heads = 8;
  model.head_dim = 16;
  return model;
}

// A cluster with a virtual clock that charges operations.
ClusterDescription counting_cluster() {
  ClusterDescription cluster;
  cluster.ranks_per_node = 4;
  cluster.within_node = {.latency_seconds = 1e-6, .bytes_per_second = 1e10};
  cluster.between_nodes = {.latency_seconds = 1e-5, .bytes_per_second = 1e9};
  cluster.flops_per_second = 1e12;
  return cluster;
}

ClusterDescription gpu_cluster() {
  ClusterDescription cluster = counting_cluster();
  cluster.flops_per_second = 0;
  cluster.device.matmul_flops_per_second = 1e12;
  cluster.device.memory_bytes_per_second = 1e11;
  return cluster;
}

Configuration with(ParallelStrategy strategy, int64_t global_batch = 16, int64_t micro_batch = 1) {
  return {.strategy = strategy, .global_batch = global_batch, .micro_batch = micro_batch};
}

// Copus without the agreement of ranks, which would add to every number.
TrainingSystem silent_system() {
  TrainingSystem system = copus_in_fp32();
  system.agreement_bytes = 0;
  return system;
}

StepTimeParts predict(const ClusterDescription& cluster, const Configuration& configuration) {
  return StepTimeModel(small_model(), sequence_length, cluster, silent_system()).predict(configuration);
}

// Returns the seconds of one sequence on the virtual clock that charges operations.
double sequence_seconds() {
  return static_cast<double>(sequence_length) * training_flops_per_token(small_model(), sequence_length) / 1e12;
}
double head_seconds() { return 6.0 * 1000 * 128 * sequence_length / 1e12; }
double layer_seconds() { return (sequence_seconds() - head_seconds()) / 8; }

TEST(StepTime, OneRankOnACountingClockTakesItsOperationsAlone) {
  const StepTimeParts parts = predict(counting_cluster(), with({}));
  EXPECT_NEAR(parts.compute, 16 * sequence_seconds(), 1e-12);
  EXPECT_EQ(parts, (StepTimeParts{.compute = parts.compute}));
}

TEST(StepTime, RecomputingCostsAThirdOfTheLayersMore) {
  const double seconds = predict(counting_cluster(), with({.recompute = Recompute::full})).total();
  EXPECT_NEAR(seconds, 16 * (sequence_seconds() + 8 * layer_seconds() / 3), 1e-12);
}

TEST(StepTime, OneRankHasNoCommunication) {
  const StepTimeParts parts = predict(gpu_cluster(), with({}));
  EXPECT_EQ(parts.tensor_communication, 0);
  EXPECT_EQ(parts.bubble, 0);
  EXPECT_EQ(parts.data_communication, 0);
  EXPECT_GT(parts.optimizer, 0);
}

TEST(StepTime, TensorParallelCollectivesAreThoseOfTheLayers) {
  // The loss processes a rank's logits in one piece of 64 rows. Both ranks are on one node.
  const ClusterDescription cluster = counting_cluster();
  const int64_t stream = sequence_length * 128 * 4, statistics = sequence_length * 2 * 3 * 8;
  const Link& link = cluster.within_node;
  const double sum = all_reduce_seconds(link, 2, statistics);
  const double plain = predict(cluster, with({.tensor_parallel = 2})).tensor_communication;
  // Each layer has 4 all-reduces; the embedding's result and the head's gradient have one each.
  EXPECT_NEAR(plain, 16 * ((8 * 4 + 2) * all_reduce_seconds(link, 2, stream) + sum), 1e-12);

  const double cut = predict(cluster, with({.tensor_parallel = 2, .sequence_parallel = true})).tensor_communication;
  const double gather = all_gather_seconds(link, 2, stream), scatter = reduce_scatter_seconds(link, 2, stream);
  // Forward and backward, each layer has 2 + 4 gathers and 2 + 2 scatters. Embedding and head have one of each.
  EXPECT_NEAR(cut, 16 * ((8 * 6 + 2) * gather + (8 * 4 + 2) * scatter + sum), 1e-12);
  // A full recompute scatters once more, and the backward pass need not gather what the recompute has gathered.
  const ParallelStrategy again{.tensor_parallel = 2, .sequence_parallel = true, .recompute = Recompute::full};
  EXPECT_NEAR(predict(cluster, with(again)).tensor_communication,
              16 * ((8 * 6 + 2) * gather + (8 * 5 + 2) * scatter + sum), 1e-12);
}

// Norms over projections sum two fp32 statistics per row in the forward pass, in the backward pass, and again if
// attention is recomputed. With norms of outputs a full recompute also reduces the feed-forward's result.
TEST(StepTime, NormsOfProjectionsAndOutputsCommunicate) {
  const Link& link = counting_cluster().within_node;
  const double sums = all_reduce_seconds(link, 2, sequence_length * 2 * 4);
  const double reduce = all_reduce_seconds(link, 2, sequence_length * 128 * 4);
  for (const Recompute recompute : {Recompute::none, Recompute::attention, Recompute::full}) {
    const auto layer = [&](QkNorm qk_norm, BlockNorm block_norm, const ClusterDescription& cluster) {
      ModelDescription model = small_model();
      model.qk_norm = qk_norm;
      model.block_norm = block_norm;
      return cost_blocks(model, sequence_length, cluster, copus_in_fp32(),
                         {.tensor_parallel = 2, .micro_batch = 1, .recompute = recompute})
          .layers.front();
    };
    for (const ClusterDescription& cluster : {counting_cluster(), gpu_cluster()}) {
      const BlockCost plain = layer(QkNorm::head, BlockNorm::input, cluster);
      const BlockCost normed = layer(QkNorm::projection, BlockNorm::output, cluster);
      EXPECT_GT(normed.forward.communication, plain.forward.communication);
      EXPECT_GT(normed.backward().communication, plain.backward().communication);
      if (cluster.flops_per_second == 0) continue;
      EXPECT_NEAR(normed.forward.communication - plain.forward.communication, sums, 1e-12);
      EXPECT_NEAR(normed.backward().communication - plain.backward().communication,
                  (recompute == Recompute::none ? 1 : 2) * sums + (recompute == Recompute::full ? reduce : 0), 1e-12);
    }
  }
}

// On a device, gathers of two inputs overlap with the gradients of these inputs, and the reductions of those gradients
// overlap with the weight gradients, unless weight gradients are deferred.
TEST(StepTime, BackwardPassesHideCollectivesBesideTheirProducts) {
  const auto communication = [](const ParallelStrategy& strategy, bool overlaps, int64_t devices_per_node = 0) {
    ClusterDescription cluster = gpu_cluster();
    cluster.devices_per_node = devices_per_node;
    TrainingSystem system = copus_in_bf16();
    system.overlaps_tensor_backward = overlaps;
    const BlockShape shape{.tensor_parallel = strategy.tensor_parallel,
                           .micro_batch = 1,
                           .sequence_parallel = strategy.sequence_parallel,
                           .recompute = strategy.recompute,
                           .defers_weights = strategy.schedule == PipelineSchedule::zb_h1};
    ClusterDescription slow = cluster;
    slow.device.matmul_flops_per_second = 1;  // every collective then overlaps with computation
    return cost_blocks(small_model(), sequence_length, slow, system, shape).layers.front().backward().communication;
  };
  const Link& link = gpu_cluster().within_node;
  const int64_t stream = sequence_length * 128 * 2;
  const double gather = all_gather_seconds(link, 2, stream), scatter = reduce_scatter_seconds(link, 2, stream);
  const ParallelStrategy cut{.tensor_parallel = 2, .sequence_parallel = true};
  EXPECT_NEAR(communication(cut, false), 4 * gather + 2 * scatter, 1e-12);
  EXPECT_NEAR(communication(cut, true), 2 * gather, 1e-12);
  EXPECT_NEAR(communication(cut, true, 8), 4 * gather + 2 * scatter, 1e-12) << "shared devices hide nothing";
  ParallelStrategy later = cut;
  later.schedule = PipelineSchedule::zb_h1;
  EXPECT_NEAR(communication(later, true), 2 * gather + 2 * scatter, 1e-12);
  EXPECT_NEAR(communication({.tensor_parallel = 2}, true), 0, 1e-12);
  EXPECT_GT(communication({.tensor_parallel = 2}, false), 0);
  // A recompute adds gathers of two inputs and one reduction.
  ParallelStrategy again = cut;
  again.recompute = Recompute::full;
  EXPECT_NEAR(communication(again, true), 4 * gather + scatter, 1e-12);
  again.recompute = Recompute::attention;
  EXPECT_NEAR(communication(again, true), 3 * gather, 1e-12);
}

TEST(StepTime, APipelineTakesWhatItsScheduleDoes) {
  ClusterDescription cluster = counting_cluster();
  cluster.ranks_per_node = 2;  // makes messages cross nodes
  const Configuration configuration = with({.data_parallel = 2, .pipeline_parallel = 2}, 16);
  const StepTimeParts parts = predict(cluster, configuration);

  std::vector<StageSeconds> stages;
  for (const LayerRange& range : balance_stages(small_model(), sequence_length, 2)) {
    const double third = static_cast<double>(range.end - range.begin) * layer_seconds() / 3;
    const double send = send_seconds(cluster.between_nodes, sequence_length * 128 * 4);
    stages.push_back({third, third, third, send});
  }
  stages.back().backward_input += 2 * head_seconds() / 3;
  stages.back().backward_weight += head_seconds() / 3;
  const double seconds = time_schedule(make_schedule(PipelineSchedule::one_f_one_b, 2, 1, 8), stages).seconds;
  EXPECT_NEAR(parts.compute + parts.bubble, seconds, 1e-12);
  EXPECT_EQ(parts.tensor_communication, 0);
}

TEST(StepTime, GradientsAreReducedBesideTheLastBackwardPass) {
  ClusterDescription cluster = counting_cluster();
  const ModelDescription model = small_model();
  int64_t layer_bytes = 0;
  for (const ParameterInfo& parameter : list_parameters(model)) {
    if (parameter.layer == 0) layer_bytes += 4 * parameter.num_elements();
  }
  const int64_t head_bytes = int64_t{4} * 1000 * 128;
  const auto exposed = [&] { return predict(cluster, with({.data_parallel = 4})).data_communication; };

  // With a very fast network only the reductions of the last layer and the embedding are exposed.
  cluster.within_node = {.latency_seconds = 0, .bytes_per_second = 1e12};
  const Link& link = cluster.within_node;
  EXPECT_NEAR(exposed(), all_reduce_seconds(link, 4, layer_bytes) + all_reduce_seconds(link, 4, head_bytes), 1e-12);

  // A very slow network is busy from the head's bucket on, and hides the layers' backward passes.
  cluster.within_node.bytes_per_second = 1e6;
  const double all = 8 * all_reduce_seconds(link, 4, layer_bytes) + 2 * all_reduce_seconds(link, 4, head_bytes);
  EXPECT_NEAR(exposed(), all - 8 * 2 * layer_seconds() / 3, 1e-9);
}

TEST(StepTime, AllRanksAgreeOnceAStep) {
  const ClusterDescription cluster = counting_cluster();
  const Configuration configuration = with({.pipeline_parallel = 2});
  StepTimeModel model(small_model(), sequence_length, cluster, copus_in_fp32());
  EXPECT_NEAR(model.predict(configuration).total() - predict(cluster, configuration).total(),
              send_seconds(cluster.within_node, static_cast<int64_t>(copus_in_fp32().agreement_bytes)) +
                  send_seconds(cluster.within_node, 8),
              1e-12);
}

TEST(StepTime, RanksThatShareDevicesTakeTurns) {
  ClusterDescription cluster = counting_cluster();
  const Configuration configuration = with({.data_parallel = 4});
  const StepTimeParts alone = predict(cluster, configuration);
  cluster.devices_per_node = 2;
  const StepTimeParts sharing = predict(cluster, configuration);
  EXPECT_NEAR(sharing.compute, 2 * alone.compute, 1e-9);
  // More than twice as long, since nothing overlaps any more.
  EXPECT_GT(sharing.data_communication, 2 * alone.data_communication);
  cluster.devices_per_node = 8;
  EXPECT_NEAR(predict(cluster, configuration).compute, alone.compute / 2, 1e-9);
}

TEST(StepTime, SeveralDevicesOfARankSpeedUpThePipelineAsAWhole) {
  ClusterDescription cluster = counting_cluster();
  const Configuration configuration = with({.pipeline_parallel = 2});
  const StepTimeParts one = predict(cluster, configuration);
  ASSERT_GT(one.bubble, 0);
  cluster.devices_per_node = 8;
  const StepTimeParts four = predict(cluster, configuration);
  EXPECT_NEAR(four.compute, one.compute / 4, 1e-9);
  EXPECT_NEAR(four.bubble, one.bubble / 4, 0.03 * one.bubble) << "messages take as long";
}

TEST(StepTime, BytesBetweenNodesWaitForNoDevice) {
  ClusterDescription cluster = counting_cluster();
  cluster.ranks_per_node = 2;
  cluster.devices_per_node = 1;
  cluster.within_node = cluster.between_nodes = {.latency_seconds = 0, .bytes_per_second = 1e6};
  const ModelDescription model = small_model();
  double bytes = 0;
  for (const ParameterInfo& parameter : list_parameters(model)) {
    bytes += 4 * static_cast<double>(parameter.num_elements());
  }
  const auto reduction = [&](ParallelStrategy strategy) { return predict(cluster, with(strategy)).data_communication; };
  // A ring of n moves 2 (n - 1) / n of the bytes. The two ranks of a node take turns on their common device.
  EXPECT_NEAR(reduction({.data_parallel = 2}), 2 * bytes / 1e6, 1e-3 * bytes / 1e6);
  EXPECT_NEAR(reduction({.data_parallel = 4}), 1.5 * bytes / 1e6, 1e-3 * bytes / 1e6);
}

TEST(StepTime, ZeroOneScattersAndGathersInstead) {
  ClusterDescription cluster = counting_cluster();
  cluster.within_node.bytes_per_second = 1e6;
  const auto predicted = [&](int64_t zero_stage) {
    return predict(cluster, with({.data_parallel = 4, .zero_stage = zero_stage})).data_communication;
  };
  // Weights have as many bytes as fp32 gradients, so a scatter and a gather cost an all-reduce. Some of it overlaps
  // with the next forward pass.
  EXPECT_NEAR(predicted(1), predicted(0) - 8 * layer_seconds() / 3, 1e-9);
}

TEST(StepTime, ZeroOneGathersBesideTheNextForwardPass) {
  ClusterDescription cluster = counting_cluster();
  cluster.within_node = {.latency_seconds = 0, .bytes_per_second = 1e12};
  TrainingSystem system = silent_system();
  const auto exposed = [&](const ParallelStrategy& strategy) {
    const auto seconds = [&](bool overlaps) {
      system.overlaps_gathers = overlaps;
      return StepTimeModel(small_model(), sequence_length, cluster, system).predict(with(strategy)).total();
    };
    const double layer = 4 * (4 * 128 * 128 + 3 * 256 * 128 + 2 * 128) / 2 / cluster.within_node.bytes_per_second;
    const double table = 4 * 1000 * 128 / 2 / cluster.within_node.bytes_per_second;
    const bool is_pipeline = strategy.pipeline_parallel > 1;
    const double all = is_pipeline ? 4 * layer + table : 8 * layer + 2 * table;
    return std::pair((seconds(true) - seconds(false) + all) / layer, table / layer);
  };
  // With a fast network only the first uses wait: the embedding, which takes no time itself, and one layer.
  const auto [one_rank, tables] = exposed({.data_parallel = 2, .zero_stage = 1});
  EXPECT_NEAR(one_rank, tables + 1, 1e-6);
  // A second stage has its weights before its first activations arrive.
  EXPECT_NEAR(exposed({.data_parallel = 2, .pipeline_parallel = 2, .zero_stage = 1}).first, tables + 1, 1e-6);
  EXPECT_NEAR(exposed({.data_parallel = 2, .zero_stage = 2}).first, tables + 1, 1e-6);
  // If ranks share devices nothing overlaps.
  cluster.devices_per_node = 4;
  EXPECT_NEAR(exposed({.data_parallel = 2, .zero_stage = 1}).first, 8 + 2 * tables, 1e-6);
}

// Returns the seconds of data-parallel communication on four ranks of a slow node, without overlap.
double unhidden_communication(const TrainingSystem& system, int64_t zero_stage) {
  ClusterDescription cluster = gpu_cluster();
  cluster.within_node = {.latency_seconds = 1e-3, .bytes_per_second = 1e9};
  cluster.device.launch_seconds = 1e-5;
  return StepTimeModel(small_model(), sequence_length, cluster, system)
      .predict(with({.data_parallel = 4, .zero_stage = zero_stage}))
      .data_communication;
}

TEST(StepTime, BlocksThatAreSentTogetherShareTheLatency) {
  TrainingSystem system = silent_system();
  system.reduction_without_zero.overlaps = system.reduction_with_zero.overlaps = false;
  const double parameters = 8 * (4 * 128 * 128 + 3 * 256 * 128 + 2 * 128) + 2 * 1000 * 128 + 128;
  const auto in_collectives = [&](double number) { return number * 6 * (1e-3 + 4 * parameters / number / 4 / 1e9); };
  // Ten buckets, each with its own latencies.
  EXPECT_NEAR(unhidden_communication(system, 0), in_collectives(10), 1e-5);
  system.reduction_without_zero.bucket_parameters = 1e12;
  EXPECT_NEAR(unhidden_communication(system, 0), in_collectives(1), 1e-5);
  system.reduction_without_zero.bucket_parameters = parameters / 3;
  EXPECT_NEAR(unhidden_communication(system, 0), in_collectives(3), 1e-5);
  system.reduction_with_zero.bucket_parameters = 1e12;
  EXPECT_NEAR(unhidden_communication(system, 0), in_collectives(3), 1e-5);
  EXPECT_NEAR(unhidden_communication(system, 1), in_collectives(1), 1e-5);
}

TEST(StepTime, ZeroOneMayReduceEverythingEverywhere) {
  TrainingSystem system = silent_system();
  system.reduction_without_zero.overlaps = system.reduction_with_zero.overlaps = false;
  const double scattered = unhidden_communication(system, 1), reduced = unhidden_communication(system, 0);
  // Gradients and weights have as many bytes, so a scatter costs as much as a gather.
  EXPECT_NEAR(scattered, reduced, 1e-9);
  system.scatters_gradients = false;
  EXPECT_NEAR(unhidden_communication(system, 1), 1.5 * reduced, 1e-9);
  // Eight layers are copied into place, from each of four ranks.
  system.gather_launches = 5;
  EXPECT_NEAR(unhidden_communication(system, 1), 1.5 * reduced + 8 * 4 * 5 * 1e-5, 1e-9);
  EXPECT_NEAR(unhidden_communication(system, 0), reduced, 1e-12);
}

// Nothing overlaps if ranks share the cores of a machine.
ClusterDescription cluster_of_cores() {
  ClusterDescription cluster = counting_cluster();
  cluster.devices_per_node = 4;
  return cluster;
}

// Seconds of collectives over n ranks of a node, for a layer's bucket and for the embedding's or head's (table).
// Weights have as many bytes as gradients.
struct BucketCollectives {
  explicit BucketCollectives(int64_t n) {
    const Link link = cluster_of_cores().within_node;
    const int64_t layer_bytes = int64_t{4} * (4 * 128 * 128 + 3 * 256 * 128 + 2 * 128);
    layer = reduce_scatter_seconds(link, n, layer_bytes);
    table = reduce_scatter_seconds(link, n, int64_t{4} * 1000 * 128);
    layer_sum = all_reduce_seconds(link, n, layer_bytes);
    table_sum = all_reduce_seconds(link, n, int64_t{4} * 1000 * 128);
  }
  double all() const { return 8 * layer + 2 * table; }
  double layer, table;          // a reduce-scatter or an all-gather
  double layer_sum, table_sum;  // an all-reduce
};

TEST(StepTime, EveryMicroBatchReducesAndGathersWhatIsSharedOut) {
  const auto predicted = [](int64_t zero_stage, bool reshards) {
    const ParallelStrategy strategy{.data_parallel = 4, .zero_stage = zero_stage, .reshard_after_forward = reshards};
    return predict(cluster_of_cores(), with(strategy, 12)).data_communication;  // three micro-batches
  };
  const BucketCollectives of(4);
  EXPECT_NEAR(predicted(1, true), of.all() + of.all(), 1e-12);
  EXPECT_NEAR(predicted(2, true), 3 * of.all() + of.all(), 1e-12);
  // F uses the embedding and the layers, B the layers and the head. The update gathers nothing.
  const double gathers = 2 * 8 * of.layer + 2 * of.table;
  EXPECT_NEAR(predicted(3, true), 3 * (of.all() + gathers), 1e-12);
  EXPECT_NEAR(predicted(3, false), 3 * of.all() + of.all(), 1e-12);
}

TEST(StepTime, RanksThatShareDevicesReduceInTurn) {
  ClusterDescription cluster = cluster_of_cores();
  const Configuration configuration = with({.data_parallel = 4, .zero_stage = 3});
  const StepTimeParts alone = predict(cluster, configuration);
  cluster.devices_per_node = 2;
  const StepTimeParts sharing = predict(cluster, configuration);
  EXPECT_NEAR(sharing.data_communication, 2 * alone.data_communication, 1e-12);
  EXPECT_NEAR(sharing.total(), 2 * alone.total(), 1e-12);
  // Ranks that take turns in moving bytes fill no bubble.
  cluster.devices_per_node = 3;
  const auto bubble = [&](int64_t zero_stage) {
    return predict(cluster, with({.data_parallel = 2, .pipeline_parallel = 2, .zero_stage = zero_stage}, 4)).bubble;
  };
  EXPECT_GT(bubble(0), 0);
  EXPECT_NEAR(bubble(3), bubble(0), 1e-12);
}

TEST(StepTime, ASlowNetworkIsBusyAllTheTime) {
  ClusterDescription cluster = counting_cluster();
  cluster.within_node = {.latency_seconds = 0, .bytes_per_second = 1e6};
  for (const int64_t zero_stage : {2, 3}) {
    const Configuration configuration = with({.data_parallel = 4, .zero_stage = zero_stage});
    const double computing = predict(cluster, configuration).compute;
    ClusterDescription without_overlap = cluster;
    without_overlap.devices_per_node = 4;
    const double moving = predict(without_overlap, configuration).data_communication;
    const double step = predict(cluster, configuration).total();
    EXPECT_GE(step, moving * (1 - 1e-12)) << zero_stage;
    EXPECT_LT(step, moving + computing) << zero_stage;
  }
}

TEST(StepTime, AFastNetworkLeavesWhatComesFirstAndLast) {
  ClusterDescription cluster = counting_cluster();
  cluster.within_node = {.latency_seconds = 0, .bytes_per_second = 1e13};
  const double layer_bytes = 4 * (4 * 128 * 128 + 3 * 256 * 128 + 2 * 128), table_bytes = 4 * 1000 * 128;
  const double tail = (layer_bytes + table_bytes) * 3 / 4 / 1e13;
  // The embedding's F takes no time here, so a micro-batch begins with the gathers of two buckets and the reductions of
  // two others. Only the embedding's gather overlaps with the previous pass.
  const double table = table_bytes * 3 / 4 / 1e13, layer = layer_bytes * 3 / 4 / 1e13;
  const auto predicted = [&](int64_t zero_stage) {
    return predict(cluster, with({.data_parallel = 4, .zero_stage = zero_stage})).data_communication;
  };
  EXPECT_NEAR(predicted(2), (table + layer) + tail, 1e-13);
  EXPECT_NEAR(predicted(3), (table + layer) + 3 * (layer + table + layer) + tail, 1e-13);
}

TEST(StepTime, ThePipelineSeesWhatItsPassesWaitFor) {
  const Configuration configuration = with({.data_parallel = 2, .pipeline_parallel = 2, .zero_stage = 3}, 16);
  const StepTimeParts parts = predict(cluster_of_cores(), configuration);
  const BucketCollectives of(2);
  std::vector<StageSeconds> stages;
  double most_waiting = 0;
  for (const LayerRange& range : balance_stages(small_model(), sequence_length, 2)) {
    const auto layers = static_cast<double>(range.end - range.begin);
    const double third = layers * layer_seconds() / 3;
    const double send = send_seconds(counting_cluster().within_node, sequence_length * 128 * 4);
    stages.push_back({third + layers * of.layer, third + 2 * layers * of.layer + of.table, third, send});
    most_waiting = std::max(most_waiting, 8 * ((3 * layers - 1) * of.layer + 2 * of.table));
  }
  // The first stage's last layer stays gathered from F to B, the last stage's first layer from B to the next F.
  stages.front().forward += of.table;
  stages.front().backward_input -= of.layer;
  stages.back().forward -= of.layer;
  stages.back().backward_input += of.table + 2 * head_seconds() / 3;
  stages.back().backward_weight += head_seconds() / 3;
  const double seconds = time_schedule(make_schedule(PipelineSchedule::one_f_one_b, 2, 1, 8), stages).seconds;
  const double first = of.layer;  // the last stage gathers it for its first micro-batch
  EXPECT_NEAR(parts.total(), seconds + first, 1e-12);
  EXPECT_NEAR(parts.data_communication, most_waiting + first, 1e-12);
}

TEST(StepTime, CopiesAddTheirSharesOnceAStep) {
  const auto predicted = [](int64_t zero_stage) {
    const ParallelStrategy strategy{.data_parallel = 4, .zero_stage = zero_stage, .zero_replicas = 2};
    return predict(cluster_of_cores(), with(strategy, 12)).data_communication;
  };
  const BucketCollectives of(2);
  const double halves = (8 * of.layer_sum + 2 * of.table_sum) / 2;
  const double saved = 10 * counting_cluster().within_node.latency_seconds;  // half of the bytes, but all latencies
  EXPECT_NEAR(predicted(1), of.all() + halves + saved + of.all(), 1e-12);
  EXPECT_NEAR(predicted(2), 3 * of.all() + halves + saved + of.all(), 1e-12);
  EXPECT_NEAR(predicted(3), 3 * (2 * of.all() + 8 * of.layer) + halves + saved, 1e-12);
}

TEST(StepTime, WithZeroOneCopiesAddTheirSharesBesideTheBackwardPass) {
  ClusterDescription cluster = counting_cluster();
  cluster.ranks_per_node = 2;
  cluster.within_node = {.latency_seconds = 0, .bytes_per_second = 1e18};
  const auto exposed = [&] {
    return predict(cluster, with({.data_parallel = 4, .zero_stage = 1, .zero_replicas = 2})).data_communication;
  };
  const auto sum_of_halves = [&](int64_t elements) {
    return all_reduce_seconds(cluster.between_nodes, 2, 4 * elements / 2);
  };
  const int64_t layer = 4 * 128 * 128 + 3 * 256 * 128 + 2 * 128, table = 1000 * 128;
  // With a fast network the exposed sums are those that start with the last layer, and the embedding's, which starts at
  // the same time.
  cluster.between_nodes = {.latency_seconds = 0, .bytes_per_second = 1e12};
  EXPECT_NEAR(exposed(), 2 * sum_of_halves(layer) + sum_of_halves(table), 1e-11);
  // A slow network is busy from the completion of the first layer after the head on.
  cluster.between_nodes.bytes_per_second = 1e6;
  const double all = 8 * sum_of_halves(layer) + 2 * sum_of_halves(table);
  EXPECT_NEAR(exposed(), all - 7 * 2 * layer_seconds() / 3, 1e-9);
}

TEST(StepTime, SharesStayOnANodeWhereCopiesDo) {
  ClusterDescription cluster = counting_cluster();
  cluster.within_node = {.latency_seconds = 0, .bytes_per_second = 1e9};
  cluster.between_nodes = {.latency_seconds = 0, .bytes_per_second = 1e6};
  const auto predicted = [&](int64_t replicas) {
    const ParallelStrategy strategy{.data_parallel = 8, .zero_stage = 3, .zero_replicas = replicas};
    return predict(cluster, with(strategy, 64)).total();
  };
  EXPECT_LT(predicted(2), predicted(1) / 5);
  // Groups of three ranks always span nodes of four. In each of two micro-batches all buckets, 6.3 MB, are gathered
  // about twice and reduced once; two thirds of the bytes cross the network. Sums over copies take less.
  ClusterDescription of_four = cluster_of_cores();
  of_four.between_nodes = {.latency_seconds = 0, .bytes_per_second = 1e6};
  const ParallelStrategy threes{.data_parallel = 12, .zero_stage = 3, .zero_replicas = 4};
  EXPECT_GT(predict(of_four, with(threes, 24)).data_communication, 2 * 2 * 6.2 * 2 / 3);
}

TEST(StepTime, SharedGradientsOfNeighboursAreAddedInEveryMicroBatch) {
  const auto predicted = [](int64_t zero_stage, int64_t global_batch) {
    ClusterDescription cluster = cluster_of_cores();
    cluster.ranks_per_node = cluster.devices_per_node = 8;
    const ParallelStrategy strategy{
        .data_parallel = 2, .tensor_parallel = 4, .sequence_parallel = true, .zero_stage = zero_stage};
    return predict(cluster, with(strategy, global_batch)).data_communication;
  };
  const double norms = 8 * all_reduce_seconds(counting_cluster().within_node, 4, int64_t{4} * 2 * 128);
  const double one = predicted(2, 2), three = predicted(2, 6);
  EXPECT_NEAR(one, predicted(1, 2), 1e-12);
  const BucketCollectives of(2);
  EXPECT_GT(three - one, 2 * norms);
  // The remaining time reduces all buckets; a rank holds a quarter of each, but whole norms.
  const Link link = counting_cluster().within_node;
  const int64_t layer_bytes = int64_t{4} * (128 * 128 + 3 * 256 * 32 + 2 * 128), table_bytes = int64_t{4} * 250 * 128;
  const double reductions =
      8 * reduce_scatter_seconds(link, 2, layer_bytes) + 2 * reduce_scatter_seconds(link, 2, table_bytes);
  EXPECT_NEAR(three - one, 2 * (norms + reductions), 1e-12);
}

TEST(StepTime, TiedEmbeddingsAreReducedTogetherWithOneMicroBatchAlone) {
  ModelDescription model = small_model();
  model.tie_word_embeddings = true;
  const auto predicted = [&](ParallelStrategy strategy, int64_t global_batch) {
    return StepTimeModel(model, sequence_length, cluster_of_cores(), silent_system())
        .predict(with(strategy, global_batch))
        .data_communication;
  };
  const BucketCollectives of(4);
  const double gathers = 8 * of.layer + of.table;
  const ParallelStrategy data{.data_parallel = 4, .zero_stage = 2};
  EXPECT_NEAR(predicted(data, 4), 8 * of.layer + of.table + gathers, 1e-12);
  EXPECT_NEAR(predicted(data, 12), 3 * of.all() + gathers, 1e-12);
  // ZeRO-3 gathers weights for both F and B, or once.
  ParallelStrategy three{.data_parallel = 4, .zero_stage = 3};
  EXPECT_NEAR(predicted(three, 12), 3 * (of.all() + 16 * of.layer + 2 * of.table), 1e-12);
  three.reshard_after_forward = false;
  EXPECT_NEAR(predicted(three, 12), 3 * of.all() + gathers, 1e-12);
}

TEST(StepTime, LaterStagesOfZeroTakeNoLessTime) {
  for (const int64_t global_batch : {8, 64}) {
    for (const ParallelStrategy& layout :
         {ParallelStrategy{.data_parallel = 8}, ParallelStrategy{.data_parallel = 4, .pipeline_parallel = 2},
          ParallelStrategy{.data_parallel = 2, .tensor_parallel = 4, .sequence_parallel = true}}) {
      ParallelStrategy strategy = layout;
      const auto seconds = [&](int64_t zero_stage) {
        strategy.zero_stage = zero_stage;
        return predict(gpu_cluster(), with(strategy, global_batch)).total();
      };
      EXPECT_GE(seconds(2), seconds(1) * (1 - 1e-12)) << to_string(strategy);
      EXPECT_GE(seconds(3), seconds(2) * (1 - 1e-12)) << to_string(strategy);
    }
  }
}

TEST(StepTime, ATiedEmbeddingIsAddedAcrossThePipeline) {
  ModelDescription model = small_model();
  const auto predicted = [&] {
    return StepTimeModel(model, sequence_length, counting_cluster(), silent_system())
        .predict(with({.pipeline_parallel = 2}))
        .data_communication;
  };
  EXPECT_EQ(predicted(), 0);
  model.tie_word_embeddings = true;
  EXPECT_NEAR(predicted(), all_reduce_seconds(counting_cluster().within_node, 2, int64_t{4} * 1000 * 128), 1e-12);
}

TEST(StepTime, GradientsOfReplicatedKeysAndValuesAreAdded) {
  ModelDescription model = small_model();
  model.num_kv_heads = 2;
  const auto predicted = [&](bool sequence_parallel) {
    return StepTimeModel(model, sequence_length, counting_cluster(), silent_system())
        .predict(with({.tensor_parallel = 4, .sequence_parallel = sequence_parallel}))
        .data_communication;
  };
  const Link& link = counting_cluster().within_node;
  // In each of 8 layers, two ranks sum the gradients of a key and a value head, and four ranks those of two norms.
  const double keys_and_values = 8 * all_reduce_seconds(link, 2, int64_t{4} * 2 * 16 * 128);
  const double norms = 8 * all_reduce_seconds(link, 4, int64_t{4} * 2 * 128);
  EXPECT_NEAR(predicted(false), keys_and_values, 1e-12);
  EXPECT_NEAR(predicted(true), keys_and_values + norms, 1e-12);
}

TEST(StepTime, SmallKernelsWaitForTheirLaunch) {
  ClusterDescription cluster = gpu_cluster();
  cluster.device.matmul_flops_per_second = 1e18;
  cluster.device.memory_bytes_per_second = 1e18;
  cluster.device.launch_seconds = 1e-5;
  const TrainingSystem system = copus_in_fp32();
  const double kernels = system.forward.launches + system.backward.launches;
  EXPECT_NEAR(predict(cluster, with({})).compute, 16 * 8 * kernels * 1e-5, 1e-6);
}

TEST(StepTime, MatmulsTakeTheirOperationsAndTheRestItsTraffic) {
  // Without memory traffic the time is that of all products and of attention's causal half, whose backward pass has
  // five products and whose forward pass has two.
  ClusterDescription cluster = gpu_cluster();
  cluster.device.memory_bytes_per_second = 0;
  const double attention = 8 * 12.0 * 128 * sequence_length * sequence_length / 1e12;  // not only the causal half
  const double products = sequence_seconds() - attention;
  EXPECT_NEAR(predict(cluster, with({})).compute, 16 * (products + attention / 2 * (2 + 5) / 6), 1e-12);
  cluster.device.matmul_by_depth = {{{1, 0.5}}};
  EXPECT_NEAR(predict(cluster, with({})).compute, 16 * (2 * products + attention / 2 * (2 + 5) / 6), 1e-12);
}

TEST(StepTime, MoreBandwidthIsNeverSlower) {
  for (const ParallelStrategy& strategy :
       {ParallelStrategy{.data_parallel = 8}, ParallelStrategy{.data_parallel = 8, .zero_stage = 1},
        ParallelStrategy{.data_parallel = 2, .tensor_parallel = 4},
        ParallelStrategy{.tensor_parallel = 8, .sequence_parallel = true},
        ParallelStrategy{.data_parallel = 4, .pipeline_parallel = 2}}) {
    ClusterDescription faster = gpu_cluster();
    faster.within_node.bytes_per_second *= 2;
    faster.between_nodes.bytes_per_second *= 2;
    EXPECT_LT(predict(faster, with(strategy)).total(), predict(gpu_cluster(), with(strategy)).total());
  }
}

TEST(StepTime, GroupsThatCrossNodesPayTheNetwork) {
  const auto tensor = [](int64_t t) { return predict(counting_cluster(), with({.tensor_parallel = t})); };
  EXPECT_GT(tensor(8).tensor_communication, 5 * tensor(4).tensor_communication);
  // Data-parallel ranks are t apart: with t = 4 they are on different nodes.
  const auto data = [](int64_t t) {
    return predict(counting_cluster(), with({.data_parallel = 2, .tensor_parallel = t})).data_communication *
           static_cast<double>(t);
  };
  EXPECT_GT(data(4), 5 * data(2));
}

TEST(StepTime, MoreMicroBatchesAmortiseTheBubble) {
  double before = 1;
  for (const int64_t global_batch : {4, 8, 16, 64, 256}) {
    const StepTimeParts parts = predict(counting_cluster(), with({.pipeline_parallel = 4}, global_batch));
    EXPECT_LT(parts.bubble / parts.total(), before);
    before = parts.bubble / parts.total();
  }
}

TEST(StepTime, SharedDevicesDoTheWorkOfAllRanks) {
  ClusterDescription cluster = counting_cluster();
  cluster.ranks_per_node = 8;
  cluster.within_node = {.latency_seconds = 0, .bytes_per_second = 1e18};
  const double work = predict(cluster, with({})).total();
  cluster.devices_per_node = 2;
  // Eight ranks on two devices take half of one device's time; while some wait in the pipeline, others compute.
  EXPECT_NEAR(predict(cluster, with({.data_parallel = 8})).total(), work / 2, work * 1e-6);
  EXPECT_NEAR(predict(cluster, with({.data_parallel = 2, .pipeline_parallel = 4})).total(), work / 2, work * 0.05);
  // Each of two ranks has its own device.
  EXPECT_NEAR(predict(cluster, with({.data_parallel = 2})).total(), work / 2, work * 1e-6);
}

TEST(StepTime, PipelinesThatCrowdTheMemoryLoseTimeInEveryMicroBatch) {
  ClusterDescription cluster = gpu_cluster();
  cluster.device.memory_bytes = 1e12;
  TrainingSystem system = copus_in_bf16();
  system.stall_seconds = 0.25;
  const auto bubble = [&](int64_t p) {
    return StepTimeModel(small_model(), sequence_length, cluster, system)
        .predict(with({.pipeline_parallel = p}))
        .bubble;
  };
  const double with_room = bubble(2);
  cluster.device.memory_bytes = 1e3;
  EXPECT_NEAR(bubble(2), with_room + 16 * 2 * 0.25, 1e-9);
  EXPECT_EQ(bubble(1), 0);
}

TEST(StepTime, ThroughputAndUtilization) {
  // A step of 16 sequences of 64 tokens takes 2 s on 4 ranks.
  const double throughput = tokens_per_second_per_rank(with({.data_parallel = 4}), sequence_length, 2);
  EXPECT_DOUBLE_EQ(throughput, 128);
  const double operations = training_flops_per_token(small_model(), sequence_length);
  EXPECT_DOUBLE_EQ(model_flops_utilization(small_model(), sequence_length, throughput, 256 * operations), 0.5);
  EXPECT_TRUE(std::isnan(model_flops_utilization(small_model(), sequence_length, throughput, 0)));
}

TEST(CutStages, ByThresholdsEquallyAndWithTheEnds) {
  TrainingSystem system;
  ModelDescription model = small_model();
  // A layer has 4 * 128^2 + 3 * 256 * 128 = 163,840 weights. This head has as many as 4 layers, so the model counts as
  // 12 layers.
  model.vocab_size = 4 * 163'840 / 128;
  system.stage_cut = StageCut::thresholds;
  EXPECT_EQ(cut_stages(system, model, sequence_length, 2), (std::vector<LayerRange>{{0, 6}, {6, 8}}));
  // Thresholds are multiples of 2.4 layers: stages end after 3, 5 and 8 layers. The fourth stage gets nothing, the last
  // only the head.
  EXPECT_EQ(cut_stages(system, model, sequence_length, 5),
            (std::vector<LayerRange>{{0, 3}, {3, 5}, {5, 8}, {8, 8}, {8, 8}}));
  system.stage_cut = StageCut::equal;
  EXPECT_EQ(cut_stages(system, model, sequence_length, 3), (std::vector<LayerRange>{{0, 2}, {2, 5}, {5, 8}}));
  // Nine or ten layers are even if the head or both ends count; as few ends as possible count.
  system.stage_cut = StageCut::even;
  EXPECT_EQ(cut_stages(system, model, sequence_length, 4), (std::vector<LayerRange>{{0, 2}, {2, 4}, {4, 6}, {6, 8}}));
  EXPECT_EQ(cut_stages(system, model, sequence_length, 3), (std::vector<LayerRange>{{0, 3}, {3, 6}, {6, 8}}));
  EXPECT_EQ(cut_stages(system, model, sequence_length, 5),
            (std::vector<LayerRange>{{0, 1}, {1, 3}, {3, 5}, {5, 7}, {7, 8}}));
  EXPECT_EQ(even_ends(8, 3), (CountedEnds{.head = true}));
  EXPECT_EQ(even_ends(126, 64), (CountedEnds{.embedding = true, .head = true}));
  EXPECT_EQ(even_ends(8, 7), std::nullopt);
  // Ten layers: the first stands for the embedding, the last for the head.
  system.stage_cut = StageCut::ends_count;
  EXPECT_EQ(cut_stages(system, model, sequence_length, 3), (std::vector<LayerRange>{{0, 3}, {3, 6}, {6, 8}}));
  EXPECT_EQ(cut_stages(system, model, sequence_length, 5),
            (std::vector<LayerRange>{{0, 1}, {1, 3}, {3, 5}, {5, 7}, {7, 8}}));
}

}  // namespace
}  // namespace copus
