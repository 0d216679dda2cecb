// Tests the whole model against autograd through the plain reference, in float64, and its modes against each other,
// bitwise.
#include "copus/model/layers/decoder.h"

#include <ATen/Context.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <random>

#include "copus/model/layers/input_embedding.h"
#include "copus/model/testing/reference_decoder.h"
#include "copus/model/testing/stages_in_turn.h"
#include "copus/model/testing/test_device.h"

namespace copus {
namespace {

using reference::relative_error;

ModelDescription small_model() {
  ModelDescription model;
  model.vocab_size = 61;
  model.hidden_size = 48;
  model.intermediate_size = 80;
  model.num_layers = 3;
  model.num_heads = 6;
  model.num_kv_heads = 2;
  model.head_dim = 10;
  model.rms_norm_eps = 1e-5;
  return model;
}

struct Variant {
  std::string name;
  ModelDescription model;
};

std::vector<Variant> variants() {
  std::vector<Variant> all;
  all.push_back({"llama", small_model()});
  all.back().model.rope_scaling = RopeScaling{RopeType::llama3, 4.0, 1.0, 4.0, 16};
  all.push_back({"llama with biases", small_model()});
  all.back().model.qkv_bias = all.back().model.attention_output_bias = all.back().model.feed_forward_bias = true;
  all.push_back({"gated GELU", small_model()});
  all.back().model.activation = ActivationFunction::gelu_tanh;
  all.push_back({"feed-forward without a gate", small_model()});
  all.back().model.activation = ActivationFunction::gelu_tanh;
  all.back().model.gated_feed_forward = false;
  all.back().model.feed_forward_bias = true;
  all.push_back({"LayerNorm and learned positions", small_model()});
  all.back().model.norm = NormKind::layer;
  all.back().model.learned_positions = true;
  all.back().model.max_position_embeddings = 90;
  all.back().model.tie_word_embeddings = true;
  all.push_back({"qwen2", small_model()});
  all.back().model.architecture = Architecture::qwen2;
  all.back().model.qkv_bias = true;
  all.back().model.tie_word_embeddings = true;
  all.push_back({"mistral", small_model()});
  all.back().model.architecture = Architecture::mistral;
  all.back().model.num_kv_heads = 6;
  all.push_back({"mistral with a window", all.back().model});
  all.back().model.attention_window = 7;
  all.push_back({"qwen3", small_model()});
  all.back().model.architecture = Architecture::qwen3;
  all.back().model.qk_norm = QkNorm::head;
  all.push_back({"smollm3", small_model()});
  all.back().model.architecture = Architecture::smollm3;
  all.back().model.no_rope_interval = 2;
  all.back().model.tie_word_embeddings = true;
  all.push_back({"olmo2", small_model()});
  all.back().model.architecture = Architecture::olmo2;
  all.back().model.qk_norm = QkNorm::projection;
  all.back().model.block_norm = BlockNorm::output;
  all.push_back({"olmo3", all.back().model});
  all.back().model.architecture = Architecture::olmo3;
  all.back().model.attention_window = 7;
  all.back().model.full_attention_interval = 2;
  all.back().model.sliding_rope_theta = 500;
  all.back().model.rope_scaling = RopeScaling{RopeType::yarn, 4.0, 1.0, 32.0, 64, 1.2};
  all.push_back({"granite", small_model()});
  all.back().model.architecture = Architecture::granite;
  all.back().model.embedding_multiplier = 12;
  all.back().model.residual_multiplier = 0.22;
  all.back().model.attention_multiplier = 0.15;
  all.back().model.logits_scaling = 6;
  all.back().model.tie_word_embeddings = true;
  all.push_back({"partial rotary embeddings", small_model()});
  all.back().model.architecture = Architecture::phi3;
  all.back().model.partial_rotary_factor = 0.6;
  all.push_back({"gemma3", small_model()});
  all.back().model.architecture = Architecture::gemma3_text;
  all.back().model.qk_norm = QkNorm::head;
  all.back().model.block_norm = BlockNorm::both;
  all.back().model.norms_add_one = true;
  all.back().model.activation = ActivationFunction::gelu_tanh;
  all.back().model.embedding_multiplier = 7;
  all.back().model.attention_window = 7;
  all.back().model.full_attention_interval = 3;
  all.back().model.sliding_rope_theta = 500;
  all.back().model.rope_scaling = RopeScaling{.type = RopeType::linear, .factor = 8};
  all.back().model.tie_word_embeddings = true;
  all.push_back({"gemma2", small_model()});
  all.back().model.architecture = Architecture::gemma2;
  all.back().model.block_norm = BlockNorm::both;
  all.back().model.norms_add_one = true;
  all.back().model.activation = ActivationFunction::gelu_tanh;
  all.back().model.embedding_multiplier = 7;
  all.back().model.attention_multiplier = 0.5;  // some scores reach the cap
  all.back().model.attention_window = 7;
  all.back().model.full_attention_interval = 2;
  all.back().model.attention_softcap = 0.8;
  all.back().model.logits_softcap = 0.8;
  all.back().model.tie_word_embeddings = true;
  all.push_back({"gpt_neox", small_model()});
  all.back().model.architecture = Architecture::gpt_neox;
  all.back().model.num_kv_heads = 6;
  all.back().model.norm = NormKind::layer;
  all.back().model.partial_rotary_factor = 0.4;
  all.back().model.qkv_bias = all.back().model.attention_output_bias = all.back().model.feed_forward_bias = true;
  all.back().model.activation = ActivationFunction::gelu;
  all.back().model.gated_feed_forward = false;
  all.back().model.parallel_residual = true;
  all.push_back({"phi3 with longrope", small_model()});
  all.back().model.architecture = Architecture::phi3;
  all.back().model.rope_scaling = RopeScaling{.type = RopeType::longrope,
                                              .factor = 4,
                                              .original_max_position_embeddings = 36,
                                              .attention_factor = 1.2,
                                              .short_factor = {1, 1.1, 1.2, 1.3, 1.4},
                                              .long_factor = {1, 2, 3, 4, 5}};
  return all;
}

struct Input {
  at::Tensor tokens, targets;
};

Input random_input(const ModelDescription& model, int64_t batch, int64_t sequence) {
  Input input{at::randint(model.vocab_size, {batch, sequence}, at::kLong).to(test_device()),
              at::randint(model.vocab_size, {batch, sequence}, at::kLong).to(test_device())};
  input.targets[0][sequence / 2] = ignored_target;
  return input;
}

// Returns the gradients in the order of store.parameters(). A tied head's gradient comes last, and is not yet added to
// the embedding's.
std::vector<at::Tensor> all_gradients(const ParameterStore& store) {
  std::vector<at::Tensor> gradients;
  for (const Parameter& parameter : store.parameters()) gradients.push_back(parameter.gradient.clone());
  return gradients;
}

void expect_matches_autograd(const ModelDescription& model, int64_t batch, int64_t sequence) {
  at::manual_seed(99);
  ParameterStore store(model, at::kDouble, test_device());
  randomize(store);
  Input input = random_input(model, batch, sequence);
  if (sequence == 1) input.targets[0][0] = 5;
  const auto weights = reference::leaves(store);
  const at::Tensor logits = reference::logits(model, weights, input.tokens);
  const at::Tensor loss = reference::loss(logits, input.targets);
  std::vector<at::Tensor> leaves;
  for (const Parameter& parameter : store.parameters()) {
    if (!parameter.tied_copy) leaves.push_back(weights.at(parameter.info.name));
  }
  const auto expected = reference::gradients(loss, leaves);

  Decoder decoder(store, Recompute::none);
  EXPECT_LE(relative_error(decoder.logits(input.tokens), logits), 1e-12);
  EXPECT_LE(relative_error(decoder.loss(input.tokens, input.targets), loss), 1e-12);
  EXPECT_LE(relative_error(decoder.forward_backward(input.tokens, input.targets, 0.5), loss), 1e-12);
  // Without rotary embeddings a bias of keys adds the same value to all scores of a query, so its gradient is zero up
  // to rounding, which depends on the size of the other gradients.
  double largest = 0;
  for (const at::Tensor& one : expected) largest = std::max(largest, one.norm().item<double>());
  for (size_t i = 0; i < expected.size(); ++i) {
    const Parameter& parameter = store.parameters()[i];
    const bool tied = model.tie_word_embeddings && parameter.info.name == token_embedding_name;
    const at::Tensor gradient = tied ? parameter.gradient + store.find_tied_copy()->gradient : parameter.gradient;
    const double size = std::max(expected[i].norm().item<double>(), 1e-4 * largest);
    EXPECT_LE((gradient * 2 - expected[i]).norm().item<double>(), 1e-10 * size) << parameter.info.name;
  }
}

TEST(Decoder, EveryGradientMatchesAutogradInFloat64) {
  for (const Variant& variant : variants()) {
    for (const auto& [batch, sequence] : {std::pair{1, 1}, {2, 33}, {1, 80}}) {
      SCOPED_TRACE(variant.name + ", sequence " + std::to_string(sequence));
      expect_matches_autograd(variant.model, batch, sequence);
    }
  }
}

// Tests combinations of options that no published model has.
TEST(Decoder, RandomCombinationsOfOptionsMatchAutogradInFloat64) {
  std::mt19937 random(50);
  const auto draw = [&](int values) { return static_cast<int>(random() % static_cast<unsigned>(values)); };
  for (int i = 0; i < 40; ++i) {
    ModelDescription model = small_model();
    model.num_layers = 2;
    model.num_kv_heads = std::array{1, 2, 3, 6}[draw(4)];
    model.qkv_bias = draw(2) == 1;
    model.attention_output_bias = draw(2) == 1;
    model.feed_forward_bias = draw(2) == 1;
    model.activation = static_cast<ActivationFunction>(draw(3));
    model.parallel_residual = draw(2) == 1;
    model.gated_feed_forward = draw(2) == 1;
    model.norm = static_cast<NormKind>(draw(2));
    model.block_norm = static_cast<BlockNorm>(draw(3));
    model.norms_add_one = draw(2) == 1;
    model.qk_norm = static_cast<QkNorm>(draw(3));
    model.learned_positions = draw(3) == 0;
    model.no_rope_interval = draw(3);
    model.attention_window = draw(2) * 7;
    model.full_attention_interval = draw(3);
    model.sliding_rope_theta = draw(2) * 700.0;
    if (draw(2) == 1) {
      model.rope_scaling = RopeScaling{.type = static_cast<RopeType>(draw(3)), .original_max_position_embeddings = 16};
      if (model.rope_scaling->type == RopeType::yarn) model.rope_scaling->attention_factor = 1.3;
    }
    model.tie_word_embeddings = draw(2) == 1;
    if (draw(2) == 1) model.partial_rotary_factor = 0.4;
    if (draw(2) == 1) model.embedding_multiplier = 3;
    if (draw(2) == 1) model.residual_multiplier = 0.3;
    if (draw(2) == 1) model.attention_multiplier = 0.2;
    if (draw(2) == 1) model.logits_scaling = 2.5;
    if (draw(2) == 1) model.attention_softcap = 1.2;
    if (draw(2) == 1) model.logits_softcap = 0.9;
    SCOPED_TRACE(testing::Message() << "combination " << i);
    expect_matches_autograd(model, 2, 19);
  }
}

TEST(Decoder, RecomputeChangesNoBit) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    for (const Variant& variant : variants()) {
      at::manual_seed(5);
      ParameterStore store(variant.model, dtype, test_device());
      randomize(store);
      const Input input = random_input(variant.model, 2, 40);
      std::vector<std::vector<at::Tensor>> results;
      for (const Recompute recompute : {Recompute::none, Recompute::attention, Recompute::full}) {
        store.zero_gradients();
        Decoder(store, recompute).forward_backward(input.tokens, input.targets, 1.0);
        results.push_back(all_gradients(store));
      }
      for (size_t i = 0; i < results[0].size(); ++i) {
        EXPECT_TRUE(results[0][i].equal(results[1][i])) << store.parameters()[i].info.name;
        EXPECT_TRUE(results[0][i].equal(results[2][i])) << store.parameters()[i].info.name;
      }
    }
  }
}

