// A file with one line of text for each event of a run. Each line is passed to the operating system at once, so a
// killed process loses none of its logged lines. When the run is resumed, lines after the resumed step are removed.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "copus/report/logs/line_search.h"

namespace copus {

// Steps from `first` to `last`, inclusive.
struct StepSpan {
  int64_t first = 0;
  int64_t last = 0;
  bool operator==(const StepSpan&) const = default;
};

// Describes steps for people: "step 7", "steps 3 to 5, 9". Of many spans it names the first few and counts the others.
std::string describe(const std::vector<StepSpan>& spans);

int64_t count_steps(const std::vector<StepSpan>& spans);

// Checks the order of the steps of a log's lines.
class StepOrder {
 public:
  enum class Lines { one_a_step, any_number_a_step };

  // `after`: the step of the line before the first line to be added.
  explicit StepOrder(Lines lines, int64_t after = 0) : lines_(lines), latest_(after) {}

  // Sets the step of the next line. Throws UserError if this step does not follow the previous line's step, because a
  // line is repeated or out of place.
  void add(int64_t step);

  int64_t latest() const { return latest_; }

  // The steps up to `step` that have no line.
  std::vector<StepSpan> missing_until(int64_t step) const;

 private:
  Lines lines_;
  int64_t latest_;
  std::vector<StepSpan> missing_;
};

class LineLog {
 public:
  enum class Lock { none, exclusive };

  // Returns the step of a line, which is given without its line end. `follows_unread`: the line before it was not read.
  // Throws UserError if the line is damaged.
  using StepOfLine = std::function<int64_t(const std::string& line, bool follows_unread)>;

  // How many bytes before the point of truncation are read and checked.
  static constexpr uint64_t bytes_to_check = uint64_t{1} << 20;

  // Opens the log. A new run starts an empty log. A resumed run keeps all lines before the first line whose step is
  // later than `resume_after_step`, and truncates the rest, including a half-written last line.
  //
  // If `number_of` is given, which finds a line's step cheaply, the point of truncation is found by bisection, because
  // a log may be long. Lines that begin more than bytes_to_check before this point are then not read.
  //
  // Throws UserError if the file cannot be opened or truncated, or if a kept line that it reads is damaged. Also throws
  // UserError if a new run's file already exists and, with a lock, if another process holds the lock.
  LineLog(std::filesystem::path path, std::optional<int64_t> resume_after_step, const StepOfLine& step_of_line,
          Lock lock, const LineSearch::NumberOfLine& number_of = nullptr);
  ~LineLog();
  LineLog(const LineLog&) = delete;
  LineLog& operator=(const LineLog&) = delete;

  // Appends a line and its line end. Throws a UserError that names `what` if the line cannot be written (full disk).
  // The log then still ends with a whole line.
  void append(const std::string& line, const std::string& what);

  // Returns whether the log's file still exists under its name. A user may have deleted, moved or replaced it;
  // appending then still works.
  bool is_in_place() const;
  // If the log's file is missing, recreates it with all lines so far. Throws UserError if that fails, or if another
  // file has its name.
  void put_back();
  // Size of the whole lines.
  int64_t bytes() const { return size_; }
  // Returns when all lines are on the disk. (Opening the log has already synced its name.) Throws UserError on failure.
  void sync();

 private:
  void lock_file(int descriptor) const;
  void cut_behind(int64_t step, const StepOfLine& step_of_line, const LineSearch::NumberOfLine& number_of);
  void copy_lines_to(int descriptor) const;

  std::filesystem::path path_;
  Lock lock_;
  int descriptor_ = -1;
  int64_t size_ = 0;  // bytes of whole lines
};

// Calls visit(line), without the line end, for every whole line until visit returns false. Ignores a last line without
// line end: its writer is still writing or was killed. If the file is longer than `last_bytes`, reads only the lines
// that begin in its last `last_bytes` bytes, except the first of these lines. Throws UserError if the file does not
// exist. A UserError that `visit` throws is rethrown with the names of the file and the line.
void for_each_line(const std::filesystem::path& path, const std::function<bool(const std::string& line)>& visit,
                   uint64_t last_bytes = std::numeric_limits<uint64_t>::max());

// The same for the lines that begin at byte `begin` or later.
void for_each_line_from(uint64_t begin, const std::filesystem::path& path,
                        const std::function<bool(const std::string& line)>& visit);

}  // namespace copus
