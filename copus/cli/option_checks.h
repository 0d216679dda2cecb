// Options that several commands have, and checks of their values.
#pragma once

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "copus/base/error.h"
#include "copus/base/files/durable_file.h"
#include "copus/base/files/regular_file.h"
#include "copus/base/numbers/float_names.h"
#include "copus/base/numbers/range.h"
#include "copus/base/text/duration.h"
#include "copus/base/text/text_distance.h"
#include "copus/description/configuration_text.h"

namespace copus {

// Checks that a number is in a range. CLI11's own checks are not used: the messages of its checks for positive numbers
// print the largest double, and CLI::Range accepts "nan", because nan is neither below nor above a limit.
template <class Number>
CLI::Validator number_in(const Range<Number>& range) {
  const auto complaint = [range](const std::string& text) {
    Number value = 0;
    if (CLI::detail::lexical_cast(text, value) && range.contains(value)) return std::string();
    return concat("expected a ", std::is_integral_v<Number> ? "whole number " : "number ", "of ", describe(range),
                  ", got ", text);
  };
  return {complaint, describe(range)};
}

// Checks for a whole number of at least `least`.
inline CLI::Validator at_least(int64_t least) { return number_in(Range<int64_t>{least}); }

// Checks for one of these names.
inline CLI::Validator one_of(const std::vector<std::string>& names) {
  const auto complaint = [names](const std::string& text) {
    if (std::ranges::find(names, printed_float_name(text)) != names.end()) return std::string();
    const std::optional<std::string> similar = nearest(text, names);
    return concat("expected one of ", join(names, ", "), ", got ", text,
                  similar ? concat("; did you mean ", *similar, "?") : "");
  };
  return {complaint, concat("{", join(names, ","), "}")};
}

// Adds --set, which replaces settings of a configuration. The option takes one value at a time, so that the argument
// after it is not read as another setting.
inline void add_settings_option(CLI::App& command, std::vector<std::string>& settings, const std::string& description) {
  command.add_option("--set", settings, description)->allow_extra_args(false)->type_name("KEY=VALUE");
}

// Adds an option whose value is the name of an enumeration's value.
template <HasNames Enum>
void add_named_option(CLI::App& command, const std::string& option, Enum& value, const std::string& description) {
  command
      .add_option_function<std::string>(
          option, [&value](const std::string& name) { value = *find_value<Enum>(printed_float_name(name)); },
          description)
      ->check(one_of(all_names<Enum>()))
      ->default_str(std::string(to_string(value)));
}

// Reads the whole or partial configuration that was given to `option`. Throws a UserError that names the option.
inline ConfigurationChange read_configuration(const std::string& option, const std::string& text) {
  try {
    return parse_configuration_change(text);
  } catch (const UserError& error) {
    throw UserError(concat(option, ": ", error.what()));
  }
}

// Describes the file that a command expects, for the message if the file of a run cannot be read.
inline std::string expected_run_file(const std::string& command) {
  return concat("a run's configuration, a TOML file such as configs/runs/quickstart.toml (see 'copus ", command,
                " --help')");
}

// Throws UserError if the file cannot be written. Called before the command measures what it would write.
inline void check_can_be_written(const std::string& option, const std::filesystem::path& file) {
  const std::filesystem::path folder = file.parent_path();
  std::string obstacle = obstacle_to_file(file);
  if (obstacle.empty() && !folder.empty() && !std::filesystem::is_directory(folder)) {
    obstacle = concat("there is no folder ", folder.string());
  }
  if (!obstacle.empty()) throw UserError(concat(option, " ", file.string(), ": cannot be written: ", obstacle));
  DurableFile{file};  // a file system may be read-only
}

// Reads the positive time given to `option`, in seconds. Throws UserError for any other text.
inline double read_duration(const std::string& option, const std::string& text) {
  const std::optional<double> seconds = parse_duration(text);
  if (!seconds || *seconds <= 0) {
    throw UserError(concat(option, " ", text, ": expected a time above 0 such as \"90s\", \"55m\" or \"1h30m\""));
  }
  if (*seconds > longest_duration) {
    throw UserError(concat(option, " ", text, ": expected at most ", longest_duration / 86400, " days"));
  }
  return *seconds;
}

// Adds --sequence-length.
inline CLI::Option* add_sequence_length(CLI::App& command, int64_t& value, const std::string& description) {
  constexpr Range<int64_t> tokens{1, std::numeric_limits<int32_t>::max()};  // same range as a model's positions
  return command.add_option("--sequence-length", value, description)->check(number_in(tokens));
}

}  // namespace copus