TEST(Decoder, Float32AndBfloat16StayNearFloat64) {
  // bfloat16 weights add rounding errors of 2^-9 each, over three layers.
  for (const auto& [dtype, tolerance] : {std::pair{at::kFloat, 1e-5}, {at::kBFloat16, 6e-2}}) {
    for (const Variant& variant : variants()) {
      at::manual_seed(6);
      ParameterStore exact(variant.model, at::kDouble, test_device()), store(variant.model, dtype, test_device());
      randomize(exact);
      for (size_t i = 0; i < store.buckets().size(); ++i) {
        const Bucket& bucket = store.buckets()[i];
        if (bucket.master.defined()) bucket.master.copy_(exact.buckets()[i].master);
      }
      store.publish_weights();
      const Input input = random_input(variant.model, 2, 40);
      Decoder(exact, Recompute::none).forward_backward(input.tokens, input.targets, 1.0);
      Decoder(store, Recompute::none).forward_backward(input.tokens, input.targets, 1.0);
      for (size_t i = 0; i < store.parameters().size(); ++i) {
        EXPECT_EQ(store.parameters()[i].gradient.scalar_type(), at::kFloat);
        EXPECT_LE(relative_error(store.parameters()[i].gradient, exact.parameters()[i].gradient), tolerance)
            << variant.name << " " << store.parameters()[i].info.name;
      }
    }
  }
}

