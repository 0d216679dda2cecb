#include "copus/model/decoder.h"

#include <algorithm>

#include "copus/base/error.h"
#include "copus/model/decoder_layer.h"
#include "copus/model/kernels.h"

namespace copus {
namespace {

// The head works on this many logits at a time, so that the full [tokens, vocab] matrix never exists.
constexpr int64_t logits_per_chunk = int64_t{1} << 22;

}  // namespace

struct Decoder::Implementation {
  ParameterStore& parameters;
  Recompute recompute;
  RotaryTable rotary;
  std::vector<DecoderLayer> layers;
  const Parameter& embedding;
  const Parameter& final_norm;
  const Parameter& head;  // with a gradient of its own where it is tied to the embedding

  Implementation(ParameterStore& store, Recompute mode)
      : parameters(store),
        recompute(mode),
        rotary(store.model(), store.compute_dtype() == at::kDouble ? at::kDouble : at::kFloat, store.device()),
        embedding(store.find("model.embed_tokens.weight")),
        final_norm(store.find("model.norm.weight")),
        head(store.model().tie_word_embeddings ? *store.find_tied_copy() : store.find("lm_head.weight")) {
    for (int64_t layer = 0; layer < store.model().num_layers; ++layer) layers.emplace_back(store, layer);
  }

  kernels::AttentionShape attention_shape(const at::Tensor& tokens) const {
    COPUS_CHECK(tokens.dim() == 2 && tokens.scalar_type() == at::kLong, "tokens are int64 [batch, sequence]");
    const ModelDescription& model = parameters.model();
    return {tokens.size(0), tokens.size(1), model.num_heads, model.num_kv_heads, model.head_dim};
  }

  // Embedding, layers and final norm.
  kernels::NormResult forward(const at::Tensor& tokens, const RotaryTable::Rows& rows,
                              std::vector<LayerActivations>* kept) {
    const kernels::AttentionShape shape = attention_shape(tokens);
    ResidualStream stream{kernels::embedding(embedding.weight, tokens.reshape({-1})), {}};
    for (size_t i = 0; i < layers.size(); ++i) {
      stream = layers[i].forward(stream, shape, rows, recompute, kept ? &(*kept)[i] : nullptr);
    }
    return kernels::add_rms_norm(stream.residual, stream.delta, final_norm.weight, parameters.model().rms_norm_eps);
  }

