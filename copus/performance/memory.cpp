#include "copus/performance/memory.h"

#include <algorithm>
#include <functional>
#include <iomanip>
#include <limits>
#include <sstream>
#include <utility>

#include "copus/base/error.h"
#include "copus/description/layer_blocks.h"
#include "copus/description/muon.h"
#include "copus/performance/communicators.h"
#include "copus/performance/matrix_update.h"
#include "copus/placement/attention_workspace.h"
#include "copus/placement/stages.h"
#include "copus/schedule/schedule.h"

namespace copus {

namespace {

// Elements of one role on a pipeline rank, by bucket: head, layers, embedding. 0 for buckets of other ranks.
struct RankBuckets {
  double head = 0, all_layers = 0, largest_layer = 0, num_layers = 0, embedding = 0;

  double sum() const { return head + all_layers + embedding; }
  double largest() const { return std::max({head, largest_layer, embedding}); }
  double layers(double count) const { return std::min(count, num_layers) * largest_layer; }
};

// Elements that are temporarily unsharded at one moment of a micro-batch, in addition to the rank's shares.
struct Moment {
  double weights = 0, gradients = 0;
  double layers_done = 0;  // layers whose activations the backward pass has freed
  bool in_head = false;
};

}  // namespace

// Predicts the memory of one configuration on any of its pipeline ranks.
class MemoryModel::Calculation {
 public:
  Calculation(MemoryModel& cache, const Configuration& configuration)
      : model_(cache.model_),
        system_(cache.system_),
        use_(system_.memory),
        matrix_update_bytes_(cache.matrix_update_bytes_),
        dual_measurement_bytes_(cache.dual_measurement_bytes_),
        strategy_(configuration.strategy),
        elements_(cache.elements_.of(strategy_)),
        layers_(cache.layers(strategy_)),
        layer_bytes_(cache.layer_bytes(configuration)),
        copied_(cache.copied_gradients(strategy_)),
        shape_{.pipeline_parallel = strategy_.pipeline_parallel,
               .virtual_stages = strategy_.virtual_stages,
               .num_microbatches = configuration.num_microbatches(),
               .ranks = {}},
        micro_batch_(configuration.micro_batch),
        sequence_length_(cache.sequence_length_),
        tokens_(static_cast<double>(micro_batch_ * sequence_length_)),
        tensor_ranks_(static_cast<double>(strategy_.tensor_parallel)) {}

  MemoryParts of_rank(int64_t rank) const {
    MemoryParts parts;
    add_state(rank, parts);
    const int64_t in_flight = activation_bound(strategy_.schedule, shape_, rank);
    // No rank has more micro-batches between F and W than rank 0 has between F and B.
    const int64_t under_way = activation_bound(strategy_.schedule, shape_, 0);
    parts.activations = static_cast<double>(in_flight) * position_bytes();
    for (size_t kind = 0; kind < layer_bytes_.size(); ++kind) {
      const double layers = layers_[rank][kind];
      parts.activations += static_cast<double>(in_flight) * layers / static_cast<double>(strategy_.virtual_stages) *
                           layer_bytes_[kind].kept;
      if (strategy_.schedule == PipelineSchedule::zb_h1)
        parts.activations += static_cast<double>(under_way - in_flight) * layers * layer_bytes_[kind].waiting;
    }
    if (is_last(rank)) parts.logits = head_bytes();
    // The head's logits are free before a layer's backward pass needs memory for scores.
    parts.workspace =
        working(rank) + fixed_bytes(rank) + copied_bytes(rank) + std::max(0.0, score_gradient_bytes() - parts.logits);
    const MemoryParts most = strategy_.zero_stage >= 2 && num_shares() > 1 ? at_peak(rank, parts) : parts;
    const MemoryParts update = between_gradients_and_update(rank, parts);
    return update.total() > most.total() ? update : most;
  }

