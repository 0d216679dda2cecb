#include "copus/report/progress/progress.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "copus/base/error.h"

namespace copus {
namespace {

using testing::HasSubstr;
using testing::Not;

StepRecord record_of(int64_t step) {
  StepRecord record;
  record.step = step;
  record.loss = 2;
  record.tokens_per_second = 1000;
  return record;
}

std::string read_available(int descriptor) {
  fcntl(descriptor, F_SETFL, O_NONBLOCK);
  std::string text;
  std::array<char, 4096> piece{};
  for (ssize_t count; (count = read(descriptor, piece.data(), piece.size())) > 0;) {
    text.append(piece.data(), static_cast<size_t>(count));
  }
  return text;
}

class Pipe {
 public:
  Pipe() { EXPECT_EQ(pipe(ends_.data()), 0); }
  ~Pipe() {
    close(ends_[0]);
    close(ends_[1]);
  }
  int input() const { return ends_[1]; }
  std::string output() const { return read_available(ends_[0]); }

 private:
  std::array<int, 2> ends_{};
};

class PseudoTerminal {
 public:
  explicit PseudoTerminal(int columns) : master_(posix_openpt(O_RDWR | O_NOCTTY)) {
    EXPECT_EQ(grantpt(master_), 0);
    EXPECT_EQ(unlockpt(master_), 0);
    slave_ = open(ptsname(master_), O_RDWR | O_NOCTTY);
    termios settings{};
    tcgetattr(slave_, &settings);
    cfmakeraw(&settings);
    tcsetattr(slave_, TCSANOW, &settings);
    resize(columns);
  }
  ~PseudoTerminal() {
    close(slave_);
    close(master_);
  }
  void resize(int columns) const {
    winsize size{};
    size.ws_row = 24;
    size.ws_col = static_cast<unsigned short>(columns);
    ioctl(slave_, TIOCSWINSZ, &size);
  }
  int input() const { return slave_; }
  std::string output() const { return read_available(master_); }

