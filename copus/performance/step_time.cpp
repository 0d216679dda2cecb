#include "copus/performance/step_time.h"

#include <algorithm>
#include <limits>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include "copus/base/error.h"
#include "copus/performance/link_cost.h"
#include "copus/performance/local_elements.h"
#include "copus/performance/memory.h"
#include "copus/performance/pipeline_time.h"
#include "copus/schedule/timing.h"

namespace copus {

namespace {

// Seconds of a pass, or a part of one, on one rank: computing, and tensor-parallel collectives that nothing hides.
struct Cost {
  double compute = 0;
  double communication = 0;

  double total() const { return compute + communication; }
  Cost& operator+=(const Cost& other) {
    compute += other.compute;
    communication += other.communication;
    return *this;
  }
  friend Cost operator+(Cost a, const Cost& b) { return a += b; }
  friend Cost operator*(double factor, const Cost& cost) {
    return {factor * cost.compute, factor * cost.communication};
  }
};

// Of F, B and W of a layer, of the embedding or of the head.
struct BlockCost {
  Cost forward, backward_input, backward_weight;

  Cost total() const { return forward + backward_input + backward_weight; }
  BlockCost& operator+=(const BlockCost& other) {
    forward += other.forward;
    backward_input += other.backward_input;
    backward_weight += other.backward_weight;
    return *this;
  }
  friend BlockCost operator*(double factor, const BlockCost& cost) {
    return {factor * cost.forward, factor * cost.backward_input, factor * cost.backward_weight};
  }
};

// What decides the cost of a block.
struct BlockKey {
  int64_t tensor_parallel, micro_batch;
  bool sequence_parallel;
  Recompute recompute;
  bool pipeline_across_nodes;
  auto operator<=>(const BlockKey&) const = default;
};

struct Blocks {
  BlockCost layer, embedding, head;
  double message_bytes = 0;  // of one micro-batch, from a stage to the next
};

double as_double(int64_t value) { return static_cast<double>(value); }

// Where host-bound, a pass takes as long as it takes to launch it; what is left of that over communication is
// computing.
Cost at_least(const Cost& cost, double host_seconds) {
  return {std::max(cost.compute, host_seconds - cost.communication), cost.communication};
}

// The collectives that a layer's passes have: with sequence parallelism a gather before each column-parallel product
// and a reduce-scatter after each row-parallel one, and the other way round in the backward pass, where the inputs are
// gathered once more for the weights' gradients (Korthikanti et al. 2022); without, two all-reduces each way (Shoeybi
// et al. 2019).
struct TensorCollectives {
  double gather = 0, reduce = 0;
};

TensorCollectives tensor_collectives(const Link& link, int64_t n, bool sequence_parallel, double bytes) {
  const auto whole = static_cast<int64_t>(bytes);
  if (!sequence_parallel) return {0, all_reduce_seconds(link, n, whole)};
  return {all_gather_seconds(link, n, whole), reduce_scatter_seconds(link, n, whole)};
}

}  // namespace

struct StepTimeModel::Memo {
  Memo(const ModelDescription& a_model, int64_t a_sequence_length, ClusterDescription a_cluster,
       const TrainingSystem& a_system)
      : model(a_model),
        sequence_length(a_sequence_length),
        cluster(std::move(a_cluster)),
        system(a_system),
        memory(a_model, a_sequence_length, a_system) {
    COPUS_CHECK(cluster.flops_per_second > 0 || cluster.device.matmul_flops_per_second > 0,
                "the cluster's description does not say how fast its devices are");
  }

  StepTimeParts predict(const Configuration& configuration);

  // Device seconds of a product [rows, depth] x [depth, columns].
  double matmul(double rows, double columns, double depth) const {
    const Device& device = cluster.device;
    const double share =
        device.matmul_by_rows.at(rows) * device.matmul_by_columns.at(columns) * device.matmul_by_depth.at(depth);
    const double seconds = 2 * rows * columns * depth / (device.matmul_flops_per_second * share);
    return std::max(seconds, moved((rows * columns + rows * depth + depth * columns) * system.activation_bytes));
  }

  // Device seconds of moving bytes to and from its memory.
  double moved(double bytes) const {
    return cluster.device.memory_bytes_per_second > 0 ? bytes / cluster.device.memory_bytes_per_second : 0;
  }

