#include "copus/workshop/self_test/faults/fault_test.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <csignal>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>

#include "copus/base/error.h"
#include "copus/comm/health/process_state.h"
#include "copus/report/logs/run_log.h"
#include "copus/workshop/measuring_run.h"
#include "copus/workshop/memory_file.h"
#include "copus/workshop/self_test/faults/watched_job.h"

namespace copus {

namespace {

using std::chrono::steady_clock;

constexpr int64_t steps_per_run = 300;
constexpr int64_t switch_every = 10;  // steps
constexpr int64_t corpus_bytes = 1 << 16;
// Relative tolerance of losses. Losses in different layouts are equal up to rounding, here 1e-8, which grows over the
// steps. The learning rate is low enough for stable training; at 1e-3, losses of the same run spike at different steps.
constexpr double tolerance = 1e-5;
constexpr auto look_interval = std::chrono::microseconds(500);
// Limits for waiting, in seconds. They only detect what never happens, and say nothing about good results.
constexpr double start_limit = 120, heal_limit = 30, gone_limit = 30, phase_limit = 2;
// After a fault that should be harmless, no rank may be reported as failed for this many seconds.
constexpr double harm_limit = 1;

constexpr const char* model_text = R"(
[model]
architecture = "llama"
vocab_size = 256
hidden_size = 64
intermediate_size = 128
num_hidden_layers = 4
num_attention_heads = 4
num_key_value_heads = 4
)";
constexpr const char* training_text = R"(
sequence_length = 32
micro_batch = 1
threads = 1
precision = "fp32"
[optimizer]
lr = 1e-4
[evaluate]
interval = 25
[checkpoint]
interval = 20
[cluster]
within_node = { latency_microseconds = 5.0, gigabytes_per_second = 4.0 }
between_nodes = { latency_microseconds = 5.0, gigabytes_per_second = 4.0 }
device = { matmul_teraflops = 0.1 }
)";

struct Layout {
  int64_t data, tensor, pipeline, zero;
  bool moves = false;  // whether the job changes its layout every few steps
};

std::string to_string(const Layout& layout) {
  return layout.moves ? "moving"
                      : concat("d=", layout.data, ",t=", layout.tensor, ",p=", layout.pipeline, ",zero=", layout.zero);
}

// Phases in which ranks are struck, as they appear in the places that ranks report. Empty: in any phase.
constexpr std::array phases = {"forward",
                               "backward",
                               "the gradient's norm",
                               "update of the weights",
                               "evaluation",
                               "checkpoint",
                               "switching",
                               "regrouping",
                               "waiting",
                               "start",
                               "",
                               ""};

double seconds_since(steady_clock::time_point start) {
  return std::chrono::duration<double>(steady_clock::now() - start).count();
}

std::string last_lines(const std::filesystem::path& file) {
  std::ifstream stream(file);
  const std::string text(std::istreambuf_iterator<char>(stream), {});
  constexpr size_t length = 2000;
  return text.size() <= length ? text : "..." + text.substr(text.size() - length);
}

// Reads the log. If the job was struck during an evaluation, the log has two lines for that step, and the second one
// counts.
std::vector<StepRecord> logged_steps(const std::filesystem::path& run) { return read_run_log(run / "run.jsonl"); }

class FaultTest {
 public:
  FaultTest(const FaultTestOptions& options, FaultListener& listener)
      : options_(options), listener_(listener), corpus_(random_letters(corpus_bytes)), random_(options.seed) {
    const int64_t n = options.ranks;
    layouts_ = {{n / 2, 1, 2, 1}, {n, 1, 1, 3}, {n / 2, 2, 1, 0}, {n / 2, 1, 2, 1, true}};
  }

  void run() {
    for (int64_t number = 0; given_ < options_.faults; ++number) {
      strike_run(layouts_[number % layouts_.size()], options_.folder / concat("run", number));
    }
  }

 private:
  const FaultTestOptions& options_;
  FaultListener& listener_;
  const MemoryFile corpus_;
  std::mt19937_64 random_;
  ChildProcesses processes_;
  std::vector<Layout> layouts_;
  std::map<std::string, std::vector<StepRecord>> unharmed_;  // by layout
  std::optional<WatchedJob> job_;
  bool has_lasting_harm_ = false;  // a process has lost something and may fail because of it later
  int64_t given_ = 0;              // number of faults so far

  size_t random_below(size_t count) { return random_() % count; }