 private:
  int master_;
  int slave_ = -1;
};

TEST(PlainProgress, PrintsLinesAtTheIntervalAndNoEscapeCodes) {
  const Pipe pipe;
  {
    Progress progress(pipe.input(), false, 10);
    progress.note("starting");
    for (int64_t step = 1; step <= 25; ++step) progress.step(record_of(step), static_cast<double>(step) / 25, 3, 25);
    progress.finish();
  }
  const std::string output = pipe.output();
  EXPECT_EQ(std::count(output.begin(), output.end(), '\n'), 4) << output;
  EXPECT_THAT(output, testing::StartsWith("starting\nstep 10/25"));
  EXPECT_THAT(output, HasSubstr("\nstep 20/25"));
  EXPECT_THAT(output, HasSubstr("\nstep 25/25"));
  EXPECT_THAT(output, Not(HasSubstr("\x1b")));
  EXPECT_THAT(output, Not(HasSubstr("\r")));
}

TEST(PlainProgress, ShowsEveryEvaluationOnce) {
  const Pipe pipe;
  Progress progress(pipe.input(), false, 100);
  for (int64_t step = 1; step <= 100; ++step) {
    StepRecord record = record_of(step);
    if (step == 7) record.held_out_loss = 1.5;
    progress.step(record, 0, -1);
  }
  const std::string output = pipe.output();
  EXPECT_THAT(output, testing::StartsWith("step 7 "));
  EXPECT_EQ(output.find("held-out 1.500"), output.rfind("held-out"));
  EXPECT_THAT(output, HasSubstr("\nstep 100 "));
}

TEST(PlainProgress, ShowsTheNoiseScaleOfTheLatestStep) {
  const Pipe pipe;
  Progress progress(pipe.input(), false, 1);
  StepRecord record = record_of(1);
  progress.step(record, 0, -1);
  record.noise_scale_low = 20;
  progress.step(record, 0, -1);
  record.noise_scale = 30;
  record.noise_scale_high = 50;
  record.critical_batch = 60;
  record.statistical_efficiency = 0.75;
  progress.step(record, 0, -1);
  const std::string output = pipe.output();
  const size_t first_line = output.find('\n');
  EXPECT_THAT(output.substr(0, first_line), Not(HasSubstr("noise")));
  EXPECT_THAT(output, HasSubstr("  noise scale >20  "));
  EXPECT_THAT(output, HasSubstr("  noise scale 30 (20-50)  B_c 60  SE 75%  "));
}

TEST(PlainProgress, SkippedStepsDoNotShowAsLoss) {
  const Pipe pipe;
  Progress progress(pipe.input(), false, 1);
  StepRecord skipped = record_of(1);
  skipped.loss = std::numeric_limits<double>::quiet_NaN();
  progress.step(skipped, 0, -1);
  progress.step(record_of(2), 0, -1);
  skipped.step = 3;
  progress.step(skipped, 0, -1);
  const std::string output = pipe.output();
  EXPECT_THAT(output, HasSubstr("step 1    0%  loss -"));
  EXPECT_THAT(output, HasSubstr("step 3    0%  loss 2.000"));
}

TEST(LiveProgress, FitsTheTerminal) {
  for (const int columns : {20, 40, 80, 200}) {
    const PseudoTerminal terminal(columns);
    Progress progress(terminal.input(), true, 10);
    progress.step(record_of(123), 0.123, 100, 1000);
    const std::string output = terminal.output();
    ASSERT_THAT(output, testing::StartsWith("\r"));
    ASSERT_THAT(output, testing::EndsWith("\x1b[J\r"));
    const std::string shown = output.substr(1, output.size() - 5);
    EXPECT_LT(static_cast<int>(shown.size()), columns);
    EXPECT_THAT(shown, HasSubstr("step 123/1000"));
    EXPECT_THAT(shown, Not(HasSubstr("\n")));
  }
}

TEST(LiveProgress, RewritesTheLineTenTimesASecondAtMost) {
  const PseudoTerminal terminal(40);
  const auto start = std::chrono::steady_clock::now();
  Progress progress(terminal.input(), true, 1);
  for (int64_t step = 1; step <= 1000; ++step) progress.step(record_of(step), 0, -1);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  const std::string output = terminal.output();
  EXPECT_LE(static_cast<double>(std::count(output.begin(), output.end(), '\r')), 2 * (1 + 10 * seconds));
}

TEST(LiveProgress, FinishShowsTheLastStepAndEndsTheLine) {
  const PseudoTerminal terminal(60);
  {
    Progress progress(terminal.input(), true, 1);
    for (int64_t step = 1; step <= 50; ++step) progress.step(record_of(step), 0, -1);
    progress.finish();
    EXPECT_THAT(terminal.output(), testing::ContainsRegex("step 50 [^\r]*\x1b\\[J\r\n$"));
  }
  EXPECT_EQ(terminal.output(), "") << "finishing twice shows nothing new";
}

TEST(LiveProgress, NotesStandAboveTheLiveLine) {
  const PseudoTerminal terminal(60);
  Progress progress(terminal.input(), true, 1);
  progress.note("before");
  EXPECT_EQ(terminal.output(), "before\n");
  progress.step(record_of(1), 0, -1);
  terminal.output();
  progress.note("checkpoint written");
  const std::string output = terminal.output();
  EXPECT_THAT(output, testing::StartsWith("\r\x1b[Jcheckpoint written\n\r  0%  step 1 "));
  EXPECT_THAT(output, testing::EndsWith("\x1b[J\r"));
}

// A terminal's screen that, when it is resized, either rewraps or truncates its lines. The cursor is on the last line.
class Screen {
 public:
  Screen(size_t columns, bool breaks_lines) : columns_(columns), breaks_lines_(breaks_lines) {}

