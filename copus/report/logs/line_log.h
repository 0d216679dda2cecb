// A file with a line for each event of a run. Lines are handed to the system at once, so a killed process loses nothing
// that it logged. When the run is resumed, lines after the resumed step are cut. Treats lines as text.
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

  // Expects the lines that follow the lines of step `after`.
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

  // Returns the step of a line, which is given without its line end. `follows_unread`: the previous lines are not read.
  // Throws UserError if the line is damaged.
  using StepOfLine = std::function<int64_t(const std::string& line, bool follows_unread)>;

  // How many bytes of a log are read and checked before the place of the cut.
  static constexpr uint64_t bytes_to_check = uint64_t{1} << 20;

  // Opens the log. A new run starts an empty log. A resumed run keeps all lines before the first line of a step later
  // than `resume_after_step` and cuts the rest, including a half-written last line. A log may be long. With
  // `number_of`, which finds a line's step cheaply, this function searches for the place of the cut, and does not read
  // lines that begin more than bytes_to_check before this place.
  //
  // Throws UserError if the file cannot be opened or cut, or if a kept line that it reads is damaged. Also throws
  // UserError if the file already exists in a new run and, with a lock, if another process holds the lock.
  LineLog(std::filesystem::path path, std::optional<int64_t> resume_after_step, const StepOfLine& step_of_line,
          Lock lock, const LineSearch::NumberOfLine& number_of = nullptr);
  ~LineLog();
  LineLog(const LineLog&) = delete;
  LineLog& operator=(const LineLog&) = delete;

  // Appends a line and its line end. Throws UserError that names `what` if the line cannot be written (full disk). The
  // log then still ends with a whole line.
  void append(const std::string& line, const std::string& what);

  // Returns whether the log's file still exists under its name. A user may have deleted, moved or replaced it;
  // appending then still works.
  bool is_in_place() const;
  // Recreates the file with all lines so far if it is missing. Throws UserError if that fails, or if another file has
  // its name.
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
// line end, whose writer is busy or was killed. If the file is longer than `last_bytes`, reads only the lines that
// begin in its last `last_bytes` bytes, except the first of these lines. Throws UserError if there is no such file, or
// if `visit` throws one; in the latter case the message names the file and the line as damaged.
void for_each_line(const std::filesystem::path& path, const std::function<bool(const std::string& line)>& visit,
                   uint64_t last_bytes = std::numeric_limits<uint64_t>::max());

// The same for the lines that begin at byte `begin` or later.
void for_each_line_from(uint64_t begin, const std::filesystem::path& path,
                        const std::function<bool(const std::string& line)>& visit);

}  // namespace copus