  static std::vector<std::string> train(const std::filesystem::path& run, bool resumes) {
    if (resumes) return {"train", "--resume", "--run-dir", run.string()};
    return {"train", concat(run.string(), ".toml"), "--run-dir", run.string()};
  }

  static std::filesystem::path output_of(const std::filesystem::path& run) { return concat(run.string(), ".output"); }

  void write_run(const Layout& layout, const std::filesystem::path& run) const {
    std::ofstream file(concat(run.string(), ".toml"));
    file << model_text << "[train]\nmax_steps = " << steps_per_run << "\nglobal_batch = " << batch_of_fault_test
         << training_text << "ranks_per_node = " << options_.ranks << "\n[data]\ntrain = \"" << corpus_.path()
         << "\"\nheld_out_fraction = 0.1\n[parallel]\ndata_parallel = " << layout.data
         << "\ntensor_parallel = " << layout.tensor << "\npipeline_parallel = " << layout.pipeline
         << "\nzero_stage = " << layout.zero << '\n';
    if (!layout.moves) return;
    const std::filesystem::path script = concat(run.string(), ".script.jsonl");
    file << "[adapt]\npolicy = \"script\"\nfile = \"" << script.string() << "\"\nglobal_batches = ["
         << batch_of_fault_test << "]\nzero_stages = [0, 1, 3]\nmax_tensor_parallel = 2\n";
    std::ofstream lines(script);
    for (int64_t step = switch_every; step < steps_per_run; step += switch_every) {
      const Layout& to = layouts_[step / switch_every % 3];
      lines << nlohmann::json({{"after_step", step},
                               {"configuration",
                                {{"data_parallel", to.data},
                                 {"tensor_parallel", to.tensor},
                                 {"pipeline_parallel", to.pipeline},
                                 {"virtual_stages", 1},
                                 {"schedule", "1f1b"},
                                 {"sequence_parallel", false},
                                 {"zero_stage", to.zero},
                                 {"recompute", "none"},
                                 {"global_batch", batch_of_fault_test},
                                 {"micro_batch", 1}}}})
            << '\n';
    }
  }

  // Polls the job until `condition` holds, or for `limit` seconds. Returns whether it holds.
  template <typename Condition>
  bool wait_until(double limit, const Condition& condition) {
    const auto start = steady_clock::now();
    while (true) {
      job_->look();
      if (condition()) return true;
      if (seconds_since(start) > limit) return false;
      std::this_thread::sleep_for(look_interval);
    }
  }

  // Waits however slow the machine is, but gives up once the job makes no progress.
  bool wait_for_end() {
    const auto place = [&] { return job_->ranks().empty() ? std::string() : job_->ranks().front().place; };
    for (std::string before; !job_->exit_code(); before = place()) {
      if (!wait_until(start_limit, [&] { return job_->exit_code() || place() != before; })) return false;
    }
    return true;
  }

  // The log of a run of this layout without faults.
  const std::vector<StepRecord>& unharmed(const Layout& layout) {
    const std::string name = to_string(layout);
    if (const auto found = unharmed_.find(name); found != unharmed_.end()) return found->second;
    const std::filesystem::path run = options_.folder / concat("unharmed-", name);
    start(layout, run);
    if (!wait_for_end() || job_->exit_code() != 0) {
      throw UserError(concat("a job of ", options_.ranks, " ranks does not train here even without faults:\n",
                             last_lines(output_of(run))));
    }
    job_.reset();
    return unharmed_[name] = logged_steps(run);
  }

  void start(const Layout& layout, const std::filesystem::path& run) {
    write_run(layout, run);
    has_lasting_harm_ = false;
    job_.emplace(processes_, train(run, false), output_of(run));
  }

  // Resumes from the last checkpoint, or starts from the beginning if there is none.
  void start_again(const Layout& layout, const std::filesystem::path& run) {
    const bool resumes =
        std::filesystem::exists(run / "checkpoints") && !std::filesystem::is_empty(run / "checkpoints");
    if (!resumes) {
      std::filesystem::remove_all(run);
      return start(layout, run);
    }
    has_lasting_harm_ = false;
    job_.emplace(processes_, train(run, true), output_of(run));
  }