  // Returns whether the pipeline rank cannot need more memory than the rank before it. This holds for equal layers
  // between the first and the last rank, because a later rank has at most as many micro-batches in flight. With
  // zero-bubble schedules, later ranks have more micro-batches that wait for W.
  bool needs_at_most_as_much_as_the_previous(int64_t rank) const {
    return rank > 1 && !is_last(rank) && strategy_.schedule != PipelineSchedule::zb_h1 &&
           layers_[rank] == layers_[rank - 1] && copied_[rank] == copied_[rank - 1];
  }

 private:
  double hidden() const { return static_cast<double>(model_.hidden_size); }

  // Returns the bytes that a rank keeps if documents are masked: each row's position in its document, and the cosines
  // and sines of these positions. All layers of a chunk share them; sliding layers may have their own cosines and
  // sines.
  double position_bytes() const {
    if (system_.document_length <= 0 || use_.kept_rotation_bytes <= 0) return 0;
    const double kinds = model_.learned_positions ? 0 : model_.sliding_rope_theta > 0 ? 2 : 1;
    return tokens_ * (sizeof(int64_t) + kinds * static_cast<double>(model_.rotary_dim()) * use_.kept_rotation_bytes);
  }

  // Calls visit(bytes) for each kind of layer that the rank has.
  template <class Visit>
  void for_kinds_of(int64_t rank, const Visit& visit) const {
    for (size_t kind = 0; kind < layer_bytes_.size(); ++kind) {
      if (layers_[rank][kind] > 0) visit(layer_bytes_[kind]);
    }
  }

  double least_kept(int64_t rank) const {
    double least = std::numeric_limits<double>::max();
    for_kinds_of(rank, [&](const LayerBytes& layer) { least = std::min(least, layer.kept); });
    return least;
  }

  // A rank works on one layer at a time.
  double working(int64_t rank) const {
    double most = 0;
    for_kinds_of(rank, [&](const LayerBytes& layer) { most = std::max(most, layer.working); });
    return most + message_bytes();
  }

  // Messages need four buffers: for an activation and for a gradient, one each for receiving and for sending. With
  // several chunks, a message may arrive while the previous one is in use.
  double message_bytes() const {
    if (strategy_.pipeline_parallel == 1) return 0;
    return (strategy_.virtual_stages > 1 ? 5 : 4) * layer_bytes_.front().input;
  }

  double head_bytes() const {
    const auto vocabulary = static_cast<double>(model_.vocab_size) / (use_.gathers_logits ? 1 : tensor_ranks_);
    double logits = tokens_ * vocabulary / static_cast<double>(use_.logit_pieces);
    if (use_.logits_at_once > 0) logits = std::min(logits, static_cast<double>(use_.logits_at_once));
    return use_.logit_bytes * logits + use_.head_hidden * system_.activation_bytes * hidden() * tokens_;
  }

  // Gradients of attention scores, if attention may write them to memory.
  double score_gradient_bytes() const {
    if (!use_.writes_score_gradients) return 0;
    const int64_t heads = std::max<int64_t>(1, model_.num_heads / strategy_.tensor_parallel);
    return static_cast<double>(attention_workspace_bytes(micro_batch_, heads, sequence_length_));
  }

  // Device memory that holds no tensors.
  double fixed_bytes(int64_t rank) const {
    const CommunicatorCosts& costs = use_.communicators;
    if (use_.fixed_bytes == 0 || !costs.are_measured()) return use_.fixed_bytes;
    CommunicatorCounts counts = count_communicators(model_, strategy_, rank);
    // The ranks of one pipeline stage exchange parts of matrices. Without a pipeline this group contains all ranks, and
    // the exchange communicator of all ranks is counted already.
    const bool is_alone = strategy_.ranks_per_stage() == 1;
    if (system_.whole_matrices.are_exchanged && strategy_.pipeline_parallel > 1 && !is_alone) ++counts.exchanges;
    return (costs.context_bytes > 0 ? costs.context_bytes : use_.fixed_bytes) + communicator_bytes(counts, costs);
  }

  bool is_last(int64_t rank) const { return rank == strategy_.pipeline_parallel - 1; }

