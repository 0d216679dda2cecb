// `copus plan`: predicts which layout of a model on a cluster trains fastest, and which layouts fit into memory.
#include <filesystem>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "copus/base/error.h"
#include "copus/base/files/durable_file.h"
#include "copus/base/text/shell_word.h"
#include "copus/base/text/text_distance.h"
#include "copus/cli/commands.h"
#include "copus/cli/option_checks.h"
#include "copus/cli/predict/plan_options.h"
#include "copus/cli/predict/plan_run_file.h"
#include "copus/config/descriptions.h"
#include "copus/description/configuration_fields.h"
#include "copus/plan/plan.h"
#include "copus/plan/plan_chart.h"
#include "copus/plan/plan_explain.h"
#include "copus/plan/plan_report.h"
#include "copus/report/files/performance_profile.h"

namespace copus {

namespace {

struct PlanOptions {
  std::string program;  // the name by which it was called
  std::string model;
  std::string cluster;
  int64_t gpus = 0;  // 0: all of the cluster
  int64_t sequence_length = 2048;
  double document_length = 0;  // 0: attention does not end at documents
  std::string global_batch = "16..1024";
  int64_t micro_batch = 0;  // 0: any
  std::string precision = "bf16";
  OptimizerKind optimizer = OptimizerKind::adamw;
  std::string system = "copus";
  std::vector<std::string> schedules;
  std::vector<std::string> recomputes;
  std::vector<int64_t> zero_stages;
  std::vector<int64_t> sequence_parallel;
  std::filesystem::path profile;
  std::filesystem::path plot;
  std::string explain;
  std::string tokens;
  std::filesystem::path run_file;
  int64_t top = 10;
  bool json = false;
};

// The training system of the program, optimizer and precision that the user named.
TrainingSystem system_of(const PlanOptions& options, PlannedSystem program) {
  if (program == PlannedSystem::copus) {
    return options.precision == "bf16" ? copus_in_bf16(Processor::gpu, options.optimizer)
                                       : copus_in_fp32(Processor::cpu, options.optimizer);
  }
  if (options.optimizer != OptimizerKind::adamw) {
    throw UserError(concat("--optimizer ", to_string(options.optimizer), ": plans for ", full_name(program),
                           " count AdamW's state and time; leave --optimizer or --system out"));
  }
  return describe(program);
}

PlanQuestion question_of(const PlanOptions& options) {
  PlanQuestion question;
  question.model = find_model(options.model);
  question.cluster = find_cluster(options.cluster);
  question.model_name = short_name(options.model, ".json");
  question.cluster_name = short_name(options.cluster, ".toml");
  question.precision = options.precision;
  question.program = planned_system(options.system, options.precision, options.profile);
  question.system = system_of(options, question.program);
  if (question.program == PlannedSystem::copus) {
    question.system.memory.communicators = question.cluster.communicators;
  }
  question.sequence_length = options.sequence_length;
  question.system.document_length = options.document_length;
  if (!options.tokens.empty()) question.tokens = parse_tokens(options.tokens);
  if (options.sequence_length > question.model.max_position_embeddings) {
    throw UserError(concat("--sequence-length ", options.sequence_length, " exceeds the max_position_embeddings of ",
                           options.model, " (", question.model.max_position_embeddings,
                           "); shorten the sequences or raise it in the model's description"));
  }
  check_can_be_planned(question.cluster, options.cluster);
  SearchSpace& space = question.space;
  space.world_size = number_of_gpus(question.cluster, options.cluster, options.gpus);
  space.global_batches = parse_global_batches(options.global_batch);
  space.max_tensor_parallel = question.cluster.ranks_per_node;
  space = question.whole_space();
  if (options.micro_batch > 0) space.micro_batches = {options.micro_batch};
  const PlannedSystem program = question.program;
  narrow(program, "--schedule", space.schedules, by_names<PipelineSchedule>(options.schedules));
  narrow(program, "--recompute", space.recomputes, by_names<Recompute>(options.recomputes));
  narrow(program, "--zero", space.zero_stages, options.zero_stages);
  narrow(program, "--sp", space.sequence_parallel,
         std::vector<bool>(options.sequence_parallel.begin(), options.sequence_parallel.end()));
  if (!options.profile.empty()) {
    if (!std::filesystem::exists(options.profile)) {
      throw UserError(concat("--profile ", options.profile.string(),
                             ": there is no such file; expected the profile.json ",
                             "of a run, or of `copus profile --config`"));
    }
    question.knowledge = read_knowledge(
        options.profile,
        profile_subject(question.model, question.sequence_length, question.precision, question.cluster, std::nullopt));
  }
  return question;
}

void write_plot(const PlanOptions& options, const PlanQuestion& question, const Plan& plan) {
  const bool page = options.plot.extension() == ".html";
  const std::string text = page ? to_html(question, plan, options.top) : to_svg(question, plan);
  try {
    write_file_durably(options.plot, text);
  } catch (const UserError& error) {
    throw UserError(concat("--plot: ", error.what(), "; expected a file in a folder that there is, to be written"));
  }
}

int run_plan(const PlanOptions& options) {
  const std::optional<ConfigurationChange> asked =
      options.explain.empty() ? std::nullopt : std::optional(read_configuration("--explain", options.explain));
  PlanQuestion question = question_of(options);
  if (asked && asked->names("B")) add_batch(question.space.global_batches, asked->values.global_batch);
  if (!options.plot.empty()) check_plot(options.plot, question.space.global_batches);
  if (!options.run_file.empty()) check_run_file(options.run_file, question);
  const Plan plan = make_plan(question);
  std::vector<Explanation> explanations;
  for (const BatchPlan& batch : plan.batches) {
    if (!asked || (asked->names("B") && asked->values.global_batch != batch.global_batch)) continue;
    explanations.push_back(explain(question, batch, *asked));
  }
  if (!options.plot.empty()) write_plot(options, question, plan);
  if (!options.run_file.empty()) {
    write_run_file(options.run_file, options.model, question, plan.batches.front().layouts.front());
  }
  if (options.json) {
    std::cout << to_json(question, plan, options.top, explanations) << '\n';
    return 0;
  }
  std::cout << (asked ? to_text(question, explanations) : to_text(question, plan, options.top));
  if (!options.plot.empty()) std::cout << "\nWrote " << options.plot.string() << ".\n";
  if (!options.run_file.empty()) {
    std::cout << "\nWrote " << options.run_file.string() << ": put the path of your data in, and start it by `"
              << shell_word(options.program) << " train " << shell_word(options.run_file.string()) << "`.\n";
  }
  return 0;
}

}  // namespace

void add_plan(CLI::App& program, CommandAction& action) {
  auto options = std::make_shared<PlanOptions>();
  CLI::App& command =
      *program.add_subcommand("plan", "Predict which layout of a model on a cluster trains fastest, and what fits");
  command.add_option("--model", options->model, "A model: its config.json, or a name that ships with the program")
      ->required();
  command.add_option("--cluster", options->cluster, "A cluster: its TOML file, or a name that ships with the program")
      ->required();
  command
      .add_option("--gpus,--ranks", options->gpus, "How many of its devices to use (all that the cluster says it has)")
      ->check(at_least(1));
  add_sequence_length(command, options->sequence_length, "Tokens of a sequence")->capture_default_str();
  command
      .add_option("--document-length", options->document_length,
                  "Attention ends at documents, and a token's document has this many tokens on average "
                  "(data.mask_across_documents)")
      ->check(number_in(Range<double>{1, 1e9}));
  command
      .add_option(
          "--global-batch", options->global_batch,
          "Sequences of a step: a number, several (16,24,32), or those from one to another, doubling (16..1024)")
      ->capture_default_str();
  command.add_option("--micro-batch", options->micro_batch, "Only this micro-batch (any)")
      ->check(number_in(allowed_batches));
  command
      .add_option_function<std::string>(
          "--precision", [options](const std::string& name) { options->precision = printed_float_name(name); },
          "What to train in")
      ->check(one_of({"bf16", "fp32"}))
      ->capture_default_str();
  add_named_option(command, "--optimizer", options->optimizer, "The optimizer (optimizer.kind)");
  command
      .add_option("--system", options->system,
                  concat("The program that is to train: ", join(all_names<PlannedSystem>(), ", ")))
      ->capture_default_str();
  command.add_option("--schedule", options->schedules, "Only these pipeline schedules (any)")
      ->delimiter(',')
      ->check(one_of(all_names<PipelineSchedule>()));
  command.add_option("--recompute", options->recomputes, "Only these ways of recompute (any)")
      ->delimiter(',')
      ->check(one_of(all_names<Recompute>()));
  command.add_option("--zero", options->zero_stages, "Only these stages of ZeRO (any)")
      ->delimiter(',')
      ->check(number_in(allowed_zero_stages));
  command.add_option("--sp", options->sequence_parallel, "Only with (1) or without (0) sequence parallelism (any)")
      ->delimiter(',')
      ->check(number_in(Range<int64_t>{0, 1}));
  command.add_option("--profile", options->profile, "What was measured (profile.json), to correct the predictions by");
  command.add_option("--top", options->top, "How many layouts to show")->check(at_least(1))->capture_default_str();
  CLI::Option* const tokens = command.add_option(
      "--tokens", options->tokens, "Say how many days and GPU-hours training on so many takes: 300B, 1T, 15e12");
  command.add_option("--write", options->run_file,
                     "Write a run of so many tokens in the fastest layout, for `copus train`, into FILE.toml");
  command
      .add_option("--explain", options->explain,
                  concat("Say why a configuration is not the one to take: PART=VALUE,...; d, t and p are 1 where "
                         "they are left out, the rest as it is fastest. Parts: ",
                         configuration_parts()))
      ->excludes(tokens);
  command.add_option("--plot", options->plot, "Draw throughput over the global batch, into FILE.svg or FILE.html");
  command.add_flag("--json", options->json, "Print one JSON object");
  command.footer(
      "Examples:\n"
      "  copus plan --model llama-3.2-3b --cluster h100-sxm --gpus 8\n"
      "  copus plan --model llama-2-13b --cluster h100-sxm --gpus 16 --global-batch 256 --explain d=16\n"
      "  copus plan --model llama-2-13b --cluster h100-sxm --gpus 16 --global-batch 256 --tokens 1T --write run.toml\n"
      "  copus plan --model llama-2-13b --cluster h100-sxm --gpus 16 --global-batch 256 --system megatron\n"
      "  copus plan --model my/config.json --cluster my.toml --gpus 64 --plot plan.html");
  command.callback([options, &program, &action] {
    options->program = program.get_name();
    action = [options] { return run_plan(*options); };
  });
}

}  // namespace copus
