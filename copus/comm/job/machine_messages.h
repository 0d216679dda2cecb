// What the launcher that decides for a job tells the launchers of machines, and what those tell it. On the machine of
// the former they are plain values; to others they go over a connection.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>

#include "copus/comm/job/control_socket.h"
#include "copus/comm/job/epoch.h"

namespace copus {

// So much time has passed since the job began, for the ranks' clocks.
struct BeginJob {
  double seconds = 0;
};
struct StartProcess {
  int64_t number = 0;
  int64_t rank = 0, local_rank = 0;  // as it is told
  std::string prefix;                // of what it writes to stderr
  int segment = -1;                  // of the first epoch; on this machine alone
};
struct KillProcess {
  int64_t number = 0;
};
// It is stopped, and is to go on.
struct ContinueProcess {
  int64_t number = 0;
};
struct TellProcess {
  int64_t number = 0;
  FromLauncher::Kind kind = FromLauncher::Kind::regroup;
};
struct BeginEpoch {
  Epoch epoch;
  int segment = -1;  // on this machine alone
};
struct TellOfFailure {
  int64_t epoch = 0;
  FailureReport failure;
};
struct PassSignal {
  int64_t signal = 0;
};
// Whoever waits for the next epoch sees that there is none.
struct EndJob {};
// All is over for this machine, whose launcher returns the code.
struct Conclude {
  int64_t code = 0;
};
using Order = std::variant<BeginJob, StartProcess, KillProcess, ContinueProcess, TellProcess, BeginEpoch, TellOfFailure,
                           PassSignal, EndJob, Conclude>;

// A launcher that is there; these must be alike on all machines.
struct Arrived {
  std::string host;
  int64_t num_machines = 0, ranks_per_machine = 0;
};
struct Started {
  int64_t number = 0;
  int64_t pid = 0;
};
struct NotStarted {
  int64_t number = 0;
  std::string why;
};
struct Said {
  int64_t number = 0;
  FromRank message;
};
struct Ended {
  int64_t number = 0;
  int64_t status = 0;     // as waitpid gives it
  std::string held_back;  // of what it said: messages about mistakes of the user
};
struct Stopped {
  int64_t number = 0;
  bool is_stopped = false;  // or goes on
};
// This machine is to be left by its ranks.
struct Leaves {};
using News = std::variant<Arrived, Started, NotStarted, Said, Ended, Stopped, Leaves>;

std::string packed(const Order& order);
std::string packed(const News& news);
// Empty for what is none.
std::optional<Order> order_from(std::string_view bytes);
std::optional<News> news_from(std::string_view bytes);

}  // namespace copus
