// Tests reading and writing of config.json: accepted values, and one clear message for each refusal.
#include <gmock/gmock.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <random>

#include "copus/base/files/durable_file.h"
#include "copus/base/testing/test_support.h"
#include "copus/description/model_description.h"
#include "copus/description/testing/config_texts.h"

namespace copus {
namespace {

using namespace config_texts;
using testing::AllOf;
using testing::HasSubstr;

std::string refusal(const Json& changes) { return message_of(with(llama_config, changes)); }

TEST(HuggingFaceConfig, AbsentFieldsTakeTransformersDefaults) {
  const ModelDescription model = description_of(llama_config);
  EXPECT_EQ(model.architecture, Architecture::llama);
  EXPECT_EQ(model.num_kv_heads, 4);
  EXPECT_EQ(model.head_dim, 16);
  EXPECT_EQ(model.max_position_embeddings, 2048);
  EXPECT_EQ(model.rms_norm_eps, 1e-6);
  EXPECT_EQ(model.rope_theta, 10000.0);
  EXPECT_EQ(model.initializer_range, 0.02);
  EXPECT_FALSE(model.rope_scaling);
  EXPECT_FALSE(model.tie_word_embeddings);
  EXPECT_FALSE(model.qkv_bias);

  EXPECT_EQ(description_of(qwen2_config).max_position_embeddings, 32768);
  EXPECT_TRUE(description_of(qwen2_config).qkv_bias);
  EXPECT_EQ(description_of(mistral_config).max_position_embeddings, 131072);
  EXPECT_FALSE(description_of(mistral_config).qkv_bias);

  const ModelDescription qwen3 = description_of(qwen3_config);
  EXPECT_EQ(qwen3.max_position_embeddings, 32768);
  EXPECT_EQ(qwen3.head_dim, 128) << "not hidden_size / heads, as it is of the others";
  EXPECT_EQ(qwen3.qk_norm, QkNorm::head);
  EXPECT_EQ(qwen3.block_norm, BlockNorm::input);
  EXPECT_FALSE(qwen3.qkv_bias);
  EXPECT_EQ(qwen3.no_rope_interval, 0);

  const ModelDescription smollm3 = description_of(with(smollm3_config, {{"num_hidden_layers", 8}}));
  EXPECT_EQ(smollm3.rope_theta, 2e6);
  EXPECT_TRUE(smollm3.tie_word_embeddings);
  EXPECT_FALSE(description_of(with(smollm3_config, {{"tie_word_embeddings", false}})).tie_word_embeddings);
  EXPECT_EQ(smollm3.no_rope_interval, 4);
  EXPECT_EQ(smollm3.qk_norm, QkNorm::none);

  const ModelDescription olmo2 = description_of(olmo2_config);
  EXPECT_EQ(olmo2.max_position_embeddings, 2048);
  EXPECT_EQ(olmo2.rms_norm_eps, 1e-5);
  EXPECT_EQ(olmo2.qk_norm, QkNorm::projection);
  EXPECT_EQ(olmo2.block_norm, BlockNorm::output);
  EXPECT_FALSE(olmo2.qkv_bias);

  const Json mistral_of_32_heads =
      with(mistral_config, {{"num_attention_heads", 32}, {"num_key_value_heads", nullptr}, {"hidden_size", 128}});
  EXPECT_EQ(description_of(mistral_of_32_heads).num_kv_heads, 32) << "null: as many as heads";
  Json absent = mistral_of_32_heads;
  absent.erase("num_key_value_heads");
  EXPECT_EQ(description_of(absent).num_kv_heads, 8) << "absent: MistralConfig's default";
}

TEST(HuggingFaceConfig, WholeNumbersMayBeWrittenAsFloats) {
  const Json floats = {{"vocab_size", 128256.0}, {"hidden_size", 64.0}, {"num_attention_heads", 4.0}};
  Json as_floats = with(llama_config, floats);
  EXPECT_THAT(as_floats.dump(), HasSubstr("128256.0"));
  EXPECT_EQ(description_of(as_floats), description_of(with(llama_config, {{"vocab_size", 128256}})));

  EXPECT_THAT(refusal({{"num_hidden_layers", 2.5}}), AllOf(HasSubstr("whole number"), HasSubstr("2.5")));
  EXPECT_THAT(refusal({{"num_hidden_layers", 0.0}}), AllOf(HasSubstr("between 1 and"), HasSubstr("got 0.0")));
  EXPECT_THAT(refusal({{"num_hidden_layers", -2.0}}), HasSubstr("between 1 and"));
  EXPECT_THAT(refusal({{"num_hidden_layers", 1e300}}), HasSubstr("between 1 and"));
}

TEST(HuggingFaceConfig, ReadsBothStylesOfRotaryEmbeddings) {
  const Json scaling = {{"factor", 32.0},
                        {"low_freq_factor", 1.0},
                        {"high_freq_factor", 4.0},
                        {"original_max_position_embeddings", 8192}};
  const ModelDescription old_style = description_of(
      with(llama_config, {{"rope_theta", 500000}, {"rope_scaling", with(scaling, {{"rope_type", "llama3"}})}}));
  EXPECT_EQ(old_style.rope_theta, 500000.0);
  EXPECT_EQ(old_style.rope_scaling, (RopeScaling{RopeType::llama3, 32.0, 1.0, 4.0, 8192}));
  EXPECT_EQ(
      description_of(with(llama_config, {{"rope_theta", 5e5}, {"rope_scaling", with(scaling, {{"type", "llama3"}})}})),
      old_style);
  EXPECT_EQ(description_of(with(llama_config,
                                {{"rope_parameters", with(scaling, {{"rope_type", "llama3"}, {"rope_theta", 5e5}})}})),
            old_style);

  EXPECT_EQ(description_of(with(llama_config, {{"rope_parameters", {{"rope_type", "default"}, {"rope_theta", 7.0}}}}))
                .rope_theta,
            7.0);
  EXPECT_EQ(description_of(with(llama_config, {{"rope_parameters", {{"rope_theta", 7.0}}}})).rope_theta, 7.0);
  EXPECT_FALSE(description_of(with(llama_config, {{"rope_scaling", nullptr}})).rope_scaling);

  Json without_original = with(scaling, {{"rope_type", "llama3"}});
  without_original.erase("original_max_position_embeddings");
  EXPECT_EQ(description_of(with(llama_config, {{"rope_scaling", without_original}}))
                .rope_scaling->original_max_position_embeddings,
            2048);
}

TEST(HuggingFaceConfig, TheArchitectureMayComeFromTheModelTypeAlone) {
  Json config = qwen2_config;
  config.erase("architectures");
  EXPECT_EQ(description_of(config).architecture, Architecture::qwen2);
}

TEST(HuggingFaceConfig, WhatIsWrittenIsReadBackEqual) {
  const Json scaling = {{"rope_type", "llama3"},
                        {"factor", 8.5},
                        {"low_freq_factor", 1.25},
                        {"high_freq_factor", 4.0},
                        {"original_max_position_embeddings", 777}};
  for (const Json& config :
       {llama_config,
        qwen2_config,
        mistral_config,
        with(llama_config, {{"tie_word_embeddings", true}, {"head_dim", 22}, {"rms_norm_eps", 1e-5}}),
        with(llama_config, {{"rope_theta", 123456.7}, {"rope_scaling", scaling}}),
        with(qwen2_config, {{"head_dim", 30}}),
        with(mistral_config, {{"sliding_window", 100}}),
        qwen3_config,
        smollm3_config,
        olmo2_config,
        olmo3_config,
        gpt2_config,
        granite_config,
        phi3_config,
        gemma3_config,
        gemma2_config,
        with(gemma2_config, {{"attn_logit_softcapping", nullptr}, {"final_logit_softcapping", 25.5}}),
        gpt_neox_config,
        with(gpt_neox_config, {{"use_parallel_residual", false}, {"attention_bias", false}, {"rotary_pct", 0.5}}),
        with(gpt_neox_config, {{"rope_scaling", {{"type", "linear"}, {"factor", 2}}}, {"rotary_emb_base", 500}}),
        with(llama_config, {{"rope_scaling", {{"type", "dynamic"}, {"factor", 2}}}}),
        with(phi3_config, {{"rope_scaling", longrope}, {"max_position_embeddings", 8192}}),
        with(gemma3_config, {{"query_pre_attn_scalar", 168}, {"sliding_window", 100}}),
        with(phi3_config, {{"sliding_window", 100}, {"partial_rotary_factor", 0.5}}),
        with(granite_config, {{"attention_multiplier", 0.015625}, {"logits_scaling", 8}}),
        with(olmo3_config, {{"rope_theta", 1e4}, {"sliding_window", 100}, {"max_position_embeddings", 8192}}),
        with(gpt2_config, {{"n_inner", 100}, {"tie_word_embeddings", false}}),
        with(smollm3_config, {{"no_rope_layer_interval", 0}, {"num_hidden_layers", 5}}),
        with(smollm3_config, {{"attention_bias", true}, {"mlp_bias", true}})}) {
    const ModelDescription model = description_of(config);
    EXPECT_EQ(parse_model_description(to_hugging_face_config(model, "float32"), "written"), model);
  }
}

// Models of architecture "copus" are written and read back equal.
TEST(HuggingFaceConfig, FreePartsReadBack) {
  std::mt19937 random(7);
  const auto draw = [&](int values) { return static_cast<int>(random() % static_cast<unsigned>(values)); };
  for (int i = 0; i < 200; ++i) {
    ModelDescription model = description_of(llama_config);
    model.architecture = Architecture::copus;
    model.norm = static_cast<NormKind>(draw(2));
    model.block_norm = static_cast<BlockNorm>(draw(3));
    model.qk_norm = static_cast<QkNorm>(draw(3));
    model.activation = static_cast<ActivationFunction>(draw(3));
    model.gated_feed_forward = draw(2) == 1;
    model.learned_positions = draw(3) == 0;
    model.no_rope_interval = draw(3);
    model.qkv_bias = model.attention_output_bias = draw(2) == 1;
    model.feed_forward_bias = draw(2) == 1;
    model.parallel_residual = draw(2) == 1;
    model.attention_window = draw(2) * 16;
    if (model.attention_window > 0) model.full_attention_interval = draw(3);
    model.sliding_rope_theta = draw(2) * 700.0;
    if (!model.learned_positions && draw(2) == 1) model.partial_rotary_factor = 0.5;
    if (draw(2) == 1) model.embedding_multiplier = 3;
    if (draw(2) == 1) model.residual_multiplier = 0.3;
    if (draw(2) == 1) model.attention_multiplier = 0.2;
    if (draw(2) == 1) model.logits_scaling = 2.5;
    if (draw(2) == 1) model.attention_softcap = 1.2;
    if (draw(2) == 1) model.logits_softcap = 0.9;
    model.tie_word_embeddings = draw(2) == 1;
    if (model.learned_positions) {
      model.rope_theta = ModelDescription().rope_theta;
      model.rope_scaling.reset();
    }
    EXPECT_EQ(parse_model_description(to_hugging_face_config(model, "float32"), "written"), model) << i;
  }
}

TEST(HuggingFaceConfig, RefusesToScaleLearnedPositions) {
  ModelDescription model = description_of(llama_config);
  model.architecture = Architecture::copus;
  model.learned_positions = true;
  const Json written = Json::parse(to_hugging_face_config(model, "float32"));
  for (const char* name : {"rope_scaling", "rope_parameters"}) {
    for (const char* type : {"rope_type", "type"}) {
      const Json scaled = with(written, {{name, {{type, "linear"}, {"factor", 4.0}}}});
      EXPECT_THAT(message_of(scaled), AllOf(HasSubstr(name), HasSubstr("learned_positions")));
    }
  }
}

struct PublishedModel {
  const char* file;
  int64_t parameters;
};

// The parameter counts are the published ones.
TEST(HuggingFaceConfig, PublishedModelsHaveTheirPublishedSizes) {
  for (const PublishedModel& published :
       {PublishedModel{"llama-3.2-1b", 1235814400}, PublishedModel{"llama-3.2-3b", 3212749824},
        PublishedModel{"qwen2.5-0.5b", 494032768}, PublishedModel{"qwen2.5-1.5b", 1543714304},
        PublishedModel{"qwen2.5-3b", 3085938688}, PublishedModel{"mistral-7b-v0.1", 7241732096},
        PublishedModel{"mistral-7b-v0.3", 7248023552}, PublishedModel{"qwen3-0.6b", 596049920},
        PublishedModel{"qwen3-8b", 8190735360}, PublishedModel{"smollm3-3b", 3075098624},
        PublishedModel{"olmo2-1b", 1484916736}, PublishedModel{"olmo3-7b", 7298011136},
        PublishedModel{"granite-3.1-2b", 2533531648}, PublishedModel{"phi-3-mini-4k", 3821079552},
        PublishedModel{"gemma-3-1b", 999885952}, PublishedModel{"gpt2", 124439808},
        PublishedModel{"gemma-2-2b", 2614341888}, PublishedModel{"pythia-1.4b", 1414647808},
        PublishedModel{"tiny-llama", 1869504}}) {
    const std::string text = read_text_file(concat(COPUS_MODELS, "/", published.file, ".json"));
    EXPECT_EQ(count_parameters(parse_model_description(text, published.file)), published.parameters) << published.file;
  }
}

TEST(HuggingFaceConfig, MalformedJsonNamesThePlace) {
  EXPECT_THAT(message_of_text("{\n  \"vocab_size\": ,\n}"),
              AllOf(HasSubstr("config.json:2:17"), HasSubstr("not valid JSON")));
  EXPECT_THAT(message_of_text(""), HasSubstr("not valid JSON"));
  EXPECT_THAT(message_of_text("{\"a\": \"\xff\"}"), HasSubstr("not valid JSON"));
  EXPECT_THAT(message_of_text("{\"rope_theta\": 1e999}"), HasSubstr("beyond the range"));
  EXPECT_THAT(message_of_text(std::string(1000000, '[') + std::string(1000000, ']')), HasSubstr("nested too deeply"));
  EXPECT_THAT(message_of_text("[1]"), AllOf(HasSubstr("must be a JSON object"), HasSubstr("[1]")));
}

// Damaged files are either refused, or read, written and read back equal.
TEST(HuggingFaceConfig, DamagedFilesNeverCrash) {
  const std::string characters = "0123456789\"{}[],:.-en\\ \xff#tru";
  std::mt19937_64 random(20240229);
  const auto below = [&](size_t limit) { return static_cast<size_t>(random() % limit); };
  int refused = 0;
  for (int i = 0; i < 3000; ++i) {
    std::string text = to_hugging_face_config(description_of(i % 2 == 0 ? llama_config : mistral_config), "float32");
    for (size_t edits = 1 + below(3); edits > 0; --edits) {
      const size_t place = below(text.size() - 8);
      if (below(2) == 0) {
        text[place] = characters[below(characters.size())];
      } else {
        text.erase(place, 1 + below(8));
      }
    }
    try {
      const ModelDescription model = parse_model_description(text, "damaged");
      EXPECT_EQ(parse_model_description(to_hugging_face_config(model, "float32"), "written"), model);
    } catch (const UserError&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, 1000);
  EXPECT_LT(refused, 3000);
}

TEST(HuggingFaceConfig, OtherArchitecturesAreRefused) {
  EXPECT_THAT(refusal({{"architectures", {"GPTJForCausalLM"}}, {"model_type", "gptj"}}),
              AllOf(HasSubstr("GPTJForCausalLM"), HasSubstr("LlamaForCausalLM, Qwen2ForCausalLM, Mistral")));
  EXPECT_THAT(refusal({{"architectures", nullptr}, {"model_type", "gemma"}}), HasSubstr("gemma is not supported"));
  EXPECT_THAT(refusal({{"architectures", nullptr}, {"model_type", nullptr}}), HasSubstr("neither"));
  EXPECT_THAT(refusal({{"model_type", "qwen2"}}), AllOf(HasSubstr("LlamaForCausalLM"), HasSubstr("qwen2")));
  EXPECT_THAT(refusal({{"architectures", "LlamaForCausalLM"}}), HasSubstr("list of one class name"));
}

TEST(HuggingFaceConfig, MissingFieldsAreNamed) {
  for (const char* field :
       {"vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"}) {
    Json config = llama_config;
    config.erase(field);
    EXPECT_THAT(message_of(config), AllOf(HasSubstr("config.json"), HasSubstr(field), HasSubstr("missing")));
    EXPECT_THAT(refusal({{field, nullptr}}), AllOf(HasSubstr(field), HasSubstr("missing")));
    EXPECT_THAT(refusal({{field, 0}}), AllOf(HasSubstr(field), HasSubstr("between 1 and"), HasSubstr("got 0")));
    EXPECT_THAT(refusal({{field, -64}}), AllOf(HasSubstr(field), HasSubstr("got -64")));
    EXPECT_THAT(refusal({{field, 18446744073709551615u}}), AllOf(HasSubstr(field), HasSubstr("between 1 and")));
    EXPECT_THAT(refusal({{field, "64"}}), AllOf(HasSubstr(field), HasSubstr("whole number"), HasSubstr("\"64\"")));
    EXPECT_THAT(refusal({{field, 64.5}}), AllOf(HasSubstr(field), HasSubstr("whole number"), HasSubstr("64.5")));
  }
}

TEST(HuggingFaceConfig, WrongTypesAndRangesAreNamed) {
  EXPECT_THAT(refusal({{"tie_word_embeddings", 1}}),
              AllOf(HasSubstr("tie_word_embeddings"), HasSubstr("true or false")));
  EXPECT_THAT(refusal({{"rms_norm_eps", "tiny"}}), AllOf(HasSubstr("rms_norm_eps"), HasSubstr("must be a number")));
  EXPECT_THAT(refusal({{"rms_norm_eps", 0}}), AllOf(HasSubstr("rms_norm_eps"), HasSubstr("at least 1e-30")));
  EXPECT_THAT(refusal({{"rope_theta", -1.0}}), AllOf(HasSubstr("rope_theta"), HasSubstr("at least 1e-30")));
  EXPECT_THAT(refusal({{"initializer_range", 2}}), AllOf(HasSubstr("initializer_range"), HasSubstr("at most 1")));
  EXPECT_THAT(refusal({{"max_position_embeddings", {1}}}), HasSubstr("max_position_embeddings"));
  EXPECT_THAT(refusal({{"rope_scaling", "llama3"}}), AllOf(HasSubstr("rope_scaling"), HasSubstr("must be an object")));
  EXPECT_THAT(refusal({{"hidden_act", 3}}), AllOf(HasSubstr("hidden_act"), HasSubstr("must be a string")));
}

TEST(HuggingFaceConfig, ContradictionsShowBothNumbers) {
  EXPECT_THAT(refusal({{"num_key_value_heads", 3}}), AllOf(HasSubstr("(4)"), HasSubstr("(3)"), HasSubstr("multiple")));
  EXPECT_THAT(refusal({{"num_key_value_heads", 8}}), AllOf(HasSubstr("(4)"), HasSubstr("(8)")));
  EXPECT_THAT(refusal({{"hidden_size", 66}}), AllOf(HasSubstr("(66)"), HasSubstr("(4)"), HasSubstr("multiple")));
  EXPECT_THAT(refusal({{"head_dim", 15}}), AllOf(HasSubstr("15"), HasSubstr("even")));
  EXPECT_THAT(refusal({{"hidden_size", 60}}), AllOf(HasSubstr("15"), HasSubstr("even")));
  Json absent = qwen2_config;
  absent.erase("num_key_value_heads");
  EXPECT_THAT(message_of(absent), AllOf(HasSubstr("(32, transformers' default"), HasSubstr("(4)")));
}

TEST(HuggingFaceConfig, RotaryEmbeddingsThatWeLackAreRefused) {
  const Json scaling = {{"rope_type", "llama3"}, {"factor", 8}, {"low_freq_factor", 1}, {"high_freq_factor", 4}};
  const auto rope_refusal = [&](const Json& changes) { return refusal({{"rope_scaling", with(scaling, changes)}}); };
  EXPECT_THAT(rope_refusal({{"rope_type", "axial"}}),
              AllOf(HasSubstr("rope_scaling"), HasSubstr("axial"), HasSubstr("\"dynamic\", \"longrope\"")));
  for (const char* type : {"linear", "dynamic"}) {
    EXPECT_THAT(refusal({{"rope_scaling", {{"type", type}}}}), AllOf(HasSubstr("factor"), HasSubstr("missing")));
  }
  for (const Json& other : {Json(false), Json(nullptr)}) {
    EXPECT_THAT(rope_refusal({{"rope_type", "yarn"}, {"truncate", other}}), HasSubstr("truncate"));
  }
  EXPECT_THAT(refusal({{"rope_scaling", {{"rope_type", "yarn"}, {"original_max_position_embeddings", 512}}}}),
              HasSubstr("\"factor\" is missing"));
  for (const double scale : {-4.8089834696298785, -100.0}) {  // 0.1 scale log(8) + 1 is 0, or negative
    EXPECT_THAT(rope_refusal({{"rope_type", "yarn"}, {"mscale", 1}, {"mscale_all_dim", scale}}), HasSubstr("mscale"));
  }
  for (const double theta : {1.0, 0.5}) {
    EXPECT_THAT(refusal({{"rope_theta", theta}, {"rope_scaling", {{"rope_type", "yarn"}, {"factor", 8}}}}),
                HasSubstr("\"rope_theta\" must be greater than 1"));
  }
  EXPECT_THAT(rope_refusal({{"rope_type", "yarn"}, {"beta_fast", 1}}), HasSubstr("\"beta_fast\" must be greater"));
  EXPECT_THAT(rope_refusal({{"factor", nullptr}}), AllOf(HasSubstr("factor"), HasSubstr("missing")));
  EXPECT_THAT(rope_refusal({{"factor", 0.5}}), HasSubstr("at least 1"));
  EXPECT_THAT(rope_refusal({{"low_freq_factor", 4}}), HasSubstr("high_freq_factor"));
  EXPECT_THAT(rope_refusal({{"partial_rotary_factor", 0.5}}), HasSubstr("partial_rotary_factor"));
  EXPECT_THAT(refusal({{"partial_rotary_factor", 0.5}}), HasSubstr("partial_rotary_factor"));
  EXPECT_THAT(refusal({{"rope_parameters", {{"full_attention", {{"rope_theta", 1e4}}}}}}), HasSubstr("layer type"));
  EXPECT_THAT(refusal({{"rope_theta", 1e4}, {"rope_parameters", {{"rope_theta", 5e4}}}}),
              AllOf(HasSubstr("twice"), HasSubstr("10000"), HasSubstr("50000")));
  EXPECT_THAT(refusal({{"rope_scaling", scaling}, {"rope_parameters", {{"rope_type", "default"}}}}),
              AllOf(HasSubstr("rope_scaling"), HasSubstr("rope_parameters"), HasSubstr("contradict")));
}

TEST(HuggingFaceConfig, UnsupportedFeaturesAreRefusedWithTheReason) {
  EXPECT_THAT(refusal({{"hidden_act", "gelu"}}), AllOf(HasSubstr("gelu"), HasSubstr("silu")));
  EXPECT_THAT(refusal({{"quantization_config", {{"bits", 4}}}}), HasSubstr("quantization_config"));
  EXPECT_THAT(message_of(with(qwen2_config, {{"use_sliding_window", true}})), HasSubstr("use_sliding_window"));
  EXPECT_THAT(message_of(with(qwen2_config, {{"layer_types", {"full_attention", "sliding_attention"}}})),
              AllOf(HasSubstr("layer_types"), HasSubstr("sliding_attention")));
}

TEST(HuggingFaceConfig, ReadsLinearAndYarnScaling) {
  const auto scaling = [](const Json& changes) {
    return description_of(with(llama_config, {{"rope_scaling", with({{"factor", 4}}, changes)}})).rope_scaling;
  };
  EXPECT_EQ(scaling({{"type", "linear"}}), (RopeScaling{.type = RopeType::linear, .factor = 4}));
  EXPECT_EQ(scaling({{"rope_type", "yarn"}}), (RopeScaling{RopeType::yarn, 4, 1, 32, 2048, 0.1 * std::log(4.0) + 1}))
      << "transformers' defaults";
  EXPECT_EQ(scaling({{"rope_type", "yarn"},
                     {"attention_factor", 1.5},
                     {"beta_slow", 2},
                     {"beta_fast", 8},
                     {"original_max_position_embeddings", 512}}),
            (RopeScaling{RopeType::yarn, 4, 2, 8, 512, 1.5}));
  EXPECT_EQ(scaling({{"rope_type", "yarn"}, {"mscale", 1.0}, {"mscale_all_dim", 1.0}})->attention_factor, 1);
  EXPECT_EQ(scaling({{"rope_type", "yarn"}, {"factor", nullptr}, {"original_max_position_embeddings", 1024}})->factor,
            2);
  for (const char* type : {"yarn", "llama3"}) {
    const Json rope = {{"rope_type", type}, {"factor", 4}, {"low_freq_factor", 1}, {"high_freq_factor", 4}};
    for (const Json& object : {rope, with(rope, {{"original_max_position_embeddings", 512}})}) {
      const Json config = with(llama_config, {{"rope_scaling", object}, {"original_max_position_embeddings", 1024}});
      EXPECT_EQ(description_of(config).rope_scaling->original_max_position_embeddings, 1024) << type;
    }
  }
}

TEST(HuggingFaceConfig, FieldsOfOtherConcernsAreIgnored) {
  EXPECT_EQ(
      description_of(with(llama_config, {{"use_cache", false}, {"bos_token_id", 1}, {"transformers_version", "5.0"}})),
      description_of(llama_config));
  EXPECT_EQ(description_of(with(qwen2_config, {{"sliding_window", 4096}, {"max_window_layers", 21}})),
            description_of(qwen2_config));
}

}  // namespace
}  // namespace copus
