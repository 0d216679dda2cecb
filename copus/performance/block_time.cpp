#include "copus/performance/block_time.h"

#include <algorithm>
#include <cmath>

#include "copus/performance/block_elements.h"
#include "copus/performance/link_cost.h"
#include "copus/placement/stages.h"

namespace copus {

namespace {

// Seconds of the collectives of a layer's passes. With sequence parallelism, the forward pass has a gather before each
// column-parallel product and a reduce-scatter after each row-parallel one, and the backward pass has the reverse. The
// backward pass also gathers the inputs again for the weight gradients (Korthikanti et al. 2022), unless a recompute
// has just gathered them. Without sequence parallelism there are two all-reduces in each pass (Shoeybi et al. 2019).
// With one rank the collectives take no time.
struct TensorCollectives {
  double gather = 0, reduce = 0;
};

// Seconds of the products with one weight: the forward product [rows, depth] x [depth, columns], the gradient of the
// input, and the gradient of the weight.
struct Product {
  double forward, input, weight;
};

class BlockCalculation {
 public:
  BlockCalculation(const ModelDescription& model, int64_t sequence_length, const ClusterDescription& cluster,
                   const TrainingSystem& system, const BlockShape& shape)
      : model_(model),
        cluster_(cluster),
        system_(system),
        shape_(shape),
        sequence_length_(sequence_length),
        held_(BlockCounter(model).of(
            {.tensor_parallel = shape.tensor_parallel, .sequence_parallel = shape.sequence_parallel})),
        ranks_(static_cast<double>(shape.tensor_parallel)),
        rows_(static_cast<double>(shape.micro_batch * sequence_length)),
        hidden_(static_cast<double>(model.hidden_size)),
        stream_bytes_(rows_ * hidden_ * system.activation_bytes),
        link_(link_of(cluster, RankSeries{.first = 0, .stride = 1, .count = shape.tensor_parallel})),
        collectives_(time_collectives()) {}

  BlockCosts device_costs() const;
  BlockCosts charged_costs() const;

 private:
  TensorCollectives time_collectives() const {
    const auto bytes = static_cast<int64_t>(stream_bytes_);
    const int64_t n = shape_.tensor_parallel;
    if (!shape_.sequence_parallel) return {0, all_reduce_seconds(link_, n, bytes)};
    return {all_gather_seconds(link_, n, bytes), reduce_scatter_seconds(link_, n, bytes)};
  }

  double moved(double bytes) const { return memory_seconds(cluster_.device, bytes); }
  double launches(double kernels) const { return kernels * cluster_.device.launch_seconds; }

  // Returns the seconds of a product [rows, depth] x [depth, columns].
  double matmul(double rows, double columns, double depth) const {
    return matmul_seconds(cluster_.device, rows, columns, depth, system_.activation_bytes);
  }

  Product product(double columns, double depth) const {
    // NOLINTNEXTLINE(readability-suspicious-call-argument): the rows of one product are the depth of another
    return {matmul(rows_, columns, depth), matmul(rows_, depth, columns), matmul(columns, depth, rows_)};
  }

  // Returns the seconds of memory traffic outside of matrix products.
  double passes(const TrainingSystem::Passes& passes) const {
    const double more_norms = model_.block_norm == BlockNorm::both ? passes.normed_twice
                              : model_.has_output_norms()          ? passes.normed_outputs
                                                                   : 0;
    const double stream =
        passes.stream + more_norms + (model_.residual_multiplier != 1 ? passes.multiplied_outputs : 0);
    const double norms = model_.qk_norm == QkNorm::none   ? 0
                         : model_.qk_norm == QkNorm::head ? passes.normed_heads
                                                          : passes.normed_projections;
    // Without a gate the activation function reads one matrix less, and its gradient reads and writes one less.
    const double feed_forward_share = static_cast<double>(1 + model_.feed_forward_inputs()) / 3;
    const double widths =
        stream * hidden_ / (shape_.sequence_parallel ? ranks_ : 1) + (passes.attention + norms) * qkv_width() +
        passes.feed_forward * feed_forward_share * static_cast<double>(model_.intermediate_size) / ranks_;
    return moved(rows_ * widths * system_.activation_bytes);
  }

  // Returns the seconds to read or write the stream once.
  double stream_pass() const { return moved(stream_bytes_ / (shape_.sequence_parallel ? ranks_ : 1)); }

  bool normalizes_outputs() const { return model_.has_output_norms(); }

  // Returns the seconds to sum two statistics of each row over the tensor-parallel ranks, which norms over projections
  // need in the forward and in the backward pass.
  double norm_statistics() const {
    if (model_.qk_norm != QkNorm::projection) return 0;
    const int64_t rows = shape_.micro_batch * sequence_length_;
    return all_reduce_seconds(link_, shape_.tensor_parallel, rows * 2 * static_cast<int64_t>(sizeof(float)));
  }

  // Returns the width of queries, keys and values on one rank. A rank has at least one key-value head: if there are
  // fewer heads than ranks, the heads are replicated.
  double qkv_width() const {
    return (static_cast<double>(model_.num_heads) / ranks_ +
            2 * std::max(1.0, static_cast<double>(model_.num_kv_heads) / ranks_)) *
           static_cast<double>(model_.head_dim);
  }

