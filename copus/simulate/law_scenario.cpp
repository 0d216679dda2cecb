#include "copus/simulate/law_scenario.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "copus/base/error.h"
#include "copus/base/numbers/mix_bits.h"
#include "copus/base/text/units.h"
#include "copus/orchestrator/learning_rate/rate_rule.h"
#include "copus/orchestrator/policies/starting_configuration.h"
#include "copus/orchestrator/predictions/candidates.h"
#include "copus/orchestrator/predictions/step_time_learner.h"
#include "copus/performance/modelled_truth.h"
#include "copus/statistics/branch_calibration.h"

namespace copus {

namespace {

constexpr double tokens_per_parameter = 20;  // about the ratio that Hoffmann et al. 2022 recommend for any size
// Number of intervals (TruthPiece). Each is longer than the previous one by a constant factor. No law describes
// the first one, which begins at 0 tokens.
constexpr int64_t pieces_to_the_end = 512;
constexpr double first_tokens = 1e6;

// The noise of steps, with medium values among those that scenarios draw.
constexpr NormSpread middling_norms{
    .dimensions = 1000, .step_deviation = 0.1, .spike_probability = 0.002, .spike_factor = 17};
constexpr double middling_step_deviation = 0.025;

Truth truth_of(const RunConfig& config, const LawQuestion& question, const PublishedLoss& loss, double tokens) {
  const auto length = static_cast<double>(predicted_job(config).sequence_length);
  const double first = std::min(first_tokens, tokens / 1000);
  const double factor = std::pow(tokens / first, 1.0 / (pieces_to_the_end - 1));
  std::vector<TruthPiece> pieces;
  for (int64_t i = 0; i < pieces_to_the_end; ++i) {
    const double end = first * std::pow(factor, static_cast<double>(i)), middle = end / std::sqrt(factor);
    TruthPiece piece;
    piece.begin = i == 0 ? 0 : end / factor / length;
    piece.critical_batch = published_critical_batch(question.law, middle, loss.at(middle)) / length;
    piece.noise_scale = piece.critical_batch / question.calibration;
    pieces.push_back(piece);
  }
  RateRule rule = rate_rule_of(config);
  rule.is_capped = true;
  return {question.worth, std::move(pieces), {.alpha = question.truth_alpha, .rule = rule}};
}

// The true seconds of all candidates that fit into the true devices, and of the run's own configuration.
TrueSeconds true_seconds(const RunConfig& config, ModelledTruth& truth) {
  TrueSeconds seconds;
  for (const TableCell& cell : predicted_table(config, Knowledge()).cells) {
    if (!truth.why_too_large(cell.configuration)) {
      seconds[cell.configuration] = truth.step_seconds(cell.configuration);
    }
  }
  const Configuration first = configuration_of(config);
  if (const std::optional<std::string> reason = truth.why_too_large(first)) {
    throw UserError(concat("the run cannot begin in ", to_string(first), ": it ", *reason));
  }
  seconds[first] = truth.step_seconds(first);
  return seconds;
}

LawTarget target_at(const LawQuestion& question, const SimulatedWorld& world, double length, double loss,
                    double tokens) {
  const double progress = tokens / length;
  const ScenarioEnd end{ScenarioEnd::Kind::progress, progress};
  return {
      .loss = loss,
      .progress = progress,
      .critical_batch = published_critical_batch(question.law, tokens, loss) / length,
      .best_static = best_static(world.truth, world.seconds, end),
      .clairvoyant_seconds = clairvoyant(world.truth, world.seconds, question.pause_seconds.value_or(0), end).seconds};
}

void check_losses(const std::vector<double>& losses, const PublishedLoss& law, double tokens) {
  const auto number = [](double value) { return format_number("%.4g", value); };
  const double first = std::log(law.vocabulary), last = law.at(tokens);
  for (const double loss : losses) {
    if (loss < first && loss >= last) continue;
    throw UserError(concat("a target loss of ", number(loss), ": by the law this run goes from ", number(first), " to ",
                           number(last), " nats per token, after ", format_count(tokens), " tokens, and never below ",
                           number(law.least())));
  }
}

// Refuses settings with which a policy never switches. Otherwise the run would look as if the policy had chosen not to
// switch. No policy moves a run that only advises, and a simulated run has no completed share, because it ends at a
// loss.
void check_decides(const AdaptConfig& adapt) {
  if (adapt.advise) {
    throw UserError("adapt.advise is true, so no policy would move anything in a simulated run: leave it out");
  }
  if (adapt.policy == PolicyKind::late_switch || adapt.policy == PolicyKind::seesaw) {
    throw UserError(concat("the policy \"", to_string(adapt.policy),
                           "\" goes by the share of the run that is done, and ",
                           "a simulated run ends at a loss, wherever its schedule is: choose another policy"));
  }
}

// Some policies begin in a layout that they choose by predictions. Throws UserError if this layout does not fit into
// the memory of the true devices.
void check_can_begin(const RunConfig& config, const SimulatedWorld& world) {
  const Configuration first = starting_configuration(config);
  if (world.seconds.contains(first)) return;
  throw UserError(concat("the policy \"", to_string(config.adapt.policy), "\" begins in ", to_string(first),
                         ", which does not fit into the memory of the true devices (cluster.truth): leave the policy ",
                         "out"));
}

}  // namespace

void check_is_modelled(const RunConfig& config) {
  if (!config.cluster.is_modelled()) {
    throw UserError(concat("cluster.clock is \"", to_string(config.cluster.clock), "\", and a simulated run is of the ",
                           "job that a run on the modelled clock stands for: set cluster.clock = \"modelled\" and ",
                           "cluster.stands_for (configs/runs/modelled-64-h100.toml does)"));
  }
  if (predicted_job(config).precision == Precision::automatic) {
    throw UserError("cluster.stands_for_precision is \"auto\", and nothing is run here that would tell: set it");
  }
  if (!config.cluster.profile.empty()) {
    throw UserError(concat("cluster.profile ", config.cluster.profile, ": a simulated run knows no measurements; ",
                           "leave it out, and set truth_layout_error for how wrong predictions are"));
  }
}

LawScenario make_law_scenario(const RunConfig& config, const LawQuestion& question) {
  check_is_modelled(config);
  const PredictedJob job = predicted_job(config);
  const auto length = static_cast<double>(job.sequence_length);
  const auto parameters = static_cast<double>(count_parameters(job.model));
  const PublishedLoss law{parameters, static_cast<double>(job.model.vocab_size)};
  const double tokens = question.tokens > 0 ? question.tokens : tokens_per_parameter * parameters;
  check_losses(question.losses, law, tokens);

  const auto clock = std::make_shared<ModelledTruth>(
      job.model, job.sequence_length, config.cluster.true_cluster(), training_system_of(config),
      LayoutErrors{.size = config.cluster.truth_layout_error, .seed = config.cluster.truth_seed});
  SimulatedWorld world{.seed = mix_bits(config.execution.seed),
                       .truth = truth_of(config, question, law, tokens),
                       .seconds = true_seconds(config, *clock),
                       .pause_seconds = question.pause_seconds.value_or(0),
                       .step_deviation = middling_step_deviation,
                       .branch_error = branch_error,
                       .spread = middling_norms,
                       .end = {ScenarioEnd::Kind::progress, tokens / length}};
  if (!question.pause_seconds) {
    world.pause_between = [clock](const ParallelStrategy& from, const ParallelStrategy& to) {
      return clock->relayout_seconds(from, to);
    };
  }

  std::vector<double> losses = question.losses;
  std::sort(losses.begin(), losses.end(), std::greater<>());
  std::vector<LawTarget> targets;
  for (const double loss : losses) {
    targets.push_back(target_at(question, world, length, loss, std::min(tokens, law.tokens_to(loss))));
  }
  targets.push_back(target_at(question, world, length, law.at(tokens), tokens));
  for (const LawTarget& target : targets) world.milestones.push_back(target.progress);
  return {law, tokens, std::move(world), std::move(targets)};
}

RunConfig as_simulated(const RunConfig& config, const LawScenario& scenario) {
  check_decides(config.adapt);
  check_can_begin(config, scenario.world);
  RunConfig simulated = config;
  TrainConfig& train = simulated.train;
  train.sequence_length = predicted_job(config).sequence_length;
  train.max_steps = 0;
  train.max_seconds = 0;
  const double samples = 2 * scenario.world.truth.samples_to(scenario.world.end.value, train.global_batch);
  train.max_tokens = static_cast<int64_t>(samples) * train.sequence_length;
  if (simulated.adapt.objective == Objective::automatic) simulated.adapt.objective = Objective::time;
  return simulated;
}

}  // namespace copus
