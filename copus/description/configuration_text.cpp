#include "copus/description/configuration_text.h"

#include <charconv>

#include "copus/base/text/text_distance.h"

namespace copus {

namespace {

constexpr const char* example = "d=2,t=1,p=2,B=32,b=4";
constexpr Configuration plain;

// Splits a text at any of the separators; returns at least one piece.
std::vector<std::string_view> split(std::string_view text, std::string_view separators) {
  std::vector<std::string_view> pieces;
  while (true) {
    const size_t end = text.find_first_of(separators);
    pieces.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return pieces;
    text.remove_prefix(end + 1);
  }
}

std::optional<int64_t> whole_number(std::string_view text) {
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

// Writes "NAME=VALUE" parts: degrees and batches first, then options.
class TextWriter {
 public:
  template <class Value>
  void add(const ConfigurationField& field, const Value& value) {
    std::string& text = field.role == ConfigurationField::Role::option ? options_ : basics_;
    text += concat(text.empty() ? "" : ",", field.symbol, "=", value_text(value));
  }

  // Omits an option whose value is the same in all of `otherwise`.
  template <class Value, class... Others>
  void add_unless(const ConfigurationField& field, const Value& value, const Others&... otherwise) {
    if (field.role == ConfigurationField::Role::option && ((value == otherwise) && ...)) return;
    add(field, value);
  }

  std::string text() const { return concat(basics_, basics_.empty() || options_.empty() ? "" : ",", options_); }

 private:
  std::string basics_, options_;
};

template <class Value>
void read_value(std::string_view part, const ConfigurationField& field, std::string_view text, Value& value) {
  if constexpr (HasNames<Value>) {
    const std::optional<Value> found = find_value<Value>(text);
    if (!found) throw UserError(concat("\"", part, "\": expected one of ", join(all_names<Value>(), ", ")));
    value = *found;
  } else {
    const std::optional<int64_t> number = whole_number(text);
    if (!number || !field.range.contains(*number)) {
      throw UserError(
          concat("\"", part, "\": expected a whole number from ", field.range.low, " to ", field.range.high));
    }
    value = static_cast<Value>(*number);
  }
}

[[noreturn]] void refuse(std::string_view part, std::string_view name) {
  if (name.size() == part.size()) {
    throw UserError(concat("\"", part, "\" is no part of a configuration; expected NAME=VALUE, separated by commas, ",
                           "as in ", example));
  }
  std::vector<std::string> symbols;
  visit_configuration([&](const ConfigurationField& field, const auto&) { symbols.emplace_back(field.symbol); }, plain);
  const std::optional<std::string> similar = name.size() > 1 ? nearest(name, symbols) : std::nullopt;
  throw UserError(
      concat("\"", part, "\": a configuration has no \"", name, "\"; ",
             similar ? concat("did you mean \"", *similar, "\"?") : concat("its parts are ", configuration_parts())));
}

// Parses a text with all degrees, all batches or (without `with_batches`) none, and any options.
ConfigurationChange parse_whole(std::string_view text, bool with_batches) {
  const ConfigurationChange change = parse_configuration_change(text);
  const auto check = [&](const ConfigurationField& field, const auto&) {
    const bool is_wanted = field.role == ConfigurationField::Role::degree || with_batches;
    if (field.role == ConfigurationField::Role::option || change.named[field.index] == is_wanted) return;
    throw UserError(concat("\"", text, "\" ", is_wanted ? "does not say " : "says ", field.symbol, " (", field.words,
                           "); expected ", with_batches ? "all of " : "a layout without batches, as ",
                           with_batches ? to_string(plain) : to_string(plain.strategy)));
  };
  visit_configuration(check, plain);
  return change;
}

}  // namespace

bool ConfigurationChange::names(std::string_view symbol) const {
  bool result = false;
  const auto look = [&](const ConfigurationField& field, const auto&) {
    result |= symbol == field.symbol && named[field.index];
  };
  visit_configuration(look, values);
  return result;
}

ConfigurationChange parse_configuration_change(std::string_view text) {
  ConfigurationChange change;
  for (const std::string_view part : split(text, ",")) {
    const std::string_view name = part.substr(0, part.find('='));
    bool is_known = false;
    const auto read = [&](const ConfigurationField& field, auto& value) {
      if (name != field.symbol || name.size() == part.size()) return;
      is_known = true;
      if (change.named[field.index]) throw UserError(concat("\"", name, "\" is given twice"));
      change.named.set(field.index);
      read_value(part, field, part.substr(name.size() + 1), value);
    };
    visit_configuration(read, change.values);
    if (!is_known) refuse(part, name);
  }
  return change;
}

Configuration parse_configuration(std::string_view text) { return parse_whole(text, true).values; }

ParallelStrategy parse_strategy(std::string_view text) { return parse_whole(text, false).values.strategy; }

std::string to_string(const ConfigurationChange& change) {
  TextWriter writer;
  const auto write = [&](const ConfigurationField& field, const auto& value) {
    if (change.named[field.index]) writer.add(field, value);
  };
  visit_configuration(write, change.values);
  return writer.text();
}

std::string to_string(const ParallelStrategy& strategy) {
  TextWriter writer;
  const auto write = [&](const auto&... field_and_values) { writer.add_unless(field_and_values...); };
  visit_strategy(write, strategy, plain.strategy);
  return writer.text();
}

std::string to_string(const Configuration& configuration) { return to_string(configuration, plain); }

std::string to_string(const Configuration& configuration, const Configuration& otherwise) {
  TextWriter writer;
  const auto write = [&](const auto&... field_and_values) { writer.add_unless(field_and_values...); };
  visit_configuration(write, configuration, plain, otherwise);
  return writer.text();
}

std::string configuration_parts() {
  std::vector<std::string> parts;
  const auto name = [&](const ConfigurationField& field, const auto&) {
    parts.push_back(concat(field.symbol, " (", field.words, ")"));
  };
  visit_configuration(name, plain);
  return join(parts, ", ");
}

std::vector<std::vector<std::string>> configuration_rows(const std::vector<Configuration>& configurations) {
  std::bitset<num_configuration_fields> is_shown;
  for (const Configuration& configuration : configurations) {
    const auto look = [&](const ConfigurationField& field, const auto& value, const auto& by_default) {
      if (field.role != ConfigurationField::Role::option || value != by_default) is_shown.set(field.index);
    };
    visit_configuration(look, configuration, plain);
  }
  std::vector<std::vector<std::string>> rows(configurations.size() + 1);
  const auto add_name = [&](const ConfigurationField& field, const auto&) {
    if (is_shown[field.index]) rows.front().emplace_back(field.symbol);
  };
  visit_batches(add_name, plain);
  visit_strategy(add_name, plain.strategy);
  for (size_t i = 0; i < configurations.size(); ++i) {
    const auto add = [&](const ConfigurationField& field, const auto& value, const auto& by_default) {
      const bool is_said = field.role != ConfigurationField::Role::option || value != by_default;
      if (is_shown[field.index]) rows[i + 1].push_back(is_said ? value_text(value) : "-");
    };
    visit_batches(add, configurations[i], plain);
    visit_strategy(add, configurations[i].strategy, plain.strategy);
  }
  return rows;
}

Configuration apply(const ConfigurationChange& change, const Configuration& configuration) {
  Configuration result = configuration;
  const auto assign = [&](const ConfigurationField& field, const auto& wanted, auto& value) {
    if (change.named[field.index]) value = wanted;
  };
  visit_configuration(assign, change.values, result);
  ParallelStrategy& strategy = result.strategy;
  if (strategy.pipeline_parallel == 1) {
    strategy.virtual_stages = 1;
    strategy.schedule = PipelineSchedule::one_f_one_b;
  }
  if (strategy.tensor_parallel == 1) strategy.sequence_parallel = false;
  if (strategy.data_parallel == 1) strategy.zero_stage = 0;
  if (strategy.zero_stage < 3) strategy.reshard_after_forward = true;
  if (strategy.zero_stage == 0 || strategy.data_parallel % strategy.zero_replicas != 0) strategy.zero_replicas = 1;
  visit_configuration(assign, change.values, result);  // keeps requested values even if they are impossible
  return result;
}

bool matches(const ConfigurationChange& change, const Configuration& configuration) {
  bool result = true;
  const auto compare = [&](const ConfigurationField& field, const auto& wanted, const auto& value) {
    result &= !change.named[field.index] || wanted == value;
  };
  visit_configuration(compare, change.values, configuration);
  return result;
}

std::string describe_change(const Configuration& from, const Configuration& to) {
  const bool is_another_layout = layout_of(from.strategy) != layout_of(to.strategy);
  TextWriter before, after;
  const auto tell = [&](const ConfigurationField& field, const auto& old_value, const auto& new_value) {
    const bool is_degree = field.role == ConfigurationField::Role::degree;
    if (is_degree ? !is_another_layout : old_value == new_value) return;
    before.add(field, old_value);
    after.add(field, new_value);
  };
  visit_configuration(tell, from, to);
  return from == to ? "" : concat(before.text(), " -> ", after.text());
}

}  // namespace copus
