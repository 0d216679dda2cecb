// Determines from the environment which launcher started this process, and as which rank.
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <limits>
#include <string_view>
#include <utility>

#include "copus/base/error.h"
#include "copus/comm/job/start/launcher.h"

namespace copus {

namespace {

constexpr int64_t largest_port = 65535;

// Ports for launchers that name none. They are below the ports that Linux assigns itself (32768 and up).
constexpr int64_t first_derived_port = 15000;
constexpr int64_t num_derived_ports = 15000;

std::optional<int64_t> parse_integer(std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// Reads and checks the values of environment variables.
class Variables {
 public:
  using Lookup = std::function<const char*(const char*)>;
  explicit Variables(const Lookup& lookup) : lookup_(lookup) {}

  // Empty variables are treated as unset, because shells and job scripts use empty values to disable variables.
  std::optional<std::string> text(const char* name) const {
    const char* value = lookup_(name);
    return value == nullptr || *value == '\0' ? std::nullopt : std::optional<std::string>(value);
  }
  bool has(const char* name) const { return text(name).has_value(); }

  std::optional<int64_t> integer(const char* name, int64_t low, int64_t high) const {
    const std::optional<std::string> value = text(name);
    if (!value) return std::nullopt;
    const std::optional<int64_t> number = parse_integer(*value);
    if (!number || *number < low || *number > high) {
      throw UserError(concat("the environment variable ", name, " is \"", *value, "\"; expected a whole number from ",
                             low, " to ", high));
    }
    return number;
  }

  int64_t required_integer(const char* name, int64_t low, int64_t high, const char* because) const {
    if (const std::optional<int64_t> number = integer(name, low, high)) return *number;
    throw UserError(concat("the environment variable ", because, " is set, but not ", name,
                           "; set both, or unset both if this process is not to be one rank of several"));
  }

 private:
  const Lookup& lookup_;
};

constexpr int64_t most_ranks = 1 << 20;

struct RankVariables {
  const char* rank;
  const char* world_size;
  const char* local_rank;
  const char* local_world_size;
};

void check_local(const RankEnvironment& environment, const char* local_rank_name, const char* local_size_name) {
  if (environment.local_world_size > environment.world_size) {
    throw UserError(concat("the environment variable ", local_size_name, " says that this machine has ",
                           environment.local_world_size, " ranks, but the whole job has only ",
                           environment.world_size));
  }
  if (environment.local_rank > environment.rank) {
    throw UserError(concat("the environment variable ", local_rank_name, " (", environment.local_rank,
                           ") is larger than the rank in the whole job (", environment.rank, ")"));
  }
}

RankEnvironment read_four(const Variables& variables, LauncherKind launcher, const RankVariables& names) {
  RankEnvironment result;
  result.launcher = launcher;
  result.size_variable = names.world_size;
  result.world_size = variables.required_integer(names.world_size, 1, most_ranks, names.rank);
  result.rank = variables.required_integer(names.rank, 0, result.world_size - 1, names.world_size);
  result.local_world_size = variables.required_integer(names.local_world_size, 1, most_ranks, names.rank);
  result.local_rank = variables.required_integer(names.local_rank, 0, result.local_world_size - 1, names.rank);
  check_local(result, names.local_rank, names.local_world_size);
  return result;
}

RankEnvironment read_copus(const Variables& variables) {
  const bool several_machines = variables.has("COPUS_LIFELINE");
  RankEnvironment result =
      read_four(variables, LauncherKind::copus,
                {"COPUS_RANK", "COPUS_WORLD_SIZE", several_machines ? "COPUS_LOCAL_RANK" : "COPUS_RANK",
                 several_machines ? "COPUS_LOCAL_WORLD_SIZE" : "COPUS_WORLD_SIZE"});
  constexpr int64_t most = std::numeric_limits<int>::max();
  result.job_start = variables.integer("COPUS_JOB_START", 0, std::numeric_limits<int64_t>::max());
  if (const std::optional<int64_t> control = variables.integer("COPUS_CONTROL", 0, most)) {
    result.control = static_cast<int>(*control);
    result.process = variables.required_integer("COPUS_PROCESS", 0, most, "COPUS_CONTROL");
    result.segment = static_cast<int>(variables.integer("COPUS_SEGMENT", 0, most).value_or(-1));
    if (several_machines) {
      result.lifeline = static_cast<int>(variables.required_integer("COPUS_LIFELINE", 0, most, "COPUS_CONTROL"));
      result.master_address = variables.text("COPUS_MASTER_ADDR").value_or("");
      result.master_port = variables.required_integer("COPUS_MASTER_PORT", 1, largest_port, "COPUS_LIFELINE");
      result.attempt = variables.text("COPUS_ATTEMPT").value_or("");
      result.launcher_serves_store = true;
    }
  } else {
    result.segment = static_cast<int>(variables.required_integer("COPUS_SEGMENT", 0, most, "COPUS_RANK"));
  }
  return result;
}

RankEnvironment read_torchrun(const Variables& variables) {
  RankEnvironment result =
      read_four(variables, LauncherKind::torchrun, {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"});
  const std::optional<std::string> address = variables.text("MASTER_ADDR");
  if (!address) throw UserError("the environment variable RANK is set, but not MASTER_ADDR; set the host of rank 0");
  result.master_address = *address;
  result.master_port = variables.required_integer("MASTER_PORT", 1, largest_port, "MASTER_ADDR");
  result.launcher_serves_store = variables.text("TORCHELASTIC_USE_AGENT_STORE") == "True";
  result.has_agent = variables.has("TORCHELASTIC_RUN_ID");  // a shell in which RANK is set may end first
  result.attempt = variables.text("TORCHELASTIC_RUN_ID").value_or("") + "/" +
                   variables.text("TORCHELASTIC_RESTART_COUNT").value_or("0");
  return result;
}

// If the launcher names no meeting place, the ranks meet at the address that the user has set or, if all ranks are on
// this machine, on this machine.
void choose_meeting_place(const Variables& variables, const std::string& job, RankEnvironment* environment) {
  environment->attempt = job;
  const bool one_machine = environment->local_world_size == environment->world_size;
  environment->master_address = variables.text("MASTER_ADDR").value_or(one_machine ? "127.0.0.1" : "");
  const auto derived = static_cast<int64_t>(std::hash<std::string>()(job) % num_derived_ports) + first_derived_port;
  environment->master_port = variables.integer("MASTER_PORT", 1, largest_port).value_or(one_machine ? derived : 0);
}

RankEnvironment read_open_mpi(const Variables& variables) {
  RankEnvironment result = read_four(
      variables, LauncherKind::open_mpi,
      {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"});
  const std::string job =
      variables.text("PMIX_NAMESPACE").value_or(variables.text("OMPI_MCA_ess_base_jobid").value_or(""));
  choose_meeting_place(variables, "open_mpi/" + job, &result);
  return result;
}

// Returns the number of ranks on machine `node` from SLURM's run-length notation: "4,2(x3)" means 4, 2, 2, 2. Returns
// nothing if the list cannot be read or is too short.
std::optional<int64_t> tasks_on_node(std::string_view list, int64_t node) {
  while (!list.empty()) {
    const std::string_view entry = list.substr(0, list.find(','));
    list.remove_prefix(std::min(list.size(), entry.size() + 1));
    const std::string_view count = entry.substr(0, entry.find('('));
    int64_t nodes = 1;
    if (count.size() < entry.size()) {
      const std::string_view repeat = entry.substr(count.size());  // (x3)
      if (repeat.size() < 4 || !repeat.starts_with("(x") || repeat.back() != ')') return std::nullopt;
      const std::optional<int64_t> times = parse_integer(repeat.substr(2, repeat.size() - 3));
      if (!times || *times < 1) return std::nullopt;
      nodes = *times;
    }
    if (node < nodes) return parse_integer(count);
    node -= nodes;
  }
  return std::nullopt;
}

// SLURM also describes the shell of `salloc` and the script of `sbatch` as task 0 of SLURM_NTASKS, which counts the
// tasks of the allocation. Only tasks of a step that `srun` started are ranks, and SLURM_STEP_NUM_TASKS is their
// number. The steps of shells and scripts have reserved numbers (SLURM's source, slurm.h: from 0xfffffff0).
bool is_slurm_rank(const Variables& variables) {
  constexpr int64_t first_reserved_step = 0xfffffff0;
  const std::optional<std::string> step = variables.text("SLURM_STEP_ID");
  if (!step || !variables.has("SLURM_PROCID")) return false;
  const std::optional<int64_t> number = parse_integer(*step);
  if (!number || *number < 0 || *number >= first_reserved_step) return false;
  // A step of one task is a shell (`srun --pty bash`) or a single program, which may start ranks itself.
  const char* size = variables.has("SLURM_STEP_NUM_TASKS") ? "SLURM_STEP_NUM_TASKS" : "SLURM_NTASKS";
  return variables.integer(size, 1, most_ranks).value_or(1) > 1;
}

RankEnvironment read_slurm(const Variables& variables) {
  const char* size_name = variables.has("SLURM_STEP_NUM_TASKS") ? "SLURM_STEP_NUM_TASKS" : "SLURM_NTASKS";
  RankEnvironment result;
  result.launcher = LauncherKind::slurm;
  result.size_variable = size_name;
  result.world_size = variables.required_integer(size_name, 1, most_ranks, "SLURM_PROCID");
  result.rank = variables.required_integer("SLURM_PROCID", 0, result.world_size - 1, size_name);
  const int64_t node = variables.integer("SLURM_NODEID", 0, most_ranks).value_or(0);
  const char* list_name = variables.has("SLURM_STEP_TASKS_PER_NODE") ? "SLURM_STEP_TASKS_PER_NODE"
                          : variables.has("SLURM_TASKS_PER_NODE")    ? "SLURM_TASKS_PER_NODE"
                                                                     : "SLURM_NTASKS_PER_NODE";
  const std::optional<std::string> list = variables.text(list_name);
  if (!list) {
    throw UserError(
        "SLURM does not say how many ranks each machine has: none of SLURM_STEP_TASKS_PER_NODE, "
        "SLURM_TASKS_PER_NODE and SLURM_NTASKS_PER_NODE is set; start the ranks with "
        "srun --ntasks-per-node=N");
  }
  // SLURM_NTASKS_PER_NODE is the user's option: a single number that applies to every machine.
  const bool one_for_all = list_name == std::string_view("SLURM_NTASKS_PER_NODE");
  const std::optional<int64_t> local_size = tasks_on_node(*list, one_for_all ? 0 : node);
  if (!local_size || *local_size < 1) {
    throw UserError(concat("the environment variable ", list_name, " is \"", *list,
                           "\", which gives no number of ranks for machine ", node, " (SLURM_NODEID); expected a list ",
                           "such as \"4,2(x3)\""));
  }
  result.local_world_size = *local_size;
  result.local_rank = variables.required_integer("SLURM_LOCALID", 0, result.local_world_size - 1, "SLURM_PROCID");
  check_local(result, "SLURM_LOCALID", list_name);
  result.launcher_serves_mpi = variables.has("PMIX_RANK") || variables.has("PMI_RANK");
  result.has_agent = true;
  choose_meeting_place(
      variables,
      concat("slurm/", variables.text("SLURM_JOB_ID").value_or(""), ".", variables.text("SLURM_STEP_ID").value_or(""),
             "/", variables.text("SLURM_RESTART_COUNT").value_or("0")),
      &result);
  return result;
}

// If a user exported RANK and WORLD_SIZE by hand, they must agree with the variables of the launcher that runs this
// process. Values from torchrun need not agree: a task of SLURM or mpirun may be a torchrun that starts several ranks.
void check_same_rank(const Variables& variables, const RankEnvironment& by_hand) {
  if (variables.has("TORCHELASTIC_RUN_ID")) return;
  std::optional<RankEnvironment> around;
  const char* name = "OMPI_COMM_WORLD_RANK";
  if (variables.has("OMPI_COMM_WORLD_RANK")) {
    around = read_open_mpi(variables);
  } else if (is_slurm_rank(variables)) {
    around = read_slurm(variables);
    name = "SLURM_PROCID";
  }
  if (around && (around->rank != by_hand.rank || around->world_size != by_hand.world_size)) {
    throw UserError(concat("the environment variables contradict each other: RANK says rank ", by_hand.rank, " of ",
                           by_hand.world_size, ", ", name, " says rank ", around->rank, " of ", around->world_size,
                           "; unset RANK and WORLD_SIZE, or set them for each rank"));
  }
}

// Throws UserError if the environment describes a rank incompletely, or by variables of a launcher that Copus does not
// support. Without this error, each process of such a job would train alone.
void check_no_rank(const Variables& variables) {
  for (const char* name : {"COPUS_SEGMENT", "COPUS_CONTROL", "COPUS_PROCESS", "COPUS_LIFELINE", "COPUS_LOCAL_RANK",
                           "COPUS_LOCAL_WORLD_SIZE"}) {
    if (variables.has(name)) variables.required_integer("COPUS_RANK", 0, most_ranks, name);
  }
  for (const char* name : {"LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK",
                           "ROLE_WORLD_SIZE", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"}) {
    if (variables.has(name)) variables.required_integer("RANK", 0, most_ranks, name);
  }
  for (const char* name : {"OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE", "OMPI_COMM_WORLD_NODE_RANK"}) {
    if (variables.has(name)) variables.required_integer("OMPI_COMM_WORLD_RANK", 0, most_ranks, name);
  }
  const bool is_one_of_several = variables.integer("SLURM_STEP_NUM_TASKS", 1, most_ranks).value_or(1) > 1;
  const bool is_not_first = variables.integer("SLURM_PROCID", 0, most_ranks).value_or(0) > 0;
  if (is_one_of_several || is_not_first) {
    const char* because = is_one_of_several ? "SLURM_STEP_NUM_TASKS" : "SLURM_PROCID";
    variables.required_integer("SLURM_STEP_ID", 0, std::numeric_limits<int64_t>::max(), because);
    variables.required_integer("SLURM_PROCID", 0, most_ranks, because);
    if (!is_one_of_several) variables.required_integer("SLURM_STEP_NUM_TASKS", 2, most_ranks, because);
  }
  // torchrun also reads its options from PET_* variables, which Kubernetes sets. "1:4" is a range of numbers of
  // machines.
  if (const auto nodes = variables.text("PET_NNODES"); nodes && *nodes != "1" && *nodes != "1:1") {
    throw UserError(
        concat("the environment variable PET_NNODES (", *nodes, ") describes a job of several machines, and ",
               "nothing says which rank this process is; start it by torchrun, which reads that variable, or ",
               "unset PET_NNODES"));
  }
  struct OtherLauncher {
    const char *variable, *called;
  };
  constexpr auto sizes = std::to_array<OtherLauncher>({{"PMI_SIZE", "MPICH's or Intel MPI's launcher"},
                                                       {"MPI_LOCALNRANKS", "MPICH's or Intel MPI's launcher"},
                                                       {"MV2_COMM_WORLD_SIZE", "MVAPICH's launcher"},
                                                       {"PALS_LOCAL_SIZE", "PALS (aprun, mpiexec of HPE Cray)"},
                                                       {"JSM_NAMESPACE_SIZE", "jsrun"},
                                                       {"FLUX_JOB_SIZE", "Flux"},
                                                       {"HOROVOD_SIZE", "horovodrun"}});
  for (const auto& [variable, called] : sizes) {
    if (variables.integer(variable, 0, most_ranks).value_or(1) <= 1) continue;
    throw UserError(concat("the environment variable ", variable, " (", *variables.text(variable),
                           ") says that this process is one of several, which ", called,
                           " starts; Copus takes its ranks from torchrun, srun and Open MPI's mpirun, and starts those "
                           "of one machine by itself: start it by one of these, or unset ",
                           variable));
  }
  for (const char* name :
       {"PMI_RANK", "PMIX_RANK", "MPI_LOCALRANKID", "MV2_COMM_WORLD_RANK", "PALS_RANKID", "ALPS_APP_PE",
        "JSM_NAMESPACE_RANK", "FLUX_TASK_RANK", "HOROVOD_RANK", "PET_NODE_RANK", "NODE_RANK"}) {
    if (variables.integer(name, 0, most_ranks).value_or(0) == 0) continue;
    throw UserError(concat("the environment variable ", name, " (", *variables.text(name),
                           ") says that this process is not the first of its job, and nothing that Copus reads says "
                           "how many there are; start the job by torchrun, srun or Open MPI's mpirun, or unset ",
                           name));
  }
}

// Throws UserError unless the descriptors that the variables name come from Copus' launcher. Only the launcher's own
// ranks have these descriptors. Any other process that inherits the variables does not.
void check_inherited(const RankEnvironment& environment) {
  const auto check = [](const char* name, int descriptor, mode_t kind) {
    struct stat status{};
    const bool is_ours =
        descriptor > STDERR_FILENO && ::fstat(descriptor, &status) == 0 && (status.st_mode & S_IFMT) == kind;
    if (descriptor < 0 || is_ours) return;
    throw UserError(concat("the environment variable ", name, " is ", descriptor,
                           ", which is none of the files that `copus train` leaves to the ranks it starts; unset all "
                           "variables that begin with COPUS_, and let `copus train` set them"));
  };
  check("COPUS_SEGMENT", environment.segment, S_IFREG);
  check("COPUS_CONTROL", environment.control, S_IFSOCK);
  check("COPUS_LIFELINE", environment.lifeline, S_IFSOCK);
}

}  // namespace

std::optional<RankEnvironment> read_rank_environment(const std::function<const char*(const char*)>& lookup) {
  const Variables variables(lookup);
  if (variables.has("COPUS_RANK") || variables.has("COPUS_WORLD_SIZE")) return read_copus(variables);
  if (variables.has("RANK") || variables.has("WORLD_SIZE")) {
    RankEnvironment result = read_torchrun(variables);
    check_same_rank(variables, result);
    return result;
  }
  if (variables.has("OMPI_COMM_WORLD_RANK") || variables.has("OMPI_COMM_WORLD_SIZE")) return read_open_mpi(variables);
  if (is_slurm_rank(variables)) return read_slurm(variables);
  check_no_rank(variables);
  return std::nullopt;
}

std::optional<RankEnvironment> read_rank_environment() {
  const auto found = read_rank_environment([](const char* name) -> const char* { return std::getenv(name); });
  if (found) check_inherited(*found);
  return found;
}

}  // namespace copus
