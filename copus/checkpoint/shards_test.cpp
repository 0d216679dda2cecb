#include "copus/checkpoint/shards.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "copus/base/testing/test_support.h"

namespace copus {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(Shards, CutBetweenTensorsOnly) {
  const std::vector<uint64_t> sizes{40, 60, 1, 500, 10};
  const std::vector<Shard> shards = plan_shards(sizes, 100, "model");
  ASSERT_EQ(shards.size(), 4u);
  EXPECT_EQ(shards[0].file_name, "model-00001-of-00004.safetensors");
  EXPECT_EQ(shards[3].file_name, "model-00004-of-00004.safetensors");
  std::vector<size_t> counts;
  for (const Shard& shard : shards) counts.push_back(shard.count);
  EXPECT_THAT(counts, ElementsAre(2, 1, 1, 1));
  EXPECT_EQ(shards[2].first, 3u);
}

TEST(Shards, NothingIsOneShard) { EXPECT_EQ(plan_shards({}, 100, "x").size(), 1u); }

class ModelFilesTest : public ::testing::Test {
 protected:
  void write(int64_t shard_bytes) {
    write_model_files(path_, std::vector<TensorView>{view("a", 0, 2), view("b", 2, 1), view("c", 3, 1)}, DType::f32,
                      shard_bytes);
  }

  TensorView view(const char* name, size_t first, size_t count) const {
    return {name, DType::f32, {static_cast<int64_t>(count)}, std::as_bytes(std::span(values_).subspan(first, count))};
  }

  std::string open_error() {
    return user_error([&] { open_model_files(path_); });
  }

  const std::vector<float> values_{1, 2, 3, 4};
  TemporaryFolder folder_;
  const std::filesystem::path& path_ = folder_.path();
};

TEST_F(ModelFilesTest, OneFileNeedsNoIndex) {
  write(1 << 20);
  EXPECT_THAT(list_directory(path_), ElementsAre("model.safetensors"));
  EXPECT_EQ(open_model_files(path_).at(0).tensors().size(), 3u);
}

TEST_F(ModelFilesTest, SeveralFilesAndTheirIndex) {
  write(8);
  EXPECT_THAT(list_directory(path_), ElementsAre("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors",
                                                 "model.safetensors.index.json"));
  const auto files = open_model_files(path_);
  ASSERT_EQ(files.size(), 2u);
  EXPECT_THAT(to_float(*files[0].find("a")), ElementsAre(1, 2));
  EXPECT_THAT(to_float(*files[1].find("c")), ElementsAre(4));
}

TEST_F(ModelFilesTest, MissingShard) {
  write(8);
  std::filesystem::remove(path_ / "model-00002-of-00002.safetensors");
  EXPECT_THAT(open_error(), AllOf(HasSubstr("model-00002-of-00002.safetensors"), HasSubstr("missing")));
}

TEST_F(ModelFilesTest, IndexThatDisagreesWithTheFiles) {
  write(8);
  const auto index = path_ / "model.safetensors.index.json";
  const auto check = [&](const std::string& text, const char* expected) {
    write_file_durably(index, text);
    EXPECT_THAT(open_error(), HasSubstr(expected)) << text;
  };
  check("{", "not JSON");
  check("{}", "weight_map");
  check(R"({"weight_map": {}})", "weight_map");
  for (const char* file : {"../model-00001-of-00002.safetensors", "/etc/hostname", "..", "", "a\\u0000"}) {
    check(concat(R"({"weight_map": {"a": ")", file, R"("}})"), "expected the name of a file beside");
  }
  check(R"({"weight_map": {"a": )" + std::string(1000000, '[') + std::string(1000000, ']') + "}}", "too deeply");
  check(R"({"weight_map": {"a": 3}})", "expected the name of a file beside");
  check(R"({"weight_map": {"a": ")" + std::string(5000, 'x') + "\"}}", "is incomplete");
  check(R"({"weight_map": {"d": "model-00001-of-00002.safetensors"}})", "it is in none of the files");
  check(R"({"weight_map": {"a": "model-00002-of-00002.safetensors"}})", "none of the files");
  check(R"({"weight_map": {"a": "model-00002-of-00002.safetensors", "b": "model-00001-of-00002.safetensors"}})",
        "tensor a is in model-00002-of-00002.safetensors, but it is in model-00001-of-00002.safetensors");
}

TEST_F(ModelFilesTest, TensorInTwoFiles) {
  write(8);
  write_safetensors(path_ / "model-00002-of-00002.safetensors", std::vector<TensorView>{view("a", 0, 2)}, {});
  EXPECT_THAT(open_error(), HasSubstr("tensor a is both in"));
}

TEST_F(ModelFilesTest, FolderWithoutSafetensors) {
  EXPECT_THAT(open_error(), HasSubstr("neither model.safetensors nor"));
  write_file_durably(path_ / "pytorch_model.bin", "x");
  EXPECT_THAT(open_error(), AllOf(HasSubstr("pytorch_model.bin"), HasSubstr("save it again")));
}

}  // namespace
}  // namespace copus
