// Draws models as users may write them inline in TOML, option by option, and compares them with transformers in
// float64: logits and all gradients. Transformers reads what Copus exports of them (check_combinations.py).
#include <ATen/TensorOperators.h>
#include <ATen/ops/randint.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "copus/base/testing/test_support.h"
#include "copus/checkpoint/stored_layout.h"
#include "copus/checkpoint/testing/snapshot.h"
#include "copus/config/run_config.h"
#include "copus/model/kernels/kernels.h"
#include "copus/model/layers/decoder.h"
#include "copus/model/testing/stages_in_turn.h"
#include "copus/train/step/gradient_reduction.h"
#include "tests/parity/reference.h"

namespace copus::parity {
namespace {

namespace fs = std::filesystem;

constexpr int64_t num_combinations = 52;  // four of each architecture
constexpr unsigned seed = 50;

class Combinations {
 public:
  // Draws the section [model] of a model of this architecture.
  std::string draw(Architecture architecture) {
    architecture_ = architecture;
    text_ = concat("[model]\narchitecture = \"", to_string(architecture), "\"\n");
    const bool is_multi_head = architecture == Architecture::gpt2 || architecture == Architecture::gpt_neox;
    const bool is_phi3 = architecture == Architecture::phi3;
    set("vocab_size", 61);
    set("hidden_size", 64);
    set("intermediate_size", 72);
    set("num_hidden_layers", 3);
    set("num_attention_heads", 4);
    set("max_position_embeddings", 128);
    // Transformers checks the factors of LongRoPE against hidden_size / num_attention_heads.
    head_dim_ = is_multi_head || is_phi3 || coin() ? 16 : 24;
    set("head_dim", head_dim_);
    if (!is_multi_head) set("num_key_value_heads", std::array{1, 2, 4}[below(3)]);
    if (coin()) set("tie_word_embeddings", "true");
    if (coin()) set("rms_norm_eps", "1e-05");
    may("attention_bias", "true");
    may("mlp_bias", "true");
    may("sliding_window", "17");
    may("full_attention_interval", std::to_string(below(4)));
    may("no_rope_layer_interval", std::to_string(1 + below(3)));
    may("use_parallel_residual", "true");
    may("attn_logit_softcapping", "1.5");
    may("final_logit_softcapping", "0.5");
    may("residual_multiplier", "0.3");
    may("logits_scaling", "2.5");
    const bool is_gemma = architecture == Architecture::gemma2 || architecture == Architecture::gemma3_text;
    if (!is_gemma) may("embedding_multiplier", "3.0");
    may("attention_multiplier", is_gemma ? "0.5" : "0.3");
    rotary_dim_ = may("partial_rotary_factor", "0.5") ? head_dim_ / 2 : head_dim_;
    if (architecture == Architecture::gpt2) return text_;
    if (coin()) set("rope_theta", "500.0");
    may("sliding_rope_theta", "700.0");
    if (coin()) draw_scaling(is_phi3);
    return text_;
  }

 private:
  int below(int values) { return static_cast<int>(random_() % static_cast<unsigned>(values)); }
  bool coin() { return below(2) == 1; }

  template <class Value>
  void set(const char* key, const Value& value) {
    text_ += concat(key, " = ", value, "\n");
  }
  // Sets a field, if the architecture has it and chance wants it.
  bool may(const char* key, const std::string& value) {
    const auto owners = architectures_with(key);
    if (std::ranges::find(owners, architecture_) == owners.end() || !coin()) return false;
    set(key, value);
    return true;
  }
  void draw_scaling(bool is_phi3) {
    const auto type = is_phi3 ? RopeType::longrope : named_values<RopeType>[static_cast<size_t>(below(5))].value;
    std::string scaling = concat("{ rope_type = \"", to_string(type), "\"");
    if (type != RopeType::longrope || coin()) scaling += ", factor = 4.0";
    if (type == RopeType::llama3) scaling += ", low_freq_factor = 1.0, high_freq_factor = 4.0";
    if (type == RopeType::yarn && coin()) scaling += ", beta_slow = 2.0, beta_fast = 8.0";
    if (type == RopeType::yarn && coin()) scaling += ", attention_factor = 1.25";
    // Shorter and longer than the sequences.
    if (type != RopeType::linear && type != RopeType::dynamic) {
      scaling += concat(", original_max_position_embeddings = ", coin() ? 32 : 64);
    }
    if (type == RopeType::longrope) {
      for (const char* name : {"short_factor", "long_factor"}) {
        for (int64_t i = 0; i < rotary_dim_ / 2; ++i) {
          scaling += concat(i == 0 ? concat(", ", name, " = [") : ", ", 1 + below(8), ".5");
        }
        scaling += "]";
      }
    }
    set("rope_scaling", scaling + " }");
  }

