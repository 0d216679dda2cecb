#include "copus/base/text/printable.h"

#include <gtest/gtest.h>

#include <string>

namespace copus {
namespace {

TEST(Printable, LeavesTextAsItIs) {
  for (const std::string text : {"", "step 3: loss 1.5", "tab\there", "Wörter, 言葉, 🐙", "C:\\x1b"}) {
    EXPECT_EQ(printable(text), text);
  }
}

TEST(Printable, EscapesWhatATerminalWouldObey) {
  EXPECT_EQ(printable("\x1b[2Ja\x07\r\b\x7f"), R"(\x1b[2Ja\x07\x0d\x08\x7f)");
  EXPECT_EQ(printable(std::string("a\0b", 3)), R"(a\x00b)");
  EXPECT_EQ(printable("\xc2\x9b"
                      "31m"),
            R"(\x9b31m)")
      << "the same as escape [, in one character";
  EXPECT_EQ(printable("\u202etxt.exe \u2066\u2028"), R"(\u202etxt.exe \u2066\u2028)");
}

TEST(Printable, EscapesBytesThatAreNoUtf8) {
  EXPECT_EQ(printable("a\xff\xc3"), R"(a\xff\xc3)");
  EXPECT_EQ(printable("\xc0\xaf\xe0\x80\xaf\xed\xa0\x80"), R"(\xc0\xaf\xe0\x80\xaf\xed\xa0\x80)")
      << "overlong, surrogate";
  EXPECT_EQ(printable("\x9b"
                      "31m"),
            R"(\x9b31m)");
}

TEST(Printable, NoLineOfANameBeginsLikeAMessage) { EXPECT_EQ(printable("two\nlines"), "two\n  lines"); }

TEST(Printable, LinesOfATextThatStandsForItselfStayAsTheyAre) {
  EXPECT_EQ(printable_lines("two\nlines\tof\r\n\x1b[31mtext"), "two\nlines\tof\\x0d\n\\x1b[31mtext");
}

}  // namespace
}  // namespace copus