  void strike_run(const Layout& layout, const std::filesystem::path& run) {
    const std::vector<StepRecord>& expected = unharmed(layout);
    FaultedRun result{.layout = to_string(layout)};
    start(layout, run);
    while (given_ < options_.faults && result.failure.empty()) {
      const FaultKind& kind = fault_kinds()[random_below(fault_kinds().size())];
      const auto outcome = strike(kind, phases[random_below(phases.size())]);
      if (outcome) {
        ++given_;
        listener_.add(*outcome);
        if (!outcome->failure.empty()) result.failure = "see the fault before";
      }
      if (!job_->exit_code()) continue;
      if (*job_->exit_code() == 0 || (!outcome && !has_lasting_harm_)) break;
      start_again(layout, run);
    }
    // A fault with lasting effects may end the job later.
    while (has_lasting_harm_ && result.failure.empty() && wait_for_end() && job_->exit_code() != 0) {
      start_again(layout, run);
    }
    finish(result, run, expected);
    listener_.add(result);
    job_.reset();
  }

  void finish(FaultedRun& result, const std::filesystem::path& run, const std::vector<StepRecord>& expected) {
    if (!wait_for_end()) {
      result.failure = concat("the job does not end:\n", last_lines(output_of(run)));
      ::kill(static_cast<pid_t>(job_->launcher()), SIGKILL);
      wait_for_end();
    } else if (job_->exit_code() != 0 && result.failure.empty()) {
      result.failure = concat("the job ended with exit code ", *job_->exit_code(), ":\n", last_lines(output_of(run)));
    }
    std::vector<StepRecord> steps;
    try {
      steps = logged_steps(run);
    } catch (const UserError& error) {  // no log, or a repeated step
      if (result.failure.empty()) result.failure = error.what();
    }
    result.steps = std::ssize(steps);
    if (!result.failure.empty()) return;
    if (steps.size() != expected.size()) {
      result.failure = concat(steps.size(), " steps were logged, not ", expected.size());
      return;
    }
    for (size_t i = 0; i < steps.size(); ++i) {
      const double difference = std::abs(steps[i].loss / expected[i].loss - 1);
      result.relative_difference = std::max(result.relative_difference, difference);
      if (steps[i].step != expected[i].step || steps[i].consumed_samples != expected[i].consumed_samples ||
          !(difference < tolerance)) {
        result.failure = concat("step ", steps[i].step, " after ", steps[i].consumed_samples, " samples, loss ",
                                steps[i].loss, ", and without faults step ", expected[i].step, " after ",
                                expected[i].consumed_samples, ", loss ", expected[i].loss);
        return;
      }
    }
  }

  // Returns the rank to strike, with the place that it has reported; nothing if the job has ended.
  std::optional<WatchedJob::Rank> find_victim(const std::string& phase) {
    std::optional<WatchedJob::Rank> victim;
    const auto is_there = [&](const WatchedJob::Rank& rank) {
      if (phase == "waiting") return rank.is_waiting && rank.place.starts_with("step ");
      if (phase == "start") return rank.pid > 0;
      return rank.place.find(phase) != std::string::npos && rank.has_come;
    };
    const auto pick = [&] {
      std::vector<WatchedJob::Rank> found;
      std::ranges::copy_if(job_->ranks(), std::back_inserter(found), is_there);
      if (found.empty()) return false;
      victim = found[random_below(found.size())];
      return true;
    };
    // In these phases the job is struck at once; in others only when it has all its ranks.
    const bool at_once = phase == "regrouping" || phase == "start";
    const auto ready = [&] {
      return job_->exit_code() || (job_->trains() && std::ssize(job_->ranks()) == options_.ranks);
    };
    if (!at_once && !wait_until(start_limit, ready)) return std::nullopt;
    if (phase.empty()) {
      const auto until = steady_clock::now() + std::chrono::milliseconds(random_below(300));
      wait_until(phase_limit, [&] { return job_->exit_code() || steady_clock::now() > until; });
    }
    wait_until(phase_limit, [&] { return job_->exit_code() || pick(); });
    if (!victim && !job_->exit_code()) {
      if (!wait_until(start_limit, ready)) return std::nullopt;
      for (const WatchedJob::Rank& rank : job_->ranks()) victim = rank;
    }
    if (job_->exit_code()) return std::nullopt;
    return victim;
  }

