// Declares the orders that a job's deciding launcher gives to the launchers of machines, and the news that these
// launchers report. On the deciding launcher's own machine both are plain values; to and from other machines they are
// sent over a connection.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>

#include "copus/comm/job/member/control_socket.h"
#include "copus/comm/job/member/epoch.h"

namespace copus {

// Gives the time since the job began, for the ranks' clocks.
struct BeginJob {
  double seconds = 0;
};
struct StartProcess {
  int64_t number = 0;
  int64_t rank = 0, local_rank = 0;  // as passed to the process
  std::string prefix;                // of its lines on stderr
  int segment = -1;                  // of the first epoch; only on this machine
};
struct KillProcess {
  int64_t number = 0;
};
// Wakes a stopped process.
struct ContinueProcess {
  int64_t number = 0;
};
struct TellProcess {
  int64_t number = 0;
  FromLauncher::Kind kind = FromLauncher::Kind::regroup;
};
struct BeginEpoch {
  Epoch epoch;
  int segment = -1;  // only on this machine
};
struct TellOfFailure {
  int64_t epoch = 0;
  FailureReport failure;
};
struct PassSignal {
  int64_t signal = 0;
};
// Tells processes that wait for the next epoch that there is none.
struct EndJob {};
// The job is over for this machine, and its launcher returns the code.
struct Conclude {
  int64_t code = 0;
};
using Order = std::variant<BeginJob, StartProcess, KillProcess, ContinueProcess, TellProcess, BeginEpoch, TellOfFailure,
                           PassSignal, EndJob, Conclude>;

// A launcher has arrived. These values must be equal on all machines.
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
  int64_t status = 0;     // as from waitpid
  std::string held_back;  // messages about the user's mistakes in its output
};
struct Stopped {
  int64_t number = 0;
  bool is_stopped = false;  // or continued
};
// The ranks are to leave this machine.
struct Leaves {};
using News = std::variant<Arrived, Started, NotStarted, Said, Ended, Stopped, Leaves>;

std::string packed(const Order& order);
std::string packed(const News& news);
// Empty if the bytes are not a message.
std::optional<Order> order_from(std::string_view bytes);
std::optional<News> news_from(std::string_view bytes);

}  // namespace copus
