#include "copus/comm/health/fault_point.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <csignal>
#include <cstdlib>
#include <mutex>
#include <optional>
#include <utility>

#include "copus/base/error.h"
#include "copus/base/files/write_all.h"

namespace copus {

namespace {

using NamedKind = std::pair<std::string_view, Fault::Kind>;
constexpr std::array kinds = {NamedKind{"KILL", Fault::Kind::kill},      NamedKind{"STOP", Fault::Kind::stop},
                              NamedKind{"TERM", Fault::Kind::terminate}, NamedKind{"INT", Fault::Kind::interrupt},
                              NamedKind{"PAUSE", Fault::Kind::pause},    NamedKind{"HANG", Fault::Kind::hang}};
constexpr unsigned pause_seconds = 3;

std::optional<int64_t> number_of(std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool valid = error == std::errc() && end == text.data() + text.size() && value >= 0;
  return valid ? std::optional(value) : std::nullopt;
}

std::optional<Fault> parse_fault(std::string_view text) {
  const size_t at = text.rfind('@'), number = text.rfind('#'), colon = text.rfind(':');
  if (at == std::string_view::npos || number == std::string_view::npos || colon == std::string_view::npos) {
    return std::nullopt;
  }
  if (at == 0 || number < at || colon < number) return std::nullopt;
  const auto process = number_of(text.substr(at + 1, number - at - 1));
  const auto passes = number_of(text.substr(number + 1, colon - number - 1));
  for (const auto& [name, kind] : kinds) {
    if (name != text.substr(colon + 1) || !process || !passes || *passes == 0) continue;
    return Fault{.place = std::string(text.substr(0, at)), .process = *process, .passes = *passes, .kind = kind};
  }
  return std::nullopt;
}

void strike(Fault::Kind kind) {
  switch (kind) {
    case Fault::Kind::kill:
      ::kill(::getpid(), SIGKILL);
      return;
    case Fault::Kind::terminate:
      ::kill(::getpid(), SIGTERM);
      return;
    case Fault::Kind::interrupt:
      ::kill(::getpid(), SIGINT);
      return;
    case Fault::Kind::hang:
      while (true) ::pause();
    case Fault::Kind::stop:
      break;
    case Fault::Kind::pause:
      const pid_t stopped = ::getpid();
      if (::fork() != 0) break;
      ::sleep(pause_seconds);
      ::kill(stopped, SIGCONT);
      ::_exit(0);
  }
  ::kill(::getpid(), SIGSTOP);
}

// The faults that the environment of this process requests.
struct Requested {
  Requested() {
    const auto variable = [](const char* name) {
      const char* const value = std::getenv(name);
      return std::string_view(value == nullptr ? "" : value);
    };
    const std::string_view number = variable(variable("COPUS_PROCESS").empty() ? "RANK" : "COPUS_PROCESS");
    const int64_t process = number_of(number).value_or(0);
    for (const Fault& fault : parse_faults(variable("COPUS_FAULT"))) {
      if (fault.process == process) faults.push_back(fault);
    }
    if (const std::string path(variable("COPUS_FAULT_LOG")); !path.empty()) {
      log = ::open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
      prefix = concat(process, ' ');
    }
  }
  std::vector<Fault> faults;
  int log = -1;
  std::string prefix;
  std::mutex mutex;
};

}  // namespace

std::vector<Fault> parse_faults(std::string_view text) {
  std::vector<Fault> faults;
  while (!text.empty()) {
    const std::string_view one = text.substr(0, text.find(';'));
    const std::optional<Fault> fault = parse_fault(one);
    if (!fault) {
      throw UserError(concat("COPUS_FAULT has \"", one, "\"; expected PLACE@PROCESS#N:KIND, KIND one of KILL, STOP, ",
                             "TERM, INT, PAUSE, HANG"));
    }
    faults.push_back(*fault);
    text.remove_prefix(std::min(text.size(), one.size() + 1));
  }
  return faults;
}

void pass_fault_point(std::string_view place) {
  static Requested requested;
  if (requested.faults.empty() && requested.log < 0) return;
  const std::scoped_lock lock(requested.mutex);
  if (requested.log >= 0) write_all(requested.log, concat(requested.prefix, place, '\n'));
  for (Fault& fault : requested.faults) {
    if (fault.passes > 0 && place.find(fault.place) != std::string_view::npos && --fault.passes == 0)
      strike(fault.kind);
  }
}

}  // namespace copus
