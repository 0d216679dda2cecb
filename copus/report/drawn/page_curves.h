// The curves of a run as its page draws them: selected from the records of its steps, and thinned. Only .cpp files of
// this room include this header, since it names JSON.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "copus/record/step_record.h"

namespace copus {

// How many points each curve of a run may have on a page of so many runs: 2000, which are more than a screen has
// columns, but all runs together 6000, and each 200 at least. So a page is a few MB at most, however long the runs are.
size_t most_points_of_a_curve(size_t runs);

// The position of a step on each of the horizontal axes: {"step", "tokens", "seconds"}.
nlohmann::json position_of(const StepRecord& record);

// Positions of several steps, as a list for each axis.
nlohmann::json positions_of(const std::vector<const StepRecord*>& records);

// The curves by name, each {"step": [...], "tokens": [...], "seconds": [...], "value": [...]} in the order of steps,
// and where single steps are noisy "smoothed": [...]. Curves that the log lacks are left out. Steps without a value are
// too.
//
// A measured curve keeps the first and last point, and the lowest and highest of equally many steps each, so that no
// spike is lost. Of a curve that stays where it is for many steps ("global_batch", "micro_batch", "layout") the last
// point before each change is kept, so that its value at a point has held since the point before.
// "noise_scale" has "low", "high", null where not known, and a null "value" while there is only a lower bound.
// "layout" has the layouts as text. Rates count sequences: "throughput", "goodput".
nlohmann::json curves_of(const std::vector<StepRecord>& records, size_t most_points);

// Shortens a number to six digits, which are more than a screen shows; null where it is not finite.
nlohmann::json shortened(double value);

}  // namespace copus
