#include "copus/base/text/shell_word.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <string>

namespace copus {
namespace {

// What a shell reads from a word.
std::string read_by_shell(const std::string& word) {
  const std::string command = "printf %s " + word;
  FILE* const shell = ::popen(command.c_str(), "r");
  std::string text;
  std::array<char, 256> piece{};
  while (const size_t count = std::fread(piece.data(), 1, piece.size(), shell)) text.append(piece.data(), count);
  ::pclose(shell);
  return text;
}

TEST(ShellWord, AShellReadsTheTextBack) {
  for (const std::string text : {"runs/a",
                                 "my run",
                                 "it's",
                                 "$HOME",
                                 "`id`",
                                 "a;b",
                                 "a&b",
                                 "*",
                                 "~",
                                 "a\"b",
                                 "a\\b",
                                 "",
                                 "a\nb",
                                 "!x",
                                 "#x",
                                 "x=1",
                                 "(a)",
                                 "a|b",
                                 "<a>",
                                 "{a,b}",
                                 "\xC3\xA4",
                                 "''",
                                 "a\n%s\\n'b\t\x1b\x7f\"$x",
                                 "\n--",
                                 "-n\n-",
                                 "a\n"}) {
    EXPECT_EQ(read_by_shell(shell_word(text)), text) << shell_word(text);
  }
}

TEST(ShellWord, AWordIsOnOneLine) { EXPECT_EQ(shell_word("a\nb 1%"), "\"$(printf -- 'a\\012b 1%%')\""); }

TEST(ShellWord, PlainWordsStayAsTheyAre) {
  for (const std::string text : {"runs/a", "r-1.2_3", "/tmp/x:y,z", "a@b%c+d"}) EXPECT_EQ(shell_word(text), text);
}

}  // namespace
}  // namespace copus
