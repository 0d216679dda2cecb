#include "copus/checkpoint/hugging_face.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <iostream>
#include <limits>

#include "copus/base/testing/test_support.h"
#include "copus/checkpoint/shards.h"
#include "copus/checkpoint/testing/test_model.h"

namespace copus {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class HuggingFaceTest : public ::testing::Test {
 protected:
  // Writes `weights` unchanged, without the checks of write_hugging_face.
  void write_unchecked(const ModelDescription& model, const std::vector<TensorView>& weights) {
    std::filesystem::create_directory(directory_);
    write_file_durably(directory_ / "config.json", to_hugging_face_config(model, "float32"));
    write_safetensors(directory_ / "model.safetensors", weights, {});
  }

  std::string open_error() {
    return user_error([&] { open_hugging_face(directory_); });
  }

  TemporaryFolder folder_;
  std::filesystem::path directory_ = folder_.path() / "model";
};

void expect_same_weights(const HuggingFaceModel& opened, const TestModel& written, DType dtype) {
  EXPECT_EQ(opened.description(), written.description);
  ASSERT_EQ(opened.weights().size(), written.views().size());
  for (const TensorView& view : written.views()) {
    const TensorView& found = opened.weight(view.name);
    EXPECT_EQ(found.dtype, dtype);
    EXPECT_EQ(found.shape, view.shape);
    std::vector<float> expected(static_cast<size_t>(view.num_elements()));
    to_float(dtype, from_float(to_float(view), dtype), expected);
    EXPECT_EQ(to_float(found), expected) << view.name;
  }
}

TEST_F(HuggingFaceTest, ReadsWhatItWroteInEveryTypeAndCut) {
  const TestModel model = make_test_model(3);
  for (DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    for (int64_t shard_bytes : {int64_t{500}, hugging_face_shard_bytes}) {
      write_hugging_face(directory_, model.description, model.views(), dtype, {}, shard_bytes);
      EXPECT_EQ(std::filesystem::exists(directory_ / "model.safetensors.index.json"), shard_bytes == 500);
      expect_same_weights(open_hugging_face(directory_), model, dtype);
      EXPECT_THAT(list_directory(folder_.path()), ElementsAre("model"));
      std::filesystem::remove_all(directory_);
    }
  }
}

TEST_F(HuggingFaceTest, WeightsThatATypeCannotHoldAreRefusedAndCounted) {
  TestModel model = make_test_model(1);
  auto* const values = reinterpret_cast<float*>(model.weights[1].bytes.get());
  const auto write = [&](DType dtype) { write_hugging_face(directory_, model.description, model.views(), dtype); };
  values[0] = -70000;
  values[1] = 65519;                                   // rounds to 65504, the largest number of float16
  values[2] = 65520;                                   // rounds to infinity
  values[3] = std::numeric_limits<float>::infinity();  // was infinite before
  EXPECT_THAT(user_error([&] { write(DType::f16); }),
              AllOf(HasSubstr("2 weights would become infinite in fp16"), HasSubstr(model.weights[1].view().name),
                    HasSubstr("70000"), HasSubstr("bf16")));
  EXPECT_FALSE(std::filesystem::exists(directory_));
  write(DType::bf16);
  std::filesystem::remove_all(directory_);
  values[0] = std::numeric_limits<float>::max();
  EXPECT_THAT(user_error([&] { write(DType::bf16); }), HasSubstr("1 weight would become infinite in bf16"));
  write(DType::f32);
}

TEST_F(HuggingFaceTest, TiedModels) {
  TestModel model = make_test_model(3, /*tied=*/true);
  write_hugging_face(directory_, model.description, model.views(), DType::f32);
  expect_same_weights(open_hugging_face(directory_), model, DType::f32);

  // A second copy of the embedding is ignored.
  TensorView head = model.views().front();
  ASSERT_EQ(head.name, "model.embed_tokens.weight");
  head.name = "lm_head.weight";
  auto with_head = model.views();
  with_head.push_back(head);
  write_unchecked(model.description, with_head);
  expect_same_weights(open_hugging_face(directory_), model, DType::f32);

  with_head.back().shape = {head.shape[1], head.shape[0]};
  write_unchecked(model.description, with_head);
  EXPECT_THAT(open_error(), AllOf(HasSubstr("lm_head.weight"), HasSubstr(shape_text(with_head.back().shape))));
}

TEST_F(HuggingFaceTest, TheHeadOfATiedModelMustBeItsEmbedding) {
  TestModel model = make_test_model(3, /*tied=*/true);
  auto* const embedding = reinterpret_cast<float*>(model.weights.front().bytes.get());
  embedding[1] = std::numeric_limits<float>::quiet_NaN();
  const TensorView original = model.views().front();
  const auto write_with_head = [&](DType dtype, std::span<const std::byte> bytes) {
    auto weights = model.views();
    weights.push_back({"lm_head.weight", dtype, original.shape, bytes});
    write_unchecked(model.description, weights);
  };
  std::vector<float> values = to_float(original);
  const std::vector<double> as_doubles(values.begin(), values.end());
  const std::vector<std::byte> as_bf16 = from_float(values, DType::bf16);  // exact, as the numbers have few digits
  for (const auto& [dtype, bytes] : {std::pair(DType::f64, bytes_of(as_doubles)), std::pair(DType::f32, original.bytes),
                                     std::pair(DType::bf16, std::span<const std::byte>(as_bf16))}) {
    write_with_head(dtype, bytes);
    EXPECT_EQ(open_hugging_face(directory_).weights().size(), model.weights.size()) << printed_name(dtype);
  }

  values.back() += 1.0f / 64;
  write_with_head(DType::f32, bytes_of(values));
  EXPECT_THAT(open_error(), AllOf(HasSubstr(directory_.string()), HasSubstr("lm_head.weight has other values than "),
                                  HasSubstr("write \"tie_word_embeddings\": false in config.json")));
}

TEST_F(HuggingFaceTest, RotaryFrequenciesAreLeftOut) {
  const TestModel model = make_test_model(3);
  const std::vector<float> frequencies(4);
  auto weights = model.views();
  weights.push_back(
      {"model.layers.0.self_attn.rotary_emb.inv_freq", DType::f32, {4}, std::as_bytes(std::span(frequencies))});
  write_unchecked(model.description, weights);
  expect_same_weights(open_hugging_face(directory_), model, DType::f32);
}

TEST_F(HuggingFaceTest, MissingAndSurplusTensorsAreNamed) {
  const TestModel model = make_test_model(3);
  auto weights = model.views();
  weights[1].name = "model.layers.0.self_attn.query.weight";
  write_unchecked(model.description, weights);
  EXPECT_THAT(open_error(),
              AllOf(HasSubstr(directory_.string()), HasSubstr("1 missing (model.layers.0.self_attn.q_proj.weight)"),
                    HasSubstr("1 surplus (model.layers.0.self_attn.query.weight)")));
  weights.resize(2);
  write_unchecked(model.description, weights);
  EXPECT_THAT(open_error(), HasSubstr("and "));  // the list is shortened
  EXPECT_THAT(open_error(), HasSubstr(" more)"));
}

TEST_F(HuggingFaceTest, WrongShape) {
  const TestModel model = make_test_model(3);
  auto weights = model.views();
  std::swap(weights[0].shape[0], weights[0].shape[1]);
  write_unchecked(model.description, weights);
  EXPECT_THAT(open_error(),
              AllOf(HasSubstr("model.embed_tokens.weight has the shape [8, 20]"), HasSubstr("asks for [20, 8]")));
}

TEST_F(HuggingFaceTest, WrongType) {
  const TestModel model = make_test_model(3);
  auto weights = model.views();
  weights[0].dtype = DType::i32;
  write_unchecked(model.description, weights);
  EXPECT_THAT(open_error(), AllOf(HasSubstr("model.embed_tokens.weight"), HasSubstr("int32"), HasSubstr("bf16")));
}

TEST_F(HuggingFaceTest, NoSuchFolderAndNoConfig) {
  EXPECT_THAT(open_error(), HasSubstr("is not a folder"));
  std::filesystem::create_directory(directory_);
  EXPECT_THAT(open_error(), HasSubstr("has no config.json; expected a Hugging Face model folder"));
}

TEST_F(HuggingFaceTest, WritesOnlyIntoNewOrEmptyFolders) {
  const TestModel model = make_test_model(3);
  std::filesystem::create_directory(directory_);
  write_hugging_face(directory_ / "", model.description, model.views(), DType::f32);  // the trailing slash is ignored
  EXPECT_THAT(list_directory(directory_), ElementsAre("config.json", "model.safetensors"));
  const auto again = [&] { write_hugging_face(directory_, model.description, model.views(), DType::bf16); };
  EXPECT_THAT(user_error(again), AllOf(HasSubstr(directory_.string()), HasSubstr("not an empty folder")));
  expect_same_weights(open_hugging_face(directory_), model, DType::f32);
}

TEST_F(HuggingFaceTest, TokenizerFilesAreTakenOver) {
  const TestModel model = make_test_model(3);
  const auto source = folder_.path() / "source";
  std::filesystem::create_directory(source);
  const TokenizerFiles files = {{"generation_config.json", "{}\n"}, {"tokenizer.model", std::string("\0\xff\r\n", 4)}};
  for (const auto& [name, content] : files) write_file_durably(source / name, content);
  write_file_durably(source / "README.md", "not of the tokenizer");
  EXPECT_EQ(read_tokenizer_files(source), files);

  write_hugging_face(directory_, model.description, model.views(), DType::f32,
                     {.tokenizer = read_tokenizer_files(source)});
  EXPECT_THAT(list_directory(directory_),
              ElementsAre("config.json", "generation_config.json", "model.safetensors", "tokenizer.model"));
  EXPECT_EQ(read_tokenizer_files(directory_), files);
  expect_same_weights(open_hugging_face(directory_), model, DType::f32);

  EXPECT_TRUE(read_tokenizer_files(folder_.path() / "nowhere").empty());
  std::filesystem::create_directory(source / "vocab.json");
  EXPECT_THAT(user_error([&] { read_tokenizer_files(source); }), HasSubstr("vocab.json"));
  std::filesystem::remove(source / "vocab.json");
  std::filesystem::create_symlink("nowhere", source / "merges.txt");
  EXPECT_THAT(user_error([&] { read_tokenizer_files(source); }), HasSubstr("merges.txt: no such file"));
}

TEST_F(HuggingFaceTest, AnExportHasTheConfigurationOfItsOrigin) {
  const TestModel model = make_test_model(3);
  const auto origin = folder_.path() / "origin", tokenizer = folder_.path() / "data.tokenizer";
  std::filesystem::create_directory(origin);
  std::filesystem::create_directory(tokenizer);
  std::string config = to_hugging_face_config(model.description, "float32");
  config.insert(config.find('{') + 1, R"("max_window_layers": 7, )");
  write_file_durably(origin / "config.json", config);
  write_file_durably(tokenizer / "tokenizer_config.json", R"({"eos_token": "</s>"})");
  write_file_durably(tokenizer / "tokenizer.json", R"({"model": {"vocab": {"</s>": 5}}})");

  const ExportedConfig exported = write_hugging_face(directory_, model.description, model.views(), DType::bf16,
                                                     read_model_origin(origin, tokenizer));
  EXPECT_THAT(exported.from_config, ElementsAre("max_window_layers"));
  EXPECT_THAT(exported.from_tokenizer, ElementsAre("eos_token_id"));
  EXPECT_EQ(read_text_file(directory_ / "config.json"), exported.config);
  EXPECT_THAT(exported.config, AllOf(HasSubstr("\"max_window_layers\": 7"), HasSubstr("\"eos_token_id\": 5"),
                                     HasSubstr("\"dtype\": \"bfloat16\"")));
  EXPECT_EQ(read_text_file(directory_ / "generation_config.json"), exported.generation_config);
  expect_same_weights(open_hugging_face(directory_), model, DType::bf16);

  write_file_durably(origin / "generation_config.json", "{\"temperature\": 0.5}");
  EXPECT_EQ(read_model_origin(origin, tokenizer).generation_config, "{\"temperature\": 0.5}");
  EXPECT_EQ(read_model_origin("", "").config, "");
  EXPECT_EQ(read_model_origin(folder_.path() / "nowhere", "").config, "");
}

TEST_F(HuggingFaceTest, ATokenizerIsThatOfTheModelBeforeThatOfTheData) {
  const std::filesystem::path model = folder_.path() / "model", data = folder_.path() / "data";
  const std::filesystem::path beside_data = folder_.path() / "data.tokenizer";
  const auto found = [&](const std::filesystem::path& init_from) {
    return find_tokenizer(init_from, data.string()).value_or("nowhere").string();
  };
  EXPECT_EQ(found(""), "nowhere");
  EXPECT_EQ(found(model), model.string()) << "where its other files are, if there are some";
  std::filesystem::create_directories(model);
  std::filesystem::create_directory(beside_data);
  write_file_durably(model / "generation_config.json", "{}\n");
  write_file_durably(beside_data / "tokenizer.json", "{}\n");
  EXPECT_EQ(found(""), beside_data.string());
  EXPECT_EQ(found(model), beside_data.string());
  EXPECT_FALSE(find_tokenizer("", folder_.path() / "nowhere/*"));
  for (const char* shards : {"da*", "da*.bin", "da*.idx"}) {
    EXPECT_EQ(find_tokenizer("", folder_.path() / shards), beside_data) << "beside the first shard";
  }
  write_file_durably(model / "vocab.json", "{}\n");
  EXPECT_EQ(found(model), model.string());
  EXPECT_TRUE(holds_tokenizer(model));
  EXPECT_FALSE(holds_tokenizer(folder_.path()));
}

// The model's folder may hold its tokenizer in files that text conversion cannot use, while the data's folder holds
// tokenizer.json.
TEST_F(HuggingFaceTest, ATokenizerForTextIsOneThatHasTheFileForIt) {
  const std::filesystem::path model = folder_.path() / "model", data = folder_.path() / "data";
  const std::filesystem::path beside_data = folder_.path() / "data.tokenizer";
  const auto found = [&](const std::filesystem::path& init_from) {
    return find_text_tokenizer(init_from, data.string()).value_or("nowhere").string();
  };
  EXPECT_EQ(found(""), "nowhere");
  std::filesystem::create_directory(model);
  write_file_durably(model / "tokenizer.model", "pieces");
  EXPECT_FALSE(holds_text_tokenizer(model));
  EXPECT_EQ(found(model), model.string()) << "the only one that there is";
  std::filesystem::create_directory(beside_data);
  write_file_durably(beside_data / "tokenizer.json", "{}\n");
  EXPECT_EQ(found(model), beside_data.string());
  EXPECT_EQ(find_tokenizer(model, data.string()), model) << "an export has the model's own files";
  write_file_durably(model / "tokenizer.json", "{}\n");
  EXPECT_TRUE(holds_text_tokenizer(model));
  EXPECT_EQ(found(model), model.string());
}

TEST_F(HuggingFaceTest, RefusesWeightsOfAnotherModel) {
  const TestModel model = make_test_model(3);
  const auto write = [&] { write_hugging_face(directory_, make_test_model(4).description, model.views(), DType::f32); };
  EXPECT_THAT(user_error(write), HasSubstr("missing"));
  EXPECT_TRUE(list_directory(folder_.path()).empty());
}

TEST_F(HuggingFaceTest, FullDiskLeavesNothing) {
  const auto attempt = [&] {
    const FileSizeLimit limit(3000);
    const TestModel model = make_test_model(3);
    std::cerr << user_error([&] { write_hugging_face(directory_, model.description, model.views(), DType::f32); });
    std::_Exit(0);
  };
  EXPECT_EXIT(attempt(), ::testing::ExitedWithCode(0), "cannot write .*/model .[0-9]+ bytes in all.*File too large");
  EXPECT_TRUE(list_directory(folder_.path()).empty());
}

}  // namespace
}  // namespace copus
