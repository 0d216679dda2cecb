// `copus train`: starts or resumes a run.
#include <csignal>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "copus/cli/commands.h"
#include "copus/cli/option_checks.h"
#include "copus/config/settings.h"
#include "copus/train/job/job.h"

namespace copus {

namespace {

struct TrainOptions {
  RunRequest request;
  std::optional<std::string> max_time;
};

}  // namespace

void add_train(CLI::App& program, CommandAction& action, const std::vector<std::string>& arguments,
               const PageWriter& write_page) {
  auto options = std::make_shared<TrainOptions>();
  options->request.write_page = write_page;
  CLI::App& command = *program.add_subcommand("train", "Train a model, or go on with a run");
  command.add_option("CONFIG", options->request.config_path,
                     "The run's configuration, a TOML file; with --resume it may be left out: the run's own is used");
  add_settings_option(command, options->request.overrides,
                      "A setting that overrides the file's: section.key=value; may be repeated");
  command
      .add_option("--run-dir", options->request.run_directory,
                  "Where the run's files go (default: runs/<config name>-<date>-<time>)")
      ->type_name("DIR");
  command
      .add_option_function<std::string>(
          "--init-from",
          [options](const std::string& directory) {
            options->request.overrides.push_back("model.init_from=" + quote(directory));
          },
          "Start from the weights of a Hugging Face directory, whose config.json then describes the model")
      ->type_name("DIR");
  command.add_flag("--resume", options->request.resume,
                   "Go on with the run in --run-dir from its newest checkpoint, bitwise as if never interrupted");
  command.add_flag("--new-data", options->request.new_data,
                   "With --resume: data.train may name other sources or weights than before; the run reads them from "
                   "their beginning and keeps weights, moments and schedule");
  command.add_flag("--dry-run", options->request.dry_run,
                   "Tell what the run would take, memory and time, and write nothing; exit code 2 where it cannot fit");
  command
      .add_option("--max-time", options->max_time,
                  "Stop in time to have written a checkpoint after this long, such as 90m or 1h30m; exit code 75")
      ->type_name("DURATION");
  command
      .add_option("--trace", options->request.trace_steps,
                  "Write a timeline of so many steps, after the first one, to timeline.json in the run directory; "
                  "ui.perfetto.dev opens it")
      ->check(at_least(0))
      ->type_name("STEPS");
  command.footer(
      "Ctrl-C and SIGTERM finish the step, write a checkpoint and say how to go on; a second one ends at once.\n"
      "SIGHUP, SIGUSR1 and SIGUSR2 do as the first SIGTERM, unless they are ignored (nohup).\n"
      "A layout of several ranks ([parallel]) is started as so many processes, or by torchrun --no-python, srun, "
      "mpirun.\n"
      "Exit codes: 0 done, 2 a mistake in what was given, 75 SIGTERM or --max-time, 130 Ctrl-C.\n"
      "Examples:\n"
      "  copus train configs/runs/quickstart.toml --run-dir r1\n"
      "  copus train configs/runs/quickstart.toml --set train.max_seconds=600 --set optimizer.lr=1e-3\n"
      "  copus train --resume --run-dir r1 --set train.max_seconds=1200\n"
      "  copus train RUN.toml --run-dir r1 --resume --max-time 55m    for a job that a scheduler requeues");
  command.callback([options, arguments, &program, &action] {
    options->request.program = program.get_name();
    action = [options, arguments] {
      std::signal(SIGPIPE, SIG_IGN);  // so that the run continues when nobody reads its output any more
      const double limit = options->max_time ? read_duration("--max-time", *options->max_time) : 0;
      return run_job(options->request, limit, arguments);
    };
  });
}

}  // namespace copus