  RankBuckets buckets(int64_t rank, double RoleElements::* role) const {
    RankBuckets buckets{.head = is_last(rank) ? elements_.head.*role : 0,
                        .embedding = rank == 0 ? elements_.embedding.*role : 0};
    for (size_t kind = 0; kind < layers_[rank].size(); ++kind) {
      if (layers_[rank][kind] == 0) continue;
      const double layer = elements_.layers[kind].*role;
      buckets.num_layers += layers_[rank][kind];
      buckets.all_layers += layers_[rank][kind] * layer;
      buckets.largest_layer = std::max(buckets.largest_layer, layer);
    }
    return buckets;
  }

  double num_shares() const {
    return static_cast<double>(system_.optimizer_group > 0 ? system_.optimizer_group : strategy_.zero_shards());
  }

  // Adds weights, gradients and optimizer state, sharded by ZeRO if the strategy says so.
  void add_state(int64_t rank, MemoryParts& parts) const {
    const double weights = buckets(rank, &RoleElements::weights).sum();
    const double gradients = use_.separate_tied_gradient ? buckets(rank, &RoleElements::gradients).sum() : weights;
    const auto share_from = [&](int64_t stage) { return strategy_.zero_stage >= stage ? num_shares() : 1; };
    parts.weights = weights * system_.weight_bytes / share_from(3);
    parts.gradients =
        gradients * system_.gradient_bytes / share_from(2) + weights * use_.gradient_copy_bytes / share_from(2);
    parts.optimizer = buckets(rank, &RoleElements::optimizer).sum() * system_.optimizer_bytes / share_from(1);
  }

  // Returns the memory at the moment with the largest total, including the tensors that are unsharded at that moment.
  // At other moments a rank may hold more activations or logits, but less in total.
  MemoryParts at_peak(int64_t rank, const MemoryParts& parts) const {
    MemoryParts most;
    for (const Moment& moment : moments(rank)) {
      MemoryParts then = parts;
      if (strategy_.zero_stage >= 3) then.weights += system_.weight_bytes * moment.weights;
      then.gradients += system_.reduced_bytes * moment.gradients;
      then.activations -= std::min(then.activations, moment.layers_done * least_kept(rank));
      if (moment.in_head) {
        then.workspace = fixed_bytes(rank) + copied_bytes(rank);
      } else {
        then.logits = 0;
        then.workspace = working(rank) + fixed_bytes(rank) + copied_bytes(rank) + score_gradient_bytes();
      }
      if (then.total() > most.total()) most = then;
    }
    return most;
  }

  // Returns the memory while the step works on unsharded matrices: for noise in dual norms, with the copied gradients,
  // and then for Muon's directions. Empty if it does neither.
  MemoryParts between_gradients_and_update(int64_t rank, MemoryParts parts) const {
    const double bytes = std::max(matrix_update_bytes_, dual_measurement_bytes_ + copied_bytes(rank));
    if (bytes == 0) return {};
    parts.activations = parts.logits = 0;
    parts.workspace = fixed_bytes(rank) + bytes;
    return parts;
  }

  double copied_bytes(int64_t rank) const { return copied_[rank] * sizeof(float) / tensor_ranks_; }

