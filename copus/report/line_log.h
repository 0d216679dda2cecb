// A file of lines, one for each event of a run: appended and handed to the system at once, so that a killed process
// loses nothing that it had logged, and cut when the run is resumed. Knows the lines as text only.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "copus/report/line_search.h"

namespace copus {

// Steps from `first` to `last`, both included.
struct StepSpan {
  int64_t first = 0;
  int64_t last = 0;
  bool operator==(const StepSpan&) const = default;
};

// Names steps for people: "step 7", "steps 3 to 5, 9"; of many, the first few and how many others there are.
std::string describe(const std::vector<StepSpan>& spans);

int64_t count_steps(const std::vector<StepSpan>& spans);

// The steps of a log's lines, as they come.
class StepOrder {
 public:
  enum class Lines { one_a_step, any_number_a_step };

  // Follows the lines behind those of step `after`.
  explicit StepOrder(Lines lines, int64_t after = 0) : lines_(lines), latest_(after) {}

  // Takes the next line's step. Throws UserError where that step does not follow, since a line is repeated or out of
  // its place.
  void add(int64_t step);

  int64_t latest() const { return latest_; }

  // Those of the steps up to `step` that no line was of.
  std::vector<StepSpan> missing_until(int64_t step) const;

 private:
  Lines lines_;
  int64_t latest_;
  std::vector<StepSpan> missing_;
};

class LineLog {
 public:
  enum class Lock { none, exclusive };

  // Returns the step that a line, given without its line end, belongs to. `follows_unread`: the lines before this
  // one are not read. Throws UserError where it is damaged.
  using StepOfLine = std::function<int64_t(const std::string& line, bool follows_unread)>;

  // How much of a log of steps is read before the lines that are cut.
  static constexpr uint64_t bytes_to_check = uint64_t{1} << 20;

  // Opens the log. A new run starts an empty one. A resumed run keeps the lines before the first one of a step later
  // than `resume_after_step` and cuts the rest, also a last line that is half-written. Where `number_of` tells a line's
  // step cheaply, the place of the cut is searched for, and lines that begin more than bytes_to_check before it are not
  // read: a log may be long.
  // Throws UserError: the file cannot be opened or cut, or holds a damaged line among those to keep that it reads; in a
  // new run: the file exists already; with a lock: another process holds it.
  LineLog(std::filesystem::path path, std::optional<int64_t> resume_after_step, const StepOfLine& step_of_line,
          Lock lock, const LineSearch::NumberOfLine& number_of = nullptr);
  ~LineLog();
  LineLog(const LineLog&) = delete;
  LineLog& operator=(const LineLog&) = delete;

  // Appends a line and its line end. Throws UserError that names `what` if the line cannot be written (full disk); the
  // log then still ends with a whole line.
  void append(const std::string& line, const std::string& what);

  // Tells whether the log still is where it was: somebody may have deleted, moved or replaced it. Lines can be appended
  // all the same.
  bool is_in_place() const;
  // Makes the file again, with all lines so far, where it is not. Throws UserError where that cannot be, or another
  // file has its name.
  void put_back();
  // Size of the whole lines.
  int64_t bytes() const { return size_; }
  // Returns when the disk has all lines; the log's name it has since the log was opened. Throws UserError if it
  // refuses.
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

// Calls visit(line, without its line end) for every whole line until it returns false. A last line without its line end
// is left out: its writer is busy or was killed. Of a longer file only the lines that begin in its last `last_bytes`
// are read, all but the first of them. Throws UserError: no such file, or `visit` threw one; the message then names the
// file and the line, as damaged.
void for_each_line(const std::filesystem::path& path, const std::function<bool(const std::string& line)>& visit,
                   uint64_t last_bytes = std::numeric_limits<uint64_t>::max());

// The same for the lines that begin at `begin`, in bytes, or later.
void for_each_line_from(uint64_t begin, const std::filesystem::path& path,
                        const std::function<bool(const std::string& line)>& visit);

}  // namespace copus