  std::optional<FaultOutcome> strike(const FaultKind& kind, const std::string& phase) {
    const auto victim = find_victim(phase);
    if (!victim) return std::nullopt;
    const int64_t failures = job_->num_failures(), epochs = job_->num_epochs();
    const auto struck = steady_clock::now();
    if (!kind.strike(kind.strikes_launcher ? job_->launcher() : victim->pid)) return std::nullopt;
    FaultOutcome outcome{.kind = &kind, .place = victim->place};
    has_lasting_harm_ = has_lasting_harm_ || kind.aftermath == Aftermath::healed_or_unharmed;
    const auto is_named = [&] { return job_->num_failures() > failures || job_->exit_code(); };
    const auto has_changed = [&] { return job_->num_epochs() > epochs || job_->exit_code(); };
    switch (kind.aftermath) {
      case Aftermath::unharmed:
      case Aftermath::healed_or_unharmed:
        if (!wait_until(harm_limit, is_named)) return outcome;
        outcome.was_harmed = !job_->exit_code();
        if (outcome.was_harmed && kind.aftermath == Aftermath::unharmed && !has_lasting_harm_) {
          outcome.failure = "a rank counts as failed";
        }
        break;
      case Aftermath::healed:
        outcome.was_harmed = wait_until(heal_limit, kind.is_told ? std::function<bool()>(is_named) : has_changed);
        // A rank without connection to its launcher cannot report that it wants to leave.
        if (!outcome.was_harmed && (kind.is_told || !has_lasting_harm_)) outcome.failure = "nobody notices";
        break;
      case Aftermath::stopped:
      case Aftermath::ended:
        // The process may not have become a rank yet. A signal then ends it as it ends any program, and the other ranks
        // continue.
        outcome.was_harmed = wait_until(gone_limit, [&] {
          const bool is_one_less = !kind.strikes_launcher && !victim->has_come && is_named();
          return is_one_less || job_->exit_code();
        });
        if (!outcome.was_harmed) outcome.failure = "the job goes on";
        break;
    }
    if (job_->exit_code()) {
      end(struck, *victim, outcome);
    } else if (outcome.was_harmed) {
      heal(struck, *victim, outcome);
    }
    return outcome;
  }

  void heal(steady_clock::time_point struck, const WatchedJob::Rank& victim, FaultOutcome& outcome) {
    const auto named = steady_clock::now();
    if (outcome.kind->is_told) outcome.named_seconds = std::chrono::duration<double>(named - struck).count();
    const int64_t epochs = job_->num_epochs() + (outcome.kind->is_told ? 1 : 0);
    const auto is_healed = [&] { return (job_->num_epochs() >= epochs && job_->trains()) || job_->exit_code(); };
    if (!wait_until(heal_limit, is_healed)) {
      outcome.failure = "the job does not train again";
    } else if (!job_->exit_code()) {
      outcome.healed_seconds = seconds_since(outcome.kind->is_told ? named : struck);
    } else {
      end(struck, victim, outcome);
    }
  }

  // Judges the outcome when the launcher has ended.
  void end(steady_clock::time_point struck, const WatchedJob::Rank& victim, FaultOutcome& outcome) {
    constexpr int users_mistake = 2, asked_to_stop = 75, interrupted = 130, killed = 128 + SIGKILL;
    const int code = *job_->exit_code();
    if (code == 0) {  // it had completed all its steps
      outcome.was_harmed = false;
      return;
    }
    const std::vector<int64_t> all = job_->seen();
    const auto are_gone = [&] {
      return std::ranges::all_of(all, [](int64_t pid) { return process_state(pid) == ProcessState::gone; });
    };
    if (!wait_until(gone_limit, are_gone)) {
      outcome.failure = "processes of the job are left";
      return;
    }
    outcome.gone_seconds = seconds_since(struck);
    const bool is_told_to_stop = code == asked_to_stop || code == interrupted;
    // The job may rightly end in these cases: (a) not all ranks had met yet, so there was nothing to continue from; (b)
    // a rank ran out of memory, which it reports as a user's mistake, so it is not replaced; (c) rank 0 lost the
    // connection to its launcher, and takes a stop signal as the end of the job. The effect of an earlier fault may
    // show only now.
    bool is_right = !victim.has_come || (has_lasting_harm_ && (code == users_mistake || code == asked_to_stop));
    if (outcome.kind->aftermath == Aftermath::ended) is_right = code == killed;
    if (outcome.kind->aftermath == Aftermath::stopped) is_right = is_right || is_told_to_stop;
    if (!is_right) outcome.failure = concat("the job ended with exit code ", code);
    outcome.was_harmed = true;
  }
};

}  // namespace

void run_fault_test(const FaultTestOptions& options, FaultListener& listener) { FaultTest(options, listener).run(); }

}  // namespace copus
