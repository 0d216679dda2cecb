// The visitor that fills a run configuration from settings and checks types and ranges. Only sources of this room
// include this header.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "copus/base/error.h"
#include "copus/base/numbers/float_names.h"
#include "copus/base/text/text_distance.h"
#include "copus/config/run_config_fields.h"
#include "copus/config/settings.h"

namespace copus {

class SettingsReader {
 public:
  // `root` must outlive the reader.
  explicit SettingsReader(const Setting& root) : root_(root) {}

  // Enters a section; an empty name stands for the root table, as in a file without sections.
  void section(const char* name);

  // Reads one field; leaves `value` unchanged if the key is absent. Throws UserError for a wrong type or a value out of
  // range.
  void field(const char* key, int64_t& value, const Range<int64_t>& range);
  void field(const char* key, uint64_t& value, const Range<int64_t>& range);
  void field(const char* key, double& value, const Range<double>& range);
  void field(const char* key, bool& value);
  void field(const char* key, std::optional<bool>& value);
  void field(const char* key, std::string& value);
  void field(const char* key, std::vector<std::string>& value);
  void field(const char* key, std::vector<DataSource>& value);
  // Reads a list. A single value stands for a list of one item.
  void field(const char* key, std::vector<int64_t>& value, const Range<int64_t>& range);
  void field(const char* key, std::vector<bool>& value);
  void field(const char* key, std::optional<RopeScaling>& value);  // refuses unknown keys, infinity, nan and dates
  void field(const char* key, Link& link);
  void field(const char* key, Curve& value);
  void field(const char* key, Device& device);
  void field(const char* key, CommunicatorCosts& costs);
  // Read a description from an inline table, or by the name or file in a text.
  void field(const char* key, std::optional<ModelDescription>& model);
  void field(const char* key, std::optional<ClusterDescription>& cluster);
  void quantity(const char* key, double& value, const Unit& unit, const Range<double>& range);
  // Reads noise_scale.calibration, in one of three forms: a number (critical batch / noise scale), measured critical
  // batches as lists of numbers, or paths of calibration.json files with measured critical batches.
  void calibration(const char* key, NoiseScaleConfig& value);
  void duration(const char* key, double& seconds, const Range<double>& range);
  void cluster(ClusterDescription& description) { visit_cluster(description, *this); }

  template <HasNames Enum>
  void field(const char* key, Enum& value) {
    if (const Setting* setting = find(key)) value = one_of<Enum>(*setting);
  }
  template <HasNames Enum>
  void field(const char* key, std::vector<Enum>& value) {
    const Setting* setting = find(key);
    if (!setting) return;
    value.clear();
    for (const Setting& item : items_of(*setting)) value.push_back(one_of<Enum>(item));
  }

 private:
  // Reads the fields of a table within a section.
  SettingsReader(const Setting& table, std::string name)
      : root_(table), section_(&table), section_name_(std::move(name)) {}

  const Setting* find(const char* key);

  // Throws a UserError that names the most recently looked-up key.
  template <class... Parts>
  [[noreturn]] void fail(const Setting& setting, const Parts&... parts) const {
    throw UserError(concat(setting.origin, ": ", section_name_, section_name_.empty() ? "" : ".", key_, " ", parts...));
  }
  template <class Number>
  void check_range(const Setting& setting, Number value, const Range<Number>& range) const;

  template <HasNames Enum>
  Enum one_of(const Setting& setting) const {
    if (setting.kind == Setting::Kind::text) {
      const std::string_view name = printed_float_name(std::get<std::string>(setting.value));
      if (const std::optional<Enum> value = find_value<Enum>(name)) return *value;
    }
    const std::vector<std::string> names = all_names<Enum>();
    const std::optional<std::string> similar =
        setting.kind == Setting::Kind::text ? nearest(std::get<std::string>(setting.value), names) : std::nullopt;
    fail(setting, "must be one of \"", join(names, "\", \""), "\", got ", describe(setting),
         similar ? concat("; did you mean \"", *similar, "\"?") : "");
  }
  // Returns the items of a list, or a single value as a list of one item.
  static std::span<const Setting> items_of(const Setting& setting) {
    return setting.kind == Setting::Kind::list ? std::span(setting.children) : std::span(&setting, 1);
  }

  int64_t whole_number(const Setting& setting) const;
  bool truth(const Setting& setting) const;
  double number(const Setting& setting) const;
  std::string path(const Setting& setting) const;
  DataSource data_source(const Setting& setting) const;
  Curve curve(const Setting& setting) const;
  MeasuredCriticalBatch measured_critical_batch(const Setting& setting) const;
  template <class Visit>
  void table(const char* key, const char* example, const Visit& visit);
  double number_in(const Setting& table, const char* key, const Range<double>& range) const;
  void refuse_values_without_json(const Setting& setting) const;
  void refuse_other_keys(const Setting& table, const std::vector<std::string>& keys) const;

  const Setting& root_;
  const Setting* section_ = nullptr;
  std::string section_name_;
  std::string key_;
};

}  // namespace copus