  void resize(size_t columns) {
    columns_ = columns;
    if (breaks_lines_) return;
    for (std::string& line : lines_) line.resize(std::min(line.size(), columns));
    at_ = std::min(at_, columns - 1);
  }

  void write(std::string_view text) {
    for (; !text.empty(); text.remove_prefix(1)) {
      if (text.starts_with("\x1b[J")) {
        lines_.back().resize(at_);
        text.remove_prefix(2);
      } else if (text.front() == '\r') {
        at_ -= at_ % columns_;
      } else if (text.front() == '\n') {
        lines_.emplace_back();
        at_ = 0;
      } else {
        lines_.back().resize(std::max(lines_.back().size(), at_ + 1), ' ');
        lines_.back()[at_++] = text.front();
      }
    }
  }

  std::vector<std::string> rows() const {
    std::vector<std::string> rows;
    for (const std::string& line : lines_) {
      for (size_t begin = 0; begin == 0 || begin < line.size(); begin += columns_) {
        rows.push_back(line.substr(begin, columns_));
      }
    }
    return rows;
  }

 private:
  size_t columns_;
  bool breaks_lines_;
  std::vector<std::string> lines_ = {""};
  size_t at_ = 0;
};

TEST(LiveProgress, SurvivesATerminalThatIsMadeNarrower) {
  for (const bool breaks_lines : {true, false}) {
    PseudoTerminal terminal(120);
    Screen screen(120, breaks_lines);
    Progress progress(terminal.input(), true, 1);
    progress.note("a note");
    int64_t step = 0;
    for (const int columns : {120, 90, 61, 33, 100}) {
      terminal.resize(columns);
      screen.resize(static_cast<size_t>(columns));
      StepRecord record = record_of(++step);
      record.held_out_loss = 1.5;
      progress.step(record, 0.5, 100);
      progress.note("another");  // draws at once
      screen.write(terminal.output());
      const std::vector<std::string> rows = screen.rows();
      ASSERT_EQ(rows.size(), static_cast<size_t>(2 + step)) << columns << ", " << rows.back();
      EXPECT_EQ(rows[0], "a note");
      EXPECT_EQ(rows[static_cast<size_t>(step)], "another");
      EXPECT_THAT(rows.back(), HasSubstr(concat("step ", step)));
    }
    progress.finish();
    screen.write(terminal.output());
    EXPECT_EQ(screen.rows().back(), "") << "the cursor is below";
    EXPECT_EQ(screen.rows().size(), static_cast<size_t>(3 + step));
  }
}

TEST(SmoothedValue, StartsAtTheFirstValue) {
  SmoothedValue smoothed(20);
  EXPECT_EQ(smoothed.value(), std::nullopt);
  smoothed.add(5.5);
  EXPECT_DOUBLE_EQ(*smoothed.value(), 5.5);
}

TEST(SmoothedValue, ForgetsOldValues) {
  SmoothedValue smoothed(3);  // each value weighs half as much as the next one
  for (const double value : {4.0, 2.0, 1.0}) smoothed.add(value);
  EXPECT_DOUBLE_EQ(*smoothed.value(), (4.0 / 4 + 2.0 / 2 + 1.0) / (1.0 / 4 + 1.0 / 2 + 1));
}

TEST(SmoothedValue, WindowOfOneIsTheLastValue) {
  SmoothedValue smoothed(1);
  for (const double value : {4.0, 2.0, 1.0}) smoothed.add(value);
  EXPECT_EQ(smoothed.value(), 1.0);
}

TEST(SmoothedValue, LeavesOutSkippedSteps) {
  SmoothedValue smoothed(20);
  smoothed.add(std::numeric_limits<double>::quiet_NaN());
  EXPECT_EQ(smoothed.value(), std::nullopt);
  smoothed.add(2);
  smoothed.add(std::numeric_limits<double>::infinity());
  EXPECT_DOUBLE_EQ(*smoothed.value(), 2);
}

}  // namespace
}  // namespace copus
