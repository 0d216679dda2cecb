#include "copus/checkpoint/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <random>

#include "copus/base/testing/test_support.h"
#include "copus/checkpoint/testing/test_model.h"

namespace copus {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class SafetensorsTest : public ::testing::Test {
 protected:
  // Writes a file with this header and `data_bytes` zeros, as no real program would. `claimed`, if set, replaces the
  // true length of the header.
  std::filesystem::path write_raw(const std::string& header, size_t data_bytes, std::optional<uint64_t> claimed = {}) {
    const uint64_t length = claimed.value_or(header.size());
    std::ofstream file(path_, std::ios::binary);
    file.write(reinterpret_cast<const char*>(&length), sizeof length);
    file << header << std::string(data_bytes, '\0');
    return path_;
  }

  std::string error_of(const std::string& header, size_t data_bytes, std::optional<uint64_t> claimed = {}) {
    write_raw(header, data_bytes, claimed);
    return user_error([&] { SafetensorsFile{path_}; });
  }

  TemporaryFolder folder_;
  std::filesystem::path path_ = folder_.path() / "x.safetensors";
};

TEST_F(SafetensorsTest, ReadsWhatItWrote) {
  const std::vector<float> matrix{1, 2, 3, 4, 5, 6};
  const std::vector<int64_t> scalar{-7};
  const std::vector<uint16_t> half{0x3c00, 0xbc00};
  const std::vector<TensorView> tensors{{"b.weight", DType::f32, {2, 3}, bytes_of(matrix)},
                                        {"none", DType::bf16, {0, 4}, {}},
                                        {"step", DType::i64, {}, bytes_of(scalar)},
                                        {"a \"quoted\" name", DType::f16, {2}, bytes_of(half)}};
  const FileDigest digest = write_safetensors(path_, tensors, {{"format", "pt"}});
  const SafetensorsFile file(path_);
  EXPECT_EQ(digest, (FileDigest{std::filesystem::file_size(path_), hash_hex(MappedFile(path_.string()).bytes())}));
  EXPECT_EQ(file.metadata(), (std::map<std::string, std::string>{{"format", "pt"}}));
  ASSERT_EQ(file.tensors().size(), tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    const TensorView* found = file.find(tensors[i].name);
    ASSERT_NE(found, nullptr) << tensors[i].name;
    EXPECT_EQ(found, &file.tensors()[i]);
    EXPECT_EQ(found->dtype, tensors[i].dtype);
    EXPECT_EQ(found->shape, tensors[i].shape);
    EXPECT_TRUE(std::ranges::equal(found->bytes, tensors[i].bytes));
  }
  EXPECT_EQ(file.find("c"), nullptr);
  EXPECT_THAT(to_float(*file.find("b.weight")), ElementsAre(1, 2, 3, 4, 5, 6));
  EXPECT_THAT(to_float(*file.find("a \"quoted\" name")), ElementsAre(1, -1));
  EXPECT_THAT(user_error([&] { to_float(*file.find("step")); }), AllOf(HasSubstr("step"), HasSubstr("int64")));
}

TEST_F(SafetensorsTest, ViewsSurviveAMove) {
  const std::vector<float> values{1, 2};
  write_safetensors(path_, std::vector<TensorView>{{"a", DType::f32, {2}, bytes_of(values)}}, {});
  SafetensorsFile file(path_);
  const TensorView view = *file.find("a");
  const SafetensorsFile moved = std::move(file);
  EXPECT_THAT(to_float(view), ElementsAre(1, 2));
  EXPECT_THAT(to_float(*moved.find("a")), ElementsAre(1, 2));
}

TEST_F(SafetensorsTest, AFileOfNoTensorsIsValid) {
  write_safetensors(path_, {}, {});
  EXPECT_TRUE(SafetensorsFile(path_).tensors().empty());
}

TEST_F(SafetensorsTest, WriterRefusesInconsistentTensors) {
  const std::vector<float> values{1, 2};
  const TensorView good{"a", DType::f32, {2}, bytes_of(values)};
  TensorView bad = good;
  bad.shape = {3};
  EXPECT_THROW(write_safetensors(path_, std::vector{bad}, {}), InternalError);
  EXPECT_THROW(write_safetensors(path_, std::vector{good, good}, {}), InternalError);
  EXPECT_TRUE(list_directory(folder_.path()).empty());
}

TEST_F(SafetensorsTest, MissingFile) {
  EXPECT_THAT(user_error([&] { SafetensorsFile{path_}; }), HasSubstr("x.safetensors"));
}

TEST_F(SafetensorsTest, TooShortForALength) {
  std::ofstream(path_) << "abc";
  EXPECT_THAT(user_error([&] { SafetensorsFile{path_}; }), AllOf(HasSubstr("x.safetensors"), HasSubstr("3 bytes")));
}

TEST_F(SafetensorsTest, HeaderLongerThanTheFile) {
  EXPECT_THAT(error_of("{}", 0, 1000), AllOf(HasSubstr("truncated"), HasSubstr("header has 1000 bytes")));
}

TEST_F(SafetensorsTest, AbsurdHeaderLength) {
  EXPECT_THAT(error_of("{}", 0, ~uint64_t{0}), AllOf(HasSubstr("18446744073709551615"), HasSubstr("limit")));
  EXPECT_THAT(error_of("{}", 0, 100'000'001), HasSubstr("limit"));
}

TEST_F(SafetensorsTest, HeaderThatIsNotJson) {
  EXPECT_THAT(error_of("{\"a\": ", 0), HasSubstr("header is not JSON"));
  EXPECT_THAT(error_of("\x80\x02}q", 0), HasSubstr("header is not JSON"));
  EXPECT_THAT(error_of("", 0), HasSubstr("header is not JSON"));
  EXPECT_THAT(error_of("[1, 2]", 0), HasSubstr("not a JSON object"));
}

TEST_F(SafetensorsTest, FileShorterThanItsTensors) {
  EXPECT_THAT(error_of(R"({"w": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}})", 12),
              AllOf(HasSubstr("tensor w"), HasSubstr("ends at byte 16"), HasSubstr("12 bytes")));
}

TEST_F(SafetensorsTest, OffsetsOutOfRange) {
  EXPECT_THAT(error_of(R"({"w": {"dtype": "F32", "shape": [1], "data_offsets": [18446744073709551612, 0]}})", 4),
              HasSubstr("before it begins"));
  EXPECT_THAT(error_of(R"({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 18446744073709551615]}})", 4),
              HasSubstr("out of range"));
  EXPECT_THAT(error_of(R"({"w": {"dtype": "F32", "shape": [1], "data_offsets": [-4, 0]}})", 4),
              HasSubstr("expected [begin, end]"));
  EXPECT_THAT(error_of(R"({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4.5]}})", 4),
              HasSubstr("expected [begin, end]"));
}

TEST_F(SafetensorsTest, OverlappingTensors) {
  EXPECT_THAT(error_of(R"({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]},
                           "b": {"dtype": "F32", "shape": [2], "data_offsets": [4, 12]}})",
                       12),
              HasSubstr("tensors a and b overlap"));
}

