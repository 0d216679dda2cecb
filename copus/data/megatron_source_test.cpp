#include "copus/data/megatron_source.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "copus/data/testing/test_corpus.h"

namespace copus {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

using Documents = std::vector<std::vector<int64_t>>;

class MegatronSourceTest : public CorpusTest {
 protected:
  // Applies `damage` to the index of three small uint16 documents, and returns the message with which opening fails.
  template <class Damage>
  std::string message_after(const Damage& damage) {
    write_pair<uint16_t>("a", documents_, 8);
    MegatronIndex index = index_of(documents_, 2);
    damage(index);
    write_index("a", index);
    return user_error([&] { MegatronSource(path("a"), 100); });
  }

  const Documents documents_ = {{1, 2, 3}, {4, 5}, {6, 7, 8, 9}};
};

std::vector<int64_t> read_all(const TokenSource& source) {
  std::vector<int64_t> tokens(static_cast<std::size_t>(source.size()));
  source.read(0, source.size(), tokens.data());
  return tokens;
}

TEST_F(MegatronSourceTest, ReadsEveryIntegerType) {
  const Documents documents = {{1, 2, 3}, {100, 127}};
  const std::vector<int64_t> expected = {1, 2, 3, 100, 127};
  EXPECT_EQ(read_all(MegatronSource(write_pair<uint8_t>("a", documents, 1), 128)), expected);
  EXPECT_EQ(read_all(MegatronSource(write_pair<int8_t>("a", documents, 2), 128)), expected);
  EXPECT_EQ(read_all(MegatronSource(write_pair<int16_t>("a", documents, 3), 128)), expected);
  EXPECT_EQ(read_all(MegatronSource(write_pair<int32_t>("a", documents, 4), 128)), expected);
  EXPECT_EQ(read_all(MegatronSource(write_pair<int64_t>("a", documents, 5), 128)), expected);
  EXPECT_EQ(read_all(MegatronSource(write_pair<uint16_t>("a", documents, 8), 128)), expected);
}

TEST_F(MegatronSourceTest, LargeUnsignedIdsStayPositive) {
  const MegatronSource source(write_pair<uint16_t>("a", {{65000, 7}}, 8), 65001);
  int64_t id = 0;
  source.read(0, 1, &id);
  EXPECT_EQ(id, 65000);
}

TEST_F(MegatronSourceTest, DocumentsAreSequencesOfTheIndex) {
  write_pair<uint16_t>("a", documents_, 8);
  MegatronIndex index = index_of(documents_, 2);
  index.documents = {0, 2, 2, 3};  // the first two sequences are one document, then an empty one
  write_index("a", index);
  const MegatronSource source(path("a"), 100);
  ASSERT_EQ(source.num_documents(), 3);
  EXPECT_EQ(source.document_end(0), 5);
  EXPECT_EQ(source.document_end(1), 5);
  EXPECT_EQ(source.document_end(2), 9);
  EXPECT_EQ(source.document_at(4), 0);
  EXPECT_EQ(source.document_at(5), 2);
}

TEST_F(MegatronSourceTest, RefusesATruncatedIndexOfAnyLength) {
  write_pair<uint16_t>("a", documents_, 8);
  const auto whole = std::filesystem::file_size(path("a.idx"));
  for (std::uintmax_t size = 0; size < whole; ++size) {
    write_pair<uint16_t>("a", documents_, 8);
    std::filesystem::resize_file(path("a.idx"), size);
    EXPECT_THAT(user_error([&] { MegatronSource(path("a"), 100); }),
                AllOf(HasSubstr("a.idx: is truncated"), HasSubstr(concat(size, " bytes"))));
  }
}

TEST_F(MegatronSourceTest, RefusesADamagedHeader) {
  EXPECT_THAT(message_after([](auto& index) { index.magic = "SOMETHING"; }), HasSubstr("magic MMIDIDX"));
  EXPECT_THAT(message_after([](auto& index) { index.version = 2; }), HasSubstr("version 2"));
  EXPECT_THAT(message_after([](auto& index) { index.dtype = 6; }), HasSubstr("floating point"));
  EXPECT_THAT(message_after([](auto& index) { index.dtype = 99; }), HasSubstr("dtype code 99"));
  EXPECT_THAT(message_after([](auto& index) { index.num_sequences = ~uint64_t{0}; }), HasSubstr("truncated"));
  EXPECT_THAT(message_after([](auto& index) { index.num_sequences = uint64_t{1} << 62; }), HasSubstr("truncated"));
  EXPECT_THAT(message_after([](auto& index) { index.documents.push_back(3); }), HasSubstr("8 bytes more"));
  EXPECT_THAT(message_after([](auto& index) {
                index.num_sequences = index.document_list_length = 0;
                index.lengths = {};
                index.pointers = index.documents = {};
              }),
              HasSubstr("is empty"));
}

TEST_F(MegatronSourceTest, RefusesSequencesThatDisagreeWithTheTokens) {
  EXPECT_THAT(message_after([](auto& index) { index.lengths[2] = 5; }),
              AllOf(HasSubstr("a.bin: disagrees with its .idx"), HasSubstr("18 bytes"), HasSubstr("need 20")));
  EXPECT_THAT(message_after([](auto& index) { index.lengths[1] = -1; }), HasSubstr("length -1"));
  EXPECT_THAT(message_after([](auto& index) { index.pointers[1] = 1000; }),
              HasSubstr("pointer of sequence 1 is out of"));
  EXPECT_THAT(message_after([](auto& index) { index.pointers[0] = -2; }), HasSubstr("out of range: byte -2"));
  EXPECT_THAT(message_after([](auto& index) { index.pointers[1] = 4; }),
              AllOf(HasSubstr("sequence 1 starts at byte 4"), HasSubstr("expected byte 6")));
}

TEST_F(MegatronSourceTest, RefusesTokensThatWereCut) {
  write_pair<uint16_t>("a", documents_, 8);
  std::filesystem::resize_file(path("a.bin"), 16);
  EXPECT_THAT(user_error([&] { MegatronSource(path("a"), 100); }), HasSubstr("a.bin: disagrees"));
  std::filesystem::resize_file(path("a.bin"), 15);
  EXPECT_THAT(user_error([&] { MegatronSource(path("a"), 100); }), HasSubstr("not a multiple of 2"));
  std::filesystem::resize_file(path("a.bin"), 0);
  EXPECT_THAT(user_error([&] { MegatronSource(path("a"), 100); }), HasSubstr("is empty"));
}

TEST_F(MegatronSourceTest, RefusesDocumentsThatAreNotMonotonic) {
  EXPECT_THAT(message_after([](auto& index) { index.documents = {0, 2, 1, 3}; }),
              AllOf(HasSubstr("not monotonic"), HasSubstr("1 follows 2 at entry 2")));
  EXPECT_THAT(message_after([](auto& index) { index.documents[0] = 1; }), HasSubstr("starts with 1"));
  EXPECT_THAT(message_after([](auto& index) { index.documents[3] = 7; }), HasSubstr("ends with 7"));
}

TEST_F(MegatronSourceTest, RefusesIdsOutsideTheVocabularyWhenTheyAreRead) {
  const MegatronSource source(write_pair<uint16_t>("a", {{1, 2, 99, 100}}, 8), 100);
  std::vector<int64_t> tokens(4);
  source.read(0, 3, tokens.data());
  EXPECT_THAT(user_error([&] { source.read(1, 3, tokens.data()); }),
              AllOf(HasSubstr("a.bin"), HasSubstr("position 3"), HasSubstr("id 100"), HasSubstr("vocabulary of 100")));
  const MegatronSource negative(write_pair<int32_t>("b", {{1, -5}}, 4), 100);
  EXPECT_THAT(user_error([&] { negative.read(0, 2, tokens.data()); }), HasSubstr("id -5"));
}

TEST_F(MegatronSourceTest, OpensByPrefix) {
  write_pair<uint16_t>("a", documents_, 8);
  EXPECT_FALSE(open_token_source(path("a"), "", 100)->is_text());
  EXPECT_THAT(user_error([&] { open_token_source(path("a.idx"), "", 100); }), HasSubstr("give the prefix"));
  EXPECT_THAT(user_error([&] { open_token_source(path("a.bin"), "", 100); }), HasSubstr("give the prefix"));
  std::filesystem::remove(path("a.idx"));
  EXPECT_THAT(user_error([&] { open_token_source(path("a"), "", 100); }),
              AllOf(HasSubstr("a.idx"), HasSubstr("is missing")));
}

}  // namespace
}  // namespace copus
