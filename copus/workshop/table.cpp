#include "copus/workshop/table.h"

#include <cstdlib>
#include <iomanip>
#include <iostream>
#include <nlohmann/json.hpp>

#include "copus/base/error.h"
#include "copus/base/text/units.h"

namespace copus {

void print_cells(std::span<const int> widths, const std::vector<std::string>& cells) {
  COPUS_CHECK(cells.size() == widths.size());
  for (size_t i = 0; i < cells.size(); ++i) {
    std::cout << (widths[i] < 0 ? std::left : std::right) << std::setw(std::abs(widths[i])) << cells[i];
  }
  std::cout << '\n' << std::flush;
}

std::string format_quartiles(const char* format, const Quartiles& values, double factor, const char* unit) {
  const auto number = [&](double value) { return format_number(format, value * factor); };
  return concat(number(values.median), unit, " (", number(values.lower), " to ", number(values.upper), ")");
}

void set_quartiles(nlohmann::json& object, const std::string& name, const Quartiles& values) {
  object[name] = values.median;
  object[name + "_quartiles"] = {values.lower, values.upper};
}

Quartiles get_quartiles(const nlohmann::json& object, const std::string& name) {
  const nlohmann::json& outer = object.at(name + "_quartiles");
  return {outer.at(0).get<double>(), object.at(name).get<double>(), outer.at(1).get<double>()};
}

}  // namespace copus
