// Makes the curves of a run for its page, from its step records. Only .cpp files of this directory may include this
// header, because it uses the JSON library.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "copus/record/step_record.h"

namespace copus {

// The largest number of points of a curve, on a page of `runs` runs. It is 2000, more than a screen has columns; for
// more than three runs it is 6000 / runs, but at least 200. So a page takes at most a few MB, however long the runs
// are.
size_t most_points_of_a_curve(size_t runs);

// The position of a step on each of the horizontal axes: {"step", "tokens", "seconds"}.
nlohmann::json position_of(const StepRecord& record);

// Positions of several steps, as a list for each axis.
nlohmann::json positions_of(const std::vector<const StepRecord*>& records);

// Returns the curves by name. Each is {"step": [...], "tokens": [...], "seconds": [...], "value": [...]} in the order
// of steps, and has "smoothed": [...] if single steps are noisy. Curves for which the log has no values are omitted,
// and so are steps without a value.
//
// A noisy curve keeps the first and last point, and the lowest and highest point of each of many equal ranges of steps,
// so that no spike is lost. A curve that is constant for many steps ("global_batch", "micro_batch", "layout") keeps the
// last point before each change, so each point's value holds from the previous point on. "noise_scale" has "low" and
// "high", null if unknown, and a null "value" while only a lower bound is known. "layout" has the layouts as text. The
// rates "throughput" and "goodput" are in sequences per second.
nlohmann::json curves_of(const std::vector<StepRecord>& records, size_t most_points);

// Rounds a number to six digits, more than a screen can show; null if not finite.
nlohmann::json shortened(double value);

}  // namespace copus
