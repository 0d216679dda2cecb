#include "copus/report/knowledge_json.h"

#include <cmath>
#include <map>
#include <utility>

#include "copus/base/error.h"
#include "copus/report/json_fields.h"

namespace copus {
namespace {

using Json = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;

// Upper limit of the relative spread of a configuration's step times. Step times that vary even more carry no
// information. The limit also keeps squared spreads finite in later computations.
constexpr double most_relative_spread = 1e3;

template <class AMeasurement, class Visitor>
void measurement_fields(AMeasurement& measurement, Visitor&& visit) {
  visit("steps", measurement.steps);
  visit("median_seconds", measurement.median_seconds);
  visit("relative_spread", measurement.relative_spread);
}

OrderedJson to_json(const Configuration& configuration, const MeasuredCell& cell) {
  OrderedJson object{{"configuration", to_string(configuration)}};
  JsonFieldWriter parts;
  visit_parts(cell.parts, parts);
  object["predicted_seconds"] = parts.object();
  object["steps"] = cell.steps();
  object["median_seconds"] = cell.seconds();
  OrderedJson measurements = OrderedJson::array();
  for (const Measurement& measurement : cell.measurements) {
    JsonFieldWriter writer;
    measurement_fields(measurement, writer);
    measurements.push_back(writer.object());
  }
  object["measurements"] = std::move(measurements);
  return object;
}

const Json& list(const Json& object, const char* name) {
  const Json& found = json_member(object, name);
  if (!found.is_array()) throw UserError(concat("\"", name, "\" is not a list"));
  return found;
}

void require(bool condition, const char* what) {
  if (!condition) throw UserError(what);
}

MeasuredCell read_cell(const Json& json) {
  const auto is_duration = [](double seconds) { return std::isfinite(seconds) && seconds >= 0; };
  MeasuredCell cell;
  visit_parts(cell.parts, JsonFieldReader(json_member(json, "predicted_seconds")));
  visit_parts(cell.parts, [&](const char* /*name*/, double seconds) {
    require(is_duration(seconds), "a predicted time is negative or not a number");
  });
  const double total = cell.parts.total();
  require(is_duration(total) && total > 0, "the predicted times of a cell are all 0");
  for (const Json& element : list(json, "measurements")) {
    Measurement measurement;
    measurement_fields(measurement, JsonFieldReader(element));
    require(measurement.steps > 0 && measurement.steps < (int64_t{1} << 40), "a number of steps is out of range");
    require(is_duration(measurement.median_seconds) && measurement.median_seconds > 0,
            "\"median_seconds\" is not above 0");
    require(measurement.relative_spread >= 0 && measurement.relative_spread < most_relative_spread,
            "\"relative_spread\" is out of range");
    cell.measurements.push_back(measurement);
  }
  require(!cell.measurements.empty() && std::ssize(cell.measurements) <= max_measurements,
          "a cell has no measurements, or too many");
  return cell;
}

}  // namespace

OrderedJson to_json(const Knowledge& knowledge) {
  OrderedJson cells = OrderedJson::array();
  for (const auto& [configuration, cell] : knowledge.cells()) cells.push_back(to_json(configuration, cell));
  return cells;
}

Knowledge knowledge_from_json(const Json& json) {
  if (!json.is_array()) throw UserError("\"cells\" is not a list");
  std::map<Configuration, MeasuredCell> cells;
  for (const Json& element : json) {
    Configuration configuration;
    JsonFieldReader{element}("configuration", configuration);
    require(cells.emplace(configuration, read_cell(element)).second, "a configuration appears twice");
  }
  return Knowledge(std::move(cells));
}

}  // namespace copus