  double passes(const TrainingSystem::Passes& passes, const BlockKey& key, double rows) const {
    const double t = as_double(key.tensor_parallel);
    const double widths = passes.stream * as_double(model.hidden_size) / (key.sequence_parallel ? t : 1) +
                          passes.attention * qkv_width(t) +
                          passes.feed_forward * as_double(model.intermediate_size) / t;
    return moved(rows * widths * system.activation_bytes);
  }

  double launches(double kernels) const { return kernels * cluster.device.launch_seconds; }

  // Of queries, keys and values on one rank. At least one key-value head: those are replicated where there are fewer.
  double qkv_width(double t) const {
    return (as_double(model.num_heads) / t + 2 * std::max(1.0, as_double(model.num_kv_heads) / t)) *
           as_double(model.head_dim);
  }

  const Blocks& blocks(const Configuration& configuration);
  const LocalElements& elements(int64_t tensor_parallel, bool sequence_parallel);
  Blocks cost_blocks(const BlockKey& key);
  Blocks charge_blocks(const BlockKey& key) const;
  double loss_statistics(const BlockKey& key) const;
  Link tensor_link(const BlockKey& key) const {
    return link_of(cluster, RankSeries{.first = 0, .stride = 1, .count = key.tensor_parallel});
  }
  const std::vector<LayerRange>& stages(int64_t num_stages);
  Link data_link(const ParallelStrategy& strategy, int64_t count) const;
  // Data-parallel ranks that share an optimizer state.
  int64_t sharing_ranks(const ParallelStrategy& strategy) const {
    return strategy.zero_stage == 0     ? 1
           : system.optimizer_group > 0 ? std::min(system.optimizer_group, strategy.data_parallel)
                                        : strategy.data_parallel;
  }
  Link stage_link(const ParallelStrategy& strategy, int64_t stage) const;
  double node_work(const ParallelStrategy& strategy, const std::vector<double>& busy) const;
  double sharing(const ParallelStrategy& strategy) const;
  double turns(const ParallelStrategy& strategy, int64_t count) const;
  double data_communication(const Configuration& configuration, const std::vector<BlockCost>& chunk_costs,
                            const Blocks& of_blocks);
  double agreement(const ParallelStrategy& strategy) const;
  double crowding(const Configuration& configuration);
  double held_parameters(const ParallelStrategy& strategy, int64_t pipeline_rank);

