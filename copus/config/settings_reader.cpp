#include "copus/config/settings_reader.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <string_view>

#include "copus/base/text/duration.h"
#include "copus/base/text/lower_case.h"
#include "copus/config/cluster_section.h"
#include "copus/config/descriptions.h"
#include "copus/config/model_section.h"

namespace copus {

namespace {

bool is_exactly_whole(double value) { return std::trunc(value) == value && std::abs(value) <= 0x1p53; }

// Returns a setting's value if it is a whole number, even if it is written as a float: TOML reads 1e9 as a float.
std::optional<int64_t> as_whole_number(const Setting& setting) {
  if (setting.kind == Setting::Kind::integer) return std::get<int64_t>(setting.value);
  if (setting.kind != Setting::Kind::number || !is_exactly_whole(std::get<double>(setting.value))) return std::nullopt;
  return static_cast<int64_t>(std::get<double>(setting.value));
}

// Returns whether TOML accepts this text as a number (a whole number if `is_whole`).
bool is_number_in_toml(const std::string& text, bool is_whole) {
  try {
    const Setting root = read_settings(concat("number = ", text), "", {});
    const Setting& number = *root.find("number");
    return root.children.size() == 1 &&
           (as_whole_number(number) || (!is_whole && number.kind == Setting::Kind::number));
  } catch (const UserError&) {
    return false;
  }
}

// Returns advice about the text `rest` behind a number, such as a unit or a thousands separator; empty if its meaning
// is unclear.
std::string hint_behind_number(const std::string& text, std::string_view rest, double value, bool is_whole) {
  const auto begins_with_one_of = [&](std::string_view characters) {
    return !rest.empty() && characters.find(rest.front()) != std::string_view::npos;
  };
  if (begins_with_one_of(",' ") && rest.size() > 1 &&
      std::string_view("0123456789").find(rest[1]) != std::string_view::npos) {
    return "; digits are not grouped, and decimals have a point: 1500.25";
  }
  rest.remove_prefix(std::min(rest.find_first_not_of(' '), rest.size()));
  if (rest == "%" && !is_whole) return concat("; a share of ", text, " is written ", value / 100);
  if (rest.empty() || begins_with_one_of("+-.,:;/*_'=()")) return "";  // probably a date or a formula
  return concat("; write the number in full, without \"", rest, "\": there are no units here");
}

// Returns advice if a text was probably meant as a number: "; a share of 10% is written 0.1". Empty if the text does
// not begin like a number, or if it could mean different numbers.
std::string hint_at_number(const Setting& setting, bool is_whole) {
  if (setting.kind != Setting::Kind::text) return "";
  const std::string& text = std::get<std::string>(setting.value);
  if (text.find_first_of("0123456789") > 1) return "";  // allows a sign or a point before the number
  if (is_number_in_toml(text, is_whole)) return concat("; leave the quotes out: ", text);
  if (is_number_in_toml(lower_case(text), is_whole)) return concat("; write ", lower_case(text));
  if (text.starts_with("0x") || text.starts_with("0X")) return "";
  double value = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc()) return "";
  if (rest != end) return hint_behind_number(text, {rest, end}, value, is_whole);
  if (is_whole && std::abs(value) >= 0x1p63) return "; that is too large";
  // TOML refuses 007, .5 and 5. as numbers.
  const std::string written = is_exactly_whole(value) ? concat(static_cast<int64_t>(value)) : write_number(value);
  return is_number_in_toml(written, is_whole) ? concat("; write ", written) : "";
}

}  // namespace

void SettingsReader::section(const char* name) {
  section_name_ = name;
  section_ = section_name_.empty() ? &root_ : root_.find(name);
}

const Setting* SettingsReader::find(const char* key) {
  key_ = key;
  return section_ ? section_->find(key) : nullptr;
}

template <class Number>
void SettingsReader::check_range(const Setting& setting, Number value, const Range<Number>& range) const {
  if (!range.contains(value)) fail(setting, "must be ", describe(range), ", got ", copus::describe(setting));
}

int64_t SettingsReader::whole_number(const Setting& setting) const {
  if (const std::optional<int64_t> number = as_whole_number(setting)) return *number;
  fail(setting, "must be a whole number, got ", copus::describe(setting), hint_at_number(setting, /*is_whole=*/true));
}

bool SettingsReader::truth(const Setting& setting) const {
  if (setting.kind != Setting::Kind::boolean) fail(setting, "must be true or false, got ", copus::describe(setting));
  return std::get<bool>(setting.value);
}

