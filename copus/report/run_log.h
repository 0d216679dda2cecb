// run.jsonl: one JSON object per training step, appended and handed to the system at every step, so that a killed
// process loses nothing that it had logged.
#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "copus/record/step_record.h"
#include "copus/report/line_log.h"

namespace copus {

// Converts a step into its line of the file, without the line end, and back. Throws UserError that names what is wrong.
std::string to_line(const StepRecord& record);
StepRecord step_record_from_line(const std::string& line);

// Tells whether a line of the log takes the place of the line before: it adds the held-out loss to the same step
// (RunLog::add_to_resumed_step).
bool completes(const StepRecord& before, const StepRecord& record);

// A longer run.jsonl is read in part where that is enough.
inline constexpr uint64_t most_bytes_read_whole = uint64_t{16} << 20;

class RunLog {
 public:
  // Opens <run_dir>/run.jsonl. A new run starts an empty log and throws UserError if there is one already. A resumed
  // run keeps the lines up to and including `resume_after_step` (the step of the checkpoint) and cuts the rest: later
  // steps are done again, and the last line may be half-written. What stands behind the line of that step is not read,
  // nor is what stands more than LineLog::bytes_to_check before it.
  // Throws UserError: the file cannot be opened or cut, or holds a damaged line among those to keep, or one that is
  // repeated or out of its place.
  explicit RunLog(const std::filesystem::path& run_dir, std::optional<int64_t> resume_after_step = std::nullopt);

  // Appends a step. Throws UserError if the line cannot be written (full disk); the log then still ends with a whole
  // line.
  void append(const StepRecord& record);

  // The step that the run was resumed after, as the log has it; empty in a new run and where its line is missing.
  const std::optional<StepRecord>& resumed_step() const { return resumed_step_; }
  // Appends that step's line again with the held-out loss, before any other step: no moment lacks one of the two lines,
  // and whoever reads the log takes the later one. Throws UserError as append().
  void add_to_resumed_step(const HeldOutLoss& loss);

  // As of LineLog.
  bool is_in_place() const { return lines_.is_in_place(); }
  void put_back() { lines_.put_back(); }
  // Returns when the disk has all that was appended. Throws UserError as LineLog::sync.
  void sync() { lines_.sync(); }
  int64_t bytes() const { return lines_.bytes(); }

  // The steps up to the one that the run was resumed after whose lines were not there, among those that were read:
  // empty in a new run.
  const std::vector<StepSpan>& missing() const { return missing_; }

 private:
  StepOrder kept_;
  std::optional<StepRecord> latest_kept_;
  std::optional<StepRecord> resumed_step_;
  LineLog lines_;
  std::vector<StepSpan> missing_;
};

// Reads a run.jsonl, behind the line of step `after_step` and up to that of step `last_step`. A last line without its
// line end is left out: its writer is busy or was killed. Steps may be missing. Throws UserError: no such file, or a
// line that is damaged, repeated or out of its place (the message names it).
std::vector<StepRecord> read_run_log(const std::filesystem::path& path,
                                     int64_t last_step = std::numeric_limits<int64_t>::max(), int64_t after_step = 0);

// Reads the lines of these steps alone, which are in order; steps without a line are left out.
std::vector<StepRecord> read_steps(const std::filesystem::path& path, const std::vector<int64_t>& steps);

// The records that show how a run went.
struct ChosenRecords {
  std::vector<StepRecord> records;
  bool is_all = false;
};

// Reads all of a run.jsonl of most_bytes_read_whole at most. Of a longer one it reads so many records that the work
// hardly grows with the log: 8000 that lie evenly in it, the last one, up to 2000 of steps that were evaluated, and
// those of `steps` or the next ones after these. Throws UserError as read_run_log.
ChosenRecords choose_records(const std::filesystem::path& path, const std::vector<int64_t>& steps,
                             const EvaluateConfig& evaluate);

// The latest step of a run.jsonl, as the lines at its end say; 0 where there is no such file or no line. Damaged lines
// are passed over, since a resumed run cuts them.
int64_t latest_logged_step(const std::filesystem::path& path);

// The steps from `after` + 1 to `until` that none of the records, which are in order, is of.
std::vector<StepSpan> missing_steps(const std::vector<StepRecord>& records, int64_t after, int64_t until);

}  // namespace copus
