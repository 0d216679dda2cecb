// Tests against the installed transformers: it reads what Copus writes, and from the same config.json both derive
// parameters with the same names, shapes and order. Skipped if transformers is not installed.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "copus/base/files/durable_file.h"
#include "copus/base/testing/test_support.h"
#include "copus/description/model_description.h"
#include "copus/description/stored_tensors.h"

namespace copus {
namespace {

using Json = nlohmann::json;
namespace fs = std::filesystem;

constexpr int missing_transformers = 77;  // exit code of describe_with_transformers.py

struct Described {
  int exit_code;
  std::vector<Json> models;
};

// Starts Python once for all directories, because importing transformers takes seconds.
Described describe_with_transformers(const std::vector<fs::path>& directories) {
  std::vector<std::string> command{COPUS_PYTHON, COPUS_DESCRIBE_WITH_TRANSFORMERS};
  for (const fs::path& directory : directories) command.push_back(directory.string());
  const ProcessResult process = run_process(command);
  Described result{process.exit_code, {}};
  std::istringstream lines(process.output);
  for (std::string line; std::getline(lines, line);) result.models.push_back(Json::parse(line));
  return result;
}

std::vector<ModelDescription> models_of_every_kind() {
  ModelDescription llama;
  llama.architecture = Architecture::llama;
  llama.vocab_size = 259;
  llama.hidden_size = 48;
  llama.intermediate_size = 80;
  llama.num_layers = 3;
  llama.num_heads = 4;
  llama.num_kv_heads = 2;
  llama.head_dim = 12;
  llama.max_position_embeddings = 640;
  llama.rms_norm_eps = 2e-5;
  llama.rope_theta = 500000.0;
  llama.initializer_range = 0.03;

  ModelDescription scaled = llama;
  scaled.rope_scaling = RopeScaling{RopeType::llama3, 32.0, 1.0, 4.0, 128};
  scaled.tie_word_embeddings = true;
  scaled.head_dim = 20;

  ModelDescription qwen2 = llama;
  qwen2.architecture = Architecture::qwen2;
  qwen2.qkv_bias = true;
  qwen2.head_dim = 16;

  ModelDescription mistral = llama;
  mistral.architecture = Architecture::mistral;
  mistral.head_dim = 16;
  mistral.max_position_embeddings = 100000;

  ModelDescription qwen3 = llama;
  qwen3.architecture = Architecture::qwen3;
  qwen3.qk_norm = QkNorm::head;
  qwen3.head_dim = 16;

  ModelDescription smollm3 = llama;
  smollm3.architecture = Architecture::smollm3;
  smollm3.no_rope_interval = 2;
  smollm3.tie_word_embeddings = true;

  ModelDescription olmo2 = llama;
  olmo2.architecture = Architecture::olmo2;
  olmo2.qk_norm = QkNorm::projection;
  olmo2.block_norm = BlockNorm::output;
  olmo2.head_dim = 16;

  ModelDescription olmo3 = olmo2;
  olmo3.architecture = Architecture::olmo3;
  olmo3.attention_window = 512;
  olmo3.full_attention_interval = 2;
  olmo3.sliding_rope_theta = 20000;
  olmo3.rope_scaling = RopeScaling{RopeType::yarn, 5.0, 1.0, 32.0, 128, 1.25};

  ModelDescription biased = llama;
  biased.qkv_bias = biased.attention_output_bias = biased.feed_forward_bias = true;

  ModelDescription granite = biased;
  granite.architecture = Architecture::granite;
  granite.embedding_multiplier = 12;
  granite.residual_multiplier = 0.22;
  granite.attention_multiplier = 0.0078125;
  granite.logits_scaling = 6;

  ModelDescription phi3 = llama;
  phi3.architecture = Architecture::phi3;
  phi3.partial_rotary_factor = 0.5;
  phi3.attention_window = 512;

  ModelDescription gemma3 = llama;
  gemma3.architecture = Architecture::gemma3_text;
  gemma3.activation = ActivationFunction::gelu_tanh;
  gemma3.qk_norm = QkNorm::head;
  gemma3.block_norm = BlockNorm::both;
  gemma3.norms_add_one = true;
  gemma3.head_dim = 16;
  gemma3.embedding_multiplier = std::sqrt(48.0);
  gemma3.rounds_embedding_multiplier = true;
  gemma3.attention_multiplier = 1 / std::sqrt(24.0);
  gemma3.attention_window = 512;
  gemma3.full_attention_interval = 3;
  gemma3.sliding_rope_theta = 20000;
  gemma3.rope_scaling = RopeScaling{.type = RopeType::linear, .factor = 8.0};

  ModelDescription gemma2 = gemma3;
  gemma2.architecture = Architecture::gemma2;
  gemma2.qk_norm = QkNorm::none;
  gemma2.sliding_rope_theta = 0;
  gemma2.rope_scaling.reset();
  gemma2.full_attention_interval = 2;
  gemma2.attention_softcap = 40;
  gemma2.logits_softcap = 20;

  ModelDescription gpt_neox = biased;
  gpt_neox.architecture = Architecture::gpt_neox;
  gpt_neox.num_kv_heads = gpt_neox.num_heads;
  gpt_neox.norm = NormKind::layer;
  gpt_neox.partial_rotary_factor = 0.5;
  gpt_neox.activation = ActivationFunction::gelu;
  gpt_neox.gated_feed_forward = false;
  gpt_neox.parallel_residual = true;

  ModelDescription longrope = phi3;
  longrope.rope_scaling = RopeScaling{.type = RopeType::longrope,
                                      .factor = 2.5,
                                      .original_max_position_embeddings = 256,
                                      .attention_factor = 1.25,
                                      .short_factor = {1, 1.5, 2},
                                      .long_factor = {1, 3, 9}};

  ModelDescription dynamic = qwen2;
  dynamic.rope_scaling = RopeScaling{.type = RopeType::dynamic, .factor = 4.0};

  ModelDescription linear = qwen2;
  linear.rope_scaling = RopeScaling{.type = RopeType::linear, .factor = 4.0};

  ModelDescription windowed = mistral;
  windowed.attention_window = 512;

  ModelDescription gpt2 = llama;
  gpt2.architecture = Architecture::gpt2;
  gpt2.num_kv_heads = gpt2.num_heads;
  gpt2.norm = NormKind::layer;
  gpt2.learned_positions = gpt2.scales_residual_initializer = true;
  gpt2.activation = ActivationFunction::gelu_tanh;
  gpt2.gated_feed_forward = false;
  gpt2.qkv_bias = gpt2.attention_output_bias = gpt2.feed_forward_bias = true;

  ModelDescription biased_qwen3 = qwen3;
  biased_qwen3.qkv_bias = biased_qwen3.attention_output_bias = true;
  return {biased, biased_qwen3, gpt2,   llama,   scaled, qwen2,  mistral, windowed, qwen3,    smollm3,
          olmo2,  olmo3,        linear, granite, phi3,   gemma3, gemma2,  gpt_neox, longrope, dynamic};
}

void expect_same(const Json& theirs, const ModelDescription& ours) {
  EXPECT_EQ(theirs["class"], causal_language_model_class(ours.architecture));
  if (ours.learned_positions) {
    EXPECT_EQ(theirs["rope_type"], "none");
  } else {
    EXPECT_EQ(theirs["rope_type"], ours.rope_scaling ? to_string(ours.rope_scaling->type) : "default");
    EXPECT_EQ(theirs["rope_theta"], ours.rope_theta);
  }
  if (ours.rope_scaling) {
    EXPECT_EQ(theirs["rope_factor"], ours.rope_scaling->factor);
    const Json original = ours.rope_scaling->original_max_position_embeddings;
    EXPECT_EQ(theirs["rope_original"], ours.rope_scaling->has_original_context() ? original : Json());
    for (const auto& [name, list] : scaling_lists(*ours.rope_scaling)) EXPECT_EQ(theirs["rope_lists"][name], list);
  }
  EXPECT_EQ(theirs["head_dim"], ours.head_dim);
  EXPECT_EQ(theirs["norm_eps"], ours.rms_norm_eps);
  EXPECT_EQ(theirs["initializer_range"], ours.initializer_range);
  EXPECT_EQ(theirs["max_position_embeddings"], ours.max_position_embeddings);
  EXPECT_EQ(theirs["tie_word_embeddings"], ours.tie_word_embeddings);
  EXPECT_EQ(theirs["sliding_window"].is_null() ? 0 : theirs["sliding_window"].get<int64_t>(), ours.attention_window);
  const auto or_none = [](const Json& number) { return number.is_null() ? 0.0 : number.get<double>(); };
  EXPECT_EQ(or_none(theirs["softcaps"][0]), ours.attention_softcap);
  EXPECT_EQ(or_none(theirs["softcaps"][1]), ours.logits_softcap);
  EXPECT_EQ(theirs["parallel_residual"], ours.parallel_residual);
  if (ours.architecture == Architecture::gemma3_text || ours.architecture == Architecture::gemma2) {
    EXPECT_DOUBLE_EQ(theirs["scores"], ours.score_scale());
    EXPECT_EQ(theirs["embed_scale"], ours.embedding_multiplier);
  }
  if (ours.architecture == Architecture::granite) {
    const Json multipliers = {ours.embedding_multiplier, ours.residual_multiplier, ours.score_scale(),
                              ours.logits_scaling};
    EXPECT_EQ(theirs["multipliers"], multipliers);
  }
  EXPECT_EQ(theirs["partial_rotary_factor"], ours.partial_rotary_factor);
  EXPECT_EQ(theirs["sliding_rope_theta"], ours.sliding_rope_theta);
  for (int64_t layer = 0; layer < ours.num_layers; ++layer) {
    const Json& types = theirs["layer_types"];
    const bool slides = ours.attention_window > 0 && (types.is_null() || types[layer] == "sliding_attention");
    EXPECT_EQ(slides, ours.window_of(layer) > 0) << "layer " << layer;
    const Json& has_rope = theirs["no_rope_layers"];
    const bool rotates = theirs["rope_type"] != "none" && (has_rope.is_null() || has_rope[layer] == 1);
    EXPECT_EQ(rotates, ours.has_rope(layer)) << "layer " << layer;
  }

  Json parameters = Json::array();
  for (const StoredTensor& tensor : list_stored_tensors(ours)) parameters.push_back({tensor.name, tensor.shape});
  EXPECT_EQ(theirs["parameters"], parameters);
}

// transformers sees the same models in configurations that Copus writes, and in published ones that it reads.
TEST(Transformers, ReadsConfigurationsAsWeDo) {
  const TemporaryFolder root;
  std::vector<ModelDescription> models;
  std::vector<fs::path> directories;
  const auto add = [&](const ModelDescription& model, const std::string& name, const std::string& config) {
    models.push_back(model);
    directories.push_back(root.path() / name);
    fs::create_directories(directories.back());
    std::ofstream(directories.back() / "config.json") << config;
  };
  for (const ModelDescription& model : models_of_every_kind()) {
    add(model, std::to_string(models.size()), to_hugging_face_config(model, "bfloat16"));
  }
  const size_t written = models.size();
  for (const auto& entry : fs::directory_iterator(COPUS_MODELS)) {
    if (entry.path().extension() != ".json") continue;
    const std::string config = read_text_file(entry.path());
    add(parse_model_description(config, entry.path().string()), entry.path().stem().string(), config);
  }

  const Described described = describe_with_transformers(directories);
  if (described.exit_code == missing_transformers || !fs::exists(COPUS_PYTHON)) {
    GTEST_SKIP() << "transformers is not installed in .venv; `make setup` installs it";
  }
  ASSERT_EQ(described.exit_code, 0);
  ASSERT_EQ(described.models.size(), models.size());
  for (size_t i = 0; i < models.size(); ++i) {
    SCOPED_TRACE(directories[i].filename());
    EXPECT_TRUE(i >= written || described.models[i]["dtype"] == "torch.bfloat16");
    expect_same(described.models[i], models[i]);
  }
}

}  // namespace
}  // namespace copus
