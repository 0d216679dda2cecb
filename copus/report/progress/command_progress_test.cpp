#include "copus/report/progress/command_progress.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <string>

namespace copus {
namespace {

using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

// The output of a command that finishes three of four pieces of work.
std::string shown(bool is_terminal, double first_line) {
  std::array<int, 2> ends{};
  EXPECT_EQ(pipe2(ends.data(), O_NONBLOCK), 0);
  {
    CommandProgress progress(
        "batches", 4,
        {.descriptor = ends[1], .is_terminal = is_terminal, .first_line = std::chrono::duration<double>(first_line)});
    for (int64_t done = 0; done < 4; ++done) progress.show(done);
  }
  std::array<char, 4096> text{};
  const ssize_t size = read(ends[0], text.data(), text.size());
  close(ends[0]);
  close(ends[1]);
  return {text.data(), static_cast<size_t>(std::max<ssize_t>(size, 0))};
}

TEST(CommandProgress, SaysHowManyAreDoneAndHowLongTheRestTakes) {
  EXPECT_EQ(command_progress_text("batches", 0, 32, 10), "0 of 32 batches");
  EXPECT_EQ(command_progress_text("batches", 8, 32, 10), "8 of 32 batches, 30 s left");
  EXPECT_EQ(command_progress_text("tokens", 32, 32, 10), "32 of 32 tokens, 0 s left");
}

TEST(CommandProgress, OnATerminalOneLineIsWrittenOverAndTakenAway) {
  const std::string text = shown(/*is_terminal=*/true, /*first_line=*/1000);
  EXPECT_THAT(text, StartsWith("\r\x1b[K0 of 4 batches"));
  EXPECT_THAT(text, EndsWith("\r\x1b[K"));
  EXPECT_THAT(text, Not(HasSubstr("\n")));
}

TEST(CommandProgress, ElsewhereLinesFollowOneAnother) {
  const std::string text = shown(/*is_terminal=*/false, /*first_line=*/0);
  EXPECT_THAT(text, StartsWith("copus: 0 of 4 batches\n"));
  EXPECT_THAT(text, EndsWith("\n"));
  EXPECT_THAT(text, Not(HasSubstr("\r")));
}

TEST(CommandProgress, AShortCommandStaysSilentInAPipe) { EXPECT_EQ(shown(/*is_terminal=*/false, 1000), ""); }

}  // namespace
}  // namespace copus
