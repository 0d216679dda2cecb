// Lets a command of this directory measure with several ranks. The command starts the ranks as processes of this
// program, each rank does the job that the command names, and the command gets rank 0's result. README.md explains how
// to add a job.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "copus/comm/job/start/launcher.h"

namespace copus {

// The work of a rank. Its argument is the request of the command that started it, which is the same for all ranks. Only
// rank 0's result is used.
using RankJob = nlohmann::json (*)(const nlohmann::json& request, const RankEnvironment& environment);
using RankJobs = std::map<std::string, RankJob>;  // by name

// Starts `count` processes of this program with these arguments, and returns their common exit code.
using RankStarter = std::function<int(int64_t count, const std::vector<std::string>& arguments)>;

// Thrown if ranks have ended with an exit code other than 0. The ranks have already reported the reason to the user.
// This program must end with the same code.
class RanksFailed : public std::runtime_error {
 public:
  explicit RanksFailed(int exit_code);
  int exit_code() const { return exit_code_; }

 private:
  int exit_code_;
};

// Runs `job` on `count` ranks and returns rank 0's result. Throws RanksFailed.
nlohmann::json run_ranks(int64_t count, const std::string& job, const nlohmann::json& request,
                         const RankStarter& start = launch_ranks);

}  // namespace copus
