#include "copus/data/text_source.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "copus/base/text/utf8.h"
#include "copus/data/testing/test_corpus.h"

namespace copus {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

using TextSourceTest = CorpusTest;

std::string read_text(const TokenSource& source) {
  std::vector<int64_t> tokens(static_cast<std::size_t>(source.size()));
  source.read(0, source.size(), tokens.data());
  return {tokens.begin(), tokens.end()};
}

TEST(Utf8, AcceptsWellFormedText) {
  for (const char* text : {"", "plain", "na\xC3\xAFve", "\xE2\x82\xAC", "\xF0\x9F\x98\x80", "\xED\x9F\xBF",
                           "\xEE\x80\x80", "\xF4\x8F\xBF\xBF", "\xEF\xBB\xBF with a mark"})
    EXPECT_EQ(find_invalid_utf8(text), std::nullopt) << text;
  EXPECT_EQ(find_invalid_utf8(std::string_view("a\0b", 3)), std::nullopt);
}

TEST(Utf8, FindsTheFirstBadByte) {
  for (const char* bad : {"\x80", "\xC0\x80", "\xC1\xBF", "\xC3", "\xC3(", "\xE0\x9F\xBF", "\xE2\x82", "\xED\xA0\x80",
                          "\xF0\x8F\xBF\xBF", "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\xFE", "\xFF", "\xF0\x9F\x98"}) {
    for (const std::size_t offset : {0u, 1u, 7u, 8u, 9u, 30u}) {
      EXPECT_EQ(find_invalid_utf8(std::string(offset, 'a') + bad), offset) << bad;
      EXPECT_EQ(find_invalid_utf8(std::string(offset, 'a') + bad + "and twenty more letters"), offset) << bad;
    }
  }
}

TEST_F(TextSourceTest, AFileIsOneDocumentByDefault) {
  const TextSource source(write_text("a", "h\xC3\xA9\n\nllo"), "");
  EXPECT_EQ(read_text(source), "h\xC3\xA9\n\nllo\xFF");
  EXPECT_EQ(source.num_documents(), 1);
  EXPECT_EQ(source.document_end(0), 9);
}

TEST_F(TextSourceTest, TheSeparatorCutsDocuments) {
  const TextSource source(write_text("a", "--one--two----three--"), "--");
  EXPECT_EQ(read_text(source), "one\xFFtwo\xFFthree\xFF");
  EXPECT_EQ(source.num_documents(), 3);
  EXPECT_EQ(source.document_end(1), 8);
  EXPECT_EQ(source.document_at(0), 0);
  EXPECT_EQ(source.document_at(3), 0);
  EXPECT_EQ(source.document_at(4), 1);
  EXPECT_EQ(source.document_at(13), 2);
  EXPECT_EQ(source.document_at(14), 3);
}

TEST_F(TextSourceTest, AnyRangeIsThatPartOfTheStream) {
  std::mt19937 random(3);
  std::string text;
  for (int i = 0; i < 300; ++i) text += "abcd|"[random() % 5];
  const TextSource source(write_text("a", text), "|");
  const std::string all = read_text(source);
  for (int64_t begin = 0; begin <= source.size(); begin += 7) {
    for (int64_t end = begin; end <= source.size(); end += 3) {
      std::vector<int64_t> tokens(static_cast<std::size_t>(end - begin));
      source.read(begin, end - begin, tokens.data());
      ASSERT_EQ(std::string(tokens.begin(), tokens.end()), all.substr(static_cast<std::size_t>(begin), tokens.size()));
    }
  }
}

TEST_F(TextSourceTest, RefusesAnEmptyCorpus) {
  EXPECT_THAT(user_error([&] { TextSource(write_text("a", ""), ""); }), AllOf(HasSubstr("/a: is empty")));
  EXPECT_THAT(user_error([&] { TextSource(write_text("a", "----"), "--"); }), HasSubstr("is empty"));
}

TEST_F(TextSourceTest, RefusesWhatIsNotUtf8AndSaysWhere) {
  EXPECT_THAT(user_error([&] { TextSource(write_text("a", "one\ntwo\ncaf\xE9 au lait"), ""); }),
              AllOf(HasSubstr("not UTF-8"), HasSubstr("offset 11"), HasSubstr("line 3"), HasSubstr("0xe9"),
                    HasSubstr("iconv")));
  EXPECT_THAT(user_error([&] { TextSource(write_text("a.parquet", "PAR1\x15\xE9"), ""); }),
              AllOf(HasSubstr("is a parquet file"), HasSubstr("tools/tokenize_corpus.py")));
}

TEST_F(TextSourceTest, OpensByName) {
  write_text("a", "text");
  EXPECT_TRUE(open_token_source(path("a"), "", 256)->is_text());
  EXPECT_THAT(user_error([&] { open_token_source(path("a"), "", 255); }),
              AllOf(HasSubstr("vocab_size"), HasSubstr("at least 256"), HasSubstr("255")));
}

TEST_F(TextSourceTest, RefusesAMissingCorpusAndSaysWhatWasLookedFor) {
  EXPECT_THAT(user_error([&] { open_token_source(path("none"), "", 256); }),
              AllOf(HasSubstr("no such corpus"), HasSubstr("none.bin"), HasSubstr("none.idx")));
  EXPECT_THAT(user_error([&] { open_token_source(path("."), "", 256); }), HasSubstr("it is a folder"));
  EXPECT_THAT(user_error([&] { open_token_source(path("none.bin"), "", 256); }), HasSubstr("/none.idx, is named by "));
  EXPECT_THAT(user_error([&] { open_token_source("https://a.org/b?c", "", 256); }), HasSubstr("download it first"));
}

}  // namespace
}  // namespace copus
