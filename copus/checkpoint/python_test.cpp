// Tests that the Python packages safetensors and transformers read our files, and that we read theirs. Skipped if .venv
// lacks them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "copus/base/testing/test_support.h"
#include "copus/checkpoint/hugging_face.h"
#include "copus/checkpoint/testing/test_model.h"

namespace copus {
namespace {

using ::testing::ElementsAre;
using Json = nlohmann::json;

constexpr int missing_package = 77;  // exchange_with_python.py's exit code
constexpr const char* skip_reason = "safetensors or transformers is not installed in .venv; `make setup` installs them";

ProcessResult run_python(const std::vector<std::string>& arguments) {
  if (!std::filesystem::exists(COPUS_PYTHON)) return {missing_package, ""};
  std::vector<std::string> command{COPUS_PYTHON, COPUS_EXCHANGE_WITH_PYTHON};
  command.insert(command.end(), arguments.begin(), arguments.end());
  return run_process(command);
}

TEST(Python, SafetensorsBothWays) {
  const std::vector<float> matrix{0, 0.25, 0.5, 0.75, 1, 1.25};
  const std::vector<uint16_t> half{float_to_f16(1), float_to_f16(-2)};
  const std::vector<int64_t> step{int64_t{1} << 40};
  const std::vector<double> scalar{0.5};
  const std::vector<uint8_t> mask{1, 0, 1};
  // The mask comes first with three bytes, so that the following tensors are not aligned.
  const std::vector<TensorView> tensors{
      {"mask", DType::boolean, {3}, bytes_of(mask)}, {"matrix", DType::f32, {2, 3}, bytes_of(matrix)},
      {"half", DType::f16, {2}, bytes_of(half)},     {"empty", DType::f32, {0, 4}, {}},
      {"scalar", DType::f64, {}, bytes_of(scalar)},  {"step", DType::i64, {1}, bytes_of(step)},
  };
  const TemporaryFolder folder;
  const auto ours = folder.path() / "ours.safetensors";
  const auto theirs = folder.path() / "theirs.safetensors";
  write_safetensors(ours, tensors, {{"format", "pt"}});

  const ProcessResult python = run_python({"safetensors", ours.string(), theirs.string()});
  if (python.exit_code == missing_package) GTEST_SKIP() << skip_reason;
  ASSERT_EQ(python.exit_code, 0);

  const SafetensorsFile file(theirs);
  EXPECT_EQ(file.metadata().at("by"), "python");
  ASSERT_EQ(file.tensors().size(), 5u);
  EXPECT_THAT(to_float(*file.find("matrix")), ElementsAre(0, 0.5, 1, 1.5, 2, 2.5));
  EXPECT_EQ(file.find("matrix")->shape, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(file.find("half")->dtype, DType::f16);
  EXPECT_THAT(to_float(*file.find("half")), ElementsAre(2, -4));
  EXPECT_THAT(to_float(*file.find("scalar")), ElementsAre(1));
  EXPECT_EQ(file.find("empty")->shape, (std::vector<int64_t>{0, 4}));
  EXPECT_EQ(file.find("step")->dtype, DType::i64);
}

void expect_loaded(const Json& loaded, const TestModel& model, const char* dtype) {
  EXPECT_EQ(loaded["class"], causal_language_model_class(model.description.architecture));
  EXPECT_EQ(loaded["dtype"], dtype);
  EXPECT_EQ(loaded["problems"], Json::array());
  EXPECT_EQ(loaded["parameters"].size(), model.weights.size());
  for (const TensorView& view : model.views()) {
    double sum = 0;  // the test's numbers are exact in every type, and so is their sum
    for (float value : to_float(view)) sum += static_cast<double>(value);
    EXPECT_EQ(loaded["parameters"][view.name], Json::array({view.shape, sum})) << view.name;
  }
}

TEST(Python, TransformersLoadsExportsAndCheckpoints) {
  const TemporaryFolder folder;
  const TestModel llama = make_test_model(2);
  const TestModel tied = make_test_model(2, /*tied=*/true);
  TestModel qwen = make_test_model(1);
  qwen.description.architecture = Architecture::qwen2;
  qwen.description.head_dim = 2;
  qwen.description.qkv_bias = true;
  qwen.weights.clear();
  for (const ParameterInfo& parameter : list_parameters(qwen.description)) {
    qwen.weights.push_back(make_test_tensor(parameter.name, parameter.shape, 5));
  }
  const auto path = [&](const char* name) { return folder.path() / name; };
  write_hugging_face(path("llama"), llama.description, llama.views(), DType::f32);
  write_hugging_face(path("tied"), tied.description, tied.views(), DType::bf16, {}, 1000);
  write_hugging_face(path("qwen"), qwen.description, qwen.views(), DType::f16);
  CheckpointWriter writer(path("checkpoints"), 1, {.file_bytes = 1000, .bytes_per_writer = 1}, /*num_ranks=*/3);
  writer.write(make_test_snapshot(7));
  writer.finish();

  const ProcessResult python =
      run_python({"transformers", path("llama"), path("tied"), path("qwen"), writer.last_written()->string()});
  if (python.exit_code == missing_package) GTEST_SKIP() << skip_reason;
  ASSERT_EQ(python.exit_code, 0);
  std::vector<Json> loaded;
  std::istringstream lines(python.output);
  for (std::string line; std::getline(lines, line);) loaded.push_back(Json::parse(line));
  ASSERT_EQ(loaded.size(), 4u);
  expect_loaded(loaded[0], llama, "torch.float32");
  expect_loaded(loaded[1], tied, "torch.bfloat16");
  expect_loaded(loaded[2], qwen, "torch.float16");
  expect_loaded(loaded[3], make_test_model(2, false, 7), "torch.float32");
}

// A tokenizer in the format of Hugging Face's package: `</s>` is one of the added tokens, `<pad>` a word of the model.
TokenizerFiles make_tokenizer(const Json& model) {
  const Json end = {{"id", 7},         {"content", "</s>"},   {"single_word", false}, {"lstrip", false},
                    {"rstrip", false}, {"normalized", false}, {"special", true}};
  const Json tokenizer = {{"version", "1.0"},          {"truncation", nullptr}, {"padding", nullptr},
                          {"added_tokens", {end}},     {"normalizer", nullptr}, {"pre_tokenizer", nullptr},
                          {"post_processor", nullptr}, {"decoder", nullptr},    {"model", model}};
  const Json config = {{"tokenizer_class", "PreTrainedTokenizerFast"},
                       {"eos_token", {{"__type", "AddedToken"}, {"content", "</s>"}}},
                       {"pad_token", "<pad>"}};
  return {{"tokenizer.json", tokenizer.dump()}, {"tokenizer_config.json", config.dump()}};
}

TEST(Python, TransformersFindsTheIdsOfTheTokenizerInAnExport) {
  const TemporaryFolder folder;
  const TestModel llama = make_test_model(2);
  const Json words = {{"type", "WordLevel"}, {"vocab", {{"a", 0}, {"<pad>", 3}, {"</s>", 7}}}, {"unk_token", "a"}};
  Json pieces = Json::array();
  for (const char* piece : {"a", "b", "c", "<pad>", "d", "e", "f", "</s>"})
    pieces.push_back(Json::array({piece, -1.5}));
  const Json unigram = {{"type", "Unigram"}, {"vocab", pieces}, {"unk_id", 0}, {"byte_fallback", false}};
  const auto write = [&](const char* name, const ModelOrigin& origin) {
    write_hugging_face(folder.path() / name, llama.description, llama.views(), DType::bf16, origin);
  };
  Json config = Json::parse(to_hugging_face_config(llama.description, "float32"));
  config["eos_token_id"] = {7, 8};
  config["auto_map"] = {{"AutoConfig", "code.Config"}};
  write("words", {.tokenizer = make_tokenizer(words)});
  write("unigram", {.tokenizer = make_tokenizer(unigram)});
  write("config", {.config = config.dump(), .tokenizer = make_tokenizer(words)});

  const auto path = [&](const char* name) { return (folder.path() / name).string(); };
  const ProcessResult python = run_python({"ids", path("words"), path("unigram"), path("config")});
  if (python.exit_code == missing_package) GTEST_SKIP() << skip_reason;
  ASSERT_EQ(python.exit_code, 0);
  std::istringstream lines(python.output);
  const Json one = {nullptr, 7, 3};
  for (const Json& expected : {one, one, Json({nullptr, {7, 8}, 3})}) {
    std::string line;
    ASSERT_TRUE(std::getline(lines, line));
    EXPECT_EQ(Json::parse(line), Json({{"config", expected}, {"generation_config", expected}, {"tokenizer", one}}));
  }
}

}  // namespace
}  // namespace copus
