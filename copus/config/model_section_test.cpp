// Tests the three ways to describe a model, and their contradictions.
#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>

#include "copus/base/testing/test_support.h"
#include "copus/config/run_config.h"

namespace copus {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

constexpr const char* after_model = "\n[data]\ntrain = 'a.txt'\n[train]\nmax_steps = 1\nsequence_length = 128\n";
constexpr const char* inline_model =
    "[model]\nvocab_size = 256\nhidden_size = 64\nintermediate_size = 96\nnum_hidden_layers = 2\n"
    "num_attention_heads = 4\n";

RunConfig parse_with_model(const std::string& model, const std::vector<std::string>& overrides = {}) {
  return parse_run_config(model + after_model, "run.toml", overrides);
}

std::string error_with_model(const std::string& model, const std::vector<std::string>& overrides = {}) {
  return user_error([&] { parse_with_model(model, overrides); });
}

class ModelSection : public testing::Test {
 protected:
  ModelSection() { write_config(to_hugging_face_config(parse_with_model(inline_model).model, "float32")); }

  void write_config(const std::string& text) { std::ofstream(file_) << text; }

  const TemporaryFolder folder_;
  const fs::path& directory_ = folder_.path();
  const fs::path file_ = directory_ / "config.json";
  const std::string by_file_ = concat("[model]\nconfig = '", file_.string(), "'\n");
  const std::string init_from_ = concat("init_from = '", directory_.string(), "'\n");
};

TEST_F(ModelSection, MayBeInline) {
  const ModelDescription model = parse_with_model(inline_model).model;
  EXPECT_EQ(model.architecture, Architecture::llama);
  EXPECT_EQ(model.vocab_size, 256);
  EXPECT_EQ(model.num_kv_heads, 4);
  EXPECT_EQ(model.head_dim, 16);
  EXPECT_EQ(model.max_position_embeddings, 2048);
  EXPECT_EQ(parse_with_model(concat(inline_model, "architecture = 'qwen2'")).model.qkv_bias, true);
  const ModelDescription qwen3 = parse_with_model(concat(inline_model, "architecture = 'qwen3'")).model;
  EXPECT_EQ(qwen3.qk_norm, QkNorm::head);
  EXPECT_EQ(qwen3.head_dim * qwen3.num_heads, qwen3.hidden_size) << "not the 128 of transformers";
  const std::string smollm3 = concat(inline_model, "architecture = 'smollm3'\n");
  EXPECT_EQ(parse_with_model(smollm3).model.no_rope_interval, 0) << "not the 4 of transformers";
  EXPECT_FALSE(parse_with_model(smollm3).model.tie_word_embeddings);
  EXPECT_EQ(parse_with_model(smollm3).model.rope_theta, 10000.0);
  EXPECT_EQ(parse_with_model(concat(smollm3, "no_rope_layer_interval = 2\n")).model.no_rope_interval, 2);
  const ModelDescription olmo2 = parse_with_model(concat(inline_model, "architecture = 'olmo2'")).model;
  EXPECT_EQ(olmo2.qk_norm, QkNorm::projection);
  EXPECT_EQ(olmo2.block_norm, BlockNorm::output);
  EXPECT_EQ(olmo2.rms_norm_eps, 1e-6) << "not the 1e-5 of transformers";
  const ModelDescription biased = parse_with_model(concat(inline_model, "attention_bias = true\n")).model;
  EXPECT_TRUE(biased.qkv_bias && biased.attention_output_bias && !biased.feed_forward_bias);
  // These values differ from the defaults of transformers' MistralConfig and Qwen2Config.
  const std::string mistral = concat(inline_model, "architecture = 'mistral'\n");
  EXPECT_EQ(parse_with_model(mistral).model.num_kv_heads, 4);
  EXPECT_EQ(parse_with_model(mistral).model.attention_window, 0) << "not the 4096 of transformers";
  EXPECT_EQ(parse_with_model(concat(mistral, "sliding_window = 64\n")).model.attention_window, 64);
  EXPECT_EQ(parse_with_model(concat(mistral, "attention_bias = false\n")).model, parse_with_model(mistral).model);
  EXPECT_EQ(parse_with_model(concat(inline_model, "architecture = 'qwen2'")).model.num_kv_heads, 4);
  const ModelDescription granite = parse_with_model(concat(inline_model, "architecture = 'granite'\n")).model;
  EXPECT_EQ(granite.attention_multiplier, 0) << "1 / sqrt(head_dim), not the 1 of transformers";
  const std::string gemma3 = concat(inline_model, "architecture = 'gemma3_text'\n");
  EXPECT_EQ(parse_with_model(gemma3).model.attention_multiplier, 0) << "1 / sqrt(head_dim), not transformers' 1/16";
  EXPECT_EQ(parse_with_model(gemma3).model.full_attention_interval, 0) << "not the 6 of transformers";
  EXPECT_EQ(parse_with_model(concat(gemma3, "attention_multiplier = 0.2\n")).model.attention_multiplier, 0.2);
  const std::string gemma2 = concat(inline_model, "architecture = 'gemma2'\n");
  EXPECT_EQ(parse_with_model(gemma2).model.attention_softcap, 0) << "not the 50 of transformers";
  EXPECT_EQ(parse_with_model(gemma2).model.logits_softcap, 0) << "not the 30 of transformers";
  const ModelDescription capped = parse_with_model(concat(gemma2, "attn_logit_softcapping = 50.0\n")).model;
  EXPECT_TRUE(capped.attention_softcap == 50 && capped.logits_softcap == 0);
  const std::string gpt_neox = concat(inline_model, "architecture = 'gpt_neox'\n");
  const ModelDescription neox = parse_with_model(gpt_neox).model;
  EXPECT_EQ(neox.partial_rotary_factor, 1) << "not the quarter of transformers";
  EXPECT_TRUE(neox.feed_forward_bias && !neox.attention_output_bias && !neox.parallel_residual);
  EXPECT_TRUE(parse_with_model(concat(gpt_neox, "use_parallel_residual = true\n")).model.parallel_residual);
}

TEST_F(ModelSection, CombinesPartsFreely) {
  const ModelDescription model =
      parse_with_model(concat(inline_model, "architecture = 'copus'\nnorm = 'layer'\nblock_norm = 'both'\n",
                              "qk_norm = 'projection'\nhidden_act = 'gelu'\ngated_feed_forward = false\n",
                              "learned_positions = true\nattention_bias = true\nresidual_multiplier = 0.5\n",
                              "attn_logit_softcapping = 20.0\nuse_parallel_residual = true\nsliding_window = 16\n"))
          .model;
  EXPECT_EQ(model.norm, NormKind::layer);
  EXPECT_EQ(model.block_norm, BlockNorm::both);
  EXPECT_EQ(model.qk_norm, QkNorm::projection);
  EXPECT_EQ(model.activation, ActivationFunction::gelu);
  EXPECT_TRUE(!model.gated_feed_forward && model.learned_positions && model.parallel_residual);
  EXPECT_TRUE(model.qkv_bias && model.attention_output_bias && !model.feed_forward_bias);
  EXPECT_TRUE(model.residual_multiplier == 0.5 && model.attention_softcap == 20 && model.attention_window == 16);
  const std::string scaled = "architecture = 'copus'\nrope_scaling = { rope_type = 'linear', factor = 4.0 }\n";
  EXPECT_TRUE(parse_with_model(concat(inline_model, scaled)).model.rope_scaling);
  EXPECT_THAT(error_with_model(concat(inline_model, scaled, "learned_positions = true\n")),
              AllOf(HasSubstr("rope_scaling"), HasSubstr("learned_positions")));
}

// A resolved configuration writes the properties of every architecture.
TEST_F(ModelSection, TakesThePartsThatAnArchitectureHas) {
  const std::string gpt2 = concat(inline_model, "architecture = 'gpt2'\n");
  EXPECT_EQ(parse_with_model(concat(gpt2, "norm = 'layer'\nlearned_positions = true\n")).model,
            parse_with_model(gpt2).model);
}

TEST_F(ModelSection, TakesLongrope) {
  const std::string phi3 = concat(inline_model, "architecture = 'phi3'\nmax_position_embeddings = 256\n");
  const auto with = [&](const std::string& lists) {
    return concat(phi3, "rope_scaling = { rope_type = 'longrope', original_max_position_embeddings = 32, ", lists,
                  " }\n");
  };
  const RopeScaling scaling =
      parse_with_model(with("short_factor = [1.0, 1, 1, 1, 2, 2, 2, 2], long_factor = [1, 2, 3, 4, 5, 6, 7, 8.5]"))
          .model.rope_scaling.value();
  EXPECT_EQ(scaling.factor, 8);
  EXPECT_EQ(scaling.original_max_position_embeddings, 32);
  EXPECT_EQ(scaling.long_factor.back(), 8.5);
  EXPECT_THAT(error_with_model(with("short_factor = [1.0]")), HasSubstr("\"long_factor\" must be a list of numbers"));
}

TEST_F(ModelSection, TakesLlama3Scaling) {
  const std::string scaling =
      "rope_type = 'llama3', factor = 32, low_freq_factor = 1, high_freq_factor = 4.0, "
      "original_max_position_embeddings = 8192";
  EXPECT_EQ(parse_with_model(concat(inline_model, "rope_scaling = { ", scaling, " }")).model.rope_scaling,
            (RopeScaling{RopeType::llama3, 32.0, 1.0, 4.0, 8192}));
  EXPECT_THAT(error_with_model(concat(inline_model, "rope_scaling = { ", scaling, ", facotr = 3 }")),
              AllOf(HasSubstr("run.toml:7"), HasSubstr("facotr"), HasSubstr("\"factor\"")));
  for (const char* other : {"rope_type = 'llama3', factor = 8, attention_factor = 1.2",
                            "rope_type = 'yarn', factor = 8, low_freq_factor = 2",
                            "rope_type = 'linear', factor = 4, beta_fast = 8", "rope_type = 'default', factor = 4"}) {
    const std::string last = std::string(other).substr(std::string(other).rfind(',') + 2);
    EXPECT_THAT(error_with_model(concat(inline_model, "rope_scaling = { ", other, " }")),
                HasSubstr(last.substr(0, last.find(' '))));
  }
  EXPECT_THAT(error_with_model(concat(inline_model, "rope_scaling = { factor = 4 }")), HasSubstr("has no rope_type"));
  EXPECT_THAT(error_with_model(concat(inline_model, "rope_scaling = 3")),
              HasSubstr("model.rope_scaling must be a table"));
  EXPECT_THAT(error_with_model(concat(inline_model, "rope_scaling = { rope_type = 'ntk' }")), HasSubstr("ntk"));
}

// config.json has no such values: JSON would have null, which stands for a default.
TEST_F(ModelSection, RopeScalingTakesFiniteNumbers) {
  const auto error_with = [&](const std::string& scaling) {
    return error_with_model(concat(inline_model, "rope_scaling = { ", scaling, " }\n"));
  };
  EXPECT_EQ(error_with("rope_type = 'yarn', factor = 4.0, attention_factor = 1.5"), "no UserError");
  for (const char* value : {"inf", "-inf", "nan"}) {
    for (const char* number : {"rope_type = 'yarn', factor = ", "rope_type = 'yarn', factor = 4, attention_factor = ",
                               "rope_type = 'longrope', short_factor = [1], long_factor = [1], factor = "}) {
      EXPECT_THAT(error_with(concat(number, value)), AllOf(HasSubstr("run.toml:7: model.rope_scaling needs a finite "),
                                                           HasSubstr(concat("factor, got ", value))));
    }
  }
  EXPECT_THAT(error_with("rope_type = 'longrope', short_factor = [1, nan], long_factor = [1]"),
              HasSubstr("run.toml:7: model.rope_scaling needs a finite number, got nan"));
  EXPECT_THAT(error_with("rope_type = 'yarn', factor = 2024-05-01, beta_slow = 1"),
              HasSubstr("model.rope_scaling must hold numbers, got a date"));
}

TEST_F(ModelSection, MayBeAFileOrADirectory) {
  EXPECT_EQ(parse_with_model(by_file_).model, parse_with_model(inline_model).model);
  EXPECT_EQ(parse_with_model(by_file_).init_from, "");
  EXPECT_EQ(parse_with_model("[model]\n" + init_from_).model, parse_with_model(inline_model).model);
  EXPECT_EQ(parse_with_model("[model]\n" + init_from_).init_from, directory_.string());
  EXPECT_EQ(parse_with_model("", {"model.config=" + file_.string()}).model, parse_with_model(inline_model).model);
}

TEST_F(ModelSection, DropoutIsRefusedUnlessItIsIgnored) {
  write_config(R"({"model_type": "gpt2", "vocab_size": 256, "n_embd": 64, "n_layer": 2, "n_head": 4})");
  for (const std::string& section : {by_file_, "[model]\n" + init_from_}) {
    EXPECT_THAT(error_with_model(section), AllOf(HasSubstr(file_.string()), HasSubstr("\"resid_pdrop\" is 0.1"),
                                                 HasSubstr("set model.ignore_dropout = true")));
    const RunConfig config = parse_with_model(section + "ignore_dropout = true\n");
    EXPECT_TRUE(config.ignore_dropout && config.model.learned_positions);
  }
  EXPECT_TRUE(parse_with_model(concat(inline_model, "architecture = 'gpt2'\n")).model.learned_positions);
  EXPECT_THAT(error_with_model("[model]\nignore_dropout = true\n"), HasSubstr("[model] is missing"));
}

TEST_F(ModelSection, MustBeThere) {
  EXPECT_THAT(error_with_model(""),
              AllOf(HasSubstr("run.toml"), HasSubstr("[model] is missing"), HasSubstr("init_from")));
  EXPECT_THAT(error_with_model("[model]\n"), HasSubstr("[model] is missing"));
  EXPECT_THAT(error_with_model("[model]\nvocab_size = 256\n"), AllOf(HasSubstr("hidden_size"), HasSubstr("missing")));
}

TEST_F(ModelSection, IsDescribedInOneWay) {
  EXPECT_THAT(error_with_model(by_file_ + "hidden_size = 64\n"),
              AllOf(HasSubstr("run.toml:3"), HasSubstr("model.hidden_size contradicts model.config (run.toml:2)")));
  EXPECT_THAT(error_with_model(by_file_ + init_from_), HasSubstr("model.init_from contradicts model.config"));
  EXPECT_THAT(error_with_model(by_file_, {"model.hidden_size=64"}),
              AllOf(HasSubstr("--set model.hidden_size=64"), HasSubstr("contradicts model.config")));
}

TEST_F(ModelSection, InlineFieldsMayRepeatWhatInitFromSays) {
  EXPECT_EQ(parse_with_model(inline_model + init_from_).model, parse_with_model(inline_model).model);
  EXPECT_THAT(error_with_model(inline_model + init_from_ + "rms_norm_eps = 1e-5\n"),
              AllOf(HasSubstr("contradicts"), HasSubstr("config.json"), HasSubstr("rms_norm_eps is 1e-05 here"),
                    HasSubstr("1e-06 there")));
  fs::remove(file_);
  EXPECT_EQ(parse_with_model(inline_model + init_from_).init_from, directory_.string())
      << "a resumed run needs no directory";
}

TEST_F(ModelSection, FilesThatCannotBeReadAreNamed) {
  fs::remove(file_);
  EXPECT_THAT(error_with_model(by_file_), AllOf(HasSubstr("run.toml:2: model.config"), HasSubstr(file_.string())));
  EXPECT_THAT(error_with_model("[model]\n" + init_from_),
              AllOf(HasSubstr("model.init_from"), HasSubstr(file_.string())));
  EXPECT_THAT(error_with_model(concat("[model]\nconfig = '", directory_.string(), "'")), HasSubstr("cannot read"));
  EXPECT_THAT(error_with_model("[model]\nconfig = 3"), HasSubstr("model.config must be a path"));
  EXPECT_THAT(error_with_model("[model]\ninit_from = ''"), HasSubstr("model.init_from must be a path"));
  write_config("{ \"model_type\": \"bert\" }");
  EXPECT_THAT(error_with_model(by_file_), AllOf(HasSubstr(file_.string()), HasSubstr("bert is not supported")));
  write_config("");
  EXPECT_THAT(error_with_model(by_file_), AllOf(HasSubstr(file_.string()), HasSubstr("not valid JSON")));
}

TEST_F(ModelSection, InlineMistakesNameTheLine) {
  EXPECT_THAT(error_with_model(concat(inline_model, "head_dim = '64'\n")),
              AllOf(HasSubstr("run.toml:7: model.head_dim must be a whole number"), HasSubstr("the string \"64\"")));
  EXPECT_THAT(error_with_model(concat(inline_model, "head_dim = 0\n")),
              HasSubstr("run.toml:7: model.head_dim must be at least"));
  EXPECT_THAT(error_with_model(concat(inline_model, "architecture = 'bert'\n")),
              AllOf(HasSubstr("run.toml:7"), HasSubstr("\"llama\", \"qwen2\", \"mistral\""), HasSubstr("bert")));
  EXPECT_THAT(error_with_model(concat(inline_model, "sliding_window = 64\n")),
              AllOf(HasSubstr("run.toml:7: model.sliding_window belongs to mistral"), HasSubstr("llama")));
  EXPECT_THAT(error_with_model(concat(inline_model, "architecture = 'olmo2'\nmlp_bias = true\n")),
              HasSubstr("run.toml:8: model.mlp_bias belongs to llama, smollm3, gpt2, granite, gpt_neox, copus; a model "
                        "of olmo2 has none"));
  EXPECT_THAT(error_with_model(concat(inline_model, "qk_norm = 'head'\n")),
              AllOf(HasSubstr("run.toml:7: a model of llama has qk_norm = \"none\""), HasSubstr("\"copus\"")));
  EXPECT_THAT(error_with_model(concat(inline_model, "architecture = 'copus'\nqk_norm = 'heads'\n")),
              AllOf(HasSubstr("run.toml:8: model.qk_norm"), HasSubstr("\"projection\"")));
  const std::string gemma3 = concat(inline_model, "architecture = 'gemma3_text'\n");
  for (const char* other : {"1", "1.0", "3"}) {
    EXPECT_THAT(error_with_model(concat(gemma3, "embedding_multiplier = ", other)),
                AllOf(HasSubstr("run.toml:1"), HasSubstr("the root of hidden_size, 8"), HasSubstr("leave it out")));
  }
  EXPECT_THAT(error_with_model(concat(gemma3, "attention_multiplier = 0.4")), HasSubstr("whole number, got 0.4"));
  EXPECT_THAT(error_with_model(concat(inline_model, "num_kv_heads = 2\n")),
              AllOf(HasSubstr("run.toml:7"), HasSubstr("num_kv_heads"), HasSubstr("[model]")));
  EXPECT_THAT(error_with_model(concat(inline_model, "num_key_value_heads = 3\n")),
              AllOf(HasSubstr("run.toml:1: [model]"), HasSubstr("(4)"), HasSubstr("(3)"), Not(HasSubstr("absent"))));
}

}  // namespace
}  // namespace copus
