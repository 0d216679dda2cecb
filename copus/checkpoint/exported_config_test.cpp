#include "copus/checkpoint/exported_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "copus/base/files/durable_file.h"
#include "copus/checkpoint/testing/test_model.h"

namespace copus {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Json = nlohmann::json;

const ModelDescription small_model = make_test_model(1).description;  // has a vocabulary of 20 tokens

// A config.json of `small_model` as other programs write it: in the style of transformers 4, with fields that Copus
// does not know.
Json config_of_others(const Json& changes = Json::object()) {
  Json config = Json::parse(to_hugging_face_config(small_model, "float16"));
  config.erase("rope_parameters");
  config.update({{"_name_or_path", "/home/somebody/model"},
                 {"auto_map", {{"AutoConfig", "code.Config"}}},
                 {"pretraining_tp", 1},
                 {"transformers_version", "4.40.1"},
                 {"use_cache", false},
                 {"bos_token_id", 1},
                 {"eos_token_id", {2, 3}}});
  config.update(changes);
  return config;
}

TokenizerFiles tokenizer_files(const Json& config, const Json& tokenizer) {
  return {{"tokenizer_config.json", config.dump()}, {"tokenizer.json", tokenizer.dump()}};
}

Json config_in(const ExportedConfig& exported) {
  EXPECT_EQ(parse_model_description(exported.config, "exported"), small_model);
  return Json::parse(exported.config);
}

ExportedConfig exported_with(const ModelOrigin& origin) { return exported_config(small_model, "bfloat16", origin); }

// The ids in an export, as [bos, eos, pad].
Json ids_with(const ModelOrigin& origin) {
  const Json config = config_in(exported_with(origin));
  return {config["bos_token_id"], config["eos_token_id"], config["pad_token_id"]};
}

TEST(ExportedConfig, OfAModelWithoutOriginIsItsDescription) {
  const ExportedConfig exported = exported_with({});
  EXPECT_EQ(Json::parse(exported.config), Json::parse(to_hugging_face_config(small_model, "bfloat16")));
  EXPECT_EQ(exported.generation_config, "");
  EXPECT_THAT(exported.from_config, IsEmpty());
  EXPECT_THAT(exported.from_tokenizer, IsEmpty());
}

TEST(ExportedConfig, KeepsWhatCopusDoesNotWrite) {
  const ExportedConfig exported = exported_with({.config = config_of_others().dump()});
  Json expected = Json::parse(to_hugging_face_config(small_model, "bfloat16"));
  expected.update(
      {{"pretraining_tp", 1}, {"transformers_version", "4.40.1"}, {"bos_token_id", 1}, {"eos_token_id", {2, 3}}});
  EXPECT_EQ(config_in(exported), expected);
  EXPECT_THAT(exported.from_config,
              ElementsAre("bos_token_id", "eos_token_id", "pretraining_tp", "transformers_version"));
  EXPECT_EQ(Json::parse(exported.generation_config),
            Json({{"_from_model_config", true}, {"bos_token_id", 1}, {"eos_token_id", {2, 3}}}));
}

TEST(ExportedConfig, OfPublishedModelsReadsBackBesideTheFieldsOfItsOrigin) {
  for (const auto& file : std::filesystem::directory_iterator(COPUS_MODELS)) {
    SCOPED_TRACE(file.path());
    const std::string origin = read_text_file(file.path());
    const ModelDescription model = parse_model_description(origin, "origin");
    const ExportedConfig exported = exported_config(model, "bfloat16", {.config = origin});
    EXPECT_FALSE(exported.is_of_another_model);
    EXPECT_EQ(parse_model_description(exported.config, "exported"), model);
  }
}

// Transformers accepts neither null nor a float for an integer.
TEST(ExportedConfig, WritesIntegersAsIntegersAndNoNull) {
  const Json config = config_in(exported_with({.config = config_of_others({{"sliding_window", 4096.0},
                                                                           {"max_window_layers", 28.0},
                                                                           {"no_rope_layer_interval", 4.0},
                                                                           {"layer_norm", nullptr}})
                                                             .dump()}));
  EXPECT_EQ(config["sliding_window"].dump(), "4096");
  EXPECT_EQ(config["max_window_layers"].dump(), "28");
  EXPECT_FALSE(config.contains("no_rope_layer_interval")) << "no_rope_layers says it";
  EXPECT_FALSE(config.contains("layer_norm"));
  for (const double odd : {2.5, -3.0, 1e300}) {
    EXPECT_EQ(config_in(exported_with(
                  {.config = config_of_others({{"max_window_layers", odd}}).dump()}))["max_window_layers"],
              odd)
        << "no integer, so it stays as it is";
  }
}

TEST(ExportedConfig, KeepsNothingOfAnotherModelOrOfNone) {
  for (const std::string& config :
       {config_of_others({{"vocab_size", 21}}).dump(), config_of_others({{"hidden_act", "gelu"}}).dump(),
        std::string("of another model by now"), std::string("[]")}) {
    const ExportedConfig exported = exported_with({.config = config, .generation_config = "{}"});
    EXPECT_TRUE(exported.is_of_another_model) << config;
    EXPECT_EQ(Json::parse(exported.config), Json::parse(to_hugging_face_config(small_model, "bfloat16"))) << config;
    EXPECT_EQ(exported.generation_config, "") << config;
  }
}

TEST(ExportedConfig, IdsOutsideTheVocabularyStayNull) {
  const auto ids = [](const Json& eos) {
    return ids_with({.config = config_of_others({{"eos_token_id", eos}}).dump()});
  };
  EXPECT_EQ(ids(19), Json({1, 19, nullptr}));
  EXPECT_EQ(ids(20), Json({1, nullptr, nullptr}));
  EXPECT_EQ(ids(-1), Json({1, nullptr, nullptr}));
  EXPECT_EQ(ids({2, 20}), Json({1, Json::array({2}), nullptr}));
  EXPECT_EQ(ids({20}), Json({1, nullptr, nullptr}));
  EXPECT_EQ(ids(2.0).dump(), "[1,2,null]") << "a whole number, which transformers takes only as an integer";
  EXPECT_EQ(ids(2.5), Json({1, nullptr, nullptr}));
  EXPECT_EQ(ids("2"), Json({1, nullptr, nullptr}));
  const std::string list_for_bos = config_of_others({{"bos_token_id", {1}}}).dump();
  EXPECT_EQ(ids_with({.config = list_for_bos}), Json({nullptr, {2, 3}, nullptr})) << "transformers refuses such a list";
}

TEST(ExportedConfig, TheTokenizerHasTheIdsThatTheConfigLacks) {
  const Json config = {
      {"bos_token", {{"content", "<s>"}, {"lstrip", false}}}, {"eos_token", "</s>"}, {"pad_token", "pad"}};
  const Json added = {{{"id", 6}, {"content", "<s>"}}, {{"id", 7}, {"content", "</s>"}}};
  const Json bpe = {{"added_tokens", added}, {"model", {{"vocab", {{"pad", 0}, {"</s>", 9}}}}}};
  const Json unigram =
      Json::parse(R"({"added_tokens": null, "model": {"vocab": [["pad", 0.0], ["<s>", -1.5], ["</s>", -2]]}})");

  EXPECT_EQ(ids_with({.tokenizer = tokenizer_files(config, bpe)}), Json({6, 7, 0}));
  EXPECT_EQ(ids_with({.tokenizer = tokenizer_files(config, unigram)}), Json({1, 2, 0}));

  const ExportedConfig exported =
      exported_with({.config = config_of_others().dump(), .tokenizer = tokenizer_files(config, bpe)});
  EXPECT_EQ(config_in(exported)["eos_token_id"], Json({2, 3})) << "the config's come first";
  EXPECT_THAT(exported.from_tokenizer, ElementsAre("pad_token_id"));
  EXPECT_EQ(Json::parse(exported.generation_config)["pad_token_id"], 0);
}

TEST(ExportedConfig, ATokenizerThatSaysNothingUsableGivesNoIds) {
  const Json config = {{"bos_token", nullptr}, {"eos_token", "</s>"}};
  EXPECT_EQ(ids_with({.tokenizer = tokenizer_files(config, {{"added_tokens", {{{"id", 20}, {"content", "</s>"}}}}})}),
            Json({nullptr, nullptr, nullptr}));
  for (const char* tokenizer :
       {"", "no JSON", "null", "[]", "{}", R"({"added_tokens": 3, "model": 4})", R"({"model": {"vocab": "</s>"}})",
        R"({"added_tokens": [3, {"content": 4}, {"content": "</s>"}], "model": {"vocab": {"</s>": "2"}}})",
        R"({"model": {"vocab": [3, [], [4], ["</s"]]}})"}) {
    for (const std::string& names : {config.dump(), std::string("no JSON"), std::string("[\"eos_token\"]")}) {
      const TokenizerFiles files = {{"tokenizer_config.json", names}, {"tokenizer.json", tokenizer}};
      const ExportedConfig exported = exported_with({.tokenizer = files});
      EXPECT_EQ(Json::parse(exported.config)["eos_token_id"], nullptr) << tokenizer;
      EXPECT_EQ(exported.generation_config, "") << tokenizer;
    }
  }
}

TEST(ExportedConfig, AnOriginsGenerationConfigStaysAsItIs) {
  const std::string config = config_of_others().dump();
  EXPECT_EQ(exported_with({.config = config, .generation_config = "{ }"}).generation_config, "{ }");
  const ModelOrigin with_tokenizer{.config = config, .tokenizer = {{"generation_config.json", "{}"}}};
  EXPECT_EQ(exported_with(with_tokenizer).generation_config, "") << "it is copied with the tokenizer";
}

}  // namespace
}  // namespace copus
