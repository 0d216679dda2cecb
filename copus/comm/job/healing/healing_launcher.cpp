// The launchers of jobs whose ranks come and go. On one machine, a single launcher decides (Coordinator) and also
// starts and ends the ranks (MachineProcesses). On several machines, each launcher starts and ends the ranks of its
// machine, and the launcher of machine 0 decides for all.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <memory>
#include <optional>
#include <utility>

#include "copus/base/error.h"
#include "copus/base/files/write_all.h"
#include "copus/base/text/printable.h"
#include "copus/comm/job/healing/coordinator.h"
#include "copus/comm/job/healing/machine_link.h"
#include "copus/comm/job/healing/machine_processes.h"
#include "copus/comm/job/healing/remote_machine.h"
#include "copus/comm/job/meeting/meeting_place.h"
#include "copus/comm/job/member/lifeline.h"
#include "copus/comm/job/start/poll_timer.h"
#include "copus/comm/messages/tcp_place.h"
#include "copus/comm/messages/tcp_socket.h"

namespace copus {

namespace {

using std::chrono::steady_clock;

// How long launchers wait for one another at the start, because machines may be given to a job one after another.
constexpr double longest_arrival_seconds = 300;

std::string name_of_invitation(const MachineOfJob& machine) { return concat("copus/", machine.attempt, "/launcher"); }

std::string own_host_name() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "unknown";
}

// The phase before the job begins: this launcher waits for the others and may receive a signal to end.
class Start {
 public:
  explicit Start(MachineProcesses& hands) : hands_(hands) {}

  bool is_told_to_end() {
    if (code_) return true;
    const std::vector<int> signals = hands_.system().take_signals();
    if (signals.empty()) return false;
    code_ = signals.front() == SIGINT ? interrupted : asked_to_stop;
    return true;
  }
  // The exit code after a signal to end. Call this only if such a signal has come.
  int exit_code() const { return code_.value(); }

  // Opens the meeting place. Returns nothing if a signal to end arrives meanwhile.
  std::optional<MeetingPlace> open(const MachineOfJob& machine, const OpenMeetingPlace& open_place) {
    return open_place({.host = machine.address,
                       .port = machine.port,
                       .serve = machine.serves_store,
                       .wait_seconds = longest_arrival_seconds,
                       .is_useless = [this] { return is_told_to_end(); }});
  }

 private:
  MachineProcesses& hands_;
  std::optional<int> code_;
};

// Runs the job, and restarts it if all its ranks were killed before training began: up to `healing.restarts` times.
// Unless `restarts` is 0, up to 20 restarts are allowed in the first minute, because ranks are often killed again while
// they start.
int run_coordinated(int64_t ranks_per_machine, const Healing& healing, MachineProcesses& hands,
                    std::vector<std::unique_ptr<RemoteMachine>>& others) {
  constexpr int64_t most_restarts = 20;
  constexpr std::chrono::seconds little_time(60);
  const auto until = steady_clock::now() + little_time;
  for (int64_t restarts = 0;; ++restarts) {
    const bool is_soon = healing.restarts > 0 && restarts < most_restarts && steady_clock::now() < until;
    const bool may_begin_again = restarts < healing.restarts || is_soon;
    const std::optional<int> code = Coordinator(ranks_per_machine, healing, hands, others).run(may_begin_again);
    if (code) return *code;
  }
}

// The launcher of machine 0.
class FirstMachine {
 public:
  FirstMachine(const MachineOfJob& machine, const std::vector<std::string>& arguments, const Healing& healing)
      : machine_(machine), healing_(healing), hands_(machine, arguments) {
    if (machine.serves_store) allow_many_sockets();  // c10d accepts every connection
  }

  // If this launcher serves the store, c10d's threads are already running when ranks are forked. These threads receive
  // no signals, because hands_ blocked signals before they started. Locks that they hold do not matter, because the
  // forked child calls only async-signal-safe functions.
  int run(const OpenMeetingPlace& open) {
    const std::optional<MeetingPlace> place = start_.open(machine_, open);
    if (!place) return start_.exit_code();
    const int code = run_job(*place);
    for (const auto& other : others_) {
      if (!other->is_concluded()) other->conclude(code);
    }
    for (const auto& other : others_) other->part();
    return code;
  }

