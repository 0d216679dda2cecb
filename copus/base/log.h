// Messages about what the program does, on stderr. A facade: spdlog stays out of every other file.
#pragma once

#include <optional>
#include <string_view>

namespace copus {

enum class LogLevel { info, warning, error };

// Call once, in main, before threads start: messages below `level` are dropped, and the others carry the rank where
// several processes share the terminal. Without it everything is shown, without a rank.
void init_log(LogLevel level, std::optional<int> rank = std::nullopt);

void log_info(std::string_view message);
void log_warning(std::string_view message);
void log_error(std::string_view message);

}  // namespace copus