double SettingsReader::number(const Setting& setting) const {
  if (setting.kind == Setting::Kind::integer) return static_cast<double>(std::get<int64_t>(setting.value));
  if (setting.kind != Setting::Kind::number) {
    fail(setting, "must be a number, got ", copus::describe(setting), hint_at_number(setting, /*is_whole=*/false));
  }
  const double value = std::get<double>(setting.value);
  if (!std::isfinite(value)) fail(setting, "must be finite, got ", copus::describe(setting));
  return value;
}

void SettingsReader::field(const char* key, int64_t& value, const Range<int64_t>& range) {
  const Setting* setting = find(key);
  if (!setting) return;
  value = whole_number(*setting);
  check_range(*setting, value, range);
}

void SettingsReader::field(const char* key, uint64_t& value, const Range<int64_t>& range) {
  auto number = static_cast<int64_t>(value);
  field(key, number, range);
  value = static_cast<uint64_t>(number);
}

void SettingsReader::field(const char* key, double& value, const Range<double>& range) {
  const Setting* setting = find(key);
  if (!setting) return;
  value = number(*setting);
  check_range(*setting, value, range);
}

void SettingsReader::field(const char* key, bool& value) {
  const Setting* setting = find(key);
  if (setting) value = truth(*setting);
}

void SettingsReader::field(const char* key, std::optional<bool>& value) {
  const Setting* setting = find(key);
  if (setting) value = truth(*setting);
}

void SettingsReader::field(const char* key, std::vector<int64_t>& value, const Range<int64_t>& range) {
  const Setting* setting = find(key);
  if (!setting) return;
  value.clear();
  for (const Setting& item : items_of(*setting)) {
    value.push_back(whole_number(item));
    check_range(item, value.back(), range);
  }
}

void SettingsReader::field(const char* key, std::vector<bool>& value) {
  const Setting* setting = find(key);
  if (!setting) return;
  value.clear();
  for (const Setting& item : items_of(*setting)) value.push_back(truth(item));
}

void SettingsReader::field(const char* key, std::string& value) {
  const Setting* setting = find(key);
  if (!setting) return;
  if (setting->kind != Setting::Kind::text) fail(*setting, "must be a string, got ", copus::describe(*setting));
  value = std::get<std::string>(setting->value);
}

void SettingsReader::quantity(const char* key, double& value, const Unit& unit, const Range<double>& range) {
  const Setting* setting = find(key);
  if (!setting) return;
  const double theirs = number(*setting);
  check_range(*setting, theirs, range);
  value = unit.to_ours(theirs);
}

void SettingsReader::duration(const char* key, double& seconds, const Range<double>& range) {
  const Setting* setting = find(key);
  if (!setting) return;
  if (setting->kind == Setting::Kind::text) {
    const std::optional<double> parsed = parse_duration(std::get<std::string>(setting->value));
    if (!parsed) {
      fail(*setting, "must be seconds or a time such as \"90s\", \"3m\" or \"1h30m\", got ", copus::describe(*setting));
    }
    seconds = *parsed;
  } else {
    seconds = number(*setting);
  }
  check_range(*setting, seconds, range);
}

MeasuredCriticalBatch SettingsReader::measured_critical_batch(const Setting& setting) const {
  const std::string expected =
      "a list of tokens read, noise scale, critical batch (all in tokens) and the standard deviation of its logarithm, "
      "such as [1e8, 4e4, 9e4, 0.2]";
  if (setting.kind != Setting::Kind::list || setting.children.size() != 4) {
    fail(setting, "must be ", expected, ", got ", copus::describe(setting));
  }
  const auto amount = [&](size_t place, const Range<double>& range) {
    const double value = number(setting.children[place]);
    check_range(setting.children[place], value, range);
    return value;
  };
  return {amount(0, amount_of_tokens), amount(1, amount_of_tokens), amount(2, amount_of_tokens),
          amount(3, deviation_of_measurement)};
}

void SettingsReader::calibration(const char* key, NoiseScaleConfig& value) {
  const Setting* setting = find(key);
  if (!setting) return;
  const auto read = [&](const Setting& path) {
    return read_calibration_file(std::get<std::string>(path.value), concat(path.origin, ": ", section_name_, ".", key));
  };
  value.critical_batches.clear();
  if (setting->kind == Setting::Kind::text) {
    value.critical_batches = read(*setting);
  } else if (setting->kind == Setting::Kind::list) {
    for (const Setting& item : items_of(*setting)) {
      if (item.kind == Setting::Kind::text) {
        const std::vector<MeasuredCriticalBatch> more = read(item);
        value.critical_batches.insert(value.critical_batches.end(), more.begin(), more.end());
      } else {
        value.critical_batches.push_back(measured_critical_batch(item));
      }
    }
    if (value.critical_batches.empty()) fail(*setting, "is empty; expected at least one measured critical batch");
  } else {
    value.calibration = number(*setting);
    check_range(*setting, value.calibration, any_factor);
  }
}