  const ModelDescription model;
  const int64_t sequence_length;
  const ClusterDescription cluster;
  const TrainingSystem system;
  std::map<std::pair<int64_t, bool>, LocalElements> element_memo;  // by t and sequence parallelism
  std::map<BlockKey, Blocks> block_memo;
  std::map<int64_t, std::vector<LayerRange>> stage_memo;
  PipelineTimes pipeline_times;
  MemoryModel memory;
};

const std::vector<LayerRange>& StepTimeModel::Memo::stages(int64_t num_stages) {
  auto found = stage_memo.find(num_stages);
  if (found == stage_memo.end()) {
    found = stage_memo.emplace(num_stages, cut_stages(system, model, sequence_length, num_stages)).first;
  }
  return found->second;
}

const LocalElements& StepTimeModel::Memo::elements(int64_t tensor_parallel, bool sequence_parallel) {
  const auto [found, is_new] = element_memo.try_emplace({tensor_parallel, sequence_parallel});
  if (is_new) found->second = count_local_elements(model, tensor_parallel, sequence_parallel);
  return found->second;
}

const Blocks& StepTimeModel::Memo::blocks(const Configuration& configuration) {
  const ParallelStrategy& strategy = configuration.strategy;
  const BlockKey key{strategy.tensor_parallel, configuration.micro_batch,
                     strategy.sequence_parallel && strategy.tensor_parallel > 1, strategy.recompute,
                     strategy.pipeline_parallel > 1 && strategy.world_size() > cluster.ranks_per_node};
  auto found = block_memo.find(key);
  if (found == block_memo.end()) {
    Blocks all = cluster.flops_per_second > 0 ? charge_blocks(key) : cost_blocks(key);
    const double rows =
        as_double(key.micro_batch * sequence_length) / (key.sequence_parallel ? as_double(key.tensor_parallel) : 1);
    all.message_bytes = rows * as_double(model.hidden_size) * system.activation_bytes;
    found = block_memo.emplace(key, all).first;
  }
  return found->second;
}

// Of the loss over a vocabulary that is cut over the tensor-parallel ranks: they add up three fp64 statistics of every
// row and rank, a piece of the logits at a time. Other programs' single, smaller sums are not counted.
double StepTimeModel::Memo::loss_statistics(const BlockKey& key) const {
  const int64_t t = key.tensor_parallel, rows = key.micro_batch * sequence_length;
  if (t == 1 || system.memory.logits_at_once == 0) return 0;
  const int64_t part = (model.vocab_size + t - 1) / t;
  const int64_t rows_at_once = std::min(rows, std::max<int64_t>(1, system.memory.logits_at_once / part));
  const int64_t bytes_per_row = t * 3 * static_cast<int64_t>(sizeof(double));
  return as_double(rows) / as_double(rows_at_once) *
         all_reduce_seconds(tensor_link(key), t, rows_at_once * bytes_per_row);
}

Blocks StepTimeModel::Memo::cost_blocks(const BlockKey& key) {
  const LocalElements& held = elements(key.tensor_parallel, key.sequence_parallel);
  const double t = as_double(key.tensor_parallel);
  const double rows = as_double(key.micro_batch * sequence_length);
  const double hidden = as_double(model.hidden_size);
  const double queries = as_double(model.num_heads * model.head_dim) / t;
  const double feed_forward = as_double(model.intermediate_size) / t;
  const TensorCollectives collectives = tensor_collectives(tensor_link(key), key.tensor_parallel, key.sequence_parallel,
                                                           rows * hidden * system.activation_bytes);

  const double copies =
      key.tensor_parallel > 1 ? moved(rows * hidden * system.activation_bytes * system.collective_copies) : 0;

  // Products by the weight that they use: forward [rows, depth] x [depth, columns], the input's gradient, the weight's.
  struct Product {
    double forward, input, weight;
  };
  const auto product = [&](double columns, double depth) {
    // NOLINTNEXTLINE(readability-suspicious-call-argument): what is rows of one product is depth of another
    return Product{matmul(rows, columns, depth), matmul(rows, depth, columns), matmul(columns, depth, rows)};
  };
  const Product qkv_product = product(qkv_width(t), hidden), output_product = product(hidden, queries);
  const Product gate_up_product = product(2 * feed_forward, hidden), down_product = product(hidden, feed_forward);

  // Scores and weighted values over causal halves; the backward pass has 5 products instead of 2 (Dao 2023).
  const double attention_flops = 2 * rows * as_double(sequence_length) * queries;
  const double s = as_double(sequence_length);
  const Device& device = cluster.device;
  const double scores = moved(rows * s * as_double(model.num_heads) / t * system.attention_matrix_bytes);
  const double attention_forward =
      scores + attention_flops / (device.matmul_flops_per_second * device.attention_forward.at(s));
  const double attention_backward =
      scores + 2.5 * attention_flops / (device.matmul_flops_per_second * device.attention_backward.at(s));

  const double forward_passes = passes(system.forward, key, rows), backward_passes = passes(system.backward, key, rows);
  const double reduces = key.tensor_parallel > 1 ? 2 : 0;
  const double collective_launches =
      key.tensor_parallel == 1
          ? 0
          : system.collective_launches + (key.pipeline_across_nodes ? system.pipelined_collective_launches * t : 0);
  const double forward_launches = system.forward.launches + (key.sequence_parallel ? 4 : 2) * collective_launches;
  const double backward_launches = system.backward.launches + (key.sequence_parallel ? 6 : 2) * collective_launches;

  Blocks all;
  Cost forward{qkv_product.forward + attention_forward + output_product.forward + gate_up_product.forward +
                   down_product.forward + forward_passes + (key.sequence_parallel ? 4 : 2) * copies,
               2 * collectives.gather + reduces * collectives.reduce};
  all.layer.forward = at_least(forward, launches(forward_launches));

  // Beside a column-parallel product's input gradient, its input can be gathered; beside its weight gradient, the
  // input's gradient can be reduced.
  const auto beside = [&](double communication, double computing) {
    return system.overlaps_tensor_backward ? std::max(0.0, communication - computing) : communication;
  };
  Cost input{qkv_product.input + output_product.input + gate_up_product.input + down_product.input +
                 attention_backward + backward_passes + (key.sequence_parallel ? 6 : 2) * copies,
             2 * collectives.gather};
  for (const Product& column_parallel : {qkv_product, gate_up_product}) {
    input.communication += beside(collectives.gather, column_parallel.input);
    if (key.tensor_parallel > 1) input.communication += beside(collectives.reduce, column_parallel.weight);
  }
  switch (key.recompute) {
    case Recompute::none:
      break;
    case Recompute::attention:
      input += {qkv_product.forward + attention_forward, collectives.gather};
      break;
    case Recompute::full:
      input += forward;
      if (!system.recomputes_down_projection) {
        input += {-down_product.forward, key.tensor_parallel > 1 ? -collectives.reduce : 0};
      }
      break;
  }
  const double again = key.recompute == Recompute::none ? 0 : forward_launches;
  all.layer.backward_input = input;
  all.layer.backward_weight = {qkv_product.weight + output_product.weight + gate_up_product.weight +
                                   down_product.weight + moved(held.layer * system.accumulation_bytes),
                               0};
  // The host is ahead or behind for the whole backward pass.
  const double host_left = launches(backward_launches + again) - (input + all.layer.backward_weight).total();
  all.layer.backward_input.compute += std::max(0.0, host_left);

  // The look-up writes the stream; its gradient reads and adds.
  const double stream_bytes = rows * hidden * system.activation_bytes;
  all.embedding.forward = {moved(2 * stream_bytes), key.tensor_parallel > 1 ? collectives.reduce : 0};
  all.embedding.backward_weight = {moved(stream_bytes + rows * hidden * 2 * system.gradient_bytes) +
                                       moved(held.embedding * system.dense_embedding_bytes),
                                   collectives.gather};

  const double vocabulary = as_double(model.vocab_size) / t;
  const Product head_product = product(vocabulary, hidden);
  all.head.backward_input = {
      head_product.forward + head_product.input + moved(rows * vocabulary * system.logit_bytes) +
          moved(6 * stream_bytes / (key.sequence_parallel ? t : 1)),
      collectives.gather + (key.tensor_parallel > 1 ? collectives.reduce : 0) + loss_statistics(key)};
  all.head.backward_weight = {head_product.weight + moved(held.head * system.accumulation_bytes), 0};
  return all;
}

// What the virtual clock charges (the pipeline executor): a third of a layer's operations for each of F, B and W, and
// F once more in B where it is recomputed; the head in B and W.
Blocks StepTimeModel::Memo::charge_blocks(const BlockKey& key) const {
  const double head = 6 * as_double(model.vocab_size) * as_double(model.hidden_size);
  const double layer = (training_flops_per_token(model, sequence_length) - head) / as_double(model.num_layers);
  const double rows = as_double(key.micro_batch * sequence_length);
  const double tokens = rows / as_double(key.tensor_parallel);
  const double third = tokens * layer / 3 / cluster.flops_per_second;
  const double head_third = tokens * head / 3 / cluster.flops_per_second;
  const TensorCollectives collectives =
      tensor_collectives(tensor_link(key), key.tensor_parallel, key.sequence_parallel,
                         rows * as_double(model.hidden_size) * system.activation_bytes);
  const double reduce = key.tensor_parallel > 1 ? collectives.reduce : 0;

  Blocks all;
  all.layer.forward = {third, 2 * (collectives.gather + reduce)};
  all.layer.backward_input = {third, 4 * collectives.gather + 2 * reduce};
  if (key.recompute == Recompute::attention) all.layer.backward_input.communication += collectives.gather;
  if (key.recompute == Recompute::full) {
    all.layer.backward_input += {third, 2 * collectives.gather + reduce};
  }
  all.layer.backward_weight = {third, 0};
  all.embedding.forward = {0, reduce};
  all.embedding.backward_weight = {0, collectives.gather};
  all.head.backward_input = {2 * head_third, collectives.gather + reduce + loss_statistics(key)};
  all.head.backward_weight = {head_third, 0};
  return all;
}

// The worst of the data-parallel groups: they begin at every rank of every block of t d ranks.
Link StepTimeModel::Memo::data_link(const ParallelStrategy& strategy, int64_t count) const {
  const int64_t t = strategy.tensor_parallel, d = strategy.data_parallel;
  Link slowest = link_of(cluster, RankSeries{0, t, count});
  // A block's place on its nodes repeats after at most as many blocks as a node has ranks.
  for (int64_t block = 0; block < std::min(strategy.pipeline_parallel, cluster.ranks_per_node); ++block) {
    for (const int64_t first : {block * t * d, block * t * d + t - 1}) {
      const Link link = link_of(cluster, RankSeries{first, t, count});
      if (link.bytes_per_second < slowest.bytes_per_second) slowest = link;
    }
  }
  return slowest;
}

// From a stage to the next: the last pipeline rank's successor is the first.
Link StepTimeModel::Memo::stage_link(const ParallelStrategy& strategy, int64_t stage) const {
  const int64_t block = strategy.tensor_parallel * strategy.data_parallel, p = strategy.pipeline_parallel;
  const int64_t from = stage % p * block, to = (stage + 1) % p * block;
  const int64_t node = cluster.ranks_per_node;
  const bool on_one_node = from / node == to / node && (std::max(from, to) + block - 1) / node == from / node;
  return on_one_node ? cluster.within_node : link_of(cluster, RankSeries{0, node, 2});
}

// Ranks that share each device of a node, where there are more ranks than devices; else one over the devices that each
// rank has to itself, as threads (Copus gives every rank as many as there are for all).
double StepTimeModel::Memo::sharing(const ParallelStrategy& strategy) const {
  if (cluster.devices_per_node == 0) return 1;
  const int64_t ranks = std::min(cluster.ranks_per_node, strategy.world_size());
  if (ranks <= cluster.devices_per_node) return 1 / as_double(cluster.devices_per_node / ranks);
  return as_double(ranks) / as_double(cluster.devices_per_node);
}

// Ranks that take turns at moving the bytes of groups of `count` neighbours of a kind: within a node, where what moves
// bytes is what computes, those that share a device; between nodes it is the network, and nobody waits for a device.
double StepTimeModel::Memo::turns(const ParallelStrategy& strategy, int64_t count) const {
  const bool one_node = strategy.world_size() <= cluster.ranks_per_node || cluster.ranks_per_node % count == 0;
  return one_node ? std::max(1.0, sharing(strategy)) : 1;
}

// Seconds that the devices of the busiest node need for what its ranks compute (`busy`: by pipeline rank).
double StepTimeModel::Memo::node_work(const ParallelStrategy& strategy, const std::vector<double>& busy) const {
  const int64_t block = strategy.tensor_parallel * strategy.data_parallel, node = cluster.ranks_per_node;
  double most = 0;
  for (int64_t first = 0; first < strategy.world_size(); first += node) {
    const int64_t end = std::min(first + node, strategy.world_size());
    double work = 0;
    for (int64_t rank = first / block; rank * block < end; ++rank) {
      const int64_t ranks = std::min(end, (rank + 1) * block) - std::max(first, rank * block);
      work += as_double(ranks) * busy[static_cast<size_t>(rank)];
    }
    most = std::max(most, work / as_double(cluster.devices_per_node));
  }
  return most;
}

double StepTimeModel::Memo::held_parameters(const ParallelStrategy& strategy, int64_t pipeline_rank) {
  const LocalElements& of = elements(strategy.tensor_parallel, strategy.sequence_parallel);
  const int64_t p = strategy.pipeline_parallel, num_stages = strategy.num_stages();
  const auto found = stage_memo.find(num_stages);
  double held = 0;
  for (int64_t stage = pipeline_rank; stage < num_stages; stage += p) {
    const LayerRange& layers = found->second[static_cast<size_t>(stage)];
    held += as_double(layers.end - layers.begin) * of.layer;
    const bool is_first = stage == 0, is_last = stage + 1 == num_stages;
    if (is_first) held += of.embedding;
    if (is_last) held += of.head - (is_first && model.tie_word_embeddings ? of.embedding : 0);
  }
  return held;
}

// Seconds of the step after the pipeline's end. Every layer's gradients are reduced as one bucket, as the embedding's
// and the head's are, in turn: each when the last backward pass has left it and the bucket before it is done. What is
// left when the backward pass of the pipeline's first rank ends is exposed. Pipeline rank r has ended its own as much
// earlier as the ranks before it still need for the last micro-batch. Tied embeddings come last. Then ZeRO-1 gathers
// the weights, bucket by bucket.
double StepTimeModel::Memo::data_communication(const Configuration& configuration,
                                               const std::vector<BlockCost>& chunk_costs, const Blocks& of_blocks) {
  const ParallelStrategy& strategy = configuration.strategy;
  const int64_t d = strategy.data_parallel, p = strategy.pipeline_parallel, num_stages = strategy.num_stages();
  const LocalElements& held = elements(strategy.tensor_parallel, strategy.sequence_parallel);
  const bool tied_across = model.tie_word_embeddings && p > 1;
  const int64_t sharers = sharing_ranks(strategy);
  const Link link = data_link(strategy, d), gather_link = data_link(strategy, sharers);
  const double reduce_turns = turns(strategy, strategy.tensor_parallel * d),
               gather_turns = turns(strategy, strategy.tensor_parallel * sharers);
  const auto reduce = [&](double parameters) {
    const auto bytes = static_cast<int64_t>(parameters * system.reduced_bytes);
    return reduce_turns *
           (sharers > 1 && sharers == d ? reduce_scatter_seconds(link, d, bytes) : all_reduce_seconds(link, d, bytes));
  };
  const auto gather = [&](double parameters) {
    const auto bytes = static_cast<int64_t>(parameters * system.weight_bytes);
    return gather_turns * all_gather_seconds(gather_link, sharers, bytes);
  };
  const double layer_reduction = reduce(held.layer), layer_gather = gather(held.layer);
  const double head_reduction = reduce(held.embedding), head_gather = gather(held.embedding);
  const auto backward = [](const BlockCost& cost) { return (cost.backward_input + cost.backward_weight).total(); };
  const double passes = system.reduces_each_micro_batch ? as_double(configuration.num_microbatches()) : 1;

  double exposed = 0, gathering = 0, ended_earlier = 0;
  for (int64_t rank = 0; rank < p && d > 1; ++rank) {
    // Where the weights' gradients are left to the end of the schedule, their buckets are complete only there. On ranks
    // that share devices nothing is hidden either: what moves bytes there is what computes.
    const bool is_deferred = strategy.schedule == PipelineSchedule::zb_h1 && rank > 0;
    const bool overlaps = system.overlaps_reduction && !is_deferred && cluster.devices_per_node == 0;
    double now = 0, reduced = 0, gathered = 0, tied = 0;
    const auto add_bucket = [&](double reduction, double gather_seconds) {
      reduced = std::max(reduced, overlaps ? now : 0) + reduction;
      gathered += gather_seconds;
    };
    for (int64_t stage = rank + (num_stages - p); stage >= 0; stage -= p) {
      const LayerRange& layers = stage_memo.at(num_stages)[static_cast<size_t>(stage)];
      if (stage + 1 == num_stages) {
        now += backward(of_blocks.head);
        if (!model.tie_word_embeddings) add_bucket(head_reduction, head_gather);
        if (tied_across) tied = head_reduction, gathered += head_gather;
      }
      for (int64_t layer = layers.begin; layer < layers.end; ++layer) {
        now += backward(of_blocks.layer);
        add_bucket(layer_reduction, layer_gather);
      }
      if (stage != 0) continue;
      now += backward(of_blocks.embedding);
      if (model.tie_word_embeddings) {
        tied = head_reduction, gathered += head_gather;
      } else {
        add_bucket(head_reduction, head_gather);
      }
    }
    const double left = overlaps ? std::max(0.0, reduced - now) : reduced;
    exposed = std::max(exposed, passes * (left + tied) - (is_deferred ? 0 : ended_earlier));
    gathering = std::max(gathering, gathered);
    ended_earlier += backward(chunk_costs[static_cast<size_t>(rank)]);
  }
  double seconds = exposed + gathering;
  // The two copies of a tied embedding are added before.
  if (tied_across) {
    const Link tie = link_of(cluster, RankSeries{0, strategy.world_size() / p * (p - 1), 2});
    seconds += turns(strategy, strategy.world_size()) *
               all_reduce_seconds(tie, 2, static_cast<int64_t>(held.embedding * system.reduced_bytes));
  }
  // Norms of which each rank has seen its rows alone, and key-value heads that several ranks hold.
  for (const auto& [ranks, elements_of_layer] : held.partial) {
    const auto bytes = static_cast<int64_t>(elements_of_layer * system.reduced_bytes);
    seconds += as_double(model.num_layers) / as_double(p) * turns(strategy, ranks) *
               all_reduce_seconds(link_of(cluster, RankSeries{0, 1, ranks}), ranks, bytes);
  }
  return seconds + turns(strategy, strategy.world_size()) * agreement(strategy);
}

// All ranks tell each other of the step's loss, norms and times.
double StepTimeModel::Memo::agreement(const ParallelStrategy& strategy) const {
  const int64_t ranks = strategy.world_size();
  const double bytes = system.agreement_bytes + as_double(ranks) * system.agreement_bytes_per_rank;
  if (bytes == 0) return 0;
  return all_reduce_seconds(link_of(cluster, RankSeries{0, 1, ranks}), ranks, static_cast<int64_t>(bytes));
}

double StepTimeModel::Memo::crowding(const Configuration& configuration) {
  const int64_t p = configuration.strategy.pipeline_parallel;
  const double memory_bytes = cluster.device.memory_bytes;
  if (system.crowded_seconds == 0 || p == 1 || memory_bytes == 0) return 0;
  if (memory.predict(configuration).parts.total() <= system.crowded_memory * memory_bytes) return 0;
  return as_double(configuration.num_microbatches() * std::min<int64_t>(p, 4)) * system.crowded_seconds;
}

StepTimeParts StepTimeModel::Memo::predict(const Configuration& configuration) {
  const ParallelStrategy& strategy = configuration.strategy;
  const int64_t p = strategy.pipeline_parallel, num_stages = strategy.num_stages();
  const double m = as_double(configuration.num_microbatches());
  const Blocks& of_blocks = blocks(configuration);
  const std::vector<LayerRange>& ranges = stages(num_stages);

  std::vector<BlockCost> chunk_costs;  // by stage
  std::vector<StageSeconds> seconds;
  std::vector<Cost> busy(static_cast<size_t>(p));  // by pipeline rank, of all micro-batches
  for (int64_t stage = 0; stage < num_stages; ++stage) {
    const LayerRange& range = ranges[static_cast<size_t>(stage)];
    BlockCost cost = as_double(range.end - range.begin) * of_blocks.layer;
    if (stage == 0) cost += of_blocks.embedding;
    if (stage + 1 == num_stages) cost += of_blocks.head;
    chunk_costs.push_back(cost);
    const double send =
        p == 1 ? 0 : send_seconds(stage_link(strategy, stage), static_cast<int64_t>(of_blocks.message_bytes));
    seconds.push_back({cost.forward.total(), cost.backward_input.total(), cost.backward_weight.total(), send});
    busy[static_cast<size_t>(stage % p)] += m * cost.total();
  }

  StepTimeParts parts;
  const Cost busiest =
      *std::max_element(busy.begin(), busy.end(), [](const Cost& a, const Cost& b) { return a.total() < b.total(); });
  parts.compute = busiest.compute;
  parts.tensor_communication = busiest.communication;
  double pipeline = p == 1 ? busiest.total()
                           : pipeline_times.seconds(strategy.schedule, p, strategy.virtual_stages,
                                                    configuration.num_microbatches(), seconds);
  const double shared = sharing(strategy);
  if (shared < 1) {
    parts.compute *= shared;
    pipeline -= (1 - shared) * busiest.compute;
  } else if (shared > 1) {
    // Ranks take turns: who waits in the pipeline leaves its device to others.
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
  parts.data_communication = data_communication(configuration, chunk_costs, of_blocks);
  parts.bubble += crowding(configuration);

  if (cluster.flops_per_second == 0) {
    double slowest = 0;
    for (int64_t rank = 0; rank < p; ++rank) {
      const double held = held_parameters(strategy, rank);
      const double updated = held / as_double(sharing_ranks(strategy));
      slowest = std::max(slowest, moved(held * system.gradient_traffic + updated * system.optimizer_traffic));
    }
    parts.optimizer = shared * slowest;
  }
  return parts;
}

StepTimeModel::StepTimeModel(const ModelDescription& model, int64_t sequence_length, const ClusterDescription& cluster,
                             const TrainingSystem& system)
    : memo_(std::make_unique<Memo>(model, sequence_length, cluster, system)) {}

StepTimeModel::~StepTimeModel() = default;

StepTimeParts StepTimeModel::predict(const Configuration& configuration) { return memo_->predict(configuration); }

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
