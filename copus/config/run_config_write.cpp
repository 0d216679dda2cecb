// Writes a run configuration as TOML, and lists its keys.
#include <map>

#include "copus/base/error.h"
#include "copus/config/descriptions.h"
#include "copus/config/run_config_fields.h"
#include "copus/config/settings.h"

namespace copus {

namespace {

std::string write(int64_t value) { return std::to_string(value); }
std::string write(double value) { return write_number(value); }
std::string write(bool value) { return value ? "true" : "false"; }
std::string write(const std::string& value) { return quote(value); }
template <HasNames Enum>
std::string write(Enum value) {
  return quote(to_string(value));
}
std::string write(const DataSource& source) {
  if (!source.weight) return quote(source.path);
  return concat("{ path = ", quote(source.path), ", weight = ", write_number(*source.weight), " }");
}
std::string write(const RopeScaling& scaling) {
  std::string text = concat("{ rope_type = ", quote(to_string(scaling.type)));
  for (const auto& [name, value] : scaling_numbers(scaling)) {
    const bool is_whole = name == "original_max_position_embeddings";
    text += concat(", ", name, " = ", is_whole ? std::to_string(static_cast<int64_t>(value)) : write_number(value));
  }
  for (const auto& [name, list] : scaling_lists(scaling)) {
    for (size_t i = 0; i < list.size(); ++i) {
      text += concat(i == 0 ? concat(", ", name, " = [") : ", ", write_number(list[i]));
    }
    text += "]";
  }
  return text + " }";
}
std::string write(const Curve& curve) {
  std::string text;
  for (const CurvePoint& point : curve.points()) {
    text += concat(text.empty() ? "[" : ", [", write(point.at), ", ", write(point.value), "]");
  }
  return concat("[", text, "]");
}
std::string write(const MeasuredCriticalBatch& measured) {
  return concat("[", write(measured.tokens), ", ", write(measured.noise_scale), ", ", write(measured.critical_batch),
                ", ", write(measured.deviation), "]");
}
std::string write(const Link& link) {
  std::string more;
  if (link.efficiency != Curve{}) more = concat(", ", efficiency_key, " = ", write(link.efficiency));
  if (link.tree_seconds > 0) more += concat(", ", tree_key, " = ", write(microseconds.to_theirs(link.tree_seconds)));
  return concat("{ ", latency_key, " = ", write(microseconds.to_theirs(link.latency_seconds)), ", ", bandwidth_key,
                " = ", write(giga.to_theirs(link.bytes_per_second)), more, " }");
}
template <class Item>
std::string write(const std::vector<Item>& items) {
  if (items.empty()) return "[]";
  if (items.size() == 1) return concat("[", write(items.front()), "]");
  std::string text = "[\n";
  for (const Item& item : items) text += concat("  ", write(item), ",\n");
  return text + "]";
}

class Writer {
 public:
  void section(const char* name) { section_ = name; }

  template <class Value, class... Ignored>
  void field(const char* key, const Value& value, const Ignored&...) {
    add(key, write(value));
  }
  void field(const char* key, const std::optional<RopeScaling>& scaling) {
    if (scaling) add(key, write(*scaling));
  }
  void field(const char* key, const std::optional<bool>& value) {
    if (value) add(key, write(*value));
  }
  void field(const char* key, const Curve& curve) {
    if (curve != Curve{}) add(key, write(curve));  // an omitted curve is 1 everywhere, as this one is
  }
  // Writes the device as one inline table, because a table of its own could not be nested in another section.
  void field(const char* key, const Device& device) {
    if (device == Device{}) return;
    Writer table;
    visit_device(device, table);
    add_table(key, table);
  }
  void field(const char* key, const CommunicatorCosts& costs) {
    if (costs == CommunicatorCosts{}) return;
    Writer table;
    visit_communicators(costs, table);
    add_table(key, table);
  }
  void field(const char* key, const std::optional<ModelDescription>& model) {
    if (!model) return;
    Writer table;
    visit_model_fields(*model, table);
    add_table(key, table);
  }
  void field(const char* key, const std::optional<ClusterDescription>& cluster) {
    if (!cluster) return;
    Writer table;
    visit_cluster(*cluster, table);
    add_table(key, table);
  }
  void field(const char* key, uint64_t value, const Range<int64_t>& range) {
    COPUS_CHECK(value <= static_cast<uint64_t>(range.high), key, " = ", value, " is no TOML integer");
    add(key, write(static_cast<int64_t>(value)));
  }
  void quantity(const char* key, double value, const Unit& unit, const Range<double>&) {
    if (value != 0) add(key, write(unit.to_theirs(value)));  // 0 means not given
  }
  void calibration(const char* key, const NoiseScaleConfig& value) {
    add(key, value.critical_batches.empty() ? write(value.calibration) : write(value.critical_batches));
  }
  void duration(const char* key, double seconds, const Range<double>&) { add(key, write(seconds)); }
  void cluster(const ClusterDescription& description) {
    if (description != ClusterDescription{}) visit_cluster(description, *this);
  }

  std::vector<WrittenField> take() { return std::move(fields_); }

 private:
  void add_table(const char* key, Writer& table) {
    std::string text;
    for (const WrittenField& field : table.take())
      text += concat(text.empty() ? "" : ", ", field.key, " = ", field.value);
    add(key, concat("{ ", text, " }"));
  }
  void add(const char* key, std::string value) { fields_.push_back({section_, key, std::move(value)}); }

  std::string section_;
  std::vector<WrittenField> fields_;
};

std::string to_toml(const std::vector<WrittenField>& fields) {
  std::string text;
  std::string section;
  for (const WrittenField& field : fields) {
    if (field.section != section) {
      text += concat(section.empty() ? "" : "\n", "[", field.section, "]\n");
      section = field.section;
    }
    text += concat(field.key, " = ", field.value, "\n");
  }
  return text;
}

}  // namespace

std::vector<std::string> run_config_keys() {
  const RunConfig config;
  FieldKeys collector;
  visit_model(config, collector);
  visit_sections(config, collector);
  return collector.keys();
}

std::vector<WrittenField> write_fields(const RunConfig& config) {
  Writer writer;
  visit_model(config, writer);
  visit_sections(config, writer);
  return writer.take();
}

std::string to_toml(const ClusterDescription& cluster) {
  Writer writer;
  visit_cluster(cluster, writer);
  std::string text;
  for (const WrittenField& field : writer.take()) text += concat(field.key, " = ", field.value, "\n");
  return text;
}

std::string to_toml(const RunConfig& config) { return to_toml(write_fields(config)); }

std::string to_toml(const AdvisedConfig& config) {
  Writer writer;
  visit_job(config, writer);
  return to_toml(writer.take());
}

std::vector<std::string> differing_keys(const RunConfig& one, const RunConfig& other) {
  const auto values_of = [](const RunConfig& config) {
    std::map<std::string, std::string> values;
    for (WrittenField& field : write_fields(config)) values[field.section + "." + field.key] = std::move(field.value);
    return values;
  };
  const auto ours = values_of(one), theirs = values_of(other);
  std::vector<std::string> keys;
  for (const std::string& key : run_config_keys()) {
    const auto our = ours.find(key), their = theirs.find(key);
    const bool same = our == ours.end() || their == theirs.end() ? our == ours.end() && their == theirs.end()
                                                                 : our->second == their->second;
    if (!same) keys.push_back(key);
  }
  return keys;
}

}  // namespace copus