std::string SettingsReader::path(const Setting& setting) const {
  if (setting.kind != Setting::Kind::text) fail(setting, "must hold paths (strings), got ", copus::describe(setting));
  if (std::get<std::string>(setting.value).empty()) fail(setting, "has an empty path");
  return std::get<std::string>(setting.value);
}

void SettingsReader::field(const char* key, std::vector<std::string>& value) {
  const Setting* setting = find(key);
  if (!setting) return;
  value.clear();
  if (setting->kind == Setting::Kind::list) {
    for (const Setting& item : setting->children) value.push_back(path(item));
  } else {
    value.push_back(path(*setting));
  }
}

DataSource SettingsReader::data_source(const Setting& setting) const {
  if (setting.kind != Setting::Kind::table) return {path(setting)};
  refuse_other_keys(setting, {"path", "weight"});
  const Setting* source_path = setting.find("path");
  if (!source_path) fail(setting, "has a source without a path; expected { path = \"FILE\", weight = 1.0 }");
  DataSource source{path(*source_path)};
  if (const Setting* weight = setting.find("weight")) {
    source.weight = number(*weight);
    if (!blend_weight.contains(*source.weight)) {
      fail(*weight, "needs weights ", describe(blend_weight), ", got ", copus::describe(*weight));
    }
  }
  return source;
}

void SettingsReader::field(const char* key, std::vector<DataSource>& value) {
  const Setting* setting = find(key);
  if (!setting) return;
  value.clear();
  if (setting->kind == Setting::Kind::list) {
    for (const Setting& item : setting->children) value.push_back(data_source(item));
  } else {
    value.push_back(data_source(*setting));
  }
}

void SettingsReader::field(const char* key, std::optional<RopeScaling>&) {
  const Setting* setting = find(key);
  if (!setting) return;
  if (setting->kind != Setting::Kind::table) {
    fail(*setting, "must be a table such as { rope_type = \"llama3\", factor = 8.0, low_freq_factor = 1.0, ",
         "high_freq_factor = 4.0, original_max_position_embeddings = 8192 }, got ", copus::describe(*setting));
  }
  refuse_values_without_json(*setting);
  const Setting* type = setting->find("rope_type");
  if (!type) fail(*setting, "has no rope_type; expected a type such as rope_type = \"llama3\"");
  for (const auto& [known, name] : named_values<RopeType>) {
    if (type->kind != Setting::Kind::text || std::get<std::string>(type->value) != name) continue;
    std::vector<std::string> keys = {"rope_type"};
    for (const auto& [field_name, value] : scaling_numbers({.type = known})) keys.emplace_back(field_name);
    for (const auto& [field_name, list] : scaling_lists({.type = known})) keys.emplace_back(field_name);
    refuse_other_keys(*setting, keys);
    return;
  }
  // Type "default" has no numbers. parse_model_description refuses other types without numbers.
  if (type->kind == Setting::Kind::text && std::get<std::string>(type->value) == "default") {
    refuse_other_keys(*setting, {"rope_type"});
  }
}

// JSON would have null in place of these values, and null stands for a default.
void SettingsReader::refuse_values_without_json(const Setting& setting) const {
  if (setting.kind == Setting::Kind::number && !std::isfinite(std::get<double>(setting.value))) {
    fail(setting, "needs a finite ", setting.name.empty() ? "number" : setting.name, ", got ",
         copus::describe(setting));
  }
  if (setting.kind == Setting::Kind::date) fail(setting, "must hold numbers, got ", copus::describe(setting));
  for (const Setting& child : setting.children) refuse_values_without_json(child);
}

double SettingsReader::number_in(const Setting& table, const char* key, const Range<double>& range) const {
  const Setting* setting = table.find(key);
  if (!setting) fail(table, "has no ", key, "; expected ", describe(range));
  const double value = number(*setting);
  if (!range.contains(value)) fail(*setting, "needs ", key, " ", describe(range), ", got ", copus::describe(*setting));
  return value;
}

