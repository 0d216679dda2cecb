#include "copus/performance/block_time.h"

#include <algorithm>
#include <cmath>

#include "copus/base/error.h"
#include "copus/description/layer_blocks.h"
#include "copus/performance/block_elements.h"
#include "copus/performance/link_cost.h"
#include "copus/placement/stages.h"

namespace copus {

namespace {

// Seconds of a layer's tensor-parallel collectives; 0 on one rank. With sequence parallelism, the forward pass gathers
// before each column-parallel product and reduce-scatters after each row-parallel one; the backward pass does the
// reverse. For the weight gradients the backward pass also gathers the inputs again, unless a recompute has just
// gathered them (Korthikanti et al. 2022). Without sequence parallelism each pass has two all-reduces (Shoeybi et al.
// 2019).
struct TensorCollectives {
  double gather = 0, reduce = 0;
};

// Seconds of the three products with one weight: the forward product [rows, depth] x [depth, columns], the gradient of
// its input, and the gradient of the weight.
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
        kinds_(model),
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

  // Returns the seconds of a layer's memory traffic, except that of matrix products.
  double passes(const TrainingSystem::Passes& passes, const std::vector<BlockDescription>& blocks) const {
    const double more_norms = model_.block_norm == BlockNorm::both ? passes.normed_twice
                              : model_.has_output_norms()          ? passes.normed_outputs
                                                                   : 0;
    const double stream =
        passes.stream + more_norms + (model_.residual_multiplier != 1 ? passes.multiplied_outputs : 0);
    double widths = stream * share_of(blocks) * hidden_ / (shape_.sequence_parallel ? ranks_ : 1);
    for (const BlockDescription& block : blocks) widths += inner_passes(passes, block);
    return moved(rows_ * widths * system_.activation_bytes);
  }

  // Returns a layer's launches, and its traffic of the residual stream, relative to a layer with two blocks.
  static double share_of(const std::vector<BlockDescription>& blocks) { return static_cast<double>(blocks.size()) / 2; }

  // Returns the elements per token that a block moves between its products, apart from the residual stream.
  double inner_passes(const TrainingSystem::Passes& passes, const BlockDescription& block) const {
    const double inputs = block.input_width(shape_.tensor_parallel),
                 output = block.output_width(shape_.tensor_parallel);
    const double norms = model_.qk_norm == QkNorm::none   ? 0
                         : model_.qk_norm == QkNorm::head ? passes.normed_heads
                                                          : passes.normed_projections;
    switch (block.kind) {
      case BlockKind::attention:
        return (passes.attention + norms) * inputs;
      case BlockKind::feed_forward:
        // `passes` counts three tensors of this width: gate, up and their product. Without a gate the activation
        // function reads one fewer, and its gradient reads and writes one fewer.
        return passes.feed_forward * (inputs + output) / 3;
    }
    fail_check("known block", __FILE__, __LINE__, "");
  }

  // Returns the seconds to read or write the residual stream once.
  double stream_pass() const { return moved(stream_bytes_ / (shape_.sequence_parallel ? ranks_ : 1)); }

  bool normalizes_outputs() const { return model_.has_output_norms(); }

  // Returns the seconds in which tensor-parallel ranks sum two statistics per row. Norms over projections need such a
  // sum once in the forward and once in the backward pass.
  double norm_statistics(const BlockDescription& block) const {
    if (block.head_norms.empty() || model_.qk_norm != QkNorm::projection) return 0;
    const int64_t rows = shape_.micro_batch * sequence_length_;
    return all_reduce_seconds(link_, shape_.tensor_parallel, rows * 2 * static_cast<int64_t>(sizeof(float)));
  }

  // Returns the exposed seconds of a collective. The gather of a column-parallel product's input can overlap with the
  // gradient of that input, and the reduction of the input's gradient with the gradient of the weight. Nothing overlaps
  // if ranks share devices, because the same processors move bytes and compute.
  double beside(double communication, double computing) const {
    const bool hides = system_.overlaps_tensor_backward && cluster_.devices_per_node == 0;
    return hides ? std::max(0.0, communication - computing) : communication;
  }