// In transformers, Gemma 3's multiplier is a tensor of the weights' dtype, Granite's a Python number.
TEST(Decoder, TheMultiplierOfEmbeddingsIsRoundedWhereTheModelSaysSo) {
  ModelDescription model = small_model();
  const double root = std::sqrt(1152.0);
  model.embedding_multiplier = root;
  // In bfloat16 the root is 34, and 1.1875 * 34 is 40.5; the exact root times 1.1875 gives 40.25.
  for (const auto& [dtype, rounds, product] :
       {std::tuple{at::kDouble, true, 1.1875 * root}, {at::kBFloat16, true, 40.5}, {at::kBFloat16, false, 40.25}}) {
    model.rounds_embedding_multiplier = rounds;
    ParameterStore store(model, dtype, test_device());
    store.master(store.find("model.embed_tokens.weight")).fill_(1.1875);
    store.publish_weights();
    const at::Tensor tokens = at::zeros({1, 2}, at::TensorOptions(at::kLong).device(test_device()));
    const at::Tensor stream = InputEmbedding(store, TensorParallel()).forward(tokens, {});
    EXPECT_EQ(stream.max().item<double>(), product);
    EXPECT_EQ(stream.min().item<double>(), product);
  }
}

// When a sequence exceeds the original context, the angles of all its positions change.
TEST(Decoder, GenerationBeyondTheOriginalContextOfLongropeSeesWhatTrainingSees) {
  ModelDescription model = small_model();
  model.rope_scaling = RopeScaling{.type = RopeType::longrope,
                                   .factor = 4,
                                   .original_max_position_embeddings = 12,
                                   .attention_factor = 1.2,
                                   .short_factor = {1, 1.1, 1.2, 1.3, 1.4},
                                   .long_factor = {1, 2, 3, 4, 5}};
  at::manual_seed(17);
  ParameterStore store(model, at::kDouble, test_device());
  randomize(store);
  const at::Tensor tokens = random_input(model, 2, 16).tokens;
  Decoder decoder(store, Recompute::none);
  KeyValueCache cache(store, 2, 16);
  for (int64_t length = 10, done = 0; length <= 16; done = length++) {
    const at::Tensor next = decoder.next_logits(tokens.narrow(1, done, length - done).contiguous(), cache);
    const at::Tensor all = decoder.logits(tokens.narrow(1, 0, length).contiguous());
    EXPECT_LE(relative_error(next, all.select(1, length - 1)), 1e-12) << length;
  }
  EXPECT_EQ(cache.length(), 16);
}