TEST_F(SafetensorsTest, Holes) {
  const std::string header = R"({"a": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]},
                                 "b": {"dtype": "U8", "shape": [4], "data_offsets": [8, 12]}})";
  EXPECT_THAT(error_of(header, 12), AllOf(HasSubstr("bytes 4 to 8"), HasSubstr("hole")));
  EXPECT_THAT(error_of(R"({"a": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}})", 6),
              HasSubstr("last 2 bytes belong to no tensor"));
}

TEST_F(SafetensorsTest, LengthThatDisagreesWithTheShape) {
  EXPECT_THAT(error_of(R"({"w": {"dtype": "F16", "shape": [2, 3], "data_offsets": [0, 10]}})", 10),
              AllOf(HasSubstr("tensor w has 10 bytes"), HasSubstr("F16 [2, 3] needs 12")));
}

TEST_F(SafetensorsTest, OverflowInTheShape) {
  EXPECT_THAT(error_of(R"({"w": {"dtype": "F32", "shape": [4294967296, 4294967296], "data_offsets": [0, 0]}})", 0),
              AllOf(HasSubstr("tensor w"), HasSubstr("too large")));
  for (const char* shape : {"[4611686018427387904, 2, 0]", "[0, 4611686018427387904, 2]"}) {
    EXPECT_THAT(error_of(concat(R"({"w": {"dtype": "U8", "data_offsets": [0, 0], "shape": )", shape, "}}"), 0),
                HasSubstr("too large"));
  }
  EXPECT_THAT(error_of(R"({"w": {"dtype": "U8", "shape": [9223372036854775808], "data_offsets": [0, 0]}})", 0),
              HasSubstr("expected a list of sizes"));
  EXPECT_THAT(error_of(R"({"w": {"dtype": "U8", "shape": [-1], "data_offsets": [0, 0]}})", 0),
              HasSubstr("expected a list of sizes"));
}

