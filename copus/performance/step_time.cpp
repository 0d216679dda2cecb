#include "copus/performance/step_time.h"

#include <algorithm>
#include <limits>
#include <span>
#include <utility>

#include "copus/base/error.h"
#include "copus/base/numbers/exact_sum.h"

namespace copus {

namespace {

double as_double(int64_t value) { return static_cast<double>(value); }

// Calls visit(kind, count) with the number of layers of each kind in a range.
template <class Visit>
void for_kinds(const LayerKinds& kinds, const LayerRange& range, const Visit& visit) {
  const auto begin = kinds.of_layer.begin() + range.begin, end = kinds.of_layer.begin() + range.end;
  for (int64_t kind = 0; kind < std::ssize(kinds.examples); ++kind) {
    visit(kind, as_double(std::count(begin, end, kind)));
  }
}

}  // namespace

// The costs of a configuration's stages and blocks.
struct StepTimeModel::Stages {
  const BlockCosts& blocks;
  const std::vector<LayerRange>& ranges;
  std::vector<BlockCost> costs;       // by stage, for one micro-batch
  std::vector<StageSeconds> seconds;  // by stage, for one micro-batch, with messages
  std::vector<StageWaits> waits;      // by stage, for sharded buckets; in `seconds` unless ranks share devices
  std::vector<Cost> busy;             // by pipeline rank, for a whole step
  std::vector<double> waiting;        // waits by pipeline rank, for a whole step
};

StepTimeModel::StepTimeModel(const ModelDescription& model, int64_t sequence_length, const ClusterDescription& cluster,
                             const TrainingSystem& system)
    : model_(model),
      sequence_length_(sequence_length),
      cluster_(cluster),
      system_(system),
      kinds_(model),
      elements_(model),
      memory_(model, sequence_length, system) {
  COPUS_CHECK(is_speed_known(cluster), "the cluster's description does not say how fast its devices are");
}

StepTimeParts StepTimeModel::predict(const Configuration& configuration) {
  const Stages costs = cost_stages(configuration);
  StepTimeParts parts;
  add_pipeline(configuration, costs, parts);
  parts.data_communication += data_communication(configuration, costs);
  parts.bubble += crowding(configuration);
  parts.optimizer = optimizer(configuration.strategy);
  return parts;
}

StepTimeModel::Stages StepTimeModel::cost_stages(const Configuration& configuration) {
  const ParallelStrategy& strategy = configuration.strategy;
  const int64_t p = strategy.pipeline_parallel, num_stages = strategy.num_stages();
  const auto micro_batches = as_double(configuration.num_microbatches());
  Stages all{.blocks = blocks(configuration),
             .ranges = stages(num_stages),
             .costs = {},
             .seconds = {},
             .waits = {},
             .busy = std::vector<Cost>(p),
             .waiting = std::vector<double>(p, 0)};
  if (strategy.cuts_gradients()) all.waits = wait_for_buckets(configuration, all);
  const bool waits_in_passes = strategy.cuts_gradients() && ranks_per_device(strategy) <= 1;
  for (int64_t stage = 0; stage < num_stages; ++stage) {
    BlockCost cost;
    for_kinds(kinds_, all.ranges[stage], [&](int64_t kind, double count) { cost += count * all.blocks.layers[kind]; });
    if (stage == 0) cost += all.blocks.embedding;
    if (stage + 1 == num_stages) cost += all.blocks.head;
    all.costs.push_back(cost);
    const double send =
        p == 1 ? 0 : send_seconds(stage_link(strategy, stage), static_cast<int64_t>(all.blocks.message_bytes));
    const StageWaits waits = waits_in_passes ? all.waits[stage] : StageWaits();
    all.seconds.push_back({cost.forward.total() + waits.forward, cost.backward_input.total() + waits.backward_input,
                           cost.backward_weight.total() + waits.backward_weight, send});
    all.busy[stage % p] += micro_batches * cost.total();
    if (strategy.cuts_gradients()) all.waiting[stage % p] += micro_batches * all.waits[stage].total();
  }
  return all;
}

// Returns the seconds for which each stage waits for collectives of buckets with sharded gradients. Middle stages with
// the same kinds of layers wait equally long, so they share one replay.
std::vector<StageWaits> StepTimeModel::wait_for_buckets(const Configuration& configuration, const Stages& costs) {
  const ParallelStrategy& strategy = configuration.strategy;
  const int64_t num_stages = strategy.num_stages();
  const BucketCosts& buckets = bucket_costs(strategy);
  const auto seconds_of = [&](const BlockCost& cost, const BucketCosts::Bucket& bucket) {
    return BucketSeconds{.forward = cost.forward.total(),
                         .backward_input = cost.backward_input.total(),
                         .backward_weight = cost.backward_weight.total(),
                         .gather = strategy.cuts_weights() ? bucket.gather : 0,
                         .reduce = bucket.reduce};
  };
  const bool tied_at_the_end = reduces_tied_at_the_end(configuration);
  std::vector<std::pair<LayerRange, StageWaits>> in_the_middle;
  const auto kinds_of = [&](const LayerRange& range) {
    return std::span(kinds_.of_layer).subspan(range.begin, range.end - range.begin);
  };
  std::vector<StageWaits> all;
  for (int64_t stage = 0; stage < num_stages; ++stage) {
    const bool is_first = stage == 0, is_last = stage + 1 == num_stages, is_common = !is_first && !is_last;
    const LayerRange& range = costs.ranges[stage];
    const auto same = std::ranges::find_if(
        in_the_middle, [&](const auto& other) { return std::ranges::equal(kinds_of(other.first), kinds_of(range)); });
    if (is_common && same != in_the_middle.end()) {
      all.push_back(same->second);
      continue;
    }
    ShardedStage of;
    for (const int64_t kind : kinds_of(range)) {
      of.layers.push_back(seconds_of(costs.blocks.layers[kind], buckets.layers[kind]));
    }
    of.schedule = strategy.schedule;
    of.defers_weight_gradients = defers_weight_gradients(strategy, stage);
    of.reshards = strategy.reshard_after_forward;
    of.frees_after_backward = system_.frees_after_backward;
    of.is_first = is_first;
    of.overlaps = overlaps_reduction(strategy);
    of.num_microbatches = configuration.num_microbatches();
    if (is_first) of.embedding = seconds_of(costs.blocks.embedding, buckets.embedding);
    if (is_last) of.head = seconds_of(costs.blocks.head, buckets.embedding);
    if (is_first && is_last && model_.tie_word_embeddings && !of.reshards) of.head.gather = 0;  // it is the embedding
    if (tied_at_the_end) of.embedding.reduce = of.head.reduce = 0;
    StageWaits waits = wait_for_shares(of);
    for_kinds(kinds_, range, [&](int64_t kind, double count) {
      (of.defers_weight_gradients ? waits.backward_weight : waits.backward_input) += count * buckets.add_partial[kind];
    });
    if (is_common) in_the_middle.emplace_back(range, waits);
    all.push_back(waits);
  }
  return all;
}

// Adds computation, communication within passes, and the bubble.
void StepTimeModel::add_pipeline(const Configuration& configuration, const Stages& costs, StepTimeParts& parts) {
  const ParallelStrategy& strategy = configuration.strategy;
  const std::vector<Cost>& busy = costs.busy;
  const auto seconds_of = [&](size_t rank) { return busy[rank].total() + costs.waiting[rank]; };
  size_t most = 0;
  for (size_t rank = 1; rank < busy.size(); ++rank) {
    if (seconds_of(rank) > seconds_of(most)) most = rank;
  }
  const Cost& busiest = busy[most];
  parts.compute = busiest.compute;
  parts.tensor_communication = busiest.communication;
  parts.data_communication = costs.waiting[most];
  const double shared = ranks_per_device(strategy);
  // Ranks that share a device move bytes in turn, and the pipeline does not overlap with that.
  const double waiting = shared > 1 ? 0 : costs.waiting[most];
  double pipeline =
      strategy.pipeline_parallel == 1
          ? busiest.total() + waiting
          : pipeline_times_.seconds(strategy.schedule, strategy.pipeline_parallel, strategy.virtual_stages,
                                    configuration.num_microbatches(), costs.seconds);
  if (shared > 1) {
    // If ranks share a device, others use it while one waits in the pipeline.
    std::vector<double> computing, communicating;
    for (const Cost& cost : busy) {
      computing.push_back(cost.compute);
      communicating.push_back(cost.communication);
    }
    parts.compute = node_work(strategy, computing);
    parts.tensor_communication = node_work(strategy, communicating);
    pipeline = std::max(pipeline, parts.compute + parts.tensor_communication);
  }
  parts.bubble = std::max(0.0, pipeline - parts.compute - parts.tensor_communication - waiting);
}

// Returns the seconds of a step outside its passes: exposed bucket reductions, tied embeddings, partial gradients that
// tensor-parallel ranks sum once a step, and the agreement of all ranks.
double StepTimeModel::data_communication(const Configuration& configuration, const Stages& costs) {
  const ParallelStrategy& strategy = configuration.strategy;
  const int64_t p = strategy.pipeline_parallel;
  double seconds = 0;
  if (strategy.data_parallel > 1) {
    seconds = strategy.cuts_gradients() ? shared_communication(configuration, costs)
                                        : bucket_communication(configuration, costs);
  }
  // Both copies of a tied embedding are summed: whole before their data-parallel reduction, or shares after it.
  if (model_.tie_word_embeddings && p > 1) {
    const Link tie = link_of(cluster_, RankSeries{0, strategy.world_size() / p * (p - 1), 2});
    const bool adds_shares = strategy.cuts_gradients() && configuration.num_microbatches() > 1;
    const double added =
        elements_.of(strategy).embedding.gradients / (adds_shares ? as_double(strategy.zero_shards()) : 1);
    seconds += turns(strategy, strategy.world_size()) *
               all_reduce_seconds(tie, 2, static_cast<int64_t>(added * system_.reduced_bytes));
  }
  if (!strategy.cuts_gradients()) {
    for_kinds(kinds_, {0, model_.num_layers}, [&](int64_t kind, double count) {
      seconds += count / as_double(p) * add_partial_seconds(strategy, elements_.of(strategy).layers[kind]);
    });
  }
  return seconds + turns(strategy, strategy.world_size()) * agreement(strategy);
}

// Returns the seconds in which tensor-parallel ranks sum a layer's partial gradients. These are gradients of norms, for
// which each rank has seen only its own rows, and of key/value heads that several ranks hold.
double StepTimeModel::add_partial_seconds(const ParallelStrategy& strategy, const LayerElements& layer) {
  double seconds = 0;
  for (const auto& [ranks, elements_of_layer] : layer.partial) {
    const auto bytes = static_cast<int64_t>(elements_of_layer * system_.reduced_bytes);
    seconds += turns(strategy, ranks) * all_reduce_seconds(link_of(cluster_, RankSeries{0, 1, ranks}), ranks, bytes);
  }
  return seconds;
}

const StepTimeModel::BucketCosts& StepTimeModel::bucket_costs(const ParallelStrategy& strategy) {
  const auto [found, is_new] = bucket_costs_.try_emplace(strategy);
  if (is_new) found->second = cost_buckets(strategy);
  return found->second;
}

StepTimeModel::BucketCosts StepTimeModel::cost_buckets(const ParallelStrategy& strategy) {
  const int64_t t = strategy.tensor_parallel, d = strategy.data_parallel, sharers = sharing_ranks(strategy);
  // If only some data-parallel ranks share the optimizer state, gradients are still all-reduced over all data-parallel
  // ranks.
  const bool scatters =
      sharers > 1 && sharers == strategy.zero_shards() && (system_.scatters_gradients || strategy.cuts_gradients());
  const int64_t reducers = scatters ? sharers : d, replicas = scatters ? strategy.zero_replicas : 1;
  const Link reduce_link = data_link(strategy, t, reducers), gather_link = data_link(strategy, t, sharers),
             replica_link = data_link(strategy, t * sharers, replicas);
  const double reduce_turns = turns(strategy, t * reducers), gather_turns = turns(strategy, t * sharers),
               replica_turns = turns(strategy, t * d);
  const auto bytes_of = [](double parameters, double bytes) { return static_cast<int64_t>(parameters * bytes); };
  const double bucket_parameters = system_.reduction_of(strategy).bucket_parameters;
  const bool fills_buckets = bucket_parameters > 0 && !strategy.cuts_gradients();
  const double filled = fills_buckets ? std::min(bucket_parameters, held_parameters(strategy, 0)) : 0;
  const auto cost = [&](double parameters) {
    // A block's part of the time of a bucket that contains several blocks.
    const double together = fills_buckets ? filled : parameters, share = parameters / together;
    const int64_t reduced = bytes_of(together, system_.reduced_bytes);
    BucketCosts::Bucket bucket;
    bucket.reduce = share * reduce_turns *
                    (scatters ? reduce_scatter_seconds(reduce_link, reducers, reduced)
                              : all_reduce_seconds(reduce_link, reducers, reduced));
    bucket.gather =
        share * gather_turns * all_gather_seconds(gather_link, sharers, bytes_of(together, system_.weight_bytes));
    bucket.reduce_replicas = share * replica_turns * all_reduce_seconds(replica_link, replicas, reduced / sharers);
    return bucket;
  };
  const BlockElements& held = elements_.of(strategy);
  BucketCosts costs{.layers = {}, .embedding = cost(held.embedding.gradients), .add_partial = {}};
  for (const LayerElements& layer : held.layers) {
    BucketCosts::Bucket& bucket = costs.layers.emplace_back(cost(layer.gradients));
    if (sharers > 1) bucket.gather += as_double(sharers) * system_.gather_launches * cluster_.device.launch_seconds;
    costs.add_partial.push_back(add_partial_seconds(strategy, layer));
  }
  return costs;
}

// Calls visit(bucket) for a pipeline rank's buckets with weights. A tied head on its embedding's rank has no weights.
template <class Visitor>
void StepTimeModel::visit_buckets(const ParallelStrategy& strategy, int64_t rank, const BucketCosts& buckets,
                                  Visitor&& visit) {
  const int64_t p = strategy.pipeline_parallel, num_stages = strategy.num_stages();
  const std::vector<LayerRange>& ranges = stages(num_stages);
  for (int64_t stage = rank; stage < num_stages; stage += p) {
    for (int64_t layer = ranges[stage].begin; layer < ranges[stage].end; ++layer) {
      visit(buckets.layers[kinds_.of_layer[layer]]);
    }
  }
  if (rank == 0) visit(buckets.embedding);
  if (rank == p - 1 && (!model_.tie_word_embeddings || p > 1)) visit(buckets.embedding);
}

// Returns whether backward passes defer the weight gradients.
bool StepTimeModel::defers_weight_gradients(const ParallelStrategy& strategy, int64_t rank) {
  return strategy.schedule == PipelineSchedule::zb_h1 && rank > 0;
}

// Returns whether communication overlaps with computation. It does not if ranks share devices, because the same
// processors move bytes and compute.
bool StepTimeModel::overlaps_reduction(const ParallelStrategy& strategy) const {
  return system_.reduction_of(strategy).overlaps && cluster_.devices_per_node == 0;
}

// Returns whether the gradients of tied embeddings are summed whole, and reduced at the end of the backward pass.
bool StepTimeModel::reduces_tied_at_the_end(const Configuration& configuration) const {
  return model_.tie_word_embeddings &&
         (!configuration.strategy.cuts_gradients() || configuration.num_microbatches() == 1);
}

// Returns the exposed seconds of bucket reductions. Buckets are the gradients of each layer, of the embedding and of
// the head. A bucket's reduction starts when the last backward pass has completed the bucket and the previous reduction
// has ended. Reductions are exposed once the first pipeline rank has ended its backward pass. Later pipeline ranks end
// theirs sooner, by the time that the ranks before them need for the last micro-batch. Tied embeddings are reduced
// last.
//
// With ZeRO-1 and several copies of the state, the host waits for a bucket's shard when the next bucket is complete,
// and then starts to sum this shard over the copies. Without overlap, all sums over copies come at the end. Finally
// ZeRO-1 and 2 gather the weights.
double StepTimeModel::bucket_communication(const Configuration& configuration, const Stages& costs) {
  const ParallelStrategy& strategy = configuration.strategy;
  const int64_t p = strategy.pipeline_parallel, num_stages = strategy.num_stages();
  const BucketCosts& buckets = bucket_costs(strategy);
  const bool adds_copies = overlaps_reduction(strategy) && strategy.zero_replicas > 1;
  double exposed = 0, ended_earlier = 0;
  for (int64_t rank = 0; rank < p; ++rank) {
    // With deferred weight gradients, buckets are complete only at the end of the schedule.
    const bool is_deferred = defers_weight_gradients(strategy, rank);
    const bool overlaps = overlaps_reduction(strategy) && !is_deferred;
    double computed = 0, now = 0;  // without and with waits for shares
    double reduced = 0, added = 0, unadded = 0;
    bool has_tied = false;
    const auto compute = [&](const BlockCost& block) {
      if (!overlaps) return;
      computed += block.backward().total();
      now += block.backward().total();
    };
    const auto add_bucket = [&](const BucketCosts::Bucket& bucket) {
      const double reduced_before = reduced;
      reduced = std::max(reduced, now) + bucket.reduce;
      if (!adds_copies) return;
      // Waits for the previous bucket's share, and sums it over the copies.
      if (overlaps) now = std::max(now, reduced_before);
      added = std::max({added, now, reduced_before}) + unadded;
      unadded = bucket.reduce_replicas;
    };
    const auto add_embedding = [&] {
      if (!model_.tie_word_embeddings) return add_bucket(buckets.embedding);
      has_tied = true;
    };
    for (int64_t stage = rank + (num_stages - p); stage >= 0; stage -= p) {
      if (stage + 1 == num_stages) {
        compute(costs.blocks.head);
        add_embedding();
      }
      for (int64_t layer = costs.ranges[stage].begin; layer < costs.ranges[stage].end; ++layer) {
        compute(costs.blocks.layers[kinds_.of_layer[layer]]);
        add_bucket(buckets.layers[kinds_.of_layer[layer]]);
      }
      if (stage != 0) continue;
      compute(costs.blocks.embedding);
      add_embedding();
    }
    double end = std::max(reduced, now);
    if (adds_copies) added = std::max(added, end) + unadded;
    if (has_tied) {
      end += buckets.embedding.reduce;
      if (adds_copies) added = std::max(added, end) + buckets.embedding.reduce_replicas;
    }
    const double left = std::max(end, added) - computed;
    exposed = std::max(exposed, left - (is_deferred ? 0 : ended_earlier));
    ended_earlier += costs.costs[rank].backward().total();
  }
  return exposed + end_of_step(strategy, costs, buckets);
}

// Returns the exposed seconds of collectives after the reductions: sums of shards over copies, unless
// bucket_communication has counted them, and gathers of updated weights. With ZeRO-2 and 3 this ignores that some sums
// overlap with the last backward pass.
double StepTimeModel::end_of_step(const ParallelStrategy& strategy, const Stages& costs, const BucketCosts& buckets) {
  const bool added_before = overlaps_reduction(strategy) && !strategy.cuts_gradients();  // in bucket_communication
  double adding = 0, gathering = 0;
  for (int64_t rank = 0; rank < strategy.pipeline_parallel; ++rank) {
    double added = 0, gathered = 0;
    visit_buckets(strategy, rank, buckets, [&](const BucketCosts::Bucket& bucket) {
      if (!added_before) added += bucket.reduce_replicas;
      gathered += bucket.gather;
    });
    adding = std::max(adding, added);
    gathering = std::max(gathering, gathered);
  }
  if (strategy.cuts_weights()) return adding;
  const bool overlaps = system_.overlaps_gathers && overlaps_reduction(strategy);
  return adding + (overlaps ? exposed_gathers(strategy, costs, buckets) : gathering);
}

// Returns how long the first micro-batch waits for gathered weights in its forward pass, summed over all stages. All
// ranks start their gathers with the step, in the order of use; the head comes last.
double StepTimeModel::exposed_gathers(const ParallelStrategy& strategy, const Stages& costs,
                                      const BucketCosts& buckets) {
  const int64_t p = strategy.pipeline_parallel, num_stages = strategy.num_stages();
  std::vector<double> gathered(p, 0);  // by pipeline rank: when its latest bucket was gathered
  double now = 0, without_waits = 0;
  const auto pass = [&](double seconds) {
    now += seconds;
    without_waits += seconds;
  };
  for (int64_t stage = 0; stage < num_stages; ++stage) {
    const auto use = [&](const BucketCosts::Bucket& bucket, double seconds) {
      double& whole = gathered[stage % p];
      whole += bucket.gather;
      now = std::max(now, whole);
      pass(seconds);
    };
    const bool is_last = stage + 1 == num_stages;
    if (stage == 0) use(buckets.embedding, costs.blocks.embedding.forward.total());
    for (int64_t layer = costs.ranges[stage].begin; layer < costs.ranges[stage].end; ++layer) {
      const int64_t kind = kinds_.of_layer[layer];
      use(buckets.layers[kind], costs.blocks.layers[kind].forward.total());
    }
    if (!is_last) pass(costs.seconds[stage].send);
    if (is_last && (!model_.tie_word_embeddings || p > 1)) use(buckets.embedding, 0);
  }
  return now - without_waits;
}

// Returns the exposed seconds of gathers and reductions that do not occur for every micro-batch: the additional waits
// of the first micro-batch, and the reductions after the first pipeline rank has ended its backward pass.
double StepTimeModel::shared_communication(const Configuration& configuration, const Stages& costs) {
  const ParallelStrategy& strategy = configuration.strategy;
  const BucketCosts& buckets = bucket_costs(strategy);
  double first = 0, exposed = 0, ended_earlier = 0;
  for (const StageWaits& waits : costs.waits) first += std::max(0.0, waits.first);
  for (int64_t rank = 0; rank < strategy.pipeline_parallel; ++rank) {
    const StageWaits& waits = costs.waits[rank];
    const bool has_tied = rank == 0 || rank == strategy.pipeline_parallel - 1;
    const double tied = reduces_tied_at_the_end(configuration) && has_tied ? buckets.embedding.reduce : 0;
    const double left = std::max(0.0, waits.left + std::min(0.0, waits.first));
    exposed = std::max(exposed, left + tied - ended_earlier);
    ended_earlier += costs.costs[rank].backward().total() + waits.backward_input + waits.backward_weight;
  }
  return first + exposed + end_of_step(strategy, costs, buckets);
}

// Returns the seconds of the optimizer. A virtual clock that charges operations charges only the optimizer's messages.
double StepTimeModel::optimizer(const ParallelStrategy& strategy) {
  const MatrixUpdateSeconds matrices = matrix_update(strategy);
  if (cluster_.flops_per_second > 0) return matrices.messages;
  double slowest = 0;
  for (int64_t rank = 0; rank < strategy.pipeline_parallel; ++rank) {
    const double held = held_parameters(strategy, rank);
    const double updated = held / as_double(sharing_ranks(strategy));
    const double bytes = held * system_.gradient_traffic + updated * system_.optimizer_traffic;
    slowest = std::max(slowest, memory_seconds(cluster_.device, bytes));
  }
  return ranks_per_device(strategy) * (slowest + matrices.total());
}

// Returns the seconds of work on unsharded matrices on the slowest pipeline rank.
MatrixUpdateSeconds StepTimeModel::matrix_update(const ParallelStrategy& strategy) {
  if (system_.whole_matrices.newton_schulz_steps == 0) return {};
  const int64_t p = strategy.pipeline_parallel, num_stages = strategy.num_stages();
  const auto [found, is_new] = matrix_updates_.try_emplace(
      {strategy.data_parallel, strategy.tensor_parallel, p, num_stages, strategy.optimizer_shards()});
  if (!is_new) return found->second;
  const std::vector<LayerRange>& ranges = stages(num_stages);
  for (int64_t rank = 0; rank < p; ++rank) {
    std::vector<LayerRange> layers;
    for (int64_t stage = rank; stage < num_stages; stage += p) layers.push_back(ranges[stage]);
    const MatrixUpdateSeconds seconds = matrix_update_seconds(model_, strategy, layers, cluster_, system_);
    if (seconds.total() > found->second.total()) found->second = seconds;
  }
  return found->second;
}

double StepTimeModel::held_parameters(const ParallelStrategy& strategy, int64_t pipeline_rank) {
  const BlockElements& of = elements_.of(strategy);
  const int64_t num_stages = strategy.num_stages();
  const std::vector<LayerRange>& ranges = stages(num_stages);
  double held = 0;
  for (int64_t stage = pipeline_rank; stage < num_stages; stage += strategy.pipeline_parallel) {
    for_kinds(kinds_, ranges[stage], [&](int64_t kind, double count) { held += count * of.layers[kind].weights; });
    if (stage == 0) held += of.embedding.weights;
    if (stage + 1 == num_stages) held += of.head.weights;
  }
  return held;
}

// Returns the seconds in which all ranks agree on the step's loss and norms, and then on the latest time.
double StepTimeModel::agreement(const ParallelStrategy& strategy) const {
  if (system_.agreement_bytes == 0) return 0;
  const int64_t ranks = strategy.world_size();
  const Link link = link_of(cluster_, RankSeries{0, 1, ranks});
  // Work on unsharded matrices precedes the agreement and needs the gradient's norm, which is then summed separately.
  const double norm = system_.whole_matrices.newton_schulz_steps == 0
                          ? 0
                          : small_all_reduce_seconds(link, ranks, ExactSum::num_words * sizeof(int64_t));
  return norm + small_all_reduce_seconds(link, ranks, static_cast<int64_t>(system_.agreement_bytes)) +
         small_all_reduce_seconds(link, ranks, sizeof(double));
}

double StepTimeModel::crowding(const Configuration& configuration) {
  const double memory_bytes = memory_of_rank(cluster_, configuration.strategy.world_size());
  if (system_.stall_seconds == 0 || configuration.strategy.pipeline_parallel == 1 || memory_bytes == 0) return 0;
  if (memory_.predict(configuration).parts.total() <= system_.crowded_memory * memory_bytes) return 0;
  return stalled_seconds(system_, configuration);
}

// Returns the number of data-parallel ranks over which the optimizer state is sharded.
int64_t StepTimeModel::sharing_ranks(const ParallelStrategy& strategy) const {
  return strategy.zero_stage == 0      ? 1
         : system_.optimizer_group > 0 ? std::min(system_.optimizer_group, strategy.data_parallel)
                                       : strategy.zero_shards();
}

// Returns the number of devices (CPU cores) that run a rank's threads, at least 1.
int64_t StepTimeModel::devices_per_rank(const ParallelStrategy& strategy) const {
  const int64_t ranks = std::min(cluster_.ranks_per_node, strategy.world_size());
  return std::max<int64_t>(1, cluster_.devices_per_node / ranks);
}

// Returns ranks per device. Below 1 each rank has several devices.
double StepTimeModel::ranks_per_device(const ParallelStrategy& strategy) const {
  if (cluster_.devices_per_node == 0) return 1;
  const int64_t ranks = std::min(cluster_.ranks_per_node, strategy.world_size());
  if (ranks <= cluster_.devices_per_node) return 1 / as_double(devices_per_rank(strategy));
  return as_double(ranks) / as_double(cluster_.devices_per_node);
}

// Returns the factor by which communication in groups of `count` neighbouring ranks slows down because ranks take
// turns. Within a node it is the number of ranks per device, because the device also moves the bytes of its ranks.
// Across nodes it is 1, because the network moves the bytes.
double StepTimeModel::turns(const ParallelStrategy& strategy, int64_t count) const {
  const bool one_node = strategy.world_size() <= cluster_.ranks_per_node || cluster_.ranks_per_node % count == 0;
  return one_node ? std::max(1.0, ranks_per_device(strategy)) : 1;
}

// Returns the seconds that the busiest node's devices need for its ranks' computation. `busy`: seconds by pipeline
// rank.
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

// Returns the slowest link of any group of `count` ranks that are `stride` apart. Such groups cover all ranks: the
// first `stride` groups begin at ranks 0 to stride - 1, and the next `stride` groups begin where these end.
Link StepTimeModel::data_link(const ParallelStrategy& strategy, int64_t stride, int64_t count) const {
  const int64_t tile = stride * count;
  Link slowest = link_of(cluster_, RankSeries{0, stride, count});
  // A tile's position relative to node boundaries repeats after at most ranks_per_node tiles.
  for (int64_t i = 0; i < std::min(strategy.world_size() / tile, cluster_.ranks_per_node); ++i) {
    for (const int64_t first : {i * tile, i * tile + stride - 1}) {
      const Link link = link_of(cluster_, RankSeries{first, stride, count});
      if (link.bytes_per_second < slowest.bytes_per_second) slowest = link;
    }
  }
  return slowest;
}

// Returns the link from a stage to the next; the last pipeline rank's next stage is on the first.
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
      .pipeline_across_nodes = strategy.pipeline_parallel > 1 && strategy.world_size() > cluster_.ranks_per_node,
      .defers_weights = strategy.schedule == PipelineSchedule::zb_h1,
      .devices = devices_per_rank(strategy)};
  const auto [found, is_new] = blocks_.try_emplace(shape);
  if (is_new) found->second = cost_blocks(model_, sequence_length_, cluster_, system_, shape);
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
