// How a command of this room measures with several ranks: it starts them as processes of this program, each does the
// job that the command names, and the command gets what rank 0 has found out. README.md says how a job is added.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "copus/comm/job/launcher.h"

namespace copus {

// What a rank does, given the request of the command that started it, which is the same for all ranks. The result is
// that of rank 0; the others' are dropped.
using RankJob = nlohmann::json (*)(const nlohmann::json& request, const RankEnvironment& environment);
using RankJobs = std::map<std::string, RankJob>;  // by name

// Starts `count` processes of this program with these arguments and returns the exit code of them all.
using RankStarter = std::function<int(int64_t count, const std::vector<std::string>& arguments)>;

// Ranks that have ended with another exit code than 0, and have told the user why. This program ends with it too.
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