TEST(Decoder, MicroBatchesAccumulate) {
  const ModelDescription model = small_model();
  at::manual_seed(11);
  ParameterStore store(model, at::kDouble, test_device());
  randomize(store);
  const Input input = random_input(model, 4, 12);
  Decoder decoder(store, Recompute::none);
  const at::Tensor whole = decoder.forward_backward(input.tokens, input.targets, 1.0);
  const auto expected = all_gradients(store);
  store.zero_gradients();
  at::Tensor parts = at::zeros({}, whole.options());
  for (int64_t first = 0; first < 4; first += 2) {
    parts += decoder.forward_backward(input.tokens.narrow(0, first, 2), input.targets.narrow(0, first, 2), 1.0);
  }
  EXPECT_LE(relative_error(parts, whole), 1e-14);
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_LE(relative_error(store.parameters()[i].gradient, expected[i]), 1e-12) << store.parameters()[i].info.name;
  }
}

// With masks, packed documents train as if each had its own sequence.
TEST(Decoder, DocumentsAreTrainedAsIfAlone) {
  const std::vector<int64_t> lengths = {1, 7, 4, 9};
  std::vector<int64_t> starts;
  for (const int64_t length : lengths) starts.insert(starts.end(), length, std::ssize(starts));
  for (const Variant& variant : variants()) {
    at::manual_seed(13);
    ParameterStore store(variant.model, at::kDouble, test_device());
    randomize(store);
    const Input input = random_input(variant.model, 1, std::ssize(starts));
    at::Tensor alone = at::zeros({}, at::TensorOptions().dtype(at::kDouble).device(test_device()));
    store.zero_gradients();
    int64_t first = 0;
    for (const int64_t length : lengths) {
      alone += Decoder(store, Recompute::none)
                   .forward_backward(input.tokens.narrow(1, first, length).contiguous(),
                                     input.targets.narrow(1, first, length).contiguous(), 0.5);
      first += length;
    }
    const auto expected = all_gradients(store);
    for (const Recompute recompute : {Recompute::none, Recompute::attention, Recompute::full}) {
      store.zero_gradients();
      const at::Tensor packed =
          Decoder(store, recompute)
              .forward_backward(input.tokens, input.targets, 0.5,
                                kernels::documents_from_host(starts.data(), 1, std::ssize(starts), test_device()));
      EXPECT_LE(relative_error(packed, alone), 1e-13) << variant.name;
      double largest = 0;
      for (const at::Tensor& one : expected) largest = std::max(largest, one.norm().item<double>());
      for (size_t i = 0; i < expected.size(); ++i) {
        // Gradients that are zero up to rounding are compared with the size of the others.
        const double error = (store.parameters()[i].gradient - expected[i]).norm().item<double>();
        EXPECT_LE(error, 1e-12 * std::max(expected[i].norm().item<double>(), 1e-3 * largest))
            << variant.name << " " << store.parameters()[i].info.name;
      }
    }
  }
}

