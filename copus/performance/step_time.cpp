#include "copus/performance/step_time.h"

#include <algorithm>
#include <limits>

#include "copus/base/error.h"

namespace copus {

namespace {

double as_double(int64_t value) { return static_cast<double>(value); }

}  // namespace

// The costs of a configuration's stages, and of the blocks that they consist of.
struct StepTimeModel::Stages {
  const BlockCosts& blocks;
  const std::vector<LayerRange>& ranges;
  std::vector<BlockCost> costs;       // by stage, for one micro-batch
  std::vector<StageSeconds> seconds;  // by stage, for one micro-batch, with messages
  std::vector<Cost> busy;             // by pipeline rank, for every micro-batch of a step
};

StepTimeModel::StepTimeModel(const ModelDescription& model, int64_t sequence_length, const ClusterDescription& cluster,
                             const TrainingSystem& system)
    : model_(model),
      sequence_length_(sequence_length),
      cluster_(cluster),
      system_(system),
      memory_(model, sequence_length, system) {
  COPUS_CHECK(is_speed_known(cluster), "the cluster's description does not say how fast its devices are");
}

StepTimeParts StepTimeModel::predict(const Configuration& configuration) {
  const Stages costs = cost_stages(configuration);
  StepTimeParts parts;
  add_pipeline(configuration, costs, parts);
  parts.data_communication = data_communication(configuration, costs);
  parts.bubble += crowding(configuration);
  parts.optimizer = optimizer(configuration.strategy);
  return parts;
}

StepTimeModel::Stages StepTimeModel::cost_stages(const Configuration& configuration) {
  const ParallelStrategy& strategy = configuration.strategy;
  const int64_t p = strategy.pipeline_parallel, num_stages = strategy.num_stages();
  Stages all{.blocks = blocks(configuration), .ranges = stages(num_stages), .costs = {}, .seconds = {}, .busy = {}};
  all.busy.resize(p);
  for (int64_t stage = 0; stage < num_stages; ++stage) {
    BlockCost cost = as_double(all.ranges[stage].end - all.ranges[stage].begin) * all.blocks.layer;
    if (stage == 0) cost += all.blocks.embedding;
    if (stage + 1 == num_stages) cost += all.blocks.head;
    all.costs.push_back(cost);
    const double send =
        p == 1 ? 0 : send_seconds(stage_link(strategy, stage), static_cast<int64_t>(all.blocks.message_bytes));
    all.seconds.push_back({cost.forward.total(), cost.backward_input.total(), cost.backward_weight.total(), send});
    all.busy[stage % p] += as_double(configuration.num_microbatches()) * cost.total();
  }
  return all;
}

// Adds computing, tensor-parallel communication and the bubble.
void StepTimeModel::add_pipeline(const Configuration& configuration, const Stages& costs, StepTimeParts& parts) {
  const ParallelStrategy& strategy = configuration.strategy;
  const std::vector<Cost>& busy = costs.busy;
  const Cost busiest =
      *std::max_element(busy.begin(), busy.end(), [](const Cost& a, const Cost& b) { return a.total() < b.total(); });
  parts.compute = busiest.compute;
  parts.tensor_communication = busiest.communication;
  double pipeline =
      strategy.pipeline_parallel == 1
          ? busiest.total()
          : pipeline_times_.seconds(strategy.schedule, strategy.pipeline_parallel, strategy.virtual_stages,
                                    configuration.num_microbatches(), costs.seconds);
  const double shared = ranks_per_device(strategy);
  if (shared < 1) {
    parts.compute *= shared;
    pipeline -= (1 - shared) * busiest.compute;
  } else if (shared > 1) {
    // Ranks that share a device take turns: a rank that waits in the pipeline leaves it to others.
    std::vector<double> computing, communicating;
    for (const Cost& cost : busy) {
      computing.push_back(cost.compute);
      communicating.push_back(cost.communication);
    }
    parts.compute = node_work(strategy, computing);
    parts.tensor_communication = node_work(strategy, communicating);
    pipeline = std::max(pipeline, parts.compute + parts.tensor_communication);
  }
  parts.bubble = std::max(0.0, pipeline - parts.compute - parts.tensor_communication);
}

// Returns the seconds of the step after the pipeline's end: the rest of the reduction of buckets, tied embeddings,
// gradients that neighbouring ranks have to add, and what the ranks tell each other.
double StepTimeModel::data_communication(const Configuration& configuration, const Stages& costs) {
  const ParallelStrategy& strategy = configuration.strategy;
  const int64_t p = strategy.pipeline_parallel;
  const LocalElements& held = elements(strategy);
  double seconds = strategy.data_parallel > 1 ? bucket_communication(configuration, costs) : 0;
  // The two copies of a tied embedding are added before their data-parallel reduction.
  if (model_.tie_word_embeddings && p > 1) {
    const Link tie = link_of(cluster_, RankSeries{0, strategy.world_size() / p * (p - 1), 2});
    seconds += turns(strategy, strategy.world_size()) *
               all_reduce_seconds(tie, 2, static_cast<int64_t>(held.embedding * system_.reduced_bytes));
  }
  // Neighbouring ranks add the gradients of norms, of which each rank has seen its rows alone, and of key-value heads
  // that several ranks hold.
  for (const auto& [ranks, elements_of_layer] : held.partial) {
    const auto bytes = static_cast<int64_t>(elements_of_layer * system_.reduced_bytes);
    seconds += as_double(model_.num_layers) / as_double(p) * turns(strategy, ranks) *
               all_reduce_seconds(link_of(cluster_, RankSeries{0, 1, ranks}), ranks, bytes);
  }
  return seconds + turns(strategy, strategy.world_size()) * agreement(strategy);
}

// Returns the seconds of bucket reductions that nothing hides. The gradients of each layer, of the embedding and of the
// head are one bucket each, reduced in turn: each when the last backward pass has left it and the bucket before it is
// done. The rest of that when the backward pass of the pipeline's first rank ends is exposed. Pipeline rank r has ended
// its own backward pass as much earlier as the ranks before it still need for the last micro-batch. Tied embeddings
// come last. Then ZeRO-1 gathers the weights, bucket by bucket.
double StepTimeModel::bucket_communication(const Configuration& configuration, const Stages& costs) {
  const ParallelStrategy& strategy = configuration.strategy;
  const int64_t d = strategy.data_parallel, p = strategy.pipeline_parallel, num_stages = strategy.num_stages();
  const LocalElements& held = elements(strategy);
  const int64_t sharers = sharing_ranks(strategy);
  const Link link = data_link(strategy, d), gather_link = data_link(strategy, sharers);
  const double reduce_turns = turns(strategy, strategy.tensor_parallel * d),
               gather_turns = turns(strategy, strategy.tensor_parallel * sharers);
  const auto reduce = [&](double parameters) {
    const auto bytes = static_cast<int64_t>(parameters * system_.reduced_bytes);
    return reduce_turns *
           (sharers > 1 && sharers == d ? reduce_scatter_seconds(link, d, bytes) : all_reduce_seconds(link, d, bytes));
  };
  const auto gather = [&](double parameters) {
    const auto bytes = static_cast<int64_t>(parameters * system_.weight_bytes);
    return gather_turns * all_gather_seconds(gather_link, sharers, bytes);
  };
  const double layer_reduction = reduce(held.layer), layer_gather = gather(held.layer);
  const double head_reduction = reduce(held.embedding), head_gather = gather(held.embedding);
  const double passes = system_.reduces_each_micro_batch ? as_double(configuration.num_microbatches()) : 1;

  double exposed = 0, gathering = 0, ended_earlier = 0;
  for (int64_t rank = 0; rank < p; ++rank) {
    // Buckets are complete only at the end of the schedule where it leaves the weights' gradients until then. On ranks
    // that share devices nothing is hidden either: the same processors move bytes and compute.
    const bool is_deferred = strategy.schedule == PipelineSchedule::zb_h1 && rank > 0;
    const bool overlaps = system_.overlaps_reduction && !is_deferred && cluster_.devices_per_node == 0;
    double now = 0, reduced = 0, gathered = 0, tied = 0;
    const auto add_bucket = [&](double reduction, double gather_seconds) {
      reduced = std::max(reduced, overlaps ? now : 0) + reduction;
      gathered += gather_seconds;
    };
    const auto add_embedding = [&] {
      if (!model_.tie_word_embeddings) return add_bucket(head_reduction, head_gather);
      tied = head_reduction;
      gathered += head_gather;
    };
    for (int64_t stage = rank + (num_stages - p); stage >= 0; stage -= p) {
      if (stage + 1 == num_stages) {
        now += costs.blocks.head.backward().total();
        if (!model_.tie_word_embeddings || p > 1) add_embedding();  // a tied head beside its embedding has no bucket
      }
      for (int64_t layer = costs.ranges[stage].begin; layer < costs.ranges[stage].end; ++layer) {
        now += costs.blocks.layer.backward().total();
        add_bucket(layer_reduction, layer_gather);
      }
      if (stage != 0) continue;
      now += costs.blocks.embedding.backward().total();
      add_embedding();
    }
    const double left = overlaps ? std::max(0.0, reduced - now) : reduced;
    exposed = std::max(exposed, passes * (left + tied) - (is_deferred ? 0 : ended_earlier));
    gathering = std::max(gathering, gathered);
    ended_earlier += costs.costs[rank].backward().total();
  }
  return exposed + gathering;
}

// Returns the seconds of the optimizer; none where a virtual clock charges operations, since it leaves out the
// optimizer's.
double StepTimeModel::optimizer(const ParallelStrategy& strategy) {
  if (cluster_.flops_per_second > 0) return 0;
  double slowest = 0;
  for (int64_t rank = 0; rank < strategy.pipeline_parallel; ++rank) {
    const double held = held_parameters(strategy, rank);
    const double updated = held / as_double(sharing_ranks(strategy));
    const double bytes = held * system_.gradient_traffic + updated * system_.optimizer_traffic;
    slowest = std::max(slowest, memory_seconds(cluster_.device, bytes));
  }
  return ranks_per_device(strategy) * slowest;
}

double StepTimeModel::held_parameters(const ParallelStrategy& strategy, int64_t pipeline_rank) {
  const LocalElements& of = elements(strategy);
  const int64_t num_stages = strategy.num_stages();
  const std::vector<LayerRange>& ranges = stages(num_stages);
  double held = 0;
  for (int64_t stage = pipeline_rank; stage < num_stages; stage += strategy.pipeline_parallel) {
    held += as_double(ranges[stage].end - ranges[stage].begin) * of.layer;
    const bool is_first = stage == 0, is_last = stage + 1 == num_stages;
    if (is_first) held += of.embedding;
    if (is_last) held += of.head - (is_first && model_.tie_word_embeddings ? of.embedding : 0);
  }
  return held;
}

// Returns the seconds in which the ranks tell each other the step's loss, norms and times.
double StepTimeModel::agreement(const ParallelStrategy& strategy) const {
  const int64_t ranks = strategy.world_size();
  const double bytes = system_.agreement_bytes + as_double(ranks) * system_.agreement_bytes_per_rank;
  if (bytes == 0) return 0;
  return all_reduce_seconds(link_of(cluster_, RankSeries{0, 1, ranks}), ranks, static_cast<int64_t>(bytes));
}

double StepTimeModel::crowding(const Configuration& configuration) {
  const int64_t p = configuration.strategy.pipeline_parallel;
  const double memory_bytes = cluster_.device.memory_bytes;
  if (system_.crowded_seconds == 0 || p == 1 || memory_bytes == 0) return 0;
  if (memory_.predict(configuration).parts.total() <= system_.crowded_memory * memory_bytes) return 0;
  return as_double(configuration.num_microbatches() * std::min<int64_t>(p, 4)) * system_.crowded_seconds;
}

// Returns the number of data-parallel ranks that share an optimizer state.
int64_t StepTimeModel::sharing_ranks(const ParallelStrategy& strategy) const {
  return strategy.zero_stage == 0      ? 1
         : system_.optimizer_group > 0 ? std::min(system_.optimizer_group, strategy.data_parallel)
                                       : strategy.data_parallel;
}

// Returns the number of ranks that share each device of a node, where there are more ranks than devices. Otherwise
// returns one over the devices that each rank has to itself, as threads (Copus gives each rank an equal share of them).
double StepTimeModel::ranks_per_device(const ParallelStrategy& strategy) const {
  if (cluster_.devices_per_node == 0) return 1;
  const int64_t ranks = std::min(cluster_.ranks_per_node, strategy.world_size());
  if (ranks <= cluster_.devices_per_node) return 1 / as_double(cluster_.devices_per_node / ranks);
  return as_double(ranks) / as_double(cluster_.devices_per_node);
}

// Returns how many ranks take turns at moving the bytes of groups of `count` neighbours of a kind. Within a node the
// ranks that share a device take turns, since the device that computes also moves the bytes; between nodes the network
// moves them, and nobody waits for a device.
double StepTimeModel::turns(const ParallelStrategy& strategy, int64_t count) const {
  const bool one_node = strategy.world_size() <= cluster_.ranks_per_node || cluster_.ranks_per_node % count == 0;
  return one_node ? std::max(1.0, ranks_per_device(strategy)) : 1;
}

// Returns the seconds that the devices of the busiest node need for the computing of its ranks (`busy`: by pipeline
// rank).
double StepTimeModel::node_work(const ParallelStrategy& strategy, const std::vector<double>& busy) const {
  const int64_t block = strategy.tensor_parallel * strategy.data_parallel, node = cluster_.ranks_per_node;
  double most = 0;
  for (int64_t first = 0; first < strategy.world_size(); first += node) {
    const int64_t end = std::min(first + node, strategy.world_size());
    double work = 0;
    for (int64_t rank = first / block; rank * block < end; ++rank) {
      const int64_t ranks = std::min(end, (rank + 1) * block) - std::max(first, rank * block);
      work += as_double(ranks) * busy[rank];
    }
    most = std::max(most, work / as_double(cluster_.devices_per_node));
  }
  return most;
}

// Returns the slowest link of the data-parallel groups, which begin at every rank of every block of t d ranks.
Link StepTimeModel::data_link(const ParallelStrategy& strategy, int64_t count) const {
  const int64_t t = strategy.tensor_parallel, d = strategy.data_parallel;
  Link slowest = link_of(cluster_, RankSeries{0, t, count});
  // The position of a block on its nodes repeats after at most as many blocks as a node has ranks.
  for (int64_t block = 0; block < std::min(strategy.pipeline_parallel, cluster_.ranks_per_node); ++block) {
    for (const int64_t first : {block * t * d, block * t * d + t - 1}) {
      const Link link = link_of(cluster_, RankSeries{first, t, count});
      if (link.bytes_per_second < slowest.bytes_per_second) slowest = link;
    }
  }
  return slowest;
}

// Returns the link from a stage to the next; the last pipeline rank's successor is the first.
Link StepTimeModel::stage_link(const ParallelStrategy& strategy, int64_t stage) const {
  const int64_t block = strategy.tensor_parallel * strategy.data_parallel, p = strategy.pipeline_parallel;
  const int64_t from = stage % p * block, to = (stage + 1) % p * block;
  const int64_t node = cluster_.ranks_per_node;
  const bool on_one_node = from / node == to / node && (std::max(from, to) + block - 1) / node == from / node;
  return on_one_node ? cluster_.within_node : link_of(cluster_, RankSeries{0, node, 2});
}

const BlockCosts& StepTimeModel::blocks(const Configuration& configuration) {
  const ParallelStrategy& strategy = configuration.strategy;
  const BlockShape shape{
      .tensor_parallel = strategy.tensor_parallel,
      .micro_batch = configuration.micro_batch,
      .sequence_parallel = strategy.sequence_parallel && strategy.tensor_parallel > 1,
      .recompute = strategy.recompute,
      .pipeline_across_nodes = strategy.pipeline_parallel > 1 && strategy.world_size() > cluster_.ranks_per_node};
  const auto [found, is_new] = blocks_.try_emplace(shape);
  if (is_new) found->second = cost_blocks(model_, sequence_length_, cluster_, system_, shape);
  return found->second;
}

const LocalElements& StepTimeModel::elements(const ParallelStrategy& strategy) {
  const auto [found, is_new] = elements_.try_emplace({strategy.tensor_parallel, strategy.sequence_parallel});
  if (is_new) found->second = count_local_elements(model_, strategy.tensor_parallel, strategy.sequence_parallel);
  return found->second;
}

const std::vector<LayerRange>& StepTimeModel::stages(int64_t num_stages) {
  const auto [found, is_new] = stages_.try_emplace(num_stages);
  if (is_new) found->second = cut_stages(system_, model_, sequence_length_, num_stages);
  return found->second;
}

double tokens_per_second_per_rank(const Configuration& configuration, int64_t sequence_length, double step_seconds) {
  return as_double(configuration.global_batch * sequence_length) /
         (step_seconds * as_double(configuration.strategy.world_size()));
}

double model_flops_utilization(const ModelDescription& model, int64_t sequence_length,
                               double tokens_per_second_per_rank, double peak_flops_per_second) {
  if (peak_flops_per_second <= 0) return std::numeric_limits<double>::quiet_NaN();
  return training_flops_per_token(model, sequence_length) * tokens_per_second_per_rank / peak_flops_per_second;
}

}  // namespace copus
