#include "python/core/settings.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "copus/base/error.h"
#include "copus/base/text/text_distance.h"
#include "copus/config/settings.h"

namespace nb = nanobind;

namespace copus {

namespace {

template <class Value>
Value value_of(const std::string& key, nb::handle object, const char* expected) {
  Value value;
  if (PyBool_Check(object.ptr()) || !nb::try_cast(object, value)) {
    throw UserError(concat("copus.Adviser: ", key, " is ", nb::repr(object).c_str(), ", expected ", expected));
  }
  return value;
}

// A setting's value as TOML.
std::string to_toml_value(const std::string& key, nb::handle object) {
  if (PyBool_Check(object.ptr())) return nb::cast<bool>(object) ? "true" : "false";
  if (int64_t integer = 0; nb::try_cast(object, integer)) return std::to_string(integer);
  if (double number = 0; nb::try_cast(object, number)) return write_number(number);
  if (std::string text; nb::try_cast(object, text)) return quote(text);
  if (nb::isinstance<nb::list>(object) || nb::isinstance<nb::tuple>(object)) {
    std::string list;
    for (const nb::handle item : object) list += concat(list.empty() ? "" : ", ", to_toml_value(key, item));
    return concat("[", list, "]");
  }
  throw UserError(concat("copus.Adviser: ", key, " is ", nb::repr(object).c_str(),
                         ", expected a number, a text, True, False or a list of these"));
}

}  // namespace

AdviserSettings adviser_settings_of(const nb::dict& settings) {
  AdviserSettings result;
  const auto whole_into = [](auto& member) {
    return [&member](const std::string& key, nb::handle value) {
      member = value_of<int64_t>(key, value, "a whole number");
    };
  };
  const std::map<std::string, std::function<void(const std::string&, nb::handle)>> known = {
      {"batch", whole_into(result.batch)},
      {"micro_batch", whole_into(result.micro_batch)},
      {"sequence_length", whole_into(result.sequence_length)},
      {"replicas", whole_into(result.replicas)},
      {"tensor_parallel", whole_into(result.tensor_parallel)},
      {"pipeline_parallel", whole_into(result.pipeline_parallel)},
      {"reference_batch", whole_into(result.reference_batch)},
      {"max_steps", whole_into(result.max_steps)},
      {"max_tokens", whole_into(result.max_tokens)},
      {"batches", [&result](const std::string& key, nb::handle value) {
         result.batches = value_of<std::vector<int64_t>>(key, value, "a list of whole numbers");
       }}};
  for (const char* key : {"batch", "micro_batch", "sequence_length"}) {
    if (!settings.contains(key)) throw UserError(concat("copus.Adviser: ", key, " is missing"));
  }
  for (const auto& [name, value] : settings) {
    const std::string key = value_of<std::string>("a name of a setting", name, "a text");
    if (const auto found = known.find(key); found != known.end()) {
      if (!value.is_none()) found->second(key, value);
    } else if (key.find('.') != std::string::npos) {
      result.more.push_back(concat(key, "=", to_toml_value(key, value)));
    } else {
      std::vector<std::string> names;
      for (const auto& [one, unused] : known) names.push_back(one);
      const auto similar = nearest(key, names);
      throw UserError(concat("copus.Adviser: unknown setting \"", key, "\"; ",
                             similar ? concat("did you mean \"", *similar, "\"?")
                                     : concat("they are ", join(names, ", "), " and those of docs/configuration.md, ",
                                              "such as \"adapt.objective\"")));
    }
  }
  return result;
}

}  // namespace copus