 private:
  int run_job(const MeetingPlace& place) {
    try {
      if (const auto code = gather(place)) return *code;
      return run_coordinated(machine_.ranks_per_machine, healing_, hands_, others_);
    } catch (const UserError& error) {
      write_all(STDERR_FILENO, concat("copus: error: ", printable(error.what()), "\n"));
      return users_mistake;
    }
  }

  // Waits until the launchers of all other machines have come. Returns the exit code if the job ends before that.
  std::optional<int> gather(const MeetingPlace& place) {
    TcpDoor door(own_host_towards(machine_.address, machine_.port), make_token(), machine_.num_machines);
    place.publish(name_of_invitation(machine_), to_text({door.address(), door.token()}));
    PollTimer timer;
    const auto started = steady_clock::now();
    while (!all_have_come()) {
      wait(door);
      if (start_.is_told_to_end()) return start_.exit_code();
      for (TcpDoor::Guest& guest : door.admit()) let_in(std::move(guest));
      const double seconds = timer.next();
      for (const auto& other : others_) {
        for (const News& news : other->hear(seconds)) {
          if (std::holds_alternative<Leaves>(news)) return end_early(*other, "was told to leave", asked_to_stop);
        }
        if (const auto cause = other->loss()) return end_early(*other, concat("is gone: ", *cause), failed_job);
      }
      if (std::chrono::duration<double>(steady_clock::now() - started).count() > longest_arrival_seconds) {
        throw UserError(concat(std::ssize(others_) + 1, " of ", machine_.num_machines, " machines came within ",
                               longest_arrival_seconds,
                               " s; start the program on all of them, with the same "
                               "MASTER_ADDR and MASTER_PORT"));
      }
    }
    std::ranges::sort(others_, {}, &RemoteMachine::number);
    return std::nullopt;
  }

  void wait(const TcpDoor& door) const {
    std::vector<pollfd> doors;
    door.add_descriptors(doors);
    std::vector<int> sources;
    for (const pollfd& each : doors) sources.push_back(each.fd);
    for (const auto& other : others_) sources.push_back(other->descriptor());
    hands_.wait_for_news(std::move(sources));
  }

  void let_in(TcpDoor::Guest guest) {
    const bool is_there =
        std::ranges::any_of(others_, [&](const auto& other) { return other->number() == guest.rank; });
    if (guest.rank == 0 || is_there) {
      throw UserError(concat("two processes are the launcher of machine ", guest.rank,
                             "; start one process on each machine, with RANK from 0 to ", machine_.num_machines - 1));
    }
    others_.push_back(std::make_unique<RemoteMachine>(guest.rank, std::move(guest.socket)));
  }

  // Throws UserError if a launcher of another job has come.
  bool all_have_come() const {
    for (const auto& other : others_) {
      if (!other->arrived()) return false;
      const Arrived& arrived = *other->arrived();
      if (arrived.num_machines != machine_.num_machines || arrived.ranks_per_machine != machine_.ranks_per_machine) {
        throw UserError(concat(other->name(), " was started for ", arrived.num_machines, " machines with ",
                               arrived.ranks_per_machine, " ranks each, machine 0 for ", machine_.num_machines,
                               " machines with ", machine_.ranks_per_machine, "; give all the same settings"));
      }
    }
    return std::ssize(others_) == machine_.num_machines - 1;
  }

  static int end_early(const RemoteMachine& other, const std::string& what, int code) {
    write_all(STDERR_FILENO,
              concat("copus: error: ", printable(concat(other.name(), " ", what)), " before the job began\n"));
    return code;
  }

  const MachineOfJob machine_;
  const Healing healing_;
  std::vector<std::unique_ptr<RemoteMachine>> others_;
  MachineProcesses hands_;
  Start start_{hands_};
};

// The launcher of a machine other than 0, which follows orders. If it no longer hears from machine 0, it ends its
// ranks.
class OtherMachine {
 public:
  OtherMachine(const MachineOfJob& machine, const std::vector<std::string>& arguments)
      : machine_(machine), hands_(machine, arguments) {}

