// Tests the fields of config.json that belong to one architecture: accepted values, and refusals.
#include <gmock/gmock.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "copus/base/files/durable_file.h"
#include "copus/description/model_description.h"
#include "copus/description/testing/config_texts.h"

namespace copus {
namespace {

using namespace config_texts;
using testing::AllOf;
using testing::HasSubstr;

TEST(ArchitectureConfig, ReadsWhichLayersHaveNoRotaryEmbeddings) {
  const auto interval = [](const Json& changes) {
    return description_of(with(with(smollm3_config, {{"num_hidden_layers", 7}}), changes)).no_rope_interval;
  };
  EXPECT_EQ(interval({{"no_rope_layer_interval", 3}}), 3);
  EXPECT_EQ(interval({{"no_rope_layer_interval", 0}}), 0);
  EXPECT_EQ(interval({{"no_rope_layer_interval", 8}}), 0) << "beyond the last layer";
  EXPECT_EQ(interval({{"no_rope_layers", {1, 1, 0, 1, 1, 0, 1}}, {"no_rope_layer_interval", 5}}), 3);
  EXPECT_EQ(interval({{"no_rope_layers", {1, 1, 1, 1, 1, 1, 1, 0}}}), 0) << "entries beyond the last layer";
  EXPECT_EQ(interval({{"no_rope_layers", {0, 0, 0, 0, 0, 0, 0}}}), 1);

  const auto refused = [](const Json& changes) {
    return message_of(with(with(smollm3_config, {{"num_hidden_layers", 3}}), changes));
  };
  EXPECT_THAT(refused({{"no_rope_layers", {1, 0, 0}}}), AllOf(HasSubstr("every n-th"), HasSubstr("entry 2")));
  for (const Json& list : {Json({1, 0}), Json({1, 2, 1}), Json(3)}) {
    EXPECT_THAT(refused({{"no_rope_layers", list}}), HasSubstr("for each of the 3 layers"));
  }
  EXPECT_EQ(description_of(with(llama_config, {{"no_rope_layer_interval", 1}})), description_of(llama_config))
      << "transformers ignores it";
}

// transformers 4 reads the old fields, which have no separate base for sliding layers.
TEST(ArchitectureConfig, Olmo3IsWrittenInBothStyles) {
  const std::string text = read_text_file(concat(COPUS_MODELS, "/olmo3-7b.json"));
  const ModelDescription model = parse_model_description(text, "olmo3-7b");
  Json written = Json::parse(to_hugging_face_config(model, "bfloat16"));
  EXPECT_EQ(description_of(written), model);
  EXPECT_EQ(written["rope_theta"], 5e5);
  EXPECT_EQ(written["rope_scaling"]["rope_type"], "yarn");
  written.erase("rope_parameters");
  EXPECT_EQ(description_of(written), model);
}

TEST(ArchitectureConfig, ReadsBiasesWhereTransformersHasThem) {
  for (const Json& config : {llama_config, qwen3_config, smollm3_config, olmo2_config}) {
    const ModelDescription model = description_of(with(config, {{"attention_bias", true}}));
    EXPECT_TRUE(model.qkv_bias && model.attention_output_bias && !model.feed_forward_bias);
  }
  for (const Json& config : {llama_config, smollm3_config}) {
    const ModelDescription model = description_of(with(config, {{"mlp_bias", true}}));
    EXPECT_TRUE(model.feed_forward_bias && !model.qkv_bias);
  }
  const Json both = {{"attention_bias", true}, {"mlp_bias", true}};
  for (const Json& config : {qwen2_config, mistral_config})
    EXPECT_EQ(description_of(with(config, both)), description_of(config));
}

TEST(ArchitectureConfig, ReadsGpt2UnderItsNamesAndTheCommonOnes) {
  const ModelDescription model = description_of(gpt2_config);
  EXPECT_EQ(model.hidden_size, 64);
  EXPECT_EQ(model.intermediate_size, 256) << "absent or null: four times the width";
  EXPECT_EQ(model.max_position_embeddings, 512);
  EXPECT_EQ(model.num_kv_heads * model.head_dim, 64);
  EXPECT_EQ(model.norm, NormKind::layer);
  EXPECT_EQ(model.rms_norm_eps, 1e-5);
  EXPECT_EQ(model.activation, ActivationFunction::gelu_tanh);
  EXPECT_TRUE(model.learned_positions && !model.gated_feed_forward && model.tie_word_embeddings);
  EXPECT_TRUE(model.qkv_bias && model.attention_output_bias && model.feed_forward_bias);
  EXPECT_EQ(description_of(with(gpt2_config, {{"layer_norm_epsilon", 1e-6}})).rms_norm_eps, 1e-6);
  EXPECT_EQ(description_of(with(gpt2_config, {{"n_inner", 96}, {"tie_word_embeddings", false}})).intermediate_size, 96);
  Json common = gpt2_config;
  common.erase("n_embd");
  EXPECT_EQ(description_of(with(common, {{"hidden_size", 64}})), model);

  const auto refused = [](const Json& changes) { return message_of(with(gpt2_config, changes)); };
  EXPECT_THAT(refused({{"n_embd", "wide"}}), HasSubstr("\"n_embd\" must be a whole number"));
  EXPECT_THAT(refused({{"n_layer", 0}}), HasSubstr("\"n_layer\" must be between"));
  EXPECT_THAT(refused({{"layer_norm_epsilon", 0}}), HasSubstr("\"layer_norm_epsilon\" must be"));
  EXPECT_THAT(refused({{"activation_function", "relu"}}),
              AllOf(HasSubstr("activation_function"), HasSubstr("gelu_new")));
  EXPECT_THAT(refused({{"num_key_value_heads", 2}}), HasSubstr("as many key/value heads as heads"));
  EXPECT_THAT(refused({{"rope_scaling", {{"rope_type", "default"}}}}), HasSubstr("learns positions"));
  EXPECT_THAT(refused({{"scale_attn_weights", false}}), HasSubstr("scale_attn_weights"));
  EXPECT_THAT(refused({{"scale_attn_by_inverse_layer_idx", true}}), HasSubstr("scale_attn_by_inverse_layer_idx"));
  EXPECT_THAT(refused({{"add_cross_attention", true}}), HasSubstr("add_cross_attention"));
}

TEST(ArchitectureConfig, FindsDropout) {
  const auto dropout = [](const Json& config) { return dropout_in(config.dump(), "config.json"); };
  EXPECT_EQ(dropout(llama_config), "");
  EXPECT_EQ(dropout(with(llama_config, {{"attention_dropout", 0.1}})), "\"attention_dropout\" is 0.1");
  EXPECT_EQ(dropout(gpt2_config), "\"resid_pdrop\" is 0.1 (transformers' default)");
  const Json none = {{"resid_pdrop", 0}, {"embd_pdrop", 0.0}, {"attn_pdrop", 0.0}};
  EXPECT_EQ(dropout(with(gpt2_config, none)), "");
  EXPECT_EQ(dropout(with(with(gpt2_config, none), {{"attn_pdrop", 0.25}})), "\"attn_pdrop\" is 0.25");
  EXPECT_THAT(user_error([&] { dropout(with(llama_config, {{"attention_dropout", "some"}})); }),
              HasSubstr("must be a number"));
}

TEST(ArchitectureConfig, ReadsMistralsWindow) {
  EXPECT_EQ(description_of(with(mistral_config, {{"sliding_window", 4096}})).attention_window, 4096);
  EXPECT_EQ(description_of(mistral_config).attention_window, 0);
  EXPECT_EQ(description_of(with(mistral_config, {{"sliding_window", 131072}})), description_of(mistral_config))
      << "it holds everything";
  Json absent = mistral_config;
  absent.erase("sliding_window");
  EXPECT_EQ(description_of(absent).attention_window, 4096) << "MistralConfig's default";
  EXPECT_EQ(description_of(with(absent, {{"max_position_embeddings", 4096}})).attention_window, 0);
  EXPECT_THAT(message_of(with(mistral_config, {{"sliding_window", 0}})), HasSubstr("between 1 and"));
}

TEST(ArchitectureConfig, ReadsGemma3) {
  const ModelDescription model = description_of(gemma3_config);
  EXPECT_EQ(model.head_dim, 256);
  EXPECT_EQ(model.full_attention_interval, 6);
  EXPECT_EQ(model.attention_window, 4096);
  EXPECT_EQ(model.rope_theta, 1e6);
  EXPECT_EQ(model.sliding_rope_theta, 1e4);
  EXPECT_EQ(model.embedding_multiplier, 8) << "the root of hidden_size";
  EXPECT_EQ(model.attention_multiplier, 0) << "one over the root of head_dim";
  EXPECT_EQ(model.activation, ActivationFunction::gelu_tanh);
  EXPECT_TRUE(model.gated_feed_forward && model.norms_add_one && model.tie_word_embeddings);
  EXPECT_EQ(model.block_norm, BlockNorm::both);
  const auto changed = [](const Json& changes) { return description_of(with(gemma3_config, changes)); };
  EXPECT_EQ(changed({{"sliding_window_pattern", 3}}).full_attention_interval, 3);
  EXPECT_EQ(changed({{"rope_local_base_freq", 5e4}}).sliding_rope_theta, 5e4);
  EXPECT_EQ(changed({{"query_pre_attn_scalar", 168}}).attention_multiplier, 1 / std::sqrt(168.0));
  const Json linear = {{"rope_scaling", {{"rope_type", "linear"}, {"factor", 8.0}}}};
  EXPECT_EQ(changed(linear).rope_scaling, (RopeScaling{.type = RopeType::linear, .factor = 8}));
  const auto refused = [](const Json& changes) { return message_of(with(gemma3_config, changes)); };
  EXPECT_THAT(refused({{"final_logit_softcapping", 30.0}}), HasSubstr("final_logit_softcapping"));
  EXPECT_THAT(refused({{"attn_logit_softcapping", 50.0}}), HasSubstr("attn_logit_softcapping"));
  EXPECT_THAT(refused({{"use_bidirectional_attention", true}}), HasSubstr("use_bidirectional_attention"));
  EXPECT_THAT(refused({{"hidden_activation", "relu"}}), HasSubstr("hidden_activation"));
  EXPECT_THAT(refused({{"num_attention_heads", 6}}), AllOf(HasSubstr("(64)"), HasSubstr("(6)")));
  EXPECT_EQ(changed({{"hidden_act", "silu"}, {"attention_multiplier", 0.4}, {"embedding_multiplier", 3}}), model)
      << "transformers ignores them";
  EXPECT_EQ(description_of(with(olmo3_config, {{"rope_local_base_freq", 5e4}})), description_of(olmo3_config))
      << "likewise";
}

TEST(ArchitectureConfig, ReadsGemma2) {
  const ModelDescription model = description_of(gemma2_config);
  EXPECT_EQ(model.head_dim, 256);
  EXPECT_EQ(model.full_attention_interval, 2);
  EXPECT_EQ(model.attention_window, 4096);
  EXPECT_EQ(model.rope_theta, 1e4);
  EXPECT_EQ(model.sliding_rope_theta, 0) << "all layers rotate alike";
  EXPECT_EQ(model.attention_softcap, 50);
  EXPECT_EQ(model.logits_softcap, 30);
  EXPECT_EQ(model.embedding_multiplier, 8) << "the root of hidden_size";
  EXPECT_EQ(model.qk_norm, QkNorm::none);
  EXPECT_EQ(model.block_norm, BlockNorm::both);
  EXPECT_EQ(model.activation, ActivationFunction::gelu_tanh);
  EXPECT_TRUE(model.gated_feed_forward && model.norms_add_one && model.tie_word_embeddings);
  const auto changed = [](const Json& changes) { return description_of(with(gemma2_config, changes)); };
  EXPECT_EQ(changed({{"attn_logit_softcapping", nullptr}}).attention_softcap, 0);
  EXPECT_EQ(changed({{"final_logit_softcapping", 15}}).logits_softcap, 15);
  EXPECT_EQ(changed({{"query_pre_attn_scalar", 144}}).attention_multiplier, 1 / 12.0);
  EXPECT_EQ(changed({{"sliding_window_pattern", 3}}), model) << "transformers ignores it";
  EXPECT_THAT(message_of(with(gemma2_config, {{"attn_logit_softcapping", 0}})), HasSubstr("attn_logit_softcapping"));
  EXPECT_THAT(message_of(with(gemma2_config, {{"final_logit_softcapping", -1}})), HasSubstr("final_logit_softcapping"));
  EXPECT_EQ(description_of(with(llama_config, {{"attn_logit_softcapping", 50}})), description_of(llama_config))
      << "transformers ignores it";
}

TEST(ArchitectureConfig, ReadsGptNeoX) {
  const ModelDescription model = description_of(gpt_neox_config);
  EXPECT_EQ(model.rotary_dim(), 4) << "a quarter of 16";
  EXPECT_EQ(model.rms_norm_eps, 1e-5);
  EXPECT_EQ(model.norm, NormKind::layer);
  EXPECT_EQ(model.activation, ActivationFunction::gelu);
  EXPECT_TRUE(model.parallel_residual && !model.gated_feed_forward && !model.tie_word_embeddings);
  EXPECT_TRUE(model.qkv_bias && model.attention_output_bias && model.feed_forward_bias);
  const auto changed = [](const Json& changes) { return description_of(with(gpt_neox_config, changes)); };
  EXPECT_FALSE(changed({{"use_parallel_residual", false}}).parallel_residual);
  EXPECT_EQ(changed({{"rotary_pct", 1}}).rotary_dim(), 16);
  EXPECT_EQ(changed({{"rotary_emb_base", 500}}).rope_theta, 500);
  EXPECT_EQ(changed({{"layer_norm_eps", 1e-6}}).rms_norm_eps, 1e-6);
  EXPECT_EQ(changed({{"rope_parameters", {{"partial_rotary_factor", 0.5}, {"rope_theta", 99}}}}).rotary_dim(), 8);
  const ModelDescription unbiased = changed({{"attention_bias", false}, {"mlp_bias", false}});
  EXPECT_TRUE(!unbiased.qkv_bias && !unbiased.attention_output_bias && unbiased.feed_forward_bias);
  const auto refused = [](const Json& changes) { return message_of(with(gpt_neox_config, changes)); };
  EXPECT_THAT(refused({{"hidden_act", "gelu_fast"}}), AllOf(HasSubstr("gelu_fast"), HasSubstr("only \"gelu\" is")));
  EXPECT_THAT(refused({{"num_key_value_heads", 2}}), HasSubstr("as many key/value heads as heads"));
  EXPECT_THAT(refused({{"rotary_pct", 0.35}}), HasSubstr("even number of the 16 elements"));
  EXPECT_EQ(dropout_in(with(gpt_neox_config, {{"hidden_dropout", 0.1}}).dump(), ""), "\"hidden_dropout\" is 0.1");
}

TEST(ArchitectureConfig, ReadsLongrope) {
  const auto scaling = [](const Json& changes, const Json& outer = Json::object()) {
    const Json rope = {{"max_position_embeddings", 131072}, {"rope_scaling", with(longrope, changes)}};
    return description_of(with(with(phi3_config, rope), outer)).rope_scaling;
  };
  const RopeScaling expected{.type = RopeType::longrope,
                             .factor = 32,
                             .original_max_position_embeddings = 4096,
                             .attention_factor = std::sqrt(1 + std::log(32.0) / std::log(4096.0)),
                             .short_factor = {1, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7},
                             .long_factor = {1, 2, 3, 4, 8, 12, 16, 24.5}};
  EXPECT_EQ(scaling(Json::object()), expected) << "Phi3Config's context before scaling is 4096";
  EXPECT_EQ(scaling({{"type", "su"}}), expected);
  EXPECT_EQ(scaling({{"type", "yarn"}}), expected);
  EXPECT_EQ(scaling(Json::object(), {{"original_max_position_embeddings", 8192}})->factor, 16);
  EXPECT_EQ(scaling({{"attention_factor", 1.5}})->attention_factor, 1.5);
  EXPECT_EQ(scaling({{"factor", 0.5}})->attention_factor, 1);
  const auto refused = [](const Json& changes) {
    return message_of(with(phi3_config, {{"rope_scaling", with(longrope, changes)}}));
  };
  EXPECT_THAT(refused({{"short_factor", nullptr}}), HasSubstr("\"short_factor\" must be a list of numbers"));
  EXPECT_THAT(refused({{"long_factor", {1, "two"}}}), HasSubstr("\"long_factor\" must be a list of numbers"));
  EXPECT_THAT(refused({{"long_factor", {1, 2, 3, 4, 5, 6, 7, 0}}}), HasSubstr("at least 1e-30"));
  EXPECT_THAT(message_of(with(phi3_config, {{"rope_scaling", longrope}, {"head_dim", 24}})),
              HasSubstr("\"head_dim\" is 24"));
  EXPECT_THAT(refused({{"long_factor", {1, 2}}}),
              AllOf(HasSubstr("\"long_factor\" has 2 numbers"), HasSubstr("8 pairs")));
}

TEST(ArchitectureConfig, ReadsPhi3) {
  const ModelDescription model = description_of(phi3_config);
  EXPECT_EQ(model.max_position_embeddings, 4096);
  EXPECT_EQ(model.rms_norm_eps, 1e-5);
  EXPECT_EQ(model.rotary_dim(), 16);
  EXPECT_EQ(description_of(with(phi3_config, {{"sliding_window", 2047}})).attention_window, 2047);
  EXPECT_EQ(description_of(with(phi3_config, {{"partial_rotary_factor", 0.75}})).rotary_dim(), 12);
  EXPECT_EQ(description_of(with(phi3_config, {{"rope_parameters", {{"partial_rotary_factor", 0.5}}}})).rotary_dim(), 8);
  const auto refused = [](const Json& changes) { return message_of(with(phi3_config, changes)); };
  EXPECT_THAT(refused({{"partial_rotary_factor", 0.1}}), HasSubstr("even number of the 16 elements"));
  EXPECT_THAT(refused({{"partial_rotary_factor", 1.5}}), HasSubstr("even number of the 16 elements"));
  for (const char* type : {"llama3", "dynamic", "linear"}) {
    EXPECT_THAT(refused({{"rope_scaling", {{"type", type}, {"factor", 2}}}}),
                AllOf(HasSubstr(type), HasSubstr("only \"default\" and \"longrope\" are")));
  }
  const Json half = {{"partial_rotary_factor", 0.5}};
  EXPECT_EQ(
      description_of(with(phi3_config, {{"partial_rotary_factor", 0.75}, {"rope_parameters", half}})).rotary_dim(), 8)
      << "transformers prefers the inner share";
  EXPECT_THAT(refused({{"rope_parameters", half}, {"rope_scaling", {{"rope_type", "default"}}}}),
              HasSubstr("contradict"));
  EXPECT_EQ(dropout_in(with(phi3_config, {{"resid_pdrop", 0.1}}).dump(), ""), "\"resid_pdrop\" is 0.1");
}

TEST(ArchitectureConfig, ReadsMultipliers) {
  EXPECT_EQ(description_of(granite_config).attention_multiplier, 1) << "GraniteConfig's default";
  EXPECT_EQ(description_of(with(granite_config, {{"attention_multiplier", 0.25}})).attention_multiplier, 0)
      << "1 / sqrt(16)";
  const Json multipliers = {{"embedding_multiplier", 12},
                            {"residual_multiplier", 0.22},
                            {"attention_multiplier", 0.015625},
                            {"logits_scaling", 8}};
  const ModelDescription model = description_of(with(granite_config, multipliers));
  EXPECT_EQ(model.embedding_multiplier, 12);
  EXPECT_EQ(model.residual_multiplier, 0.22);
  EXPECT_EQ(model.attention_multiplier, 0.015625);
  EXPECT_EQ(model.logits_scaling, 8);
  EXPECT_EQ(description_of(with(llama_config, multipliers)), description_of(llama_config))
      << "transformers ignores them";
  EXPECT_THAT(message_of(with(granite_config, {{"logits_scaling", 0}})), HasSubstr("logits_scaling"));
}

TEST(ArchitectureConfig, ReadsTheLayersOfOlmo3) {
  const ModelDescription model = description_of(with(olmo3_config, {{"max_position_embeddings", 8192}}));
  EXPECT_EQ(model.attention_window, 4096);
  EXPECT_EQ(model.full_attention_interval, 4);
  EXPECT_EQ(model.rope_theta, 500000);
  EXPECT_EQ(model.sliding_rope_theta, 0) << "all layers are alike";
  EXPECT_TRUE(model.qk_norm == QkNorm::projection && model.block_norm == BlockNorm::output);
  EXPECT_EQ(model.window_of(2), 4096);
  EXPECT_EQ(model.window_of(3), 0);
  EXPECT_TRUE(model.has_window(4097));
  EXPECT_FALSE(model.has_window(4096));
  EXPECT_EQ(description_of(with(olmo3_config, {{"sliding_window", 2048}})).attention_window, 0);

  const Json yarn = {{"rope_type", "yarn"}, {"factor", 8.0}, {"original_max_position_embeddings", 256}};
  const ModelDescription old_style = description_of(with(olmo3_config, {{"rope_theta", 1e4}, {"rope_scaling", yarn}}));
  EXPECT_EQ(old_style.rope_theta, 1e4);
  EXPECT_EQ(old_style.rope_scaling->type, RopeType::yarn);
  EXPECT_EQ(old_style.sliding_rope_theta, 5e5) << "Olmo3Config's base";
  const Json by_type = {{"full_attention", with(yarn, {{"rope_theta", 1e4}})},
                        {"sliding_attention", {{"rope_type", "default"}, {"rope_theta", 5e5}}}};
  EXPECT_EQ(description_of(with(olmo3_config, {{"rope_parameters", by_type}})), old_style);

  const auto types = [](const std::string& letters) {
    Json list = Json::array();
    for (const char letter : letters) list.push_back(letter == 's' ? "sliding_attention" : "full_attention");
    return Json{{"layer_types", list}};
  };
  EXPECT_EQ(description_of(with(olmo3_config, types("sfsf"))).full_attention_interval, 2);
  EXPECT_EQ(description_of(with(olmo3_config, types("ssss"))).full_attention_interval, 0);
  EXPECT_EQ(description_of(with(olmo3_config, types("ffff"))).full_attention_interval, 1);
  const auto refused = [](const Json& changes) { return message_of(with(olmo3_config, changes)); };
  EXPECT_THAT(refused(types("fsss")), AllOf(HasSubstr("layer_types"), HasSubstr("entry 1")));
  EXPECT_THAT(refused(types("ss")), HasSubstr("each of the 4 layers"));
  EXPECT_THAT(refused({{"layer_types", {"linear_attention"}}}), HasSubstr("linear_attention"));
  const Json partial = {{"partial_rotary_factor", 0.5}};
  for (const Json& changes : {partial, Json{{"rope_scaling", with(yarn, partial)}},
                              Json{{"rope_parameters", {{"full_attention", partial}}}}}) {
    EXPECT_THAT(refused(changes), HasSubstr("partial_rotary_factor"));
  }
  EXPECT_THAT(refused({{"rope_parameters", {{"rope_theta", 1e4}}}}), HasSubstr("\"full_attention\""));
  EXPECT_EQ(
      description_of(with(olmo3_config, {{"rope_scaling", yarn}, {"rope_theta", 1e4}, {"rope_parameters", by_type}})),
      old_style);
  const auto both = [&](const Json& changes) {
    return refused({{"rope_scaling", with(yarn, changes)}, {"rope_parameters", by_type}});
  };
  EXPECT_THAT(both({{"factor", 4.0}}), HasSubstr("contradict"));
  EXPECT_THAT(both({{"rope_theta", 2e4}}), HasSubstr("contradict"));
  EXPECT_EQ(
      description_of(with(olmo3_config, {{"rope_theta", 2e4}, {"rope_scaling", with(yarn, {{"rope_theta", 1e4}})}})),
      old_style)
      << "transformers prefers the inner base";
  EXPECT_EQ(
      description_of(
          with(olmo3_config, {{"rope_theta", 1e4}, {"rope_scaling", yarn}, {"original_max_position_embeddings", 128}})),
      old_style)
      << "transformers looks into objects of layer types alone";
  EXPECT_THAT(refused({{"rope_parameters", {{"sliding_attention", yarn}}}}), HasSubstr("not supported"));
}

}  // namespace
}  // namespace copus
