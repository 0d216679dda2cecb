#include "copus/model/layers/decoder_layer.h"

#include <utility>

namespace copus {

DecoderLayer::DecoderLayer(const ParameterStore& parameters, int64_t layer, const TensorParallel& tensor_parallel)
    : parallel_residual_(parameters.model().parallel_residual) {
  for (const BlockKind kind : blocks_of(parameters.model(), layer)) {
    blocks_.push_back(make_block(parameters, layer, kind, tensor_parallel));
  }
}

template <class Run>
ResidualStream DecoderLayer::through_blocks(ResidualStream stream, const Run& run) const {
  at::Tensor input;
  for (size_t i = 0; i < blocks_.size(); ++i) {
    if (i == 0 || !parallel_residual_) {
      stream = run(i, stream);
      if (i == 0) input = stream.residual;
      continue;
    }
    // This block reads the layer's input, so its norm cannot compute the sum with the previous block's result.
    const at::Tensor sum = stream.sum();
    stream.delta.reset();
    stream = {sum, run(i, ResidualStream{input, {}}).delta};
  }
  return stream;
}

ResidualStream DecoderLayer::forward(const ResidualStream& in, const LayerContext& context, Recompute recompute,
                                     LayerActivations* kept) const {
  return through_blocks(in, [&](size_t i, const ResidualStream& stream) {
    std::unique_ptr<BlockActivations> activations = blocks_[i]->new_activations();
    ResidualStream out = blocks_[i]->forward(stream, context, *activations);
    if (kept == nullptr) return out;
    if (recompute == Recompute::attention) blocks_[i]->drop_attention(*activations);
    if (recompute == Recompute::full) {
      if (i > 0) return out;
      activations = blocks_[i]->new_activations();
      activations->input = out.residual;
    }
    kept->push_back(std::move(activations));
    return out;
  });
}

at::Tensor DecoderLayer::backward(const at::Tensor& dy, LayerActivations kept, const LayerContext& context,
                                  WeightGradients& weight_gradients) const {
  const bool recomputes_all = !kept.front()->normed.defined();
  if (recomputes_all) {
    while (kept.size() < blocks_.size()) kept.push_back(blocks_[kept.size()]->new_activations());
    through_blocks({kept.front()->input, {}}, [&](size_t i, const ResidualStream& stream) {
      return blocks_[i]->rebuild(stream, context, /*needs_output=*/i + 1 < blocks_.size(), *kept[i]);
    });
  }
  // The gradient of the stream before each block. With parallel blocks it lacks the paths through earlier blocks.
  at::Tensor gradient = dy;
  for (size_t i = blocks_.size(); i-- > 0;) {
    gradient = blocks_[i]->backward(parallel_residual_ ? dy : gradient, gradient, *kept[i], context, weight_gradients);
    kept[i].reset();
  }
  return gradient;
}

}  // namespace copus