  int run(const OpenMeetingPlace& open) {
    {
      const std::optional<MeetingPlace> place = start_.open(machine_, open);
      if (!place || !join(*place)) return start_.exit_code();
    }
    tell(Arrived{own_host_name(), machine_.num_machines, machine_.ranks_per_machine});
    PollTimer timer;
    while (true) {
      hands_.wait_for_news({link_->descriptor()});
      if (!hands_.system().take_signals().empty()) tell(Leaves{});
      link_->exchange(timer.next());
      while (const auto message = link_->next()) {
        const auto order = order_from(*message);
        if (!order) return be_alone("it sent what is no order");
        if (const auto* const conclusion = std::get_if<Conclude>(&*order)) return conclude(conclusion->code);
        for (const News& news : hands_.carry_out(*order)) tell(news);
      }
      for (const News& news : hands_.look()) tell(news);
      hands_.system().forward_errors();
      if (link_->is_over()) return be_alone("the connection to it broke");
      if (link_->silent_seconds() >= fenced_after_seconds) {
        return be_alone(concat("it was not heard for ", fenced_after_seconds, " s"));
      }
    }
  }

 private:
  void tell(const News& news) { link_->send(packed(news)); }

  // Finds machine 0. Returns false if a signal ends this launcher before that.
  bool join(const MeetingPlace& place) {
    const auto started = steady_clock::now();
    std::optional<std::string> text;
    while (!(text = place.find(name_of_invitation(machine_)))) {
      hands_.wait_for_news({});
      if (start_.is_told_to_end()) return false;
      if (std::chrono::duration<double>(steady_clock::now() - started).count() > longest_arrival_seconds) {
        throw UserError(concat("machine 0 did not come to ", machine_.address, ":", machine_.port, " within ",
                               longest_arrival_seconds, " s; start the program there, with RANK=0"));
      }
    }
    const TcpPlace invitation = read_place(*text, "the launcher of machine 0", /*with_token=*/true);
    constexpr double longest_connecting_seconds = 10;
    TcpSocket socket = start_connecting(invitation.address);
    if (!finish_connecting(socket, longest_connecting_seconds, [this] { return start_.is_told_to_end(); })) {
      if (start_.is_told_to_end()) return false;
      throw UserError(concat("machine ", machine_.machine, " cannot reach the launcher of machine 0 at ",
                             invitation.address.host, ":", invitation.address.port,
                             "; let the machines reach one another at all ports"));
    }
    link_.emplace(std::move(socket)).greet(invitation.token, machine_.machine);
    return true;
  }

  int conclude(int64_t code) {
    hands_.system().finish_errors();
    return static_cast<int>(code);
  }

  // Machine 0 is gone: ends the ranks and this launcher.
  int be_alone(const std::string& cause) {
    for (RankProcess& process : hands_.system().all()) process.signal(SIGKILL);
    hands_.system().finish_errors();
    write_all(STDERR_FILENO,
              concat("copus: error: machine ", machine_.machine,
                     " has lost machine 0, whose launcher decides for the "
                     "job: ",
                     printable(cause), "; the ranks here are ended. Start the job again, with --resume RUN\n"));
    return failed_job;
  }

  const MachineOfJob machine_;
  std::optional<MachineLink> link_;  // destroyed after the processes
  MachineProcesses hands_;
  Start start_{hands_};
};

}  // namespace

int launch_healing_ranks(int64_t size, const std::vector<std::string>& arguments, const Healing& healing) {
  COPUS_CHECK(size >= 1, size);
  MachineProcesses hands({.ranks_per_machine = size}, arguments);
  std::vector<std::unique_ptr<RemoteMachine>> none;
  return run_coordinated(size, healing, hands, none);
}

int launch_healing_machine(const MachineOfJob& machine, const std::vector<std::string>& arguments,
                           const Healing& healing, const OpenMeetingPlace& open_meeting_place) {
  COPUS_CHECK(machine.ranks_per_machine >= 1 && machine.machine >= 0 && machine.machine < machine.num_machines,
              machine.machine, " of ", machine.num_machines);
  if (machine.num_machines == 1) return launch_healing_ranks(machine.ranks_per_machine, arguments, healing);
  check_meeting_address(machine.address, machine.port, machine.ranks_per_machine,
                        machine.num_machines * machine.ranks_per_machine);
  if (machine.machine == 0) return FirstMachine(machine, arguments, healing).run(open_meeting_place);
  return OtherMachine(machine, arguments).run(open_meeting_place);
}

}  // namespace copus