  // Adds the loss of every token; with `hidden_gradient` defined, also writes the gradient of the head's input there
  // and adds the head's weight gradient: each chunk's logits become their gradient at once and are then forgotten.
  void head_loss(const at::Tensor& hidden, const at::Tensor& targets, double loss_scale, const at::Tensor& loss_sum,
                 const at::Tensor& hidden_gradient) const {
    const int64_t rows = hidden.size(0);
    const int64_t chunk =
        std::max<int64_t>(ParameterStore::alignment, logits_per_chunk / parameters.model().vocab_size);
    for (int64_t first = 0; first < rows; first += chunk) {
      const int64_t count = std::min(chunk, rows - first);
      const at::Tensor chunk_hidden = hidden.narrow(0, first, count);
      const at::Tensor logits = kernels::linear(chunk_hidden, head.weight, {});
      kernels::cross_entropy_(logits, targets.narrow(0, first, count), loss_scale, hidden_gradient.defined(), loss_sum);
      if (!hidden_gradient.defined()) continue;
      kernels::linear_input_gradient_into(hidden_gradient.narrow(0, first, count), logits, head.weight);
      kernels::add_linear_weight_gradient(head.gradient, logits, chunk_hidden);
    }
  }
};

Decoder::Decoder(ParameterStore& parameters, Recompute recompute)
    : implementation_(std::make_unique<Implementation>(parameters, recompute)) {}

Decoder::~Decoder() = default;

at::Tensor Decoder::forward_backward(const at::Tensor& tokens, const at::Tensor& targets, double loss_scale) {
  Implementation& model = *implementation_;
  const kernels::AttentionShape shape = model.attention_shape(tokens);
  const RotaryTable::Rows rows = model.rotary.rows(0, shape.sequence);
  std::vector<LayerActivations> kept(model.layers.size());
  kernels::NormResult norm = model.forward(tokens, rows, &kept);

  at::Tensor loss_sum = kernels::zeros({}, at::kDouble, tokens.device());
  at::Tensor gradient = kernels::empty(norm.normed.sizes(), norm.normed.scalar_type(), norm.normed.device());
  model.head_loss(norm.normed, targets.reshape({-1}), loss_scale, loss_sum, gradient);
  gradient =
      kernels::rms_norm_backward(gradient, norm.sum, norm.rstd, model.final_norm.weight, {}, model.final_norm.gradient);
  norm = {};
  WeightGradients weight_gradients(WeightGradients::Mode::immediate);
  for (size_t i = model.layers.size(); i-- > 0;) {
    gradient = model.layers[i].backward(gradient, std::move(kept[i]), shape, rows, weight_gradients);
  }
  kernels::add_embedding_gradient(model.embedding.gradient, gradient, tokens.reshape({-1}));
  return loss_sum;
}

at::Tensor Decoder::loss(const at::Tensor& tokens, const at::Tensor& targets) {
  Implementation& model = *implementation_;
  const kernels::NormResult norm = model.forward(tokens, model.rotary.rows(0, tokens.size(1)), nullptr);
  at::Tensor loss_sum = kernels::zeros({}, at::kDouble, tokens.device());
  model.head_loss(norm.normed, targets.reshape({-1}), 1.0, loss_sum, {});
  return loss_sum;
}

at::Tensor Decoder::logits(const at::Tensor& tokens) {
  Implementation& model = *implementation_;
  const kernels::NormResult norm = model.forward(tokens, model.rotary.rows(0, tokens.size(1)), nullptr);
  const at::Tensor logits = kernels::linear(norm.normed, model.head.weight, {});
  return logits.to(model.final_norm.gradient.scalar_type()).view({tokens.size(0), tokens.size(1), -1});
}

at::Tensor Decoder::next_logits(const at::Tensor& tokens, KeyValueCache& cache) {
  Implementation& model = *implementation_;
  const kernels::AttentionShape shape = model.attention_shape(tokens);
  const int64_t length = cache.length_ + shape.sequence;
  COPUS_CHECK(length <= cache.keys_.front().size(2), "the key-value cache holds ", cache.keys_.front().size(2));
  const RotaryTable::Rows rows = model.rotary.rows(cache.length_, shape.sequence);
  ResidualStream stream{kernels::embedding(model.embedding.weight, tokens.reshape({-1})), {}};
  for (size_t i = 0; i < model.layers.size(); ++i) {
    stream = model.layers[i].forward_cached(stream, shape, rows, cache.keys_[i].narrow(2, 0, length),
                                            cache.values_[i].narrow(2, 0, length));
  }
  cache.length_ = length;
  const kernels::NormResult norm = kernels::add_rms_norm(stream.residual, stream.delta, model.final_norm.weight,
                                                         model.parameters.model().rms_norm_eps);
  const at::Tensor last = norm.normed.view({shape.batch, shape.sequence, -1}).select(1, shape.sequence - 1);
  return kernels::linear(last.contiguous(), model.head.weight, {}).to(model.final_norm.gradient.scalar_type());
}

KeyValueCache::KeyValueCache(const ParameterStore& parameters, int64_t batch, int64_t capacity) {
  const ModelDescription& model = parameters.model();
  for (int64_t layer = 0; layer < model.num_layers; ++layer) {
    const std::vector<int64_t> shape{batch, model.num_kv_heads, capacity, model.head_dim};
    keys_.push_back(kernels::empty(shape, parameters.compute_dtype(), parameters.device()));
    values_.push_back(kernels::empty(shape, parameters.compute_dtype(), parameters.device()));
  }
}

}  // namespace copus
