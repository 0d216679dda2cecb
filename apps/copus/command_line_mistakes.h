// What is said of a command line that is not understood: which word, what was expected there, and whose help says more.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace copus {

// Says what is wrong with a command line that cannot be parsed. What is misspelt is told before what is missing, since
// the one is often the cause of the other.
std::string explain(const CLI::ParseError& error, CLI::App& program);

// Throws UserError where an option or an argument of the command that was given is empty, as the value of a shell
// variable that is not set. A prompt may be.
void refuse_empty_values(const CLI::App& program);

// Says which commands there are to give.
std::string no_command(CLI::App& program);

// Adds to the message of a command's mistake where its options are explained, if it speaks of one.
std::string with_help(const std::string& message, CLI::App& program);

}  // namespace copus