void SettingsReader::field(const char* key, Link& link) {
  const Setting* setting = find(key);
  if (!setting) return;
  if (setting->kind != Setting::Kind::table) {
    fail(*setting, "must be a table such as { ", latency_key, " = 5.0, ", bandwidth_key, " = 12.5 }, got ",
         copus::describe(*setting));
  }
  std::vector<std::string> keys = {latency_key, bandwidth_key, efficiency_key};
  if (std::string_view(key) == "between_nodes") keys.emplace_back(tree_key);  // only links between nodes have a tree
  refuse_other_keys(*setting, keys);
  link.latency_seconds = microseconds.to_ours(number_in(*setting, latency_key, link_latency));
  link.bytes_per_second = giga.to_ours(number_in(*setting, bandwidth_key, link_bandwidth));
  if (const Setting* efficiency = setting->find(efficiency_key)) link.efficiency = curve(*efficiency);
  if (setting->find(tree_key)) link.tree_seconds = microseconds.to_ours(number_in(*setting, tree_key, link_latency));
}

Curve SettingsReader::curve(const Setting& setting) const {
  const std::string expected = "a list of points in ascending order such as [[1e6, 0.2], [64e6, 0.9]]";
  if (setting.kind != Setting::Kind::list) fail(setting, "must be ", expected, ", got ", copus::describe(setting));
  std::vector<CurvePoint> points;
  for (const Setting& pair : setting.children) {
    if (pair.kind != Setting::Kind::list || pair.children.size() != 2) {
      fail(pair, "must be ", expected, ", got ", copus::describe(pair), " as a point");
    }
    const CurvePoint point{number(pair.children[0]), number(pair.children[1])};
    if (!curve_place.contains(point.at)) fail(pair, "has a point at ", point.at, "; expected ", describe(curve_place));
    if (!curve_share.contains(point.value)) {
      fail(pair, "has a share of ", point.value, " at ", point.at, "; expected ", describe(curve_share));
    }
    if (!points.empty() && point.at <= points.back().at) {
      fail(pair, "must be ", expected, ", got a point at ", point.at, " after one at ", points.back().at);
    }
    points.push_back(point);
  }
  return {std::move(points)};
}

void SettingsReader::field(const char* key, Curve& value) {
  const Setting* setting = find(key);
  if (setting) value = curve(*setting);
}

template <class Visit>
void SettingsReader::table(const char* key, const char* example, const Visit& visit) {
  const Setting* setting = find(key);
  if (!setting) return;
  if (setting->kind != Setting::Kind::table) {
    fail(*setting, "must be a table such as ", example, ", got ", copus::describe(*setting));
  }
  FieldKeys known;
  visit(known);
  refuse_other_keys(*setting, known.keys());
  SettingsReader reader(*setting, concat(section_name_, section_name_.empty() ? "" : ".", key));
  visit(reader);
}

void SettingsReader::field(const char* key, Device& device) {
  table(key, "{ memory_gigabytes = 80.0, matmul_teraflops = 400.0 }",
        [&](auto& visitor) { visit_device(device, visitor); });
}

void SettingsReader::field(const char* key, CommunicatorCosts& costs) {
  table(key, "{ collective_megabytes = 600.0, split_milliseconds = 300.0 }",
        [&](auto& visitor) { visit_communicators(costs, visitor); });
}

void SettingsReader::field(const char* key, std::optional<ModelDescription>& model) {
  const Setting* setting = find(key);
  if (!setting) return;
  const std::string where = concat(setting->origin, ": ", section_name_, ".", key);
  if (setting->kind == Setting::Kind::text) {
    model = read_model_file(path(*setting), where);
    return;
  }
  if (setting->kind != Setting::Kind::table) {
    fail(*setting, "must be the path of a config.json, or its fields as a table, got ", copus::describe(*setting));
  }
  FieldKeys known;
  visit_model_fields(model.emplace(), known);
  refuse_other_keys(*setting, known.keys());
  SettingsReader table(*setting, concat(section_name_, ".", key));
  visit_model_fields(*model, table);  // checks types and ranges
  model = describe_inline_model(*setting, model->architecture, where);
}

void SettingsReader::field(const char* key, std::optional<ClusterDescription>& cluster) {
  const Setting* setting = find(key);
  if (!setting) return;
  const std::string where = concat(setting->origin, ": ", section_name_, ".", key);
  if (setting->kind == Setting::Kind::text) {
    cluster = read_cluster_file(path(*setting), where);
  } else if (setting->kind == Setting::Kind::table) {
    cluster = describe_cluster(*setting, where);
  } else {
    fail(*setting, "must be the path of a cluster's file, or its fields as a table, got ", copus::describe(*setting));
  }
}

void SettingsReader::refuse_other_keys(const Setting& table, const std::vector<std::string>& keys) const {
  for (const Setting& child : table.children) {
    if (std::find(keys.begin(), keys.end(), child.name) != keys.end()) continue;
    fail(child, "has an unknown key \"", child.name, "\"; ", suggest(child.name, keys, "its keys are"));
  }
}

}  // namespace copus
