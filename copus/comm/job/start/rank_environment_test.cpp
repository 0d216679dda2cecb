#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "copus/base/error.h"
#include "copus/base/testing/test_support.h"
#include "copus/comm/job/start/launcher.h"

namespace copus {
namespace {

using Variables = std::map<std::string, std::string>;
using testing::AllOf;
using testing::HasSubstr;

std::optional<RankEnvironment> read(const Variables& variables) {
  return read_rank_environment([&](const char* name) {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

std::string refusal(const Variables& variables) {
  return user_error([&] { read(variables); });
}

Variables with(Variables variables, const Variables& changes) {
  for (const auto& [name, value] : changes) variables[name] = value;
  return variables;
}

Variables without(Variables variables, const std::string& name) {
  variables.erase(name);
  return variables;
}

const Variables torchrun = {{"RANK", "5"},
                            {"WORLD_SIZE", "8"},
                            {"LOCAL_RANK", "1"},
                            {"LOCAL_WORLD_SIZE", "4"},
                            {"MASTER_ADDR", "node1"},
                            {"MASTER_PORT", "29500"},
                            {"TORCHELASTIC_RUN_ID", "none"},
                            {"TORCHELASTIC_RESTART_COUNT", "2"},
                            {"TORCHELASTIC_USE_AGENT_STORE", "True"}};
const Variables open_mpi = {{"OMPI_COMM_WORLD_RANK", "3"},
                            {"OMPI_COMM_WORLD_SIZE", "4"},
                            {"OMPI_COMM_WORLD_LOCAL_RANK", "3"},
                            {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"},
                            {"PMIX_NAMESPACE", "1240793089"}};
// The variables of the last task of `srun -n 7` in an allocation for 16.
const Variables srun = {{"SLURM_JOB_ID", "77"},
                        {"SLURM_STEP_ID", "0"},
                        {"SLURM_NTASKS", "7"},
                        {"SLURM_PROCID", "6"},
                        {"SLURM_STEP_NUM_TASKS", "7"},
                        {"SLURM_LOCALID", "1"},
                        {"SLURM_NODEID", "2"},
                        {"SLURM_STEP_TASKS_PER_NODE", "3,2(x2)"},
                        {"SLURM_TASKS_PER_NODE", "8(x2)"}};

TEST(RankEnvironment, IsEmptyForAPlainProcess) {
  EXPECT_FALSE(read({}));
  EXPECT_FALSE(read({{"RANK", ""}, {"WORLD_SIZE", ""}, {"MASTER_ADDR", "node1"}}));
}

TEST(RankEnvironment, ReadsOurOwnLauncher) {
  const auto found = read(with(torchrun, {{"COPUS_RANK", "2"}, {"COPUS_WORLD_SIZE", "4"}, {"COPUS_SEGMENT", "3"}}));
  ASSERT_TRUE(found);
  EXPECT_EQ(found->launcher, LauncherKind::copus);
  EXPECT_EQ(found->rank, 2);
  EXPECT_EQ(found->world_size, 4);
  EXPECT_EQ(found->local_rank, 2);
  EXPECT_EQ(found->local_world_size, 4);
  EXPECT_EQ(found->segment, 3);
}

TEST(RankEnvironment, ReadsOurLaunchersOfSeveralMachines) {
  const Variables member = with(torchrun, {{"COPUS_RANK", "5"},
                                           {"COPUS_WORLD_SIZE", "8"},
                                           {"COPUS_LOCAL_RANK", "1"},
                                           {"COPUS_LOCAL_WORLD_SIZE", "4"},
                                           {"COPUS_CONTROL", "9"},
                                           {"COPUS_PROCESS", "5"},
                                           {"COPUS_LIFELINE", "11"},
                                           {"COPUS_MASTER_ADDR", "node0"},
                                           {"COPUS_MASTER_PORT", "29600"},
                                           {"COPUS_ATTEMPT", "run/3"}});
  const auto found = read(member);
  EXPECT_EQ(found->launcher, LauncherKind::copus);
  EXPECT_EQ(found->rank, 5);
  EXPECT_EQ(found->local_rank, 1);
  EXPECT_EQ(found->local_world_size, 4);
  EXPECT_EQ(found->segment, -1);
  EXPECT_EQ(found->lifeline, 11);
  EXPECT_EQ(found->master_address, "node0");
  EXPECT_EQ(found->master_port, 29600);
  EXPECT_EQ(found->attempt, "run/3");
  EXPECT_TRUE(found->launcher_serves_store);
  EXPECT_THAT(refusal(without(member, "COPUS_MASTER_PORT")), HasSubstr("COPUS_MASTER_PORT"));
}

TEST(RankEnvironment, ReadsOurLauncherOfRanksThatComeAndGo) {
  const Variables member = {{"COPUS_RANK", "2"},
                            {"COPUS_WORLD_SIZE", "4"},
                            {"COPUS_SEGMENT", "3"},
                            {"COPUS_CONTROL", "9"},
                            {"COPUS_PROCESS", "2"}};
  EXPECT_EQ(read(without(without(member, "COPUS_CONTROL"), "COPUS_PROCESS"))->control, -1);
  EXPECT_EQ(read(member)->control, 9);
  EXPECT_EQ(read(member)->process, 2);
  EXPECT_EQ(read(member)->segment, 3);
  const auto newcomer = read(with(without(member, "COPUS_SEGMENT"), {{"COPUS_PROCESS", "7"}}));
  EXPECT_EQ(newcomer->process, 7);
  EXPECT_EQ(newcomer->segment, -1);
  EXPECT_THAT(refusal(without(member, "COPUS_PROCESS")), HasSubstr("COPUS_PROCESS"));
}

TEST(RankEnvironment, ReadsTorchrun) {
  const auto found = read(torchrun);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->launcher, LauncherKind::torchrun);
  EXPECT_EQ(found->rank, 5);
  EXPECT_EQ(found->world_size, 8);
  EXPECT_EQ(found->local_rank, 1);
  EXPECT_EQ(found->local_world_size, 4);
  EXPECT_EQ(found->master_address, "node1");
  EXPECT_EQ(found->master_port, 29500);
  EXPECT_TRUE(found->launcher_serves_store);
  EXPECT_FALSE(read(without(torchrun, "TORCHELASTIC_USE_AGENT_STORE"))->launcher_serves_store);
}

TEST(RankEnvironment, KnowsWhoseParentIsAnAgent) {
  EXPECT_TRUE(read(torchrun)->has_agent);
  EXPECT_TRUE(read(srun)->has_agent);
  EXPECT_FALSE(read(open_mpi)->has_agent);
  EXPECT_FALSE(read(without(torchrun, "TORCHELASTIC_RUN_ID"))->has_agent) << "a shell may have set RANK, and be gone";
}

TEST(RankEnvironment, TellsRestartsApart) {
  EXPECT_NE(read(torchrun)->attempt, read(with(torchrun, {{"TORCHELASTIC_RESTART_COUNT", "3"}}))->attempt);
  EXPECT_NE(read(open_mpi)->attempt, read(with(open_mpi, {{"PMIX_NAMESPACE", "7"}}))->attempt);
  EXPECT_NE(read(srun)->attempt, read(with(srun, {{"SLURM_STEP_ID", "1"}}))->attempt);
}

TEST(RankEnvironment, ReadsOpenMpi) {
  const auto found = read(open_mpi);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->launcher, LauncherKind::open_mpi);
  EXPECT_EQ(found->rank, 3);
  EXPECT_EQ(found->world_size, 4);
  EXPECT_EQ(found->master_address, "127.0.0.1");
  EXPECT_GT(found->master_port, 1024);
  EXPECT_LT(found->master_port, 32768);
  EXPECT_EQ(found->master_port,
            read(with(open_mpi, {{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_LOCAL_RANK", "0"}}))->master_port);
  EXPECT_EQ(read(with(open_mpi, {{"MASTER_PORT", "12345"}}))->master_port, 12345);
  EXPECT_EQ(
      read(with(open_mpi, {{"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}, {"OMPI_COMM_WORLD_LOCAL_RANK", "1"}}))->master_address,
      "");
}

TEST(RankEnvironment, MpirunInsideAnAllocationIsMpirun) {
  EXPECT_EQ(read(with(srun, open_mpi))->launcher, LauncherKind::open_mpi);
}

TEST(RankEnvironment, ReadsSlurm) {
  const auto found = read(srun);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->launcher, LauncherKind::slurm);
  EXPECT_EQ(found->rank, 6);
  EXPECT_EQ(found->world_size, 7);
  EXPECT_EQ(found->local_rank, 1);
  EXPECT_EQ(found->local_world_size, 2);
  EXPECT_EQ(found->master_address, "");
  EXPECT_EQ(read(with(srun, {{"SLURM_NODEID", "0"}, {"SLURM_PROCID", "2"}}))->local_world_size, 3);
  EXPECT_STREQ(found->size_variable, "SLURM_STEP_NUM_TASKS");
  EXPECT_STREQ(read(without(srun, "SLURM_STEP_NUM_TASKS"))->size_variable, "SLURM_NTASKS");
}

TEST(RankEnvironment, KnowsWhetherSlurmServesMpi) {
  EXPECT_FALSE(read(srun)->launcher_serves_mpi);
  EXPECT_TRUE(read(with(srun, {{"PMIX_RANK", "6"}}))->launcher_serves_mpi) << "srun --mpi=pmix";
  EXPECT_TRUE(read(with(srun, {{"PMI_RANK", "6"}}))->launcher_serves_mpi) << "srun --mpi=pmi2";
}

TEST(RankEnvironment, SlurmOnOneMachineMeetsThere) {
  const auto found =
      read(with(srun, {{"SLURM_NODEID", "0"}, {"SLURM_LOCALID", "6"}, {"SLURM_STEP_TASKS_PER_NODE", "7"}}));
  ASSERT_TRUE(found);
  EXPECT_EQ(found->local_world_size, 7);
  EXPECT_EQ(found->master_address, "127.0.0.1");
  EXPECT_GT(found->master_port, 1024);
}

TEST(RankEnvironment, ShellsAndScriptsInsideSlurmAreNoRanks) {
  const Variables allocation = {{"SLURM_JOB_ID", "77"}, {"SLURM_NTASKS", "8"}, {"SLURM_TASKS_PER_NODE", "8"}};
  const Variables script = with(allocation, {{"SLURM_PROCID", "0"}, {"SLURM_LOCALID", "0"}, {"SLURM_NODEID", "0"}});
  const Variables shell_step = with(script, {{"SLURM_STEP_NUM_TASKS", "1"}, {"SLURM_STEP_TASKS_PER_NODE", "1"}});
  EXPECT_FALSE(read(allocation)) << "salloc";
  EXPECT_FALSE(read(script)) << "sbatch";
  EXPECT_FALSE(read(with(script, {{"SLURM_STEP_ID", "4294967291"}}))) << "sbatch, the script's own step";
  EXPECT_FALSE(read(with(script, {{"SLURM_STEP_ID", "4294967290"}}))) << "salloc's interactive step";
  EXPECT_FALSE(read(with(shell_step, {{"SLURM_STEP_ID", "0"}, {"SLURM_NTASKS", "1"}}))) << "srun --pty bash";
}

TEST(RankEnvironment, RefusesHalfOfTheVariables) {
  EXPECT_THAT(refusal({{"RANK", "0"}}), AllOf(HasSubstr("WORLD_SIZE"), HasSubstr("unset")));
  EXPECT_THAT(refusal({{"WORLD_SIZE", "4"}}), HasSubstr("RANK"));
  EXPECT_THAT(refusal({{"COPUS_RANK", "0"}, {"COPUS_WORLD_SIZE", "2"}}), HasSubstr("COPUS_SEGMENT"));
  for (const char* name : {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}) {
    EXPECT_THAT(refusal(without(torchrun, name)), HasSubstr(name));
  }
  EXPECT_THAT(refusal(without(open_mpi, "OMPI_COMM_WORLD_LOCAL_RANK")), HasSubstr("OMPI_COMM_WORLD_LOCAL_RANK"));
  EXPECT_THAT(refusal(without(srun, "SLURM_LOCALID")), HasSubstr("SLURM_LOCALID"));
  EXPECT_THAT(refusal(without(without(srun, "SLURM_STEP_TASKS_PER_NODE"), "SLURM_TASKS_PER_NODE")),
              HasSubstr("--ntasks-per-node"));
}

TEST(RankEnvironment, RefusesWhateverElseDescribesHalfAJob) {
  EXPECT_THAT(refusal({{"LOCAL_RANK", "0"}}), AllOf(HasSubstr("LOCAL_RANK is set, but not RANK"), HasSubstr("unset")));
  for (const char* name : {"LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK", "ROLE_WORLD_SIZE",
                           "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"}) {
    EXPECT_THAT(refusal({{name, "2"}}), HasSubstr(concat(name, " is set, but not RANK")));
  }
  EXPECT_THAT(
      refusal({{"COPUS_RANK", "0"}, {"COPUS_WORLD_SIZE", "2"}, {"COPUS_SEGMENT", "3"}, {"COPUS_JOB_START", "soon"}}),
      HasSubstr("COPUS_JOB_START"));
  for (const char* name : {"COPUS_SEGMENT", "COPUS_CONTROL", "COPUS_PROCESS", "COPUS_LIFELINE", "COPUS_LOCAL_RANK",
                           "COPUS_LOCAL_WORLD_SIZE"}) {
    EXPECT_THAT(refusal({{name, "2"}}), HasSubstr(concat(name, " is set, but not COPUS_RANK")));
  }
  EXPECT_THAT(refusal({{"OMPI_COMM_WORLD_LOCAL_RANK", "1"}}), HasSubstr("not OMPI_COMM_WORLD_RANK"));
  EXPECT_THAT(refusal(without(srun, "SLURM_STEP_ID")), HasSubstr("not SLURM_STEP_ID"));
  EXPECT_THAT(refusal(without(srun, "SLURM_PROCID")), HasSubstr("not SLURM_PROCID"));
  EXPECT_THAT(refusal({{"SLURM_PROCID", "3"}}), HasSubstr("SLURM_PROCID is set"));
  const Variables hydra = {{"PMI_RANK", "0"}, {"PMI_SIZE", "4"}, {"MPI_LOCALNRANKS", "4"}, {"MPI_LOCALRANKID", "0"}};
  EXPECT_THAT(refusal(hydra), AllOf(HasSubstr("PMI_SIZE (4)"), HasSubstr("MPICH")));
  EXPECT_THAT(refusal({{"MV2_COMM_WORLD_SIZE", "2"}}), HasSubstr("MVAPICH"));
  EXPECT_THAT(refusal({{"PALS_LOCAL_SIZE", "2"}}), HasSubstr("PALS"));
  EXPECT_THAT(refusal({{"JSM_NAMESPACE_SIZE", "2"}}), HasSubstr("jsrun"));
  EXPECT_THAT(refusal({{"FLUX_JOB_SIZE", "2"}}), HasSubstr("Flux"));
  EXPECT_THAT(refusal({{"HOROVOD_SIZE", "2"}, {"HOROVOD_RANK", "0"}}), HasSubstr("horovodrun"));
  for (const char* name : {"PMIX_RANK", "MPI_LOCALRANKID", "PALS_RANKID", "ALPS_APP_PE", "JSM_NAMESPACE_RANK",
                           "HOROVOD_RANK", "PET_NODE_RANK", "NODE_RANK"}) {
    EXPECT_THAT(refusal({{name, "1"}}), HasSubstr(concat(name, " (1)")));
    EXPECT_FALSE(read({{name, "0"}})) << name;
  }
  EXPECT_THAT(refusal({{"OMPI_COMM_WORLD_NODE_RANK", "0"}}), HasSubstr("not OMPI_COMM_WORLD_RANK"));
  EXPECT_THAT(refusal({{"PET_NNODES", "1:4"}}), HasSubstr("PET_NNODES (1:4)"));
  EXPECT_FALSE(read({{"PET_NNODES", "1"}, {"PET_NPROC_PER_NODE", "8"}}));
  EXPECT_FALSE(read({{"PMI_RANK", "0"}, {"PMI_SIZE", "1"}})) << "a job of one";
}

TEST(RankEnvironment, RefusesNumbersThatCannotBe) {
  EXPECT_THAT(refusal(with(torchrun, {{"RANK", "8"}})), AllOf(HasSubstr("RANK"), HasSubstr("from 0 to 7")));
  EXPECT_THAT(refusal(with(torchrun, {{"RANK", "-1"}})), HasSubstr("\"-1\""));
  EXPECT_THAT(refusal(with(torchrun, {{"RANK", "one"}})), HasSubstr("\"one\""));
  EXPECT_THAT(refusal(with(torchrun, {{"RANK", "1x"}})), HasSubstr("\"1x\""));
  EXPECT_THAT(refusal(with(torchrun, {{"LOCAL_RANK", "4"}})), HasSubstr("LOCAL_RANK"));
  EXPECT_THAT(refusal(with(torchrun, {{"LOCAL_WORLD_SIZE", "9"}})), HasSubstr("LOCAL_WORLD_SIZE"));
  EXPECT_THAT(refusal(with(torchrun, {{"RANK", "0"}})), HasSubstr("LOCAL_RANK (1)"));
  EXPECT_THAT(refusal(with(torchrun, {{"MASTER_PORT", "70000"}})), HasSubstr("65535"));
  EXPECT_THAT(refusal(with(srun, {{"SLURM_STEP_TASKS_PER_NODE", "3"}})), HasSubstr("machine 2"));
  EXPECT_THAT(refusal(with(srun, {{"SLURM_STEP_TASKS_PER_NODE", "3,2(2)"}})), HasSubstr("3,2(2)"));
}

TEST(RankEnvironment, RefusesLaunchersThatContradictEachOther) {
  const Variables by_hand = without(torchrun, "TORCHELASTIC_RUN_ID");
  EXPECT_THAT(refusal(with(by_hand, open_mpi)), AllOf(HasSubstr("rank 5 of 8"), HasSubstr("rank 3 of 4")));
  EXPECT_THAT(refusal(with(by_hand, srun)), AllOf(HasSubstr("rank 5 of 8"), HasSubstr("rank 6 of 7")));
  EXPECT_EQ(read(with(torchrun, srun))->launcher, LauncherKind::torchrun) << "srun torchrun: one task, several ranks";
}

}  // namespace
}  // namespace copus
