// Declares the orders that a job's deciding launcher gives to the launchers of all machines, and the news that these
// launchers report back. Between machines, orders and news are sent over a connection; on the deciding launcher's own
// machine they are passed as plain values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>

#include "copus/comm/job/member/control_socket.h"
#include "copus/comm/job/member/epoch.h"

namespace copus {

// Gives the time since the job began, with which ranks set their clocks.
struct BeginJob {
  double seconds = 0;
};
struct StartProcess {
  int64_t number = 0;
  int64_t rank = 0, local_rank = 0;  // environment variables of the process
  std::string prefix;                // written before each of its lines on stderr
  int segment = -1;                  // descriptor for the first epoch; only on the deciding launcher's machine
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
  int segment = -1;  // only on the deciding launcher's machine
};
struct TellOfFailure {
  int64_t epoch = 0;
  FailureReport failure;
};
struct PassSignal {
  int64_t signal = 0;
};
// Tells the processes that wait for the next epoch that there will be none.
struct EndJob {};
// The job is over for the receiving machine. Its launcher returns this exit code.
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
  bool is_stopped = false;  // false: continued
};
// The ranks of this machine are asked to leave the job.
struct Leaves {};
using News = std::variant<Arrived, Started, NotStarted, Said, Ended, Stopped, Leaves>;

std::string packed(const Order& order);
std::string packed(const News& news);
// Returns nothing if the bytes are not a message.
std::optional<Order> order_from(std::string_view bytes);
std::optional<News> news_from(std::string_view bytes);

}  // namespace copus
