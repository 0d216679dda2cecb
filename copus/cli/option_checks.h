// Options that several commands have, and checks of their values.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>
#include <vector>

#include "copus/base/duration.h"
#include "copus/base/error.h"
#include "copus/description/configuration_text.h"

namespace copus {

// Checks for a whole number that is not below `least`. CLI11's own checks of positive numbers name the largest double
// in their messages.
inline CLI::Validator at_least(int64_t least) {
  const auto complaint = [least](const std::string& text) {
    int64_t value = 0;
    if (CLI::detail::lexical_cast(text, value) && value >= least) return std::string();
    return concat("expected a whole number of at least ", least, ", got ", text);
  };
  return {complaint, concat("at least ", least)};
}

// Checks for a number within these bounds. CLI::Range lets "nan" pass, which is neither below nor above anything.
inline CLI::Validator number_within(double least, double most) {
  const auto complaint = [least, most](const std::string& text) {
    double value = 0;
    if (CLI::detail::lexical_cast(text, value) && value >= least && value <= most) return std::string();
    return concat("expected a number from ", least, " to ", most, ", got ", text);
  };
  return {complaint, concat("from ", least, " to ", most)};
}

// Adds --set, for settings in place of a configuration's; it takes one a time, so that what follows is no setting.
inline void add_settings_option(CLI::App& command, std::vector<std::string>& settings, const std::string& description) {
  command.add_option("--set", settings, description)->allow_extra_args(false)->type_name("KEY=VALUE");
}

// Adds an option whose value is one of an enumeration's, by its name.
template <HasNames Enum>
void add_named_option(CLI::App& command, const std::string& option, Enum& value, const std::string& description) {
  command
      .add_option_function<std::string>(
          option, [&value](const std::string& name) { value = *find_value<Enum>(name); }, description)
      ->check(CLI::IsMember(all_names<Enum>()))
      ->default_str(std::string(to_string(value)));
}

// Reads the configuration, or part of one, that `option` was given. Throws UserError, which names the option too.
inline ConfigurationChange read_configuration(const std::string& option, const std::string& text) {
  try {
    return parse_configuration_change(text);
  } catch (const UserError& error) {
    throw UserError(concat(option, ": ", error.what()));
  }
}

// Reads the positive time that `option` was given, in seconds. Throws UserError for any other text.
inline double read_duration(const std::string& option, const std::string& text) {
  const std::optional<double> seconds = parse_duration(text);
  if (!seconds || *seconds <= 0) {
    throw UserError(concat(option, " ", text, ": expected a time such as \"90s\", \"55m\" or \"1h30m\""));
  }
  return *seconds;
}

// Adds --sequence-length. The name of that option in earlier versions is refused with a message that gives this one.
inline CLI::Option* add_sequence_length(CLI::App& command, int64_t& value, const std::string& description) {
  const auto refuse = [](const std::string& tokens) {
    throw UserError(concat("--seq and --sequence are now --sequence-length: write --sequence-length ", tokens));
  };
  command.add_option_function<std::string>("--seq,--sequence", refuse)->group("");
  return command.add_option("--sequence-length", value, description)->check(at_least(1));
}

}  // namespace copus