  // Returns the moments at which memory may peak. An unsharded gradient exists from its layer's backward pass until it
  // is reduced, which overlaps with the next layer's backward pass. So two unsharded gradients exist at once, or three
  // if tensor-parallel neighbours first sum partial gradients. Weights are gathered for the current and the next use;
  // without resharding all weights are unsharded.
  std::vector<Moment> moments(int64_t rank) const {
    const RankBuckets whole = buckets(rank, &RoleElements::gradients);
    const bool adds_first = strategy_.tensor_parallel > 1 &&
                            (strategy_.sequence_parallel || model_.num_kv_heads < strategy_.tensor_parallel);
    const double at_once = adds_first ? 3 : 2;
    // With one micro-batch, a tied head's gradient is reduced at the end of the backward pass, with the embedding's.
    // With several micro-batches, each micro-batch's gradient is reduced into a buffer and then added.
    const bool several = shape_.num_microbatches > 1;
    const double tied = !several && model_.tie_word_embeddings && is_last(rank) ? elements_.embedding.gradients : 0;
    const double always = tied + (several ? whole.largest() / num_shares() : 0);
    const double head = whole.head - tied;
    const double chunk = whole.num_layers / static_cast<double>(strategy_.virtual_stages);
    // If W is deferred, its gradients come when activations of other micro-batches already fill the freed memory.
    const auto done = [&](double layers) { return strategy_.schedule == PipelineSchedule::zb_h1 ? 0 : layers; };

    std::vector<Moment> moments = {{.weights = whole.layers(2), .gradients = head + whole.layers(1)}};
    if (is_last(rank)) moments.push_back({.weights = whole.head + whole.layers(1), .gradients = head, .in_head = true});
    for (double layers = 2; layers <= std::min(at_once, chunk); ++layers) {
      const double before = layers < at_once ? head : 0;
      moments.push_back(
          {.weights = whole.layers(2), .gradients = before + whole.layers(layers), .layers_done = done(layers - 1)});
    }
    if (rank == 0) {
      moments.push_back({.weights = whole.embedding + whole.layers(1),
                         .gradients = whole.embedding + whole.layers(at_once - 1),
                         .layers_done = done(chunk)});
    }
    for (Moment& moment : moments) {
      moment.gradients += always;
      if (!strategy_.reshard_after_forward) moment.weights = buckets(rank, &RoleElements::weights).sum();
    }
    return moments;
  }