TEST_F(SafetensorsTest, UnknownDType) {
  EXPECT_THAT(error_of(R"({"w": {"dtype": "F8_E4M3", "shape": [4], "data_offsets": [0, 4]}})", 4),
              AllOf(HasSubstr("tensor w"), HasSubstr("unknown dtype \"F8_E4M3\"")));
}

// With quadratic time this would exceed the time limit of a test.
TEST_F(SafetensorsTest, ManyTensors) {
  constexpr size_t count = 100'000;
  const std::vector<uint8_t> bytes(count, 7);
  std::vector<TensorView> tensors;
  for (size_t i = 0; i < count; ++i) {
    tensors.push_back({concat("layers.", i, ".weight"), DType::u8, {1}, bytes_of(bytes).subspan(i, 1)});
  }
  write_safetensors(path_, tensors, {});
  const SafetensorsFile file(path_);
  EXPECT_EQ(file.tensors().size(), count);
  EXPECT_NE(file.find("layers.99999.weight"), nullptr);
}

TEST_F(SafetensorsTest, DuplicateNames) {
  EXPECT_THAT(error_of(R"({"w": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]},
                           "w": {"dtype": "U8", "shape": [4], "data_offsets": [4, 8]}})",
                       8),
              AllOf(HasSubstr("\"w\""), HasSubstr("twice")));
  EXPECT_THAT(error_of(R"({"w": {"dtype": "U8", "dtype": "I8", "shape": [4], "data_offsets": [0, 4]}})", 4),
              HasSubstr("\"dtype\" appears twice"));
}

TEST_F(SafetensorsTest, DeepNesting) {
  const std::string deep = std::string(1000000, '[') + std::string(1000000, ']');
  EXPECT_THAT(error_of(R"({"w": {"dtype": )" + deep + R"(, "shape": [4], "data_offsets": [0, 4]}})", 4),
              HasSubstr("nested too deeply"));
}

TEST_F(SafetensorsTest, IncompleteEntries) {
  EXPECT_THAT(error_of(R"({"w": {"dtype": "U8", "shape": [4]}})", 4), HasSubstr("needs dtype, shape and data_offsets"));
  EXPECT_THAT(error_of(R"({"w": 3})", 4), HasSubstr("needs dtype, shape and data_offsets"));
  EXPECT_THAT(error_of(R"({"__metadata__": {"format": 1}})", 0), HasSubstr("__metadata__"));
}

// Random bytes must cause a UserError or leave the file valid, but never crash or cause another exception.
TEST_F(SafetensorsTest, RandomDamageIsReportedOrHarmless) {
  const std::vector<float> values(16, 1.0f);
  write_safetensors(path_,
                    std::vector<TensorView>{{"a", DType::f32, {4, 4}, bytes_of(values)},
                                            {"b", DType::u8, {2}, bytes_of(values).first(2)}},
                    {{"format", "pt"}});
  const std::string original = read_text_file(path_);
  std::mt19937 generator(11);
  for (int i = 0; i < 2000; ++i) {
    std::string damaged = original;
    for (int flips = 0; flips < 1 + i % 3; ++flips) {
      damaged[generator() % damaged.size()] = static_cast<char>(generator());
    }
    if (i % 5 == 0) damaged.resize(generator() % damaged.size());
    std::filesystem::remove(path_);  // some file systems sync a file that is truncated and rewritten
    std::ofstream(path_, std::ios::binary) << damaged;
    try {
      const SafetensorsFile file(path_);
    } catch (const UserError& error) {
      ASSERT_THAT(error.what(), HasSubstr("x.safetensors"));
    }
  }
}

}  // namespace
}  // namespace copus
