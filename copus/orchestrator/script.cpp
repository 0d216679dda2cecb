#include "copus/orchestrator/script.h"

#include <nlohmann/json.hpp>
#include <sstream>

#include "copus/base/error.h"
#include "copus/description/configuration_json.h"

namespace copus {

namespace {

using Json = nlohmann::json;

Json parse_object(std::string_view text, const std::string& source) {
  Json object = Json::parse(text, nullptr, false);
  if (!object.is_object()) throw UserError(concat(source, ": expected a JSON object, found \"", text, "\""));
  return object;
}

[[noreturn]] void fail(const Json& object, const char* name, const char* expected, const std::string& source) {
  throw UserError(concat(source, ": \"", name, "\" must be ", expected, "; found ",
                         object.contains(name) ? object.at(name).dump() : "nothing"));
}

Configuration read_configuration(const Json& object, const char* name, const std::string& source) {
  if (!object.contains(name)) throw UserError(concat(source, ": there is no \"", name, "\""));
  try {
    return configuration_from_json(object.at(name).dump());
  } catch (const UserError& error) {
    throw UserError(concat(source, ": ", error.what()));
  }
}

}  // namespace

std::vector<ScriptedSwitch> parse_script(std::string_view text, const std::string& source) {
  std::vector<ScriptedSwitch> script;
  std::istringstream lines{std::string(text)};
  std::string line;
  for (int64_t number = 1; std::getline(lines, line); ++number) {
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    const std::string where = concat(source, ":", number);
    const Json object = parse_object(line, where);
    if (object.contains("event")) {
      const bool moved = object["event"] == "switch" && object.contains("outcome") && object["outcome"] == "moved";
      if (!moved) continue;
    }
    ScriptedSwitch entry;
    const auto after_step = object.find("after_step");
    if (after_step == object.end() || !after_step->is_number_integer() || after_step->get<int64_t>() < 1) {
      fail(object, "after_step", "a whole number above 0", where);
    }
    entry.after_step = after_step->get<int64_t>();
    const char* name = object.contains("configuration") || !object.contains("to") ? "configuration" : "to";
    entry.configuration = read_configuration(object, name, where);
    if (const auto critical = object.find("critical_batch"); critical != object.end() && !critical->is_null()) {
      if (!critical->is_number() || critical->get<double>() < 0) {
        fail(object, "critical_batch", "a number of samples, not negative", where);
      }
      entry.critical_batch = critical->get<double>();
    }
    if (!script.empty() && entry.after_step <= script.back().after_step) {
      throw UserError(concat(where, ": switches must ascend by \"after_step\", and ", entry.after_step, " follows ",
                             script.back().after_step));
    }
    script.push_back(entry);
  }
  return script;
}

}  // namespace copus
