#include "copus/model/layers/attention_block.h"

#include <algorithm>

#include "copus/base/error.h"

namespace copus {

// Without norms of queries and keys, the rotation overwrites `projected`.
struct AttentionBlock::Activations : BlockActivations {
  at::Tensor norm_statistics;  // of norms over whole projections
  kernels::AttentionResult attention;
};

namespace {

at::Tensor attend_to_cache(const at::Tensor& projected, const LayerContext& context) {
  const kernels::AttentionShape& shape = context.shape;
  const at::Tensor heads =
      projected.view({shape.batch, shape.sequence, shape.heads + 2 * shape.kv_heads, shape.head_dim}).transpose(1, 2);
  const int64_t first = context.keys.size(2) - shape.sequence;
  context.keys.narrow(2, first, shape.sequence).copy_(heads.narrow(1, shape.heads, shape.kv_heads));
  context.values.narrow(2, first, shape.sequence).copy_(heads.narrow(1, shape.heads + shape.kv_heads, shape.kv_heads));
  return kernels::cached_attention(heads.narrow(1, 0, shape.heads), context.keys, context.values, shape)
      .view({shape.batch * shape.sequence, shape.heads * shape.head_dim});
}

}  // namespace

AttentionBlock::AttentionBlock(const ParameterStore& parameters, int64_t layer, const BlockDescription& block,
                               const TensorParallel& tensor_parallel)
    : Block(parameters, layer, block, tensor_parallel),
      has_rope_(parameters.model().has_rope(layer)),
      query_key_norm_(parameters, concat("model.layers.", layer, ".", block.modules), tensor_parallel) {}

std::unique_ptr<BlockActivations> AttentionBlock::new_activations() const { return std::make_unique<Activations>(); }

void AttentionBlock::drop_attention(BlockActivations& a) const {
  auto& mine = static_cast<Activations&>(a);
  mine.projected.reset();
  mine.norm_statistics.reset();
  mine.attention = {};
}

at::Tensor AttentionBlock::normalize_and_rotate(const Activations& a, const LayerContext& context) const {
  at::Tensor heads = query_key_norm_.forward(a.projected, context.shape, a.norm_statistics);
  if (has_rope_) {
    kernels::rotary_(heads, context.shape, context.rotary.cosine, context.rotary.sine, /*backward=*/false);
  }
  return heads;
}

at::Tensor AttentionBlock::forward_inner(BlockActivations& a, const LayerContext& context) const {
  auto& mine = static_cast<Activations&>(a);
  mine.norm_statistics = query_key_norm_.statistics(mine.projected, context.shape);
  const at::Tensor heads = normalize_and_rotate(mine, context);
  if (context.keys.defined()) return attend_to_cache(heads, context);
  mine.attention = kernels::attention(heads, context.shape);
  return mine.attention.output;
}

at::Tensor AttentionBlock::backward_inner(at::Tensor all_dy, BlockActivations& a, const LayerContext& context,
                                          WeightGradients& weight_gradients) const {
  auto& mine = static_cast<Activations&>(a);
  const kernels::AttentionShape& shape = context.shape;
  at::Tensor attention_gradient = output_layer().backward(all_dy, mine.attention.output, weight_gradients);
  all_dy.reset();
  at::Tensor gradient = kernels::attention_backward(
      attention_gradient, query_key_norm_.is_there() ? normalize_and_rotate(mine, context) : mine.projected,
      mine.attention, shape);
  attention_gradient.reset();
  mine.attention = {};
  if (has_rope_) kernels::rotary_(gradient, shape, context.rotary.cosine, context.rotary.sine, /*backward=*/true);
  query_key_norm_.backward_(gradient, mine.projected, shape, mine.norm_statistics, weight_gradients);
  return gradient;
}

kernels::AttentionShape local_attention_shape(const ModelDescription& model, int64_t layer,
                                              const TensorParallel& tensor_parallel, const at::Tensor& tokens) {
  COPUS_CHECK(tokens.dim() == 2 && tokens.scalar_type() == at::kLong, "tokens are int64 [batch, sequence]");
  const int64_t ranks = tensor_parallel.size();
  COPUS_CHECK(!tensor_parallel.sequence_parallel() || tokens.numel() % ranks == 0, tokens.numel(),
              " rows cannot be cut over ", ranks, " ranks");
  return {.batch = tokens.size(0),
          .sequence = tokens.size(1),
          .heads = model.num_heads / ranks,
          .kv_heads = std::max<int64_t>(1, model.num_kv_heads / ranks),
          .head_dim = model.head_dim,
          .window = model.window_of(layer),
          .multiplier = model.attention_multiplier,
          .softcap = model.attention_softcap};
}

}  // namespace copus
