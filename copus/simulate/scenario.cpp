#include "copus/simulate/scenario.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "copus/base/error.h"
#include "copus/base/numbers/mix_bits.h"
#include "copus/base/text/units.h"
#include "copus/orchestrator/controller/run_calibration.h"
#include "copus/orchestrator/predictions/candidates.h"

namespace copus {

namespace {

// The number of the first scenario by the prior.
constexpr int64_t first_by_prior = 1'000'000;

// Number of intervals (TruthPiece) up to the end of a run (share 1). They are short at the beginning, where values
// change fastest.
constexpr int64_t pieces_of_a_run = 256;
// Below this fraction of the run, a critical batch that follows a power of progress is held constant, so that it does
// not begin at 0.
constexpr double earliest_share = 1e-4;
// True values are defined up to this multiple of the run's length, because a run that ends after a given time may get
// further than the best static run.
constexpr double furthest_share = 2.5;

// The drawn numbers that determine the true values, before their scale in samples is known.
struct TruthDraw {
  WorthFamily worth;
  Growth growth;
  double calibration;
  double critical_batch;  // at the end of the run
  double tokens;          // length of the run for Kaplan's and OLMo's laws
  double bound_share;     // share of the run that is limited by the number of updates
  double bound_batch;     // the critical batch in that share
  double gradient_exponent;
  double progress_exponent = 0;  // of the critical batch's growth with progress
};

WorthShape shape_of(WorthFamily family) {
  if (family == WorthFamily::root) return WorthShape::root;
  return family == WorthFamily::measured ? WorthShape::measured : WorthShape::hyperbola;
}

Growth draw_growth(GrowthFamily family, Draws& draws) {
  return {.family = family,
          .exponent = 0.2 + 0.6 * draws.uniform(),
          .time_constant = draws.log_uniform(0.05, 0.5),
          .excess = draws.log_uniform(3, 30),
          .jump = draws.log_uniform(1.5, 4)};
}

template <class Family>
Family one_of(const std::vector<Family>& families, Draws& draws) {
  return families[static_cast<size_t>(draws.one_of(std::ssize(families)))];
}

TruthDraw draw_truth(ScenarioGroup group, int64_t first_batch, int64_t largest_batch, Draws& draws) {
  TruthDraw draw;
  draw.worth = one_of(worth_families(group), draws);
  draw.growth = draw_growth(one_of(growth_families(group), draws), draws);
  draw.critical_batch = draws.log_uniform(static_cast<double>(first_batch), static_cast<double>(largest_batch));
  draw.calibration = draws.log_uniform(0.5, 8);
  if (draw.worth == WorthFamily::measured) draw.calibration = measured_calibration * std::exp(0.25 * draws.normal());
  if (draw.worth == WorthFamily::olmo) draw.calibration = draws.log_uniform(2, 50);
  draw.tokens = draw.worth == WorthFamily::olmo ? draws.log_uniform(1e11, 1e12) : draws.log_uniform(1e9, 1e11);
  draw.bound_share = draws.log_uniform(0.03, 0.3);
  draw.bound_batch = static_cast<double>(first_batch) * draws.log_uniform(0.25, 1.5);
  draw.gradient_exponent = draws.log_uniform(0.2, 0.8);
  if (draw.worth == WorthFamily::progress) {
    draw.calibration = draws.log_uniform(0.5, 20);
    draw.progress_exponent = std::max(0.1, 0.5 + 0.15 * draws.normal());
  }
  return draw;
}

// Returns the true values at a fraction of the run. The second of the two measured curves was measured at three times
// the progress of the first. So here the first curve applies up to a third of the run, and the second at the end of the
// run.
TruthPiece piece_at(const TruthDraw& draw, double share) {
  TruthPiece piece;
  const double end_noise = draw.critical_batch / draw.calibration;
  piece.noise_scale = end_noise * draw.growth.at(share);
  piece.critical_batch = draw.calibration * piece.noise_scale;
  if (draw.worth == WorthFamily::kaplan) {
    piece.critical_batch = draw.critical_batch * kaplan_critical_batch(share, draw.tokens);
    piece.noise_scale = piece.critical_batch / draw.calibration;
  }
  if (draw.worth == WorthFamily::olmo) {
    piece.critical_batch = draw.critical_batch * olmo_critical_batch(share, draw.tokens);
  }
  if (draw.worth == WorthFamily::progress) {
    piece.critical_batch = draw.critical_batch * std::pow(std::max(share, earliest_share), draw.progress_exponent);
  }
  if (draw.worth == WorthFamily::step_bound && share < draw.bound_share) piece.critical_batch = draw.bound_batch;
  piece.maturity = std::clamp(1 + std::log(std::max(share, 1e-6)) / std::log(3.0), 0.0, 1.0);
  piece.squared_gradient = std::pow(1 + share / 0.01, -draw.gradient_exponent);
  return piece;
}

// Makes the true values of a run whose end is at `length` samples of progress.
Truth truth_of(const TruthDraw& draw, double length) {
  const auto border = [](int64_t i) { return std::pow(static_cast<double>(i) / pieces_of_a_run, 2); };
  std::vector<TruthPiece> pieces;
  for (int64_t i = 0; border(i) < furthest_share; ++i) {
    pieces.push_back(piece_at(draw, (border(i) + border(i + 1)) / 2));
    pieces.back().begin = length * border(i);
  }
  return {shape_of(draw.worth), std::move(pieces)};
}

// The progress after this many steps with one batch.
double progress_after(const Truth& truth, int64_t steps, int64_t batch) {
  TruthWalk walk(truth);
  walk.advance(static_cast<double>(steps * batch), batch, std::numeric_limits<double>::infinity());
  return walk.progress();
}

// The run's initial configuration: the plan's fastest layout at its first batch.
RunConfig beginning(const SimulatedJob& job, const Configuration& first) {
  RunConfig config = job.config;
  config.adapt.policy = PolicyKind::none;
  config.parallel = first.strategy;
  config.train.global_batch = first.global_batch;
  config.train.micro_batch = first.micro_batch;
  config.train.max_steps = config.train.max_tokens = 0;
  config.train.max_seconds = 0;
  config.adapt.objective = Objective::time;
  // The controller adds the options of its first configuration to the listed options. The first configuration's options
  // must be among the job's, because true step times exist only for the job's options.
  const SearchSpace space = search_space_of(config);
  const AdaptConfig& listed = config.adapt;
  COPUS_CHECK(space.recomputes.size() == listed.recomputes.size() &&
                  space.schedules.size() == listed.schedules.size() &&
                  space.virtual_stages.size() == listed.virtual_stages.size() &&
                  space.sequence_parallel.size() == listed.sequence_parallel.size() &&
                  space.zero_stages.size() == listed.zero_stages.size(),
              job.name, " lists not all options of ", to_string(first));
  return config;
}

// Sets the limit in the run's configuration. A run that ends at a given progress does not know when it will get there.
// Its limit is twice the number of samples that it needs with its first batch: a user who stops the run by its loss
// would set such a limit.
void set_limit(RunConfig& config, const Truth& truth, const ScenarioEnd& end) {
  if (end.kind == ScenarioEnd::Kind::seconds) {
    config.train.max_seconds = end.value;
  } else {
    const double samples = 2 * truth.samples_to(end.value, config.train.global_batch);
    config.train.max_tokens = static_cast<int64_t>(samples) * config.train.sequence_length;
  }
}

}  // namespace

ScenarioGroup group_of(int64_t number) {
  if (number >= first_by_prior) return ScenarioGroup::by_prior;
  return number % 2 == 0 ? ScenarioGroup::chosen : ScenarioGroup::held_back;
}

int64_t number_in(ScenarioGroup group, int64_t index) {
  if (group == ScenarioGroup::by_prior) return first_by_prior + index;
  return 2 * index + (group == ScenarioGroup::chosen ? 0 : 1);
}

std::vector<WorthFamily> worth_families(ScenarioGroup group) {
  using enum WorthFamily;
  switch (group) {
    case ScenarioGroup::chosen:
      return {hyperbola, measured, kaplan, step_bound};
    case ScenarioGroup::held_back:
      return {hyperbola, root, measured, kaplan, olmo, step_bound};
    case ScenarioGroup::by_prior:
      return {progress, progress, progress, progress, progress, progress, hyperbola, hyperbola, kaplan, step_bound};
  }
  fail_check("a group", __FILE__, __LINE__, "");
}

std::vector<GrowthFamily> growth_families(ScenarioGroup group) {
  std::vector<GrowthFamily> families = all_values<GrowthFamily>();
  if (group == ScenarioGroup::chosen) std::erase(families, GrowthFamily::decay_jump);
  return families;
}

Scenario make_scenario(int64_t number, const std::vector<SimulatedJob>& jobs, const ScenarioLength& asked) {
  COPUS_CHECK(number >= 0 && !jobs.empty(), number, ", ", jobs.size());
  const uint64_t seed = mix_bits(static_cast<uint64_t>(number) + 1);
  Draws draws(seed, "scenario");
  const SimulatedJob& job = jobs[static_cast<size_t>(draws.one_of(std::ssize(jobs)))];
  const int64_t first_batch = one_of(job.first_batches, draws);
  const std::vector<int64_t>& batches = job.config.adapt.global_batches;
  const TruthDraw draw =
      draw_truth(group_of(number), first_batch, *std::max_element(batches.begin(), batches.end()), draws);

  // The run's length is chosen so that it has this many steps at its first batch.
  const double drawn_steps = draws.log_uniform(2000, 20000);
  const double whole_steps = asked.whole_steps ? static_cast<double>(*asked.whole_steps) : drawn_steps;
  const double samples_per_progress = truth_of(draw, 1).samples_to(1, first_batch);
  const double whole_length = whole_steps * static_cast<double>(first_batch) / samples_per_progress;
  const Truth truth = truth_of(draw, whole_length);
  const double length = asked.steps ? progress_after(truth, *asked.steps, first_batch) : whole_length;

  const StepTimeError error{.residual = draws.log_uniform(0.025, 0.085)};
  const TrueSeconds seconds = draw_true_seconds(*job.believed, error, seed);
  const TableCell& first = fastest_believed(*job.believed, first_batch);
  // Measured pauses are between a tenth of a step (in memory, on one machine) and some steps (30 to 56 s in arXiv
  // 2604.26687, with steps of seconds).
  const double pause = draws.log_uniform(0.1, 20) * first.parts.total();

  ScenarioEnd end{ScenarioEnd::Kind::progress, length};
  if (draws.uniform() < 0.5) end = {ScenarioEnd::Kind::seconds, best_static(truth, seconds, end).seconds};
  RunConfig config = beginning(job, first.configuration);
  set_limit(config, truth, end);
  const bool is_by_prior = group_of(number) == ScenarioGroup::by_prior;
  if (is_by_prior) {
    config.optimizer.schedule = draws.uniform() < 0.5 ? LearningRateSchedule::cosine : LearningRateSchedule::constant;
  }
  const NormSpread spread{.dimensions = draws.log_uniform(100, 10000),
                          .step_deviation = draws.log_uniform(0.03, 0.3),
                          .spike_probability = 0.002,
                          .spike_factor = draws.log_uniform(3, 100)};
  Draws branches(seed, "branches");
  return {{.seed = seed,
           .truth = truth,
           .seconds = seconds,
           .pause_seconds = pause,
           .step_deviation = draws.log_uniform(0.01, 0.06),
           .rate_feedback = draws.uniform() < 0.5 ? 0 : draws.uniform(),
           .noise_follows_schedule = is_by_prior,
           .noise_drift = is_by_prior ? draws.log_uniform(0.05, 0.4) : 0,
           .stalled_steps = is_by_prior ? draws.log_uniform(0.5, 8) : 0,
           .branch_error = branches.log_uniform(0.08, 0.3),
           .spread = spread,
           .end = end},
          number,
          job.name,
          draw.worth,
          draw.growth,
          draw.calibration,
          config,
          best_static(truth, seconds, end),
          clairvoyant(truth, seconds, pause, end)};
}

std::vector<MeasuredCriticalBatch> measured_critical_batches(const Scenario& scenario) {
  constexpr double error = 0.3;
  const int64_t reference = scenario.config.train.global_batch, larger = branch_batch_of(reference);
  Draws draws(scenario.seed, "earlier run");
  const auto sequence = static_cast<double>(scenario.config.train.sequence_length);
  std::vector<MeasuredCriticalBatch> measured;
  for (const double share : {0.01, 0.04, 0.16}) {
    const double progress = share * scenario.best_static.progress;
    TruthWalk walk(scenario.truth);
    const double samples = scenario.truth.samples_to(progress, reference);
    walk.advance(samples, reference, progress);
    // statistical_efficiency(larger, critical, reference) = shown, solved for critical.
    const double shown = walk.worth(larger) / walk.worth(reference);
    const double critical = (static_cast<double>(larger) * shown - static_cast<double>(reference)) / (1 - shown);
    COPUS_CHECK(critical > 0, critical, ", ", shown);
    measured.push_back({.tokens = samples * sequence,
                        .noise_scale = walk.piece().noise_scale * sequence,
                        .critical_batch = critical * std::exp(error * draws.normal()) * sequence,
                        .deviation = error});
  }
  return measured;
}

std::string describe(const Scenario& scenario) {
  const auto number = [](double value) { return format_number("%.3g", value); };
  const bool by_progress = scenario.end.kind == ScenarioEnd::Kind::progress;
  const std::string end = by_progress ? concat("a progress of ", number(scenario.end.value), " samples")
                                      : concat(number(scenario.end.value), " s");
  return concat(scenario.number, ": ", scenario.job, ", worth ", to_string(scenario.worth), ", noise scale ",
                to_string(scenario.growth.family), " from ", number(scenario.truth.pieces().front().noise_scale),
                ", calibration ", number(scenario.calibration), "; begins in ",
                to_string(configuration_of(scenario.config)), "; a re-layout pauses for ",
                number(scenario.pause_seconds), " s; ends at ", end);
}

}  // namespace copus
