#include "apps/copus/command_line_mistakes.h"

#include <algorithm>
#include <cctype>
#include <optional>
#include <vector>

#include "copus/base/error.h"
#include "copus/base/text/text_distance.h"
#include "copus/config/setting_names.h"

namespace copus {

namespace {

// The command that was given, as far as it was recognised.
struct CommandLine {
  CLI::App* command;
  std::string words;                 // the words that name the command: "copus bench step"
  std::vector<std::string> unknown;  // words that the command does not know, in order

  std::string help() const { return concat(" (see '", words, " --help')"); }
  bool has_settings() const { return command->get_option_no_throw("--set") != nullptr; }
};

CommandLine read(CLI::App& program) {
  CommandLine line{&program, "copus", program.remaining()};
  while (!line.command->get_subcommands().empty()) {
    line.command = line.command->get_subcommands().front();
    line.words += " " + line.command->get_name();
    const std::vector<std::string> more = line.command->remaining();
    line.unknown.insert(line.unknown.end(), more.begin(), more.end());
  }
  return line;
}

std::vector<CLI::App*> commands_of(CLI::App& parent) {
  return parent.get_subcommands([](const CLI::App* one) { return !one->get_group().empty(); });
}

std::vector<std::string> names_of_commands(CLI::App& parent) {
  std::vector<std::string> names;
  for (const CLI::App* command : commands_of(parent)) names.push_back(command->get_name());
  return names;
}

std::vector<const CLI::Option*> visible_options(const CLI::App& command) {
  return command.get_options([](const CLI::Option* option) { return !option->get_group().empty(); });
}

std::vector<std::string> names_of_options(const CLI::App& command) {
  std::vector<std::string> names;
  for (const CLI::Option* option : visible_options(command)) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  return names;
}

// The names of arguments that are not options, as the help writes them: "RUN_DIR", "COMMAND".
std::vector<std::string> names_of_arguments(const CLI::App& command) {
  std::vector<std::string> names;
  for (const CLI::Option* option : visible_options(command)) {
    if (option->get_positional()) names.push_back(option->get_name());
  }
  return names;
}

bool contains(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// Returns the argument that a user wrote as an option: "RUN_DIR" for "--run-dir".
std::optional<std::string> argument_meant(const CLI::App& command, const std::string& option) {
  std::string name = option.substr(option.find_first_not_of('-'));
  for (char& letter : name) {
    letter = letter == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(letter)));
  }
  const std::vector<std::string> names = names_of_arguments(command);
  return contains(names, name) ? std::optional(name) : std::nullopt;
}

// Returns the option of a command that corresponds to a setting: "--global-batch" for "train.global_batch".
std::string option_of_setting(const std::string& setting) {
  std::string key = setting.substr(setting.find('.') + 1);
  std::replace(key.begin(), key.end(), '_', '-');
  return "--" + key;
}

// Lists the options, for the case that none is similar to the given one.
std::string options_of(const CLI::App& command) {
  std::vector<std::string> names = names_of_options(command);
  std::erase(names, "--help");
  return names.empty() ? "; it takes no options" : concat("; its options are ", join(names, ", "));
}

std::string hint_at_option(const CommandLine& line, const std::string& option) {
  const std::vector<std::string> names = names_of_options(*line.command);
  if (!option.starts_with("--") && contains(names, "-" + option)) {
    return concat("; names of options begin with two dashes: write -", option);
  }
  if (const auto argument = argument_meant(*line.command, option)) {
    return concat("; ", *argument, " is given without an option before it");
  }
  const std::vector<std::string> called = settings_called(option);
  for (const std::string& setting : called) {
    const std::string name = option_of_setting(setting);
    if (contains(names, name)) return concat("; did you mean ", name, "?");
  }
  const auto as_settings = [](const std::vector<std::string>& settings) {
    return concat("; did you mean --set ", join(settings, "=... or --set "), "=...?");
  };
  if (line.has_settings() && !called.empty()) return as_settings(called);
  if (const auto similar = nearest(option, names)) return concat("; did you mean ", *similar, "?");
  const std::vector<std::string> like = line.has_settings() ? settings_like(option) : std::vector<std::string>();
  if (!like.empty()) return as_settings(like);
  for (CLI::App* command : commands_of(*line.command)) {
    if (contains(names_of_options(*command), option)) {
      return concat("; it belongs behind its command: ", line.words, " ", command->get_name(), " ", option);
    }
  }
  return concat(line.has_settings() ? "; what a run's file sets is changed by --set section.key=value" : "",
                options_of(*line.command));
}

// Returns whether a word was meant as an option and is not a number.
bool is_option(const std::string& word) {
  const size_t name = word.find_first_not_of('-');
  if (name == 0 || name == std::string::npos || word[name] == '=') return false;
  return name > 1 || (std::isdigit(static_cast<unsigned char>(word[1])) == 0 && word[1] != '.');
}

std::string unknown_command(const CommandLine& line) {
  const std::string& word = line.unknown.front();
  const std::vector<std::string> names = names_of_commands(*line.command);
  const std::string begin = concat(line.words, ": there is no command \"", word, "\"; ");
  if (const auto similar = nearest(word, names)) return concat(begin, "did you mean \"", *similar, "\"?", line.help());
  if (word.ends_with(".toml")) {
    return concat(begin, "to train by that file, write ", line.words, " train ", word, line.help());
  }
  if (contains(names_of_options(*line.command), "--" + word)) {
    return concat(begin, "did you mean --", word, "?", line.help());
  }
  return concat(begin, "the commands are ", join(names, ", "), line.help());
}

// Returns the required options that were not given, in the order of the help.
std::vector<std::string> missing_options(const CLI::App& command) {
  std::vector<std::string> missing;
  for (const CLI::Option* option : visible_options(command)) {
    if (option->get_required() && option->count() == 0) missing.push_back(option->get_name());
  }
  return missing;
}

// Shows how to write a setting that was given as several words: "optimizer.lr = 1e-3".
std::optional<std::string> setting_in_pieces(const CommandLine& line) {
  const CLI::Option* const settings = line.command->get_option_no_throw("--set");
  if (settings == nullptr || settings->count() == 0) return std::nullopt;
  const std::string& last = settings->results().back();
  if (last.find('=') != std::string::npos && !last.ends_with('=')) return std::nullopt;
  const std::string& value = line.unknown.back();
  return concat("a setting is one word: write --set ", last, last.ends_with('=') || value.starts_with('=') ? "" : "=",
                value);
}

// Says what to write instead of words that no option or argument accepts.
std::string unexpected_words(const CommandLine& line) {
  std::string text = concat(line.words, ": not expected: ", join(line.unknown, " "));
  const std::vector<std::string> missing = missing_options(*line.command);
  const std::string& first = line.unknown.front();
  if (line.has_settings() && line.unknown.size() == 1 && first.find('=') != std::string::npos && first.front() != '=') {
    return concat(text, "; there is no option before it: write --set ", first, line.help());
  }
  if (const auto setting = setting_in_pieces(line)) return concat(text, "; ", *setting, line.help());
  if (!missing.empty() && missing.size() >= line.unknown.size()) {
    std::vector<std::string> written;
    for (size_t i = 0; i < line.unknown.size(); ++i) written.push_back(concat(missing[i], " ", line.unknown[i]));
    return concat(text, "; there is no option before it: write ", join(written, " "), line.help());
  }
  const std::vector<std::string> arguments = names_of_arguments(*line.command);
  if (!arguments.empty()) {
    return concat(text, "; beside options there is ", join(arguments, ", "), " alone", line.help());
  }
  for (const CLI::Option* option : visible_options(*line.command)) {
    if (option->get_items_expected_max() == 0) continue;  // a flag
    return concat(text, "; there is no option before it: did you mean ", option->get_name(), " ", first, "?",
                  line.help());
  }
  return concat(text, options_of(*line.command), line.help());
}

// Returns the option with which the parser's message begins.
const CLI::Option* option_named_by(const CommandLine& line, const std::string& message) {
  for (const CLI::Option* option : visible_options(*line.command)) {
    const std::string name = option->get_name();
    if (message.starts_with(name + ":") || message.starts_with(name + " ")) return option;
  }
  return nullptr;
}

bool is_lower_case(char letter) { return std::islower(static_cast<unsigned char>(letter)) != 0; }

// Returns the help text of the option, as the continuation of a sentence.
std::string meaning_of(const CLI::Option& option) {
  std::string meaning = option.get_description();
  const bool is_word = meaning.size() > 1 && is_lower_case(meaning[1]);
  if (is_word || meaning.starts_with("A ")) {
    meaning.front() = static_cast<char>(std::tolower(static_cast<unsigned char>(meaning.front())));
  }
  return meaning;
}

// Says in our own words what is missing or given too often.
std::string in_our_words(const CLI::ParseError& error, const CommandLine& line) {
  std::string text = error.what();
  const CLI::Option* const option = option_named_by(line, text);
  if (option == nullptr) return text;
  const std::string name = option->get_name();
  if (dynamic_cast<const CLI::RequiredError*>(&error) != nullptr) {
    return concat(line.words, ": ", name, " is required: ", meaning_of(*option));
  }
  if (dynamic_cast<const CLI::ArgumentMismatch*>(&error) != nullptr) {
    if (text.ends_with(" missing")) return concat(line.words, ": ", name, " needs a value: ", meaning_of(*option));
    return concat(line.words, ": ", name, " is given ", option->count(), " times; give it once");
  }
  const std::string excludes = " excludes ";
  if (const size_t place = text.find(excludes); place != std::string::npos) {
    return concat(line.words, ": ", name, " does not go together with ", text.substr(place + excludes.size()),
                  "; leave one of them out");
  }
  return concat(line.words, ": ", text);
}

}  // namespace

