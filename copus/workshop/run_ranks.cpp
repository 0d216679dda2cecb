// Request and result are JSON in memory files. The paths of these files are arguments of the hidden command `copus
// run-rank`.
#include "copus/workshop/run_ranks.h"

#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "copus/base/error.h"
#include "copus/base/files/durable_file.h"
#include "copus/base/text/json_text.h"
#include "copus/workshop/commands.h"
#include "copus/workshop/memory_file.h"

namespace copus {

namespace {

struct RankOptions {
  std::string job, request, result;  // the last two are paths
};

int run_rank(const RankOptions& options, const RankJobs& jobs) {
  const auto job = jobs.find(options.job);
  const std::optional<RankEnvironment> environment = read_rank_environment();
  if (job == jobs.end() || !environment) {
    throw UserError("run-rank is for the processes that copus starts as its ranks");
  }
  const nlohmann::json request = nlohmann::json::parse(read_text_file(options.request));
  const nlohmann::json result = job->second(request, *environment);
  if (environment->rank == 0) {
    std::ofstream file(options.result);
    COPUS_CHECK(file << json_text(result) << std::flush, options.result);
  }
  return 0;
}

}  // namespace

RanksFailed::RanksFailed(int exit_code)
    : std::runtime_error(concat("the ranks ended with exit code ", exit_code)), exit_code_(exit_code) {}

nlohmann::json run_ranks(int64_t count, const std::string& job, const nlohmann::json& request,
                         const RankStarter& start) {
  const MemoryFile request_file(json_text(request)), result_file;
  const int exit_code = start(count, {"run-rank", job, request_file.path(), result_file.path()});
  if (exit_code != 0) throw RanksFailed(exit_code);
  return nlohmann::json::parse(read_text_file(result_file.path()));
}

void add_run_rank(CLI::App& program, CommandAction& action, RankJobs jobs) {
  auto options = std::make_shared<RankOptions>();
  CLI::App& rank = *program.add_subcommand("run-rank")->group("");
  rank.add_option("JOB", options->job)->required();
  rank.add_option("REQUEST", options->request)->required();
  rank.add_option("RESULT", options->result)->required();
  rank.callback(
      [options, jobs = std::move(jobs), &action] { action = [options, jobs] { return run_rank(*options, jobs); }; });
}

}  // namespace copus
