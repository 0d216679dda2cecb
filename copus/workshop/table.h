// Prints tables for the commands of this directory, and medians with their quartiles.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <vector>

#include "copus/base/numbers/quantile.h"

namespace copus {

// Prints one line, each cell in a column of its width: right-aligned, or left-aligned if the width is negative.
void print_cells(std::span<const int> widths, const std::vector<std::string>& cells);

// Returns a text such as "12.3 ms (11.9 to 12.8)": the median and the lower and upper quartiles, each times `factor` in
// printf's `format`, and the unit.
std::string format_quartiles(const char* format, const Quartiles& values, double factor, const char* unit = "");

// Sets field `name` of a JSON object to the median, and field NAME_quartiles to a list of the lower and upper
// quartiles.
void set_quartiles(nlohmann::json& object, const std::string& name, const Quartiles& values);
Quartiles get_quartiles(const nlohmann::json& object, const std::string& name);

}  // namespace copus
