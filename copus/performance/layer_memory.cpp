#include "copus/performance/layer_memory.h"

#include <algorithm>

namespace copus {

namespace {

class LayerCalculation {
 public:
  LayerCalculation(const ModelDescription& model, const std::vector<BlockDescription>& blocks, int64_t sequence_length,
                   const TrainingSystem& system, const LayerShape& shape)
      : model_(model),
        blocks_(blocks),
        system_(system),
        use_(system.memory),
        shape_(shape),
        sequence_(static_cast<double>(sequence_length)),
        tokens_(static_cast<double>(shape.micro_batch * sequence_length)),
        stream_(system.activation_bytes * static_cast<double>(model.hidden_size) * tokens_ /
                (shape.sequence_parallel ? static_cast<double>(shape.tensor_parallel) : 1)) {}

  LayerBytes bytes() const {
    const bool norms_heads = model_.qk_norm != QkNorm::none;
    const auto num_blocks = static_cast<double>(blocks_.size());
    // Two corrections of `kept`. If blocks have norms of inputs and of outputs, the layer also keeps the block outputs
    // that norms read. If blocks are parallel, there are no streams between them.
    const double other_streams =
        ((model_.block_norm == BlockNorm::both ? num_blocks : 0) - (model_.parallel_residual ? num_blocks - 1 : 0)) *
        stream_;
    const double of_blocks = num_blocks / 2;
    const double all_kept =
        bytes(use_.kept, of_blocks) + other_streams + (norms_heads ? bytes(use_.kept_of_normed_heads, of_blocks) : 0);
    LayerBytes layer{.input = stream_};
    layer.kept = shape_.recompute == Recompute::none ? all_kept
                 : shape_.recompute == Recompute::attention
                     ? bytes(use_.kept_without_attention, of_blocks) + other_streams
                     : stream_;
    // The residual stream of one block at a time, and the inner tensors of all blocks.
    layer.working = bytes(use_.working, 1) + (norms_heads ? bytes(use_.working_of_normed_heads, 1) : 0) +
                    (all_kept - layer.kept) + bytes({.gathered = gathered_inputs()}, 1) +
                    bytes({.gathered = shape_.sequence_parallel ? use_.gathered_working : 0}, 1);
    layer.waiting = bytes(use_.waiting, of_blocks);
    return layer;
  }

 private:
  // Returns the bytes of tensors, `streams` times those that are hidden_size wide.
  double bytes(const LayerTensors& tensors, double streams) const {
    const double heads = static_cast<double>(model_.num_heads) / static_cast<double>(shape_.tensor_parallel);
    double width = 0, scores = 0;
    for (const BlockDescription& block : blocks_) {
      width += inner_elements(tensors, block, shape_.tensor_parallel);
      if (block.score_width > 0) scores += tensors.score_bytes * heads * sequence_ * tokens_;
    }
    width += streams * tensors.gathered * static_cast<double>(model_.hidden_size);
    return streams * tensors.hidden * stream_ + system_.activation_bytes * width * tokens_ + scores;
  }

  // With sequence parallelism, inputs that a recompute has gathered stay in memory until the weight gradients are done.
  // They are counted here unless the layer keeps gathered inputs anyway.
  double gathered_inputs() const {
    if (!shape_.sequence_parallel || system_.gathers_after_recompute || use_.kept.gathered > 0) return 0;
    if (shape_.recompute == Recompute::none) return 0;
    return static_cast<double>(std::ranges::count_if(blocks_, [&](const BlockDescription& block) {
      return shape_.recompute == Recompute::full || block.score_width > 0;
    }));
  }

  const ModelDescription& model_;
  const std::vector<BlockDescription>& blocks_;
  const TrainingSystem& system_;
  const MemoryUse& use_;
  const LayerShape& shape_;
  const double sequence_, tokens_, stream_;
};

}  // namespace

LayerBytes layer_bytes(const ModelDescription& model, const std::vector<BlockDescription>& blocks,
                       int64_t sequence_length, const TrainingSystem& system, const LayerShape& shape) {
  return LayerCalculation(model, blocks, sequence_length, system, shape).bytes();
}

}  // namespace copus