TEST(Decoder, GenerationSeesWhatTrainingSees) {
  for (const Variant& variant : variants()) {
    at::manual_seed(12);
    ParameterStore store(variant.model, at::kDouble, test_device());
    randomize(store);
    const at::Tensor tokens = random_input(variant.model, 2, 21).tokens;
    Decoder decoder(store, Recompute::none);
    const at::Tensor full = decoder.logits(tokens);
    KeyValueCache cache(store, 2, 21);
    EXPECT_LE(relative_error(decoder.next_logits(tokens.narrow(1, 0, 9), cache), full.select(1, 8)), 1e-12);
    for (int64_t position = 9; position < 21; ++position) {
      const at::Tensor next = decoder.next_logits(tokens.narrow(1, position, 1), cache);
      EXPECT_LE(relative_error(next, full.select(1, position)), 1e-12) << variant.name << " " << position;
    }
    EXPECT_EQ(cache.length(), 21);
  }
}

TEST(Decoder, HeadChunksCoverEveryToken) {
  // On a CPU a chunk has 2^22 / 30,011 = 139 rows, so 300 tokens need three chunks, the last one shorter.
  ModelDescription model = small_model();
  model.vocab_size = 30011;
  model.num_layers = 1;
  at::manual_seed(13);
  ParameterStore store(model, at::kDouble, test_device());
  randomize(store);
  const Input input = random_input(model, 3, 100);
  const auto weights = reference::leaves(store);
  const at::Tensor loss = reference::loss(reference::logits(model, weights, input.tokens), input.targets);
  const auto expected = reference::gradients(loss, {weights.at("lm_head.weight"), weights.at("model.norm.weight")});
  Decoder decoder(store, Recompute::none);
  EXPECT_LE(relative_error(decoder.forward_backward(input.tokens, input.targets, 1.0), loss), 1e-12);
  EXPECT_LE(relative_error(store.find("lm_head.weight").gradient, expected[0]), 1e-10);
  EXPECT_LE(relative_error(store.find("model.norm.weight").gradient, expected[1]), 1e-10);
}

}  // namespace
}  // namespace copus
