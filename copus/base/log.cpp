#include "copus/base/log.h"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <memory>
#include <string>

#include "copus/base/error.h"

namespace copus {
namespace {

std::string pattern(std::optional<int> rank) {
  // On a terminal a live progress line may stand where the message goes: the message takes its place.
  const std::string erase_line = isatty(STDERR_FILENO) ? "\r\x1b[K" : "";
  return erase_line + (rank ? concat("[%H:%M:%S] [rank ", *rank, "] %l: %v") : "[%H:%M:%S] %l: %v");
}

spdlog::logger& logger() {
  static const std::shared_ptr<spdlog::logger> instance = [] {
    auto created = std::make_shared<spdlog::logger>("copus", std::make_shared<spdlog::sinks::stderr_sink_mt>());
    created->set_pattern(pattern(std::nullopt));
    return created;
  }();
  return *instance;
}

void log(spdlog::level::level_enum level, std::string_view message) {
  logger().log(level, spdlog::string_view_t(message.data(), message.size()));
}

}  // namespace

void init_log(LogLevel level, std::optional<int> rank) {
  logger().set_level(level == LogLevel::info      ? spdlog::level::info
                     : level == LogLevel::warning ? spdlog::level::warn
                                                  : spdlog::level::err);
  logger().set_pattern(pattern(rank));
}

void log_info(std::string_view message) { log(spdlog::level::info, message); }
void log_warning(std::string_view message) { log(spdlog::level::warn, message); }
void log_error(std::string_view message) { log(spdlog::level::err, message); }

}  // namespace copus