  double loss_statistics() const;
  // Seconds of the products of queries, keys and values; 0 for the feed-forward.
  struct Scores {
    double forward = 0, backward = 0;
  };
  Scores scores(const BlockDescription& block) const;
  BlockCost layer_cost(int64_t kind, const std::vector<BlockDescription>& blocks) const;

  const ModelDescription& model_;
  const ClusterDescription& cluster_;
  const TrainingSystem& system_;
  const BlockShape& shape_;
  const int64_t sequence_length_;
  const LayerKinds kinds_;
  const BlockElements held_;
  const double ranks_, rows_, hidden_, stream_bytes_;
  const Link link_;
  const TensorCollectives collectives_;
};

// Returns the seconds of the loss's collectives if the vocabulary is split: ranks sum three fp64 numbers per row and
// rank, one piece of the logits at a time. Programs other than Copus have one smaller sum, which is neglected.
double BlockCalculation::loss_statistics() const {
  const int64_t t = shape_.tensor_parallel, rows = shape_.micro_batch * sequence_length_;
  if (t == 1 || system_.memory.logits_at_once == 0) return 0;
  const int64_t part = (model_.vocab_size + t - 1) / t;
  const int64_t rows_at_once = std::min(rows, std::max<int64_t>(1, system_.memory.logits_at_once / part));
  const int64_t bytes_per_row = t * 3 * static_cast<int64_t>(sizeof(double));
  return rows_ / static_cast<double>(rows_at_once) * all_reduce_seconds(link_, t, rows_at_once * bytes_per_row);
}

// Attention computes only the causal half of the scores. Its backward pass has 5 products, its forward pass 2 (Dao
// 2023).
BlockCalculation::Scores BlockCalculation::scores(const BlockDescription& block) const {
  if (block.score_width == 0) return {};
  const double queries = static_cast<double>(block.score_width) / ranks_;
  const auto sequence = static_cast<double>(sequence_length_);
  const double attended = attended_length(system_, sequence_length_);
  const Device& device = cluster_.device;
  const double flops = 4 * rows_ * attended_tokens(model_, static_cast<int64_t>(std::llround(attended))) * queries;
  const double matrix =
      moved(rows_ * sequence * static_cast<double>(model_.num_heads) / ranks_ * system_.attention_matrix_bytes);
  return {matrix + flops / (device.matmul_flops_per_second * device.attention_forward.at(attended)),
          matrix + 2.5 * flops / (device.matmul_flops_per_second * device.attention_backward.at(attended))};
}

BlockCost BlockCalculation::layer_cost(int64_t kind, const std::vector<BlockDescription>& blocks) const {
  const auto [gather, reduce] = collectives_;
  const auto num_blocks = static_cast<double>(blocks.size());
  const bool cuts_sequence = shape_.sequence_parallel;
  const double copies = ranks_ > 1 ? moved(stream_bytes_ * system_.collective_copies) : 0;
  const double collective_launches =
      ranks_ == 1 ? 0
                  : system_.collective_launches +
                        (shape_.pipeline_across_nodes ? system_.pipelined_collective_launches * ranks_ : 0);
  const double forward_collectives = (cuts_sequence ? 2 : 1) * num_blocks;
  const double backward_collectives = (cuts_sequence ? 3 : 1) * num_blocks;
  const double forward_launches =
      system_.forward.launches * share_of(blocks) + forward_collectives * collective_launches;
  const double backward_launches =
      system_.backward.launches * share_of(blocks) + backward_collectives * collective_launches;

  BlockCost layer;
  Cost forward, &input = layer.backward_input;
  Cost again;  // what Recompute::attention repeats
  double scores_backward = 0, last_product = 0, statistics = 0;
  std::vector<Product> column_products;
  for (const BlockDescription& block : blocks) {
    const Product in = product(block.input_width(shape_.tensor_parallel), hidden_);
    const Product out = product(hidden_, block.output_width(shape_.tensor_parallel));
    const Scores of_scores = scores(block);
    forward.compute = forward.compute + in.forward + of_scores.forward + out.forward;
    input.compute = input.compute + in.input + out.input;
    layer.backward_weight.compute = layer.backward_weight.compute + in.weight + out.weight;
    scores_backward += of_scores.backward;
    statistics += norm_statistics(block);
    if (block.score_width > 0) again += {in.forward + of_scores.forward, gather + norm_statistics(block)};
    last_product = out.forward;
    column_products.push_back(in);
  }
  // With parallel blocks no norm reads the sum after attention, so the sum needs its own pass over the stream.
  const double parallel_sum = model_.parallel_residual && num_blocks > 1 ? stream_pass() : 0;
  forward.compute = forward.compute + passes(system_.forward, blocks) + forward_collectives * copies + parallel_sum;
  forward.communication = num_blocks * (gather + reduce) + statistics;
  // A pass that the host limits takes as long as its launches. The time beyond communication counts as computation.
  layer.forward = {std::max(forward.compute, launches(forward_launches) - forward.communication),
                   forward.communication};

  input.compute = input.compute + scores_backward + passes(system_.backward, blocks) + backward_collectives * copies;
  input.communication = num_blocks * gather + statistics;
  for (size_t i = 0; i < blocks.size(); ++i) {
    const bool was_gathered =
        shape_.recompute == Recompute::full || (shape_.recompute == Recompute::attention && blocks[i].score_width > 0);
    if (system_.gathers_after_recompute || !was_gathered)
      input.communication += beside(gather, column_products[i].input);
  }
  for (const Product& product : column_products) {
    input.communication += beside(reduce, shape_.defers_weights ? 0 : product.weight);
  }
  switch (shape_.recompute) {
    case Recompute::none:
      break;
    case Recompute::attention:
      input += again;
      break;
    case Recompute::full:
      input += forward;
      if (!system_.recomputes_down_projection && !normalizes_outputs()) input += {-last_product, -reduce};
      break;
  }
  layer.backward_weight.compute += moved(held_.layers[kind].gradients * system_.accumulation_bytes);
  // Compares the launches with the computation of the whole backward pass, not of its parts, because the host may run
  // ahead of the device in one part and lag behind in another.
  const double all_launches = backward_launches + (shape_.recompute == Recompute::none ? 0 : forward_launches);
  input.compute += std::max(0.0, launches(all_launches) - layer.backward().total());
  return layer;
}

BlockCosts BlockCalculation::device_costs() const {
  const auto [gather, reduce] = collectives_;
  BlockCosts costs;
  for (const int64_t example : kinds_.examples) {
    costs.layers.push_back(layer_cost(std::ssize(costs.layers), describe_layer(model_, example)));
  }
  // The look-up of embeddings writes the residual stream; its backward pass reads the stream's gradient and adds to the
  // table's. A multiplier reads and writes the stream once more.
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

// Costs on the virtual clock (train/step/pipeline_executor.h): F, B and W each take a third of a layer's operations. B
// includes F again if F is recomputed. The head counts in B and W.
BlockCosts BlockCalculation::charged_costs() const {
  const auto [gather, reduce] = collectives_;
  const TrainingFlops flops = training_flops(model_, sequence_length_);
  const double tokens = rows_ / ranks_;
  const double head_third = tokens * flops.head / 3 / cluster_.flops_per_second;

  BlockCosts costs;
  for (const int64_t example : kinds_.examples) {
    const double third = tokens * flops.layers[example] / 3 / cluster_.flops_per_second;
    const std::vector<BlockDescription> blocks = describe_layer(model_, example);
    const auto num_blocks = static_cast<double>(blocks.size());
    double statistics = 0;
    for (const BlockDescription& block : blocks) statistics += norm_statistics(block);
    BlockCost& layer = costs.layers.emplace_back();
    layer.forward = {third, num_blocks * (gather + reduce) + statistics};
    layer.backward_input = {third, num_blocks * (2 * gather + reduce) + statistics};
    if (shape_.recompute != Recompute::none) layer.backward_input += {0, statistics};
    if (shape_.recompute == Recompute::full) {
      layer.backward_input += {third, (num_blocks - (normalizes_outputs() ? 0 : 1)) * reduce};
    }
    layer.backward_weight = {third, 0};
  }
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
  const auto share = [&](BlockCost& block) {
    for (Cost* const pass : {&block.forward, &block.backward_input, &block.backward_weight}) {
      pass->compute /= static_cast<double>(shape.devices);
    }
  };
  std::for_each(costs.layers.begin(), costs.layers.end(), share);
  share(costs.embedding);
  share(costs.head);
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
