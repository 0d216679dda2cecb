// Explains to the user why a command line cannot be parsed. A message names the wrong word, the expected words, and the
// help that explains them.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace copus {

// Returns the message for a command line that cannot be parsed. Misspelt words are reported before missing words,
// because a misspelt word is often the reason why another word seems to be missing.
std::string explain(const CLI::ParseError& error, CLI::App& program);

// Throws UserError if an option or an argument of the given command is empty, because the user has probably used an
// unset shell variable. Only a prompt may be empty.
void refuse_empty_values(const CLI::App& program);

// Lists the available commands.
std::string no_command(CLI::App& program);

// If a message about a command's mistake mentions an option, adds where the command's options are explained.
std::string with_help(const std::string& message, CLI::App& program);

}  // namespace copus