std::string explain(const CLI::ParseError& error, CLI::App& program) {
  const CommandLine line = read(program);
  const auto option = std::find_if(line.unknown.begin(), line.unknown.end(), is_option);
  if (option != line.unknown.end()) {
    const std::string name = option->substr(0, option->find('='));
    return concat(line.words, ": there is no option ", name, hint_at_option(line, name), line.help());
  }
  if (!commands_of(*line.command).empty()) {
    if (!line.unknown.empty()) return unknown_command(line);
    return no_command(program);
  }
  return line.unknown.empty() ? in_our_words(error, line) + line.help() : unexpected_words(line);
}

void refuse_empty_values(const CLI::App& program) {
  for (const CLI::Option* option : program.get_options()) {
    const bool is_empty = std::ranges::any_of(option->results(), &std::string::empty);
    if (!is_empty || option->check_name("--prompt")) continue;
    throw UserError(concat(option->get_name(), ": its value is empty; give one, or leave the option out"));
  }
  for (const CLI::App* command : program.get_subcommands()) refuse_empty_values(*command);
}

std::string no_command(CLI::App& program) {
  const CommandLine line = read(program);
  return concat(line.words, ": give a command: ", join(names_of_commands(*line.command), ", "), line.help());
}

std::string with_help(const std::string& message, CLI::App& program) {
  if (message.find("--help") != std::string::npos) return message;
  for (size_t place = message.find("--"); place != std::string::npos; place = message.find("--", place + 1)) {
    const bool begins_word = place == 0 || message[place - 1] == ' ' || message[place - 1] == '(';
    if (begins_word && place + 2 < message.size() && is_lower_case(message[place + 2])) {
      return message + read(program).help();
    }
  }
  return message;
}

}  // namespace copus
