// `copus watch`: shows a run's state in the terminal, refreshed until the run has ended.
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "copus/base/error.h"
#include "copus/base/files/write_all.h"
#include "copus/base/process/terminal_size.h"
#include "copus/cli/commands.h"
#include "copus/cli/option_checks.h"
#include "copus/cli/run_directory.h"
#include "copus/report/drawn/watch_view.h"

namespace copus {

namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

// A run without a process and without an end in its log counts as dead after this time. Before, somebody may be
// restarting its ranks.
constexpr Seconds patience_with_the_dead(10);

struct WatchOptions {
  fs::path run_directory;
  bool once = false;
  std::string interval = "1s";
  std::string wait;
};

// The width to use if the output is not a terminal, from the environment as in other programs.
int columns_of_a_pipe() {
  const char* const text = std::getenv("COLUMNS");
  const std::string_view columns = text == nullptr ? "" : text;
  int value = 0;
  const auto [end, error] = std::from_chars(columns.begin(), columns.end(), value);
  return error == std::errc() && end == columns.end() && value > 0 ? value : TerminalSize().columns;
}

void print(const std::string& text) {
  if (write_all(STDOUT_FILENO, text) < text.size()) throw UserError("copus watch: the output cannot be written");
}

std::string joined(const std::vector<std::string>& lines, std::string_view line_end) {
  std::string text;
  for (const std::string& line : lines) text += concat(line, line_end);
  return text;
}

// Blocks signals, and waits for them instead. So a signal does not end the process before the terminal is restored, and
// a change of the terminal's size is noticed at once. Only the calling thread blocks the signals, so the process must
// have no other thread.
class Signals {
 public:
  Signals() {
    sigemptyset(&awaited_);
    for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGWINCH}) sigaddset(&awaited_, signal);
    sigprocmask(SIG_BLOCK, &awaited_, &before_);
  }
  ~Signals() { sigprocmask(SIG_SETMASK, &before_, nullptr); }
  Signals(const Signals&) = delete;
  Signals& operator=(const Signals&) = delete;

  // Waits for `seconds`, or less if the terminal's size changes. Returns true if the user wants to quit.
  bool wait(Seconds seconds) const {
    const auto whole = static_cast<time_t>(seconds.count());
    const timespec limit{whole, static_cast<long>((seconds.count() - static_cast<double>(whole)) * 1e9)};
    const int signal = sigtimedwait(&awaited_, nullptr, &limit);
    return signal > 0 && signal != SIGWINCH;
  }

 private:
  sigset_t awaited_{}, before_{};
};

// Shows frames. On a terminal each frame replaces the previous one on the alternate screen, without wrapped lines, and
// the last frame stays visible at the end. Elsewhere an empty line separates each frame from the previous one.
class Screen {
 public:
  explicit Screen(bool once) {
    const char* const kind = std::getenv("TERM");
    is_terminal_ = isatty(STDOUT_FILENO) == 1;
    is_drawn_over_ = is_terminal_ && !once && kind != nullptr && std::string_view(kind) != "dumb";
    if (is_drawn_over_) print("\x1b[?1049h\x1b[?7l\x1b[?25l");
  }
  ~Screen() {
    if (is_drawn_over_) write_all(STDOUT_FILENO, "\x1b[?25h\x1b[?7h\x1b[?1049l" + joined(last_, "\n"));
  }
  Screen(const Screen&) = delete;
  Screen& operator=(const Screen&) = delete;

  void show(const WatchedRun& run) {
    const TerminalSize size = terminal_size(STDOUT_FILENO);
    std::vector<std::string> lines = watch_lines(run, is_terminal_ ? size.columns : columns_of_a_pipe());
    if (!is_drawn_over_) {
      print((last_.empty() ? "" : "\n") + joined(lines, "\n"));
    } else {
      const size_t rows = std::min(lines.size(), static_cast<size_t>(std::max(size.rows - 1, 1)));
      const std::vector<std::string> visible(lines.begin(), lines.begin() + static_cast<std::ptrdiff_t>(rows));
      print(concat("\x1b[H", joined(visible, "\x1b[K\r\n"), "\x1b[J"));
    }
    last_ = std::move(lines);
  }

 private:
  bool is_terminal_ = false;
  bool is_drawn_over_ = false;
  std::vector<std::string> last_;
};

int watch(const WatchOptions& options) {
  const Seconds interval(read_duration("--interval", options.interval));
  const Seconds wait(options.wait.empty() ? 0 : read_duration("--wait", options.wait));
  const Signals signals;
  const auto begin = Clock::now();
  while (!fs::exists(options.run_directory / "config.toml")) {
    if (Clock::now() - begin >= wait) {
      throw UserError(concat("copus watch: ", why_no_run(options.run_directory, "config.toml"),
                             options.wait.empty() ? "; give the directory of a run; --wait 5m waits for it to begin"
                                                  : concat(" after ", options.wait)));
    }
    if (signals.wait(std::min(interval, wait))) return 0;
  }
  WatchedRun run = read_watched_run(options.run_directory);
  Screen screen(options.once);
  screen.show(run);
  for (auto seen_running = Clock::now(); !options.once; screen.show(run)) {
    if (run.is_running) seen_running = Clock::now();
    const bool has_ended = !run.is_running && (run.summary || Clock::now() - seen_running > patience_with_the_dead);
    if (has_ended || signals.wait(interval)) break;
    run = read_watched_run(options.run_directory);
  }
  return 0;
}

}  // namespace

void add_watch(CLI::App& program, CommandAction& action) {
  auto options = std::make_shared<WatchOptions>();
  CLI::App& command = *program.add_subcommand("watch", "Look at a run while it goes on, in the terminal");
  command.add_option("RUN_DIR", options->run_directory, "The run directory")->required();
  command.add_flag("--once", options->once, "Print how the run stands, as plain text, and end");
  command.add_option("--interval", options->interval, "Time between two looks (default: 1s)")->type_name("DURATION");
  command.add_option("--wait", options->wait, "Wait so long for the run to begin (default: not at all)")
      ->type_name("DURATION");
  command.footer(
      "Ends when the run has ended, and at Ctrl-C, which the run does not notice.\n"
      "Examples:\n"
      "  copus watch runs/r1\n"
      "  copus watch runs/r1 --wait 5m --interval 5s    the run is about to be started\n"
      "  COLUMNS=140 copus watch runs/r1 --once > r1.txt");
  command.callback([options, &action] { action = [options] { return watch(*options); }; });
}

}  // namespace copus
