#include "copus/cli/generate/utf8_stream.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>

namespace copus {
namespace {

std::string show(std::string_view bytes) {
  Utf8Stream stream;
  std::string text;
  for (const char byte : bytes) text += stream.add(static_cast<uint8_t>(byte));
  return text + stream.finish();
}

TEST(Utf8Stream, LeavesTextAsItIs) {
  const std::string text = "a\n\u00e9\u20ac\U0001F600z";
  EXPECT_EQ(show(text), text);
}

TEST(Utf8Stream, HoldsACharacterBackUntilItIsWhole) {
  Utf8Stream stream;
  EXPECT_EQ(stream.add(0xE2), "");
  EXPECT_EQ(stream.add(0x82), "");
  EXPECT_EQ(stream.add(0xAC), "\u20ac");
}

TEST(Utf8Stream, ReplacesWhatIsNotUtf8) {
  EXPECT_EQ(show("\xFF"), "\uFFFD");
  EXPECT_EQ(show("a\x80z"), "a\uFFFDz");
  EXPECT_EQ(show("\xC0\xAF"), "\uFFFD\uFFFD");                      // overlong
  EXPECT_EQ(show("\xED\xA0\x80"), "\uFFFD\uFFFD\uFFFD");            // a surrogate
  EXPECT_EQ(show("\xF4\x90\x80\x80"), "\uFFFD\uFFFD\uFFFD\uFFFD");  // beyond U+10FFFF
  EXPECT_EQ(show("\xE2\x82z"), "\uFFFDz");                          // one for an unfinished character
  EXPECT_EQ(show("\xF0\x9F\x98"), "\uFFFD");
}

}  // namespace
}  // namespace copus