  // Returns the part of a collective that does not overlap with products. The gather of a column-parallel product's
  // input can overlap with the computation of the input's gradient. The reduction of the input's gradient can overlap
  // with the computation of the weight's gradient. If ranks share devices nothing overlaps, since the same processors
  // move bytes and compute.
  double beside(double communication, double computing) const {
    const bool hides = system_.overlaps_tensor_backward && cluster_.devices_per_node == 0;
    return hides ? std::max(0.0, communication - computing) : communication;
  }

  double loss_statistics() const;
  BlockCost layer_cost() const;

  const ModelDescription& model_;
  const ClusterDescription& cluster_;
  const TrainingSystem& system_;
  const BlockShape& shape_;
  const int64_t sequence_length_;
  const BlockElements held_;
  const double ranks_, rows_, hidden_, stream_bytes_;
  const Link link_;
  const TensorCollectives collectives_;
};

// Returns the seconds of the loss's collectives if the vocabulary is split over the tensor-parallel ranks. They sum
// three fp64 statistics of every row and rank, one piece of the logits at a time. Other programs have a single, smaller
// sum, which is not counted.
double BlockCalculation::loss_statistics() const {
  const int64_t t = shape_.tensor_parallel, rows = shape_.micro_batch * sequence_length_;
  if (t == 1 || system_.memory.logits_at_once == 0) return 0;
  const int64_t part = (model_.vocab_size + t - 1) / t;
  const int64_t rows_at_once = std::min(rows, std::max<int64_t>(1, system_.memory.logits_at_once / part));
  const int64_t bytes_per_row = t * 3 * static_cast<int64_t>(sizeof(double));
  return rows_ / static_cast<double>(rows_at_once) * all_reduce_seconds(link_, t, rows_at_once * bytes_per_row);
}

BlockCost BlockCalculation::layer_cost() const {
  const auto [gather, reduce] = collectives_;
  const double queries = static_cast<double>(model_.num_heads * model_.head_dim) / ranks_;
  const double feed_forward = static_cast<double>(model_.intermediate_size) / ranks_;
  const Product qkv = product(qkv_width(), hidden_), output = product(hidden_, queries);
  const Product gate_up = product(static_cast<double>(model_.feed_forward_inputs()) * feed_forward, hidden_),
                down = product(hidden_, feed_forward);

  // Attention computes scores and weighted values over causal halves. Its backward pass has 5 products instead of 2
  // (Dao 2023).
  const auto sequence = static_cast<double>(sequence_length_);
  const double attended = attended_length(system_, sequence_length_);
  const Device& device = cluster_.device;
  const double attention_flops =
      4 * rows_ * attended_tokens(model_, static_cast<int64_t>(std::llround(attended))) * queries;
  const double scores =
      moved(rows_ * sequence * static_cast<double>(model_.num_heads) / ranks_ * system_.attention_matrix_bytes);
  const double attention_forward =
      scores + attention_flops / (device.matmul_flops_per_second * device.attention_forward.at(attended));
  const double attention_backward =
      scores + 2.5 * attention_flops / (device.matmul_flops_per_second * device.attention_backward.at(attended));

  const bool cuts_sequence = shape_.sequence_parallel;
  const double copies = ranks_ > 1 ? moved(stream_bytes_ * system_.collective_copies) : 0;
  const double collective_launches =
      ranks_ == 1 ? 0
                  : system_.collective_launches +
                        (shape_.pipeline_across_nodes ? system_.pipelined_collective_launches * ranks_ : 0);
  const double forward_launches = system_.forward.launches + (cuts_sequence ? 4 : 2) * collective_launches;
  const double backward_launches = system_.backward.launches + (cuts_sequence ? 6 : 2) * collective_launches;

  BlockCost layer;
  // With parallel blocks the sum after attention is apart from a norm.
  const double parallel_sum = model_.parallel_residual ? stream_pass() : 0;
  const Cost forward{qkv.forward + attention_forward + output.forward + gate_up.forward + down.forward +
                         passes(system_.forward) + (cuts_sequence ? 4 : 2) * copies + parallel_sum,
                     2 * (gather + reduce) + norm_statistics()};
  // A pass that is limited by the host takes as long as its launches. The part of this time that exceeds communication
  // counts as computation.
  layer.forward = {std::max(forward.compute, launches(forward_launches) - forward.communication),
                   forward.communication};

  Cost& input = layer.backward_input;
  input = {qkv.input + output.input + gate_up.input + down.input + attention_backward + passes(system_.backward) +
               (cuts_sequence ? 6 : 2) * copies,
           2 * gather + norm_statistics()};
  const bool gathers_again = system_.gathers_after_recompute;
  if (gathers_again || shape_.recompute == Recompute::none) input.communication += beside(gather, qkv.input);
  if (gathers_again || shape_.recompute != Recompute::full) input.communication += beside(gather, gate_up.input);
  for (const Product& product : {qkv, gate_up}) {
    input.communication += beside(reduce, shape_.defers_weights ? 0 : product.weight);
  }
  switch (shape_.recompute) {
    case Recompute::none:
      break;
    case Recompute::attention:
      input += {qkv.forward + attention_forward, gather + norm_statistics()};
      break;
    case Recompute::full:
      input += forward;
      if (!system_.recomputes_down_projection && !normalizes_outputs()) input += {-down.forward, -reduce};
      break;
  }
  layer.backward_weight = {qkv.weight + output.weight + gate_up.weight + down.weight +
                               moved(held_.layer.gradients * system_.accumulation_bytes),
                           0};
  // Launches are compared with the whole backward pass, since the host may be ahead in one part and behind in another.
  const double all_launches = backward_launches + (shape_.recompute == Recompute::none ? 0 : forward_launches);
  input.compute += std::max(0.0, launches(all_launches) - layer.backward().total());
  return layer;
}

BlockCosts BlockCalculation::device_costs() const {
  const auto [gather, reduce] = collectives_;
  BlockCosts costs;
  costs.layer = layer_cost();
  // The look-up writes the stream. Its gradient reads the stream and adds to the table. A multiplier adds one read and
  // one write.
  const double multiplied = model_.embedding_multiplier != 1 ? 2 * stream_bytes_ : 0;
  costs.embedding.forward = {moved(2 * stream_bytes_ + multiplied), reduce};
  costs.embedding.backward_weight = {moved(stream_bytes_ + multiplied + rows_ * hidden_ * 2 * system_.gradient_bytes) +
                                         moved(held_.embedding.gradients * system_.dense_embedding_bytes),
                                     gather};
  const double vocabulary = static_cast<double>(model_.vocab_size) / ranks_;
  const Product head = product(vocabulary, hidden_);
  costs.head.backward_input = {
      head.forward + head.input + moved(rows_ * vocabulary * system_.logit_bytes) +
          moved((6 + (model_.logits_scaling != 1 ? 4 : 0)) * stream_bytes_ / (shape_.sequence_parallel ? ranks_ : 1)),
      gather + reduce + loss_statistics()};
  costs.head.backward_weight = {head.weight + moved(held_.head.gradients * system_.accumulation_bytes), 0};
  return costs;
}

// Costs by the rules of the virtual clock (train/step/pipeline_executor.h): F, B and W each take a third of a layer's
// operations, and B includes F again if it is recomputed. The head counts in B and W.
BlockCosts BlockCalculation::charged_costs() const {
  const auto [gather, reduce] = collectives_;
  const TrainingFlops flops = training_flops(model_, sequence_length_);
  const double tokens = rows_ / ranks_;
  const double third = tokens * flops.layer / 3 / cluster_.flops_per_second;
  const double head_third = tokens * flops.head / 3 / cluster_.flops_per_second;

  BlockCosts costs;
  costs.layer.forward = {third, 2 * (gather + reduce) + norm_statistics()};
  costs.layer.backward_input = {third, 4 * gather + 2 * reduce + norm_statistics()};
  if (shape_.recompute != Recompute::none) costs.layer.backward_input += {0, norm_statistics()};
  if (shape_.recompute == Recompute::full) {
    costs.layer.backward_input += {third, (normalizes_outputs() ? 2 : 1) * reduce};
  }
  costs.layer.backward_weight = {third, 0};
  costs.embedding.forward = {0, reduce};
  costs.embedding.backward_weight = {0, gather};
  costs.head.backward_input = {2 * head_third, gather + reduce + loss_statistics()};
  costs.head.backward_weight = {head_third, 0};
  return costs;
}

}  // namespace

double attended_length(const TrainingSystem& system, int64_t sequence_length) {
  const auto sequence = static_cast<double>(sequence_length);
  if (system.document_length <= 0) return sequence;
  return std::clamp(system.document_length + 2 * system.attention_block, 1.0, sequence);
}

BlockCosts cost_blocks(const ModelDescription& model, int64_t sequence_length, const ClusterDescription& cluster,
                       const TrainingSystem& system, const BlockShape& shape) {
  const BlockCalculation calculation(model, sequence_length, cluster, system, shape);
  BlockCosts costs = cluster.flops_per_second > 0 ? calculation.charged_costs() : calculation.device_costs();
  const int64_t rows = shape.micro_batch * sequence_length;
  costs.message_bytes = static_cast<double>(rows) /
                        (shape.sequence_parallel ? static_cast<double>(shape.tensor_parallel) : 1) *
                        static_cast<double>(model.hidden_size) * system.activation_bytes;
  return costs;
}

double matmul_seconds(const Device& device, double rows, double columns, double depth, double element_bytes) {
  const double share =
      device.matmul_by_rows.at(rows) * device.matmul_by_columns.at(columns) * device.matmul_by_depth.at(depth);
  const double seconds = 2 * rows * columns * depth / (device.matmul_flops_per_second * share);
  const double elements = rows * columns + rows * depth + depth * columns;
  return std::max(seconds, memory_seconds(device, elements * element_bytes));
}

double memory_seconds(const Device& device, double bytes) {
  return device.memory_bytes_per_second > 0 ? bytes / device.memory_bytes_per_second : 0;
}

}  // namespace copus