  const ModelDescription& model_;
  const TrainingSystem& system_;
  const MemoryUse& use_;
  const double matrix_update_bytes_, dual_measurement_bytes_;
  const ParallelStrategy& strategy_;
  const BlockElements& elements_;
  const std::vector<std::vector<double>>& layers_;  // by pipeline rank and kind
  const std::vector<LayerBytes>& layer_bytes_;      // by kind
  const std::vector<double>& copied_;               // by pipeline rank
  const Schedule shape_;                            // only its numbers are used; its lists are empty
  const int64_t micro_batch_, sequence_length_;
  const double tokens_, tensor_ranks_;
};

MemoryModel::MemoryModel(const ModelDescription& model, int64_t sequence_length, TrainingSystem system)
    : model_(model),
      sequence_length_(sequence_length),
      system_(std::move(system)),
      elements_(model),
      kinds_(model),
      matrix_update_bytes_(system_.whole_matrices.newton_schulz_steps > 0 ? matrix_update_bytes(model, system_) : 0),
      dual_measurement_bytes_(system_.measures_dual_norms ? dual_measurement_bytes(model) : 0) {
  for (const int64_t example : kinds_.examples) blocks_.push_back(describe_layer(model, example));
}

const std::vector<std::vector<double>>& MemoryModel::layers(const ParallelStrategy& strategy) {
  const auto [found, is_new] = layers_.try_emplace({strategy.pipeline_parallel, strategy.virtual_stages});
  std::vector<std::vector<double>>& layers = found->second;
  if (!is_new) return layers;
  layers.resize(strategy.pipeline_parallel, std::vector<double>(kinds_.examples.size(), 0));
  const std::vector<LayerRange> stages = cut_stages(system_, model_, sequence_length_, strategy.num_stages());
  for (size_t stage = 0; stage < stages.size(); ++stage) {
    std::vector<double>& sums = layers[stage % layers.size()];
    const std::vector<double> counts = kinds_.counts(stages[stage].begin, stages[stage].end);
    std::ranges::transform(sums, counts, sums.begin(), std::plus<>());
  }
  return layers;
}

const std::vector<double>& MemoryModel::copied_gradients(const ParallelStrategy& strategy) {
  const auto [found, is_new] = copied_.try_emplace({strategy.pipeline_parallel, strategy.virtual_stages});
  std::vector<double>& most = found->second;
  if (!is_new) return most;
  most.resize(strategy.pipeline_parallel, 0);
  if (!system_.measures_dual_norms) return most;
  const int64_t groups = num_dual_groups(model_);
  std::vector<std::vector<double>> elements(most.size(), std::vector<double>(groups, 0));  // by rank and group
  const std::vector<LayerRange> stages = cut_stages(system_, model_, sequence_length_, strategy.num_stages());
  int64_t index = 0;
  for (const ParameterInfo& parameter : list_parameters(model_)) {
    if (!is_hidden_matrix(parameter)) continue;
    const auto stage =
        std::ranges::find_if(stages, [&](const LayerRange& range) { return parameter.layer < range.end; });
    elements[(stage - stages.begin()) % most.size()][dual_group_of(index++, groups)] +=
        static_cast<double>(parameter.num_elements());
  }
  std::ranges::transform(elements, most.begin(), [](const auto& of_rank) { return std::ranges::max(of_rank); });
  return most;
}

const std::vector<LayerBytes>& MemoryModel::layer_bytes(const Configuration& configuration) {
  const ParallelStrategy& strategy = configuration.strategy;
  const LayerShape shape{.tensor_parallel = strategy.tensor_parallel,
                         .micro_batch = configuration.micro_batch,
                         .sequence_parallel = strategy.sequence_parallel,
                         .recompute = strategy.recompute};
  const auto [found, is_new] = layer_bytes_.try_emplace(shape);
  if (!is_new) return found->second;
  for (const std::vector<BlockDescription>& blocks : blocks_) {
    found->second.push_back(copus::layer_bytes(model_, blocks, sequence_length_, system_, shape));
  }
  return found->second;
}

MemoryPrediction MemoryModel::predict(const Configuration& configuration) {
  const Calculation memory(*this, configuration);
  MemoryPrediction most{.pipeline_rank = 0, .parts = memory.of_rank(0)};
  for (int64_t rank = 1; rank < configuration.strategy.pipeline_parallel; ++rank) {
    if (memory.needs_at_most_as_much_as_the_previous(rank)) continue;
    const MemoryParts parts = memory.of_rank(rank);
    if (parts.total() > most.parts.total()) most = {rank, parts};
  }
  return most;
}

std::vector<MemoryParts> MemoryModel::predict_every_rank(const Configuration& configuration) {
  const Calculation memory(*this, configuration);
  std::vector<MemoryParts> ranks;
  for (int64_t rank = 0; rank < configuration.strategy.pipeline_parallel; ++rank) ranks.push_back(memory.of_rank(rank));
  return ranks;
}

std::optional<std::string> out_of_memory_reason(const MemoryPrediction& prediction, double memory_bytes) {
  const double needed = prediction.parts.total();
  if (memory_bytes <= 0 || needed <= memory_bytes) return std::nullopt;
  const auto in_gibibytes = [](double bytes, int decimals) {
    std::ostringstream text;
    text << std::fixed << std::setprecision(decimals) << bytes / static_cast<double>(int64_t{1} << 30);
    return text.str();
  };
  // Adds decimals until needed and available memory differ in the message, down to single bytes.
  int decimals = 1;
  while (decimals < 9 && in_gibibytes(needed, decimals) == in_gibibytes(memory_bytes, decimals)) ++decimals;

  const MemoryParts& parts = prediction.parts;
  const std::pair<const char*, double> named[] = {{"weights", parts.weights},     {"gradients", parts.gradients},
                                                  {"optimizer", parts.optimizer}, {"activations", parts.activations},
                                                  {"logits", parts.logits},       {"workspace", parts.workspace}};
  std::string list;
  for (const auto& [name, bytes] : named) {
    if (bytes > 0) list += concat(list.empty() ? "" : ", ", name, " ", in_gibibytes(bytes, decimals));
  }
  return concat("needs ", in_gibibytes(needed, decimals), " GiB on pipeline rank ", prediction.pipeline_rank, ": ",
                list, "; has ", in_gibibytes(memory_bytes, decimals));
}

}  // namespace copus
