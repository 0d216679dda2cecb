#include "copus/comm/job/healing/machine_processes.h"

#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "copus/base/error.h"
#include "copus/comm/health/process_state.h"
#include "copus/comm/job/member/lifeline.h"

namespace copus {

std::string prefix_of_rank(int64_t rank, int64_t machine) {
  return rank == 0 && machine == 0 ? "" : concat("rank ", rank, ": ");
}

MachineProcesses::MachineProcesses(MachineOfJob machine, const std::vector<std::string>& arguments)
    : machine_(std::move(machine)), processes_(arguments) {}

std::vector<News> MachineProcesses::carry_out(const Order& order) {
  return std::visit([this](const auto& one) { return this->carry_out_one(one); }, order);
}

std::vector<News> MachineProcesses::carry_out_one(const BeginJob& order) {
  const std::chrono::duration<double> passed(order.seconds);
  job_started_ =
      std::chrono::steady_clock::now() - std::chrono::duration_cast<std::chrono::steady_clock::duration>(passed);
  // Drops the arenas, the failure and the meeting names of an earlier start of the job that failed.
  ++beginnings_;
  members_.clear();
  epoch_.clear();
  sign_ = {};
  return {};
}

std::vector<News> MachineProcesses::carry_out_one(const StartProcess& order) {
  auto [own, theirs] = control_sockets();
  std::vector<int> inherited = {theirs.number()};
  const int64_t size = machine_.num_machines * machine_.ranks_per_machine;
  std::vector<std::string> variables = {concat("COPUS_RANK=", order.rank), concat("COPUS_WORLD_SIZE=", size),
                                        concat("COPUS_PROCESS=", order.number),
                                        concat("COPUS_CONTROL=", theirs.number())};
  Descriptor own_lifeline, their_lifeline;
  if (is_one_of_several()) {
    std::tie(own_lifeline, their_lifeline) = control_sockets();
    inherited.push_back(their_lifeline.number());
    for (const std::string& variable :
         {concat("COPUS_LIFELINE=", their_lifeline.number()), concat("COPUS_LOCAL_RANK=", order.local_rank),
          concat("COPUS_LOCAL_WORLD_SIZE=", machine_.ranks_per_machine), concat("COPUS_MASTER_ADDR=", machine_.address),
          concat("COPUS_MASTER_PORT=", machine_.port), concat("COPUS_ATTEMPT=", machine_.attempt, "/", beginnings_)}) {
      variables.push_back(variable);
    }
  }
  // Faults that a test requests affect only the first start of the job.
  if (beginnings_ > 1) variables.emplace_back("COPUS_FAULT=");
  if (order.segment >= 0) {
    variables.push_back(concat("COPUS_SEGMENT=", order.segment));
    inherited.push_back(order.segment);
  }
  try {
    RankProcess& process = processes_.start({order.number, order.prefix, std::move(variables), std::move(inherited)});
    Member& member = members_[order.number];
    member.process = &process;
    member.control = std::move(own);
    member.lifeline = std::move(own_lifeline);
    return {Started{order.number, process.pid}};
  } catch (const UserError& error) {
    return {NotStarted{order.number, error.what()}};
  }
}

std::vector<News> MachineProcesses::carry_out_one(const KillProcess& order) {
  signal(order.number, SIGKILL);
  return {};
}

std::vector<News> MachineProcesses::carry_out_one(const ContinueProcess& order) {
  signal(order.number, SIGCONT);
  return {};
}

void MachineProcesses::signal(int64_t number, int signal) const {
  const auto found = members_.find(number);
  if (found != members_.end()) found->second.process->signal(signal);
}

std::vector<News> MachineProcesses::carry_out_one(const TellProcess& order) {
  const auto found = members_.find(order.number);
  if (found != members_.end()) send(found->second.control, order.kind);
  return {};
}

// Send errors are ignored: the process has then ended, and will be reaped.
std::vector<News> MachineProcesses::carry_out_one(const BeginEpoch& order) {
  const std::chrono::nanoseconds job_started = job_started_.time_since_epoch();
  const std::vector<KeptArena> kept = kept_arenas();
  if (order.epoch.number > 0) epoch_ = order.epoch.processes;
  for (int64_t rank = 0; rank < std::ssize(order.epoch.processes); ++rank) {
    const auto found = members_.find(order.epoch.processes[rank]);
    if (found == members_.end()) continue;
    found->second.process->errors.set_prefix(prefix_of_rank(rank, machine_.machine));
    send_epoch(found->second.control, order.epoch, rank, order.segment, job_started.count(), kept);
  }
  return {};
}

std::vector<News> MachineProcesses::carry_out_one(const TellOfFailure& order) {
  sign_ = {order.epoch, order.failure};
  show_sign();
  return {};
}

std::vector<News> MachineProcesses::carry_out_one(const PassSignal& order) {
  processes_.pass_on_from_above(static_cast<int>(order.signal));
  return {};
}

std::vector<News> MachineProcesses::carry_out_one(const EndJob& /*order*/) {
  for (auto& [number, member] : members_) member.control = Descriptor();
  return {};
}

std::vector<News> MachineProcesses::carry_out_one(const Conclude& /*order*/) { return {}; }

void MachineProcesses::listen_to(int64_t number, Member& member, std::vector<News>& news, std::vector<News>& wishes) {
  using Kind = FromRank::Kind;
  Descriptor arena;
  while (auto message = receive_from_rank(&member.control, &arena)) {
    const Kind kind = message->kind;
    if (kind == Kind::keeps_arena) {
      if (arena.is_open()) member.arena = std::move(arena);
      continue;
    }
    if (kind == Kind::settled) {
      drop_arenas_before_epoch();
      continue;
    }
    const bool is_wish = kind == Kind::ready || kind == Kind::wants_to_leave || kind == Kind::wants_to_stop;
    (is_wish ? wishes : news).emplace_back(Said{number, std::move(*message)});
  }
}

std::vector<KeptArena> MachineProcesses::kept_arenas() const {
  std::vector<KeptArena> kept;
  for (const auto& [number, member] : members_) {
    if (member.arena.is_open()) kept.push_back({number, getpid(), member.arena.number()});
  }
  return kept;
}

// Keeps the arenas of the epoch's members, even of members that have ended since: their memory may be needed.
void MachineProcesses::drop_arenas_before_epoch() {
  for (auto& [number, member] : members_) {
    if (member.process->ended && std::ranges::find(epoch_, number) == epoch_.end()) member.arena = Descriptor();
  }
}

std::vector<News> MachineProcesses::look() {
  std::vector<News> news, wishes;
  for (auto& [number, member] : members_) listen_to(number, member, news, wishes);
  for (RankProcess* const process : processes_.reap()) {
    process->errors.forward();
    Member& member = members_.at(process->number);
    // Reads the last messages of the ended process, which show whether the process left its world and so ended in good
    // order. Pending requests of the process are dropped.
    listen_to(process->number, member, news, wishes);
    std::erase_if(wishes, [&](const News& wish) { return std::get<Said>(wish).number == process->number; });
    member.lifeline = Descriptor();
    news.emplace_back(Ended{process->number, process->status, process->errors.held_back()});
  }
  look_for_stopped(news);
  if (is_one_of_several()) show_signs();
  std::ranges::move(wishes, std::back_inserter(news));
  return news;
}

void MachineProcesses::look_for_stopped(std::vector<News>& news) {
  for (auto& [number, member] : members_) {
    if (member.process->ended) continue;
    const bool is_stopped = process_state(member.process->pid) == ProcessState::stopped;
    if (std::exchange(member.is_stopped, is_stopped) != is_stopped) news.emplace_back(Stopped{number, is_stopped});
  }
}

void MachineProcesses::show_signs() {
  const auto now = std::chrono::steady_clock::now();
  if (now - shown_ < std::chrono::duration<double>(sign_of_life_seconds)) return;
  shown_ = now;
  show_sign();
}

void MachineProcesses::show_sign() const {
  for (const auto& [number, member] : members_) {
    if (member.lifeline.is_open()) send(member.lifeline, sign_);
  }
}

void MachineProcesses::wait_for_news(std::vector<int> others) const {
  for (const auto& [number, member] : members_) {
    if (member.control.is_open()) others.push_back(member.control.number());
  }
  processes_.wait_for_news(others);
}

}  // namespace copus
