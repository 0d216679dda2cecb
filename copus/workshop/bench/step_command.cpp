#include <cmath>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "copus/base/error.h"
#include "copus/base/process/cores.h"
#include "copus/base/text/json_text.h"
#include "copus/base/text/units.h"
#include "copus/cli/option_checks.h"
#include "copus/config/descriptions.h"
#include "copus/workshop/bench/one_rank_bench.h"
#include "copus/workshop/bench/step_bench.h"
#include "copus/workshop/commands.h"
#include "copus/workshop/table.h"

namespace copus {
namespace {

struct StepCommandOptions {
  StepBenchOptions bench;
  std::string model;  // by name or path, instead of its sizes
  std::string cluster;
  std::string layout;  // the layout of which this process is one rank
  int64_t steps = 10;
  bool json = false;
  bool serve = false;
};

nlohmann::json to_json(const StepBenchResult& r) {
  const auto part = [](const PartReport& p) {
    return nlohmann::json{{"seconds", p.seconds}, {"floor_seconds", p.floor_seconds}};
  };
  return {{"tokens_per_second", r.tokens_per_second},
          {"gflops", r.gflops},
          {"matmul_peak_gflops", r.matmul_peak_gflops},
          {"mfu", r.mfu},
          {"mfu_uniform", std::isnan(r.mfu_uniform) ? nlohmann::json() : nlohmann::json(r.mfu_uniform)},
          {"peak_memory_bytes", r.peak_memory_bytes},
          {"precision", r.precision},
          {"steps", r.steps},
          {"seconds_per_step", r.seconds_per_step},
          {"fastest_seconds", r.fastest_seconds},
          {"slowest_seconds", r.slowest_seconds},
          {"memory_bytes_per_second", r.memory_bandwidth},
          {"parts",
           {{"matmul", part(r.matmul)},
            {"attention", part(r.attention)},
            {"elementwise", part(r.elementwise)},
            {"optimizer", part(r.optimizer)},
            {"other", {{"seconds", r.other_seconds}}}}}};
}

void print_table(const StepBenchResult& r) {
  const auto milliseconds = [](const char* format, double seconds) { return format_number(format, seconds * 1e3); };
  std::cout << "one step     " << milliseconds("%.3f", r.seconds_per_step) << " ms (median of " << r.steps << "; "
            << milliseconds("%.3f", r.fastest_seconds) << " to " << milliseconds("%.3f", r.slowest_seconds) << ")\n"
            << "throughput   " << format_number("%.1f", r.tokens_per_second) << " tokens/s, "
            << format_number("%.1f", r.gflops) << " GFLOP/s\n"
            << "MFU          " << format_number("%.1f %% of the ", r.mfu * 100) << r.precision
            << " matmul peak measured here, " << format_number("%.1f", r.matmul_peak_gflops) << " GFLOP/s"
            << (std::isnan(r.mfu_uniform) ? "" : format_number(", %.1f %% of the data sheet's", r.mfu_uniform * 100))
            << "\nmemory       " << format_bytes(static_cast<double>(r.peak_memory_bytes))
            << " at the peak; a copy moves " << format_number("%.1f", r.memory_bandwidth / 1e9) << " GB/s\n\n"
            << "part           ms/step   floor ms   share\n";
  constexpr int widths[] = {-13, 9, 11, 9};
  const auto line = [&](const char* name, double seconds, const std::string& floor) {
    print_cells(widths, {name, milliseconds("%.1f", seconds), floor,
                         format_number("%.1f %%", seconds / r.seconds_per_step * 100)});
  };
  const auto part = [&](const char* name, const PartReport& p) {
    line(name, p.seconds, milliseconds("%.1f", p.floor_seconds));
  };
  part("matmul", r.matmul);
  part("attention", r.attention);
  part("elementwise", r.elementwise);
  part("optimizer", r.optimizer);
  line("other", r.other_seconds, "");
}

// Measures one rank of a layout.
int run_one_rank(const StepCommandOptions& options) {
  const ParallelStrategy layout = read_configuration("--as", options.layout).values.strategy;
  const OneRankResult result = measure_one_rank(options.bench, layout, options.steps);
  const double median = result.step_seconds[result.step_seconds.size() / 2];
  if (options.json) {
    std::cout << json_text(nlohmann::json{{"as", options.layout},
                                          {"precision", result.precision},
                                          {"steps", options.steps},
                                          {"seconds_per_step", median},
                                          {"fastest_seconds", result.step_seconds.front()},
                                          {"slowest_seconds", result.step_seconds.back()},
                                          {"peak_memory_bytes", result.peak_memory_bytes}})
              << '\n'
              << std::flush;
    return 0;
  }
  const auto milliseconds = [](double seconds) { return format_number("%.3f", seconds * 1e3); };
  std::cout << "one step     " << milliseconds(median) << " ms of rank 0 of " << options.layout
            << " without communication (median of " << options.steps << "; "
            << milliseconds(result.step_seconds.front()) << " to " << milliseconds(result.step_seconds.back())
            << ")\nmemory       " << format_bytes(static_cast<double>(result.peak_memory_bytes)) << " at the peak\n";
  return 0;
}

// Follows the protocol of bench/pytorch and bench/gpu. "run N" returns the median seconds of N steps. "report N"
// returns the output of --json. "release" frees the memory; the command after it then starts again with two uncounted
// steps. The protocol ends with "quit" or at the end of the input.
void serve(const StepBenchOptions& options) {
  std::unique_ptr<StepBench> bench;
  const auto warm_up = [&] {
    if (bench) return;
    bench = std::make_unique<StepBench>(options);
    bench->run(2);
  };
  const auto answer = [](const nlohmann::json& message) { std::cout << json_text(message) << '\n' << std::flush; };
  warm_up();
  answer({{"ready", true}});
  std::string word;
  while (std::cin >> word && word != "quit") {
    int64_t steps = 0;
    if (word == "release") {
      bench.reset();
      answer({{"released", true}});
    } else if ((word == "run" || word == "report") && std::cin >> steps && steps > 0) {
      warm_up();
      answer(word == "run" ? nlohmann::json{{"seconds_per_step", bench->run(steps)}} : to_json(bench->measure(steps)));
    } else {
      throw UserError("--serve expects lines 'run N', 'report N', 'release' or 'quit' on standard input");
    }
  }
}

int run_step_bench(StepCommandOptions& options) {
  ModelDescription& model = options.bench.model;
  if (!options.model.empty()) {
    model = find_model(options.model);
  } else if (model.num_heads % model.num_kv_heads != 0 || model.hidden_size % model.num_heads != 0 ||
             model.hidden_size / model.num_heads % 2 != 0) {
    throw UserError(concat("--hidden ", model.hidden_size, ", --heads ", model.num_heads, ", --kv-heads ",
                           model.num_kv_heads,
                           ": heads must divide hidden into an even head size, and kv heads must divide heads"));
  } else {
    model.head_dim = model.hidden_size / model.num_heads;
  }
  if (!options.cluster.empty()) {
    options.bench.device_peak_flops_per_second = find_cluster(options.cluster).device.peak_flops_per_second;
  }
  if (!options.layout.empty()) return run_one_rank(options);
  if (options.serve) {
    serve(options.bench);
    return 0;
  }
  StepBench bench(options.bench);
  const StepBenchResult result = bench.measure(options.steps);
  if (options.json) {
    std::cout << json_text(to_json(result)) << '\n' << std::flush;
  } else {
    print_table(result);
  }
  return 0;
}

}  // namespace

void add_step_bench(CLI::App& bench, CommandAction& action) {
  auto options = std::make_shared<StepCommandOptions>();
  ModelDescription& model = options->bench.model;
  model.vocab_size = 8192;
  model.hidden_size = 512;
  model.intermediate_size = 1408;
  model.num_layers = 8;
  model.num_heads = 8;
  model.num_kv_heads = 4;
  CLI::App& step = *bench.add_subcommand("step", about_step_bench);
  CLI::Option* const named =
      step.add_option("--model", options->model, "A model that ships, or a Hugging Face config.json, instead of sizes");
  const auto size = [&](const char* name, int64_t& value, const char* help) {
    return step.add_option(name, value, help)->check(at_least(1))->capture_default_str();
  };
  size("--layers", model.num_layers, "Decoder layers")->excludes(named);
  size("--hidden", model.hidden_size, "Hidden size")->excludes(named);
  size("--heads", model.num_heads, "Attention heads")->excludes(named);
  size("--kv-heads", model.num_kv_heads, "Key-value heads")->excludes(named);
  size("--ffn", model.intermediate_size, "Feed-forward size")->excludes(named);
  size("--vocab", model.vocab_size, "Vocabulary")->excludes(named);
  step.add_flag("--tied", model.tie_word_embeddings, "Tie the head to the embedding")->excludes(named);
  add_sequence_length(step, options->bench.sequence_length, "Tokens per sequence")->capture_default_str();
  size("--micro-batch", options->bench.micro_batch, "Sequences per micro-batch");
  size("--micro-batches", options->bench.micro_batches, "Micro-batches per step");
  add_named_option(step, "--precision", options->bench.precision, "auto, fp32 or bf16");
  add_named_option(step, "--recompute", options->bench.recompute, "none, attention or full");
  step.add_option("--threads", options->bench.threads, "Threads; 0: all cores")->check(number_in(allowed_threads));
  step.add_option("--device", options->bench.device, "cpu or cuda[:N]");
  step.add_option("--cluster", options->cluster,
                  "Name or file of the cluster whose device this is: MFU against its data sheet too");
  CLI::Option* const as = step.add_option(
      "--as", options->layout,
      "Measure one rank of a layout whose other ranks are not there, without communication: d=1,t=8,p=1");
  size("--steps", options->steps, "Steps to measure");
  step.add_flag("--json", options->json, "Print one JSON object");
  step.add_flag("--serve", options->serve,
                "Take turns with other programs: 'run N', 'report N', 'release' or 'quit' on standard input")
      ->excludes(as);
  step.footer(
      "Example:\n  copus bench step --layers 6 --hidden 256 --heads 4 --kv-heads 4 --ffn 704 --vocab 256 "
      "--sequence-length 128 --micro-batch 16");
  step.callback([options, &action] { action = [options] { return run_step_bench(*options); }; });
}

}  // namespace copus