  std::mt19937 random_{seed};
  Architecture architecture_{};
  std::string text_;
  int64_t head_dim_ = 0, rotary_dim_ = 0;
};

ModelDescription describe(const std::string& section) {
  return parse_run_config(section + "[data]\ntrain = 'a.txt'\n[train]\nmax_steps = 1\nsequence_length = 50\n",
                          "combination.toml", {})
      .model;
}

HostTensor on_host(const std::string& name, DType dtype, const at::Tensor& tensor) {
  HostTensor host = make_host_tensor(name, dtype, tensor.sizes().vec());
  kernels::copy_to_host(tensor.contiguous(), host.bytes.get());
  return host;
}

// Returns random weights that float32 holds.
ParameterStore random_store(const ModelDescription& model) {
  ParameterStore store(model, at::kDouble, test_device());
  randomize(store);
  for (const Parameter& parameter : store.parameters()) {
    if (!parameter.tied_copy) store.master(parameter).copy_(store.master(parameter).to(at::kFloat));
  }
  store.publish_weights();
  return store;
}

void write_model(const fs::path& directory, const ParameterStore& store) {
  std::vector<HostTensor> weights;
  std::vector<TensorView> views;
  for (const Parameter& parameter : store.parameters()) {
    if (parameter.tied_copy) continue;
    weights.push_back(on_host(parameter.info.name, DType::f32, store.master(parameter).to(at::kFloat)));
    views.push_back(weights.back().view());
  }
  write_hugging_face(directory, store.model(), views, DType::f32);
}

// Writes what Copus computes in float64: tokens, targets, logits, and gradients by the names of files.
void write_results(const fs::path& path, ParameterStore& store) {
  const int64_t vocabulary = store.model().vocab_size;
  const at::Tensor tokens = at::randint(vocabulary, {2, 50}, at::kLong).to(test_device());
  const at::Tensor targets = tokens.roll(-1, 1);
  targets[0][7] = ignored_target;
  const double scale = 1.0 / static_cast<double>((targets != ignored_target).sum().item<int64_t>());
  Decoder decoder(store, Recompute::none);
  std::vector<HostTensor> tensors = {on_host("tokens", DType::i64, tokens), on_host("targets", DType::i64, targets),
                                     on_host("logits", DType::f64, decoder.logits(tokens))};
  decoder.forward_backward(tokens, targets, scale);
  add_tied_gradient(store);
  std::vector<TensorView> views;
  for (const HostTensor& tensor : tensors) views.push_back(tensor.view());
  for (const StoredTensor& stored : list_stored_tensors(store.model())) {
    std::vector<TensorView> gradients;
    for (const ParameterInfo& parameter : stored.parameters) {
      tensors.push_back(on_host(parameter.name, DType::f64, store.find(parameter.name).gradient));
      gradients.push_back(tensors.back().view());
    }
    views.push_back(pack(stored, gradients));
    views.back().name = "grad." + stored.name;
  }
  write_safetensors(path, views, {});
}

TEST(Combinations, OfOptionsWrittenInTomlAreThoseOfTransformers) {
  if (!has_reference()) GTEST_SKIP() << skip_reason;
  const TemporaryFolder folder;
  Combinations combinations;
  at::manual_seed(seed);
  std::vector<Architecture> of_transformers = all_values<Architecture>();
  std::erase(of_transformers, Architecture::copus);
  for (int64_t i = 0; i < num_combinations; ++i) {
    const std::string section = combinations.draw(of_transformers[static_cast<size_t>(i) % of_transformers.size()]);
    std::string line = section;
    std::ranges::replace(line, '\n', ' ');
    std::printf("combination %d: %s\n", static_cast<int>(i), line.c_str());
    SCOPED_TRACE(line);
    ParameterStore store = random_store(describe(section));
    const fs::path directory = folder.path() / std::to_string(i);
    write_model(directory, store);
    write_results(fs::path(directory).concat(".safetensors"), store);
  }
  std::fflush(stdout);
  const std::string command =
      concat("'" COPUS_PYTHON "' '" COPUS_CHECK_COMBINATIONS "' '", folder.path().string(), "'");
  EXPECT_EQ(std::system(command.c_str()), 0) << command;
}

}  // namespace
}  // namespace copus::parity
