#include "apps/copus/program.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <iostream>
#include <new>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "apps/copus/command_line_mistakes.h"
#include "copus/base/error.h"
#include "copus/base/files/mapped_file.h"
#include "copus/base/process/available_memory.h"
#include "copus/base/process/cores.h"
#include "copus/base/text/printable.h"
#include "copus/cli/commands.h"
#include "copus/cli/with_libtorch.h"
#include "copus/comm/gpu/gpu_environment.h"
#include "copus/comm/rank_failure.h"
#include "copus/report/drawn/html_report.h"
#include "copus/workshop/commands.h"

namespace copus {

namespace {

constexpr int our_bug = 1;
constexpr int users_mistake = 2;

int complain(const char* kind, std::string_view message, int exit_code) {
  std::cout.flush();
  std::cerr << "copus: " << kind << ": " << printable(message) << '\n';
  return exit_code;
}

// Reports the exception that ends the program, and returns the exit code.
int tell(const std::exception_ptr& end) {
  try {
    std::rethrow_exception(end);
  } catch (const UserError& error) {
    return complain("error", error.what(), users_mistake);
  } catch (const RankFailure& failure) {
    if (failure.report().announced) return our_bug;  // the job has already reported its failure
    return complain("error", failure.what(), our_bug);
  } catch (const RanksFailed& failed) {
    return failed.exit_code();
  } catch (const std::bad_alloc&) {
    return complain("error", lack_of_memory_message(), users_mistake);
  } catch (const std::filesystem::filesystem_error& error) {
    return complain("error", error.what(), users_mistake);  // no permission, a name too long, a lost disk
  } catch (const std::system_error& error) {
    const bool is_thread = error.code() == std::errc::resource_unavailable_try_again;  // only threads cause this error
    if (is_thread) return complain("error", lack_of_threads_message(), users_mistake);
    return complain("internal error", error.what(), our_bug);
  } catch (const std::exception& error) {
    return complain("internal error", error.what(), our_bug);
  } catch (...) {
    return complain("internal error", "something was thrown that is no exception", our_bug);
  }
}

// Returns the exit code for a command that has ended with `exit_code`. If the disk did not accept the command's output,
// the command has failed. A closed pipe, as with `| head`, is not a failure, because its reader needs no more output.
int exit_code_with_output(int exit_code) {
  std::cout.flush();
  if (std::cout && std::ferror(stdout) == 0) return exit_code;
  struct stat status{};
  if (::fstat(STDOUT_FILENO, &status) == 0 && (S_ISFIFO(status.st_mode) || S_ISSOCK(status.st_mode))) return exit_code;
  // Streams do not keep the reason of an error, so it is found by writing again.
  std::cout.clear();
  std::clearerr(stdout);
  errno = 0;
  std::cout << std::endl;
  const std::string reason = errno == 0 ? "" : concat(": ", std::generic_category().message(errno));
  complain("error", concat("standard output cannot be written", reason, "; make room, or write it somewhere else"), 0);
  return exit_code == 0 ? users_mistake : exit_code;
}

// Ends the process when an exception leaves a thread other than the first. If the exception is a UserError, prints its
// message and writes no core dump.
[[noreturn]] void end_of_a_thread() {
  const std::exception_ptr end = std::current_exception();
  const int exit_code = end ? tell(end) : our_bug;
  if (exit_code == users_mistake) std::_Exit(exit_code);
  std::abort();
}

int run_command(int argc, char* const* argv) {
  tell_of_files_cut_short();
  set_gpu_environment();
  CLI::App program("Copus trains decoder-only language models.");
  program.set_version_flag("--version", "copus " COPUS_VERSION);
  program.footer(
      "Examples:\n"
      "  copus train configs/runs/quickstart.toml                    train a small model\n"
      "  copus train RUN.toml --set optimizer.lr=3e-4 --run-dir r1   change a setting, name the run\n"
      "  copus train --resume --run-dir r1                           go on with an interrupted run\n"
      "  copus ctl r1 force B=64                                     change a running job's batch or layout\n"
      "  copus watch r1                                              look at a run while it goes on\n"
      "  copus generate --checkpoint r1 --prompt 'The sea '          let the model write\n"
      "  copus convert --from r1 --to r1-hf --dtype bf16             export for Hugging Face transformers\n"
      "  copus replay r1                                             check that its decisions follow from its log\n"
      "  copus compare EXPERIMENT.toml                               train policies with the same seeds, compare them\n"
      "  copus gns --checkpoint r1                                   measure its gradient noise scale\n"
      "  copus plan --model llama-3.2-3b --cluster h100-sxm --gpus 8 predict the fastest layouts\n"
      "  copus simulate RUN.toml                                     try policies in runs of real size, by a law\n"
      "'copus COMMAND --help' says more about a command.");

  CommandAction action;
  add_train(program, action, {argv + 1, argv + argc},
            [](const std::filesystem::path& directory, std::vector<DecisionEvent> events) {
              write_html_report(directory, std::move(events));
            });
  add_generate(program, action);
  add_convert(program, action);
  add_ctl(program, action);
  add_watch(program, action);
  add_report(program, action);
  add_replay(program, action);
  add_gns(program, action);
  add_calibrate(program, action);
  add_plan(program, action);
  add_models(program, action);
  add_clusters(program, action);
  add_simulate(program, action);
  add_compare(program, action);
  RankJobs jobs;
  add_profile(program, action, jobs);
  CLI::App& bench = *program.add_subcommand("bench", "Measure this machine")->require_subcommand(1);
  bench.footer("Example:\n  copus bench step --json\n'copus bench COMMAND --help' says more about a command.");
  add_step_bench(bench, action);
  add_probe_bench(bench, action, jobs);
  add_relayout_bench(bench, action, jobs);
  add_comm_bench(bench, action, jobs);
  add_model_bench(bench, action);
  add_decide_bench(bench, action);
  add_regret_bench(bench, action);
  add_agreement_bench(bench, action);
  add_doctor(program, action);
  add_doctor_of_trainer(program, action);
  add_selftest(program, action, jobs);
  add_run_rank(program, action, std::move(jobs));

  std::set_terminate(end_of_a_thread);
  try {
    try {
      program.parse(argc, argv);
      if (!action) return complain("error", no_command(program), users_mistake);
      refuse_empty_values(program);
      return action();
    } catch (const NeedsLibtorch& needs) {
      become_program_with_libtorch(argv, needs);
    }
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return program.exit(error);  // --help and --version
    return complain("error", explain(error, program), users_mistake);
  } catch (const UserError& error) {
    return complain("error", with_help(error.what(), program), users_mistake);
  } catch (...) {
    return tell(std::current_exception());
  }
}

}  // namespace

int run_program(int argc, char* const* argv) { return exit_code_with_output(run_command(argc, argv)); }

}  // namespace copus
