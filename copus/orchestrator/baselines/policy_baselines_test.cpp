// Tests of the policies that Copus is compared with, on traces short enough to follow by hand.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "copus/base/error.h"
#include "copus/description/configuration_text.h"
#include "copus/orchestrator/policies/policies.h"
#include "copus/orchestrator/policies/policy.h"
#include "copus/orchestrator/testing/policy_test_support.h"

namespace copus {
namespace {

std::string quoted(const Configuration& configuration) { return concat('"', to_string(configuration), '"'); }

using namespace policy_test;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Pair;

RunConfig without_dwell(PolicyKind policy, int64_t batch) {
  RunConfig config = run_config(policy, batch);
  config.adapt.dwell_samples = 0;
  return config;
}

Noise steady(double phi) {
  return [phi](Observation& now, const Configuration&) { set_noise(now, phi); };
}

TEST(StaticPolicy, NeverMovesAndSaysWhatCopusWouldHaveSeen) {
  Question question{two_layouts(8, 256), {pipeline, 8, 1}, {}};
  set_noise(question.latest, 1000);
  const Choice choice = question.ask(run_config(PolicyKind::fixed, 8));
  EXPECT_FALSE(choice.target);
  EXPECT_EQ(choice.best.size(), 5u);
  EXPECT_GT(choice.predicted_gain, 1);
}

TEST(PaperPolicy, TakesTheHighestThroughputTimesEfficiencyTimesRootOfTheBatch) {
  Question question{two_layouts(8, 256), {pipeline, 8, 1}, {}};
  set_noise(question.latest, 20);
  const RunConfig config = without_dwell(PolicyKind::copus_paper, 8);
  const auto worth = [&](const Candidate& candidate) {
    const auto batch = static_cast<double>(candidate.configuration.global_batch);
    return candidate.throughput() / (2 * 20 + batch) * std::sqrt(batch);
  };
  const auto best = std::max_element(question.candidates.begin(), question.candidates.end(),
                                     [&](const Candidate& a, const Candidate& b) { return worth(a) < worth(b); });
  const Choice choice = question.ask(config);
  EXPECT_EQ(choice.target, best->configuration);
  EXPECT_EQ(choice.best.front().configuration, best->configuration);
  EXPECT_NEAR(choice.predicted_gain, worth(*best) / worth(question.candidates.front()) - 1, 1e-9);
  EXPECT_GT(best->configuration.global_batch, 40) << "beyond the critical batch, where a capped rate gains nothing";
  question.current = best->configuration;
  EXPECT_FALSE(question.ask(config).target);
}

TEST(PaperPolicy, HoldsForLessThanATenthInTheDwellAndWhileTheNoiseScaleIsNotKnown) {
  const RunConfig config = without_dwell(PolicyKind::copus_paper, 8);
  Question question{{{{data, 8, 1}, 1.09, 0, 1}, {{data, 8, 2}, 1, 0, 1}}, {data, 8, 1}, {}};
  set_noise(question.latest, 20);
  EXPECT_FALSE(question.ask(config).target);
  question.candidates.front().step_seconds = 1.11;
  EXPECT_TRUE(question.ask(config).target);
  question.samples_since_switch = 8;
  EXPECT_TRUE(question.ask(config).target);
  EXPECT_THAT(question.ask(run_config(PolicyKind::copus_paper, 8)).reason, HasSubstr("adapt.dwell_samples"));
  question.latest = {};
  question.latest.noise_scale_low = 20;
  EXPECT_FALSE(question.ask(config).target);
}

// The batch is the power of two nearest to c phi = 2 phi by ratio.
TEST(CriticalBatchPolicy, FollowsTheCriticalBatchInTheLayoutOfTheInitialOrOfTheLargestBatch) {
  for (const auto& [policy, strategy] :
       {std::pair{PolicyKind::cbs_pessimistic, pipeline}, std::pair{PolicyKind::cbs_optimistic, data}}) {
    PaperRun run(without_dwell(policy, 16), two_layouts(8, 256), {pipeline, 16, 1});
    int64_t end = 0;
    for (const auto& [phi, batch] : {std::pair{9.0, 16}, std::pair{22.0, 32}, std::pair{24.0, 64}, std::pair{7.0, 16},
                                     std::pair{9000.0, 256}, std::pair{0.0, 8}}) {
      end += 5000;
      run.run_to(end, steady(phi));
      EXPECT_EQ(run.current(), (Configuration{strategy, batch, 1})) << phi;
    }
  }
}

TEST(CriticalBatchPolicy, TowardsALowerBoundItOnlyGrows) {
  Question question{two_layouts(8, 256), {pipeline, 64, 1}, {}};
  question.latest.noise_scale_low = 10;
  const auto policy = make_policy(run_config(PolicyKind::cbs_pessimistic, 16));
  EXPECT_FALSE(question.ask(*policy).target);
  question.latest.noise_scale_low = 60;
  EXPECT_EQ(question.ask(*policy).target.value(), (Configuration{pipeline, 128, 1}));
}

TEST(CriticalBatchPolicy, SettlesAgainWhereItsLayoutIsNoLongerPossible) {
  const auto policy = make_policy(run_config(PolicyKind::cbs_optimistic, 16));
  Question question{two_layouts(8, 256), {pipeline, 16, 1}, {}};
  set_noise(question.latest, 8);
  EXPECT_EQ(question.ask(*policy).target.value(), (Configuration{data, 16, 1}));
  question.candidates = affine_candidates(pipeline, powers_of_two(8, 256), {8, 1});
  EXPECT_FALSE(question.ask(*policy).target);
}

TEST(BatchPolicies, TakeTheFastestMicroBatch) {
  Question question{{{{data, 8, 2}, 1, 0, 1}, {{data, 16, 1}, 3, 0, 1}, {{data, 16, 4}, 2, 0, 1}, {{data, 16, 2}, 2.5}},
                    {data, 8, 2},
                    {}};
  set_noise(question.latest, 8);
  EXPECT_EQ(question.ask(run_config(PolicyKind::cbs_pessimistic, 8)).target.value(), (Configuration{data, 16, 4}));
  // A run that is at the wanted batch keeps its micro-batch.
  question.current = {data, 16, 1};
  EXPECT_FALSE(question.ask(run_config(PolicyKind::cbs_pessimistic, 8)).target);
}

// A switch that is decided after a step commits after the next one, so it is decided a step ahead.
TEST(StepsPolicy, LooksOneStepAheadAndKeepsLayoutAndMicroBatch) {
  RunConfig config = run_config(PolicyKind::steps, 16);
  config.adapt.schedule = "0:16 40:100 240:8";
  const auto policy = make_policy(config);
  Question question{{}, {pipeline, 16, 4}, {}};
  const auto asked_after = [&](int64_t samples) {
    question.latest.consumed_samples = samples;
    EXPECT_TRUE(policy->is_due(question.latest, question.current));
    const Choice choice = question.ask(*policy);
    EXPECT_FALSE(policy->is_due(question.latest, question.current));
    return choice.target;
  };
  EXPECT_FALSE(asked_after(16)) << "the step after the next one begins at 32";
  EXPECT_EQ(asked_after(32).value(), (Configuration{pipeline, 100, 4})) << "... and here at 48";
  question.current.global_batch = 100;
  EXPECT_EQ(asked_after(148).value(), (Configuration{pipeline, 8, 4}));
}

TEST(StepsPolicy, AsksAgainWhereAnotherHasMovedTheRun) {
  RunConfig config = run_config(PolicyKind::steps, 16);
  config.adapt.schedule = "0:16";
  const auto policy = make_policy(config);
  Question question{{}, {pipeline, 16, 4}, {}};
  question.ask(*policy);
  question.current.global_batch = 32;
  EXPECT_TRUE(policy->is_due(question.latest, question.current));
  EXPECT_EQ(question.ask(*policy).target.value(), (Configuration{pipeline, 16, 4}));
}

// The batch doubles once c phi = 2 phi has reached twice the batch.
TEST(OlmoPolicy, DoublesWhereTheCriticalBatchHasReachedTwiceTheBatchAndNeverShrinks) {
  PaperRun run(without_dwell(PolicyKind::olmo, 16), two_layouts(8, 256), {pipeline, 16, 1});
  run.run_to(5'000, steady(15.9));
  EXPECT_EQ(run.moves().size(), 0u);
  run.run_to(10'000, steady(16));
  EXPECT_EQ(run.current().global_batch, 32);
  run.run_to(20'000, steady(1));
  EXPECT_EQ(run.current().global_batch, 32);
  run.run_to(30'000, steady(100));
  EXPECT_EQ(run.current().global_batch, 128);
  run.run_to(40'000, [](Observation& now, const Configuration&) { now.noise_scale_low = 1000; });
  EXPECT_EQ(run.current(), (Configuration{pipeline, 256, 1}));
  EXPECT_EQ(run.moves().size(), 4u);
}

// Example: B = 16 in parts of 4, A = 9, C = 3: (A - C)/3 = 2 against eta^2 C = 1.47 at 0.7: batch 16 * 2 / 1.47 = 21.8.
TEST(NormTestPolicy, TakesTheSmallestBatchThatPasses) {
  const auto policy = make_policy(run_config(PolicyKind::norm_test, 16));
  Question question{two_layouts(8, 256), {pipeline, 16, 1}, {}};
  const auto step = [&](int64_t batch, double small, double a, double c) {
    question.latest.step += 1;
    question.latest.consumed_samples += batch;
    question.latest.small_batch = small;
    question.latest.small_batch_squared_norm = a;
    question.latest.grad_norm = std::sqrt(c);
  };
  step(16, 4, 9, 3);
  EXPECT_THAT(question.ask(*policy).reason, HasSubstr("has measured gradients of parts"));  // its batch is unknown
  step(16, 4, 9, 3);
  const Choice choice = question.ask(*policy);
  EXPECT_EQ(choice.target.value(), (Configuration{pipeline, 32, 1})) << choice.reason;
  EXPECT_THAT(choice.reason, HasSubstr("relative error of the gradient 0.8165 against eta 0.7 wants batch 22"));
  step(16, 4, 3 + 3 * 1.46, 3);
  EXPECT_FALSE(question.ask(*policy).target);
  // A step without a small batch does not replace the norms of the step before.
  step(16, 4, 900, 3);
  policy->observe(question.latest, question.current);
  step(16, 4, 0, 0);
  question.latest.small_batch = question.latest.small_batch_squared_norm = {};
  EXPECT_EQ(question.ask(*policy).target.value().global_batch, 256);
  // Norms that were measured in another batch are not used.
  question.current = {pipeline, 32, 1};
  EXPECT_FALSE(question.ask(*policy).target);
}

// Gradients of workers, drawn with a seed, and what a step with them measures.
class Workers {
 public:
  static constexpr int dimensions = 50;

  Workers(uint64_t seed, int64_t workers, int64_t micro_batches, double noise) : workers_(workers) {
    std::mt19937_64 random(seed);
    std::normal_distribution<double> normal;
    for (int64_t i = 0; i < workers * micro_batches; ++i) {
      std::vector<double> gradient(dimensions);
      for (double& value : gradient) value = 1 + noise * normal(random);
      gradients_.push_back(gradient);
    }
  }

  // h_j, the mean of the worker's micro-batches.
  std::vector<double> share_of(int64_t worker) const { return mean(worker * micro_batches(), micro_batches()); }
  std::vector<double> whole() const { return mean(0, std::ssize(gradients_)); }
  static double squared_norm(const std::vector<double>& vector) {
    return std::inner_product(vector.begin(), vector.end(), vector.begin(), 0.0);
  }

  // What a step in this batch measures: the workers' shares, or only each worker's first micro-batch.
  void show(Observation& observation, int64_t batch, bool only_first) const {
    const int64_t parts = only_first ? std::ssize(gradients_) : workers_;
    const int64_t small_batch = batch / parts;
    observation.small_batch = static_cast<double>(small_batch);
    observation.small_batch_squared_norm = 0;
    for (int64_t worker = 0; worker < workers_; ++worker) {
      *observation.small_batch_squared_norm +=
          squared_norm(only_first ? gradients_[worker * micro_batches()] : share_of(worker)) /
          static_cast<double>(workers_);
    }
    observation.grad_norm = std::sqrt(squared_norm(whole()));
  }

 private:
  int64_t micro_batches() const { return std::ssize(gradients_) / workers_; }
  std::vector<double> mean(int64_t first, int64_t count) const {
    std::vector<double> mean(dimensions);
    for (int64_t i = first; i < first + count; ++i) {
      for (int k = 0; k < dimensions; ++k) mean[k] += gradients_[i][k] / static_cast<double>(count);
    }
    return mean;
  }

  int64_t workers_;
  std::vector<std::vector<double>> gradients_;
};

RunConfig worker_norm_config(PolicyKind policy, double eta) {
  RunConfig config = run_config(policy, 16);
  config.parallel = data;
  config.adapt.norm_test_eta = eta;
  return config;
}

// A run of four workers after its first step. Its candidates are these batches in the data-parallel layout.
Question after_first_step(const std::vector<int64_t>& batches) {
  Question question{affine_candidates(data, batches, {40, 0.6}), {data, 16, 1}, {}};
  question.latest.step = 1;
  question.latest.consumed_samples = 16;
  return question;
}

// By hand, from the workers' gradients h_j and their mean g: B' = ceil(B Var / (J eta^2 |g|^2)), where Var is the sum
// over coordinates of 1/(J-1) sum_j (h_j - g)^2.
TEST(WorkerNormPolicy, TakesTheBatchThatTheSampleVarianceOfTheWorkersWants) {
  for (const uint64_t seed : {1, 2, 3}) {
    const Workers workers(seed, 4, 1, 2.5);
    const std::vector<double> g = workers.whole();
    double variance = 0;
    for (int64_t j = 0; j < 4; ++j) {
      const std::vector<double> h = workers.share_of(j);
      for (int k = 0; k < Workers::dimensions; ++k) variance += (h[k] - g[k]) * (h[k] - g[k]) / 3;
    }
    const double wanted = std::ceil(16 * variance / (4 * 0.25 * 0.25 * Workers::squared_norm(g)));
    ASSERT_GT(wanted, 100) << "a small batch says little of the formula";
    Question question = after_first_step(all_from_to(16, 1000));
    workers.show(question.latest, 16, false);
    for (const PolicyKind policy : {PolicyKind::ddp_norm, PolicyKind::fsdp_norm}) {
      const Choice choice = question.ask(worker_norm_config(policy, 0.25));
      EXPECT_EQ(choice.target.value(), (Configuration{data, static_cast<int64_t>(wanted), 1})) << choice.reason;
    }
    // It passes at an eta just above sqrt(Var / J) / |g|, and not just below.
    const double threshold = std::sqrt(variance / 4 / Workers::squared_norm(g));
    EXPECT_FALSE(question.ask(worker_norm_config(PolicyKind::ddp_norm, threshold * 1.0001)).target);
    EXPECT_EQ(question.ask(worker_norm_config(PolicyKind::ddp_norm, threshold * 0.9999)).target.value().global_batch,
              17);
  }
}

// With four micro-batches a worker, of which the first is measured, A, C and b give Var/B = (A - C) / (B/b - 1).
TEST(WorkerNormPolicy, CountsMicroBatchesWhereTheyAreWhatIsMeasured) {
  const Workers workers(4, 4, 4, 4);
  Question question = after_first_step(all_from_to(16, 1000));
  workers.show(question.latest, 16, true);
  ASSERT_EQ(question.latest.small_batch, 1);
  const double c = Workers::squared_norm(workers.whole());
  const double variance = (*question.latest.small_batch_squared_norm - c) / 15;
  const auto wanted = static_cast<int64_t>(std::ceil(16 * variance / (0.25 * 0.25 * c)));
  const Choice choice = question.ask(worker_norm_config(PolicyKind::fsdp_norm, 0.25));
  EXPECT_EQ(choice.target.value().global_batch, wanted) << choice.reason;
}

TEST(WorkerNormPolicy, GoesToTheNextLargerBatchAndNeverBack) {
  RunConfig config = worker_norm_config(PolicyKind::ddp_norm, 0.5);
  config.adapt.interval_samples = 1'000'000;
  const std::vector<int64_t> batches = {8, 16, 24, 48, 96, 200};
  PaperRun run(
      config,
      both(affine_candidates(data, batches, {40, 0.6}), affine_candidates(pipeline, powers_of_two(8, 512), {8, 1})),
      {data, 16, 1});
  // The noise of a sample has variance phi |g|^2, so batches of at least phi / eta^2 = 4 phi samples pass.
  const auto phi_of = [](double phi) {
    return [phi](Observation& now, const Configuration& current) {
      const auto batch = static_cast<double>(current.global_batch);
      now.grad_norm = 1;
      now.small_batch = batch / 4;
      now.small_batch_squared_norm = 1 + 3 * phi / batch;
    };
  };
  int64_t end = 0;
  for (const auto& [phi, batch] : {std::pair{3.9, 16}, std::pair{4.1, 24}, std::pair{1.0, 24}, std::pair{6.5, 48},
                                   std::pair{0.0, 48}, std::pair{1e6, 200}, std::pair{1.0, 200}}) {
    run.run_to(end += 1000, phi_of(phi));
    EXPECT_EQ(run.current(), (Configuration{data, batch, 1})) << phi << ": the layout stays, too";
  }
  EXPECT_EQ(run.moves().size(), 3u);
  EXPECT_THAT(run.moves().front().choice.reason, HasSubstr("against eta 0.5 wants batch 17; the nearest"));
}

TEST(WorkerNormPolicy, TestsAtItsIntervalUntilTheBatchIsTheLargest) {
  RunConfig config = worker_norm_config(PolicyKind::ddp_norm, 0.25);
  config.adapt.norm_test_interval = 10;
  const auto policy = make_policy(config);
  Question question = after_first_step(powers_of_two(16, 64));
  Workers(5, 4, 1, 100).show(question.latest, 16, false);
  std::vector<int64_t> due, moved;
  for (int64_t& step = question.latest.step; step < 30; ++step) {
    if (policy->is_due(question.latest, question.current)) due.push_back(step);
    if (question.ask(*policy).target) moved.push_back(step);
  }
  EXPECT_THAT(due, ElementsAre(1, 11, 21));
  EXPECT_EQ(moved, due) << "decisions for other reasons test nothing";

  question.current.global_batch = 64;
  EXPECT_THAT(question.ask(*policy).reason, HasSubstr("batch 64 is the largest of the layout"));
  question.latest.step = 31;
  EXPECT_FALSE(policy->is_due(question.latest, question.current));
  // A user may have forced the run back.
  question.current.global_batch = 32;
  EXPECT_TRUE(question.ask(*policy).target);
  question.latest.step = 41;
  EXPECT_TRUE(policy->is_due(question.latest, question.current));
}

TEST(WorkerNormPolicy, HoldsWithoutSeveralWorkers) {
  const auto policy = make_policy(worker_norm_config(PolicyKind::ddp_norm, 0.25));
  Question question = after_first_step(powers_of_two(16, 64));
  EXPECT_THAT(question.ask(*policy).reason, HasSubstr("no gradients of several workers"));
  // A user has forced the run into one data-parallel rank, whose first micro-batch is measured.
  question.candidates = affine_candidates(pipeline, powers_of_two(16, 64), {8, 1});
  question.current = {pipeline, 16, 1};
  question.latest.small_batch = 4;
  question.latest.small_batch_squared_norm = 900;
  question.latest.grad_norm = 1;
  EXPECT_THAT(question.ask(*policy).reason, HasSubstr("no gradients of several workers"));
  question.latest.small_batch_squared_norm = question.latest.grad_norm = std::nan("");
  question.candidates = affine_candidates(data, powers_of_two(16, 64), {8, 1});
  question.current = {data, 16, 1};
  EXPECT_FALSE(question.ask(*policy).target) << "norms that are not finite tell nothing";
}

// Throughput at 16 in the pipeline is 2/3; at 32 it is 0.8. The larger batch gains if 0.8 / (32 + phi) > 2/3 / (16 +
// phi), which holds for phi > 64.
TEST(ConaPolicy, DoublesOnAnyGain) {
  Question question{two_layouts(8, 256), {pipeline, 16, 1}, {}};
  set_noise(question.latest, 63.9, 1, 1000);
  const RunConfig config = run_config(PolicyKind::cona, 16);
  EXPECT_FALSE(question.ask(config).target);
  set_noise(question.latest, 64.1, 1, 1000);
  EXPECT_EQ(question.ask(config).target.value(), (Configuration{pipeline, 32, 1}));
  question.current = {pipeline, 64, 1};
  set_noise(question.latest, 1e4);
  EXPECT_EQ(question.ask(config).target.value(), (Configuration{data, 128, 1}));  // the fastest layout at this batch
  question.current = {data, 256, 1};
  EXPECT_THAT(question.ask(config).reason, HasSubstr("no candidate has batch 512"));
  question.latest = {};
  EXPECT_THAT(question.ask(config).reason, HasSubstr("the noise scale is not known"));
}

TEST(ConaPolicy, GoesBackOnceTheAverageOfPhiHasFallenAHundredTimes) {
  PaperRun run(without_dwell(PolicyKind::cona, 16), two_layouts(8, 256), {pipeline, 16, 1});
  run.run_to(512, steady(100));
  ASSERT_EQ(run.current().global_batch, 32);
  double phi = 60;  // batch 64 gains nothing: that would take a phi above 128
  int64_t falls = 0;
  const auto falling = [&](Observation& now, const Configuration&) { set_noise(now, phi *= 0.99), ++falls; };
  run.run_to(512 + 32 * 99, falling);
  EXPECT_EQ(run.current().global_batch, 32) << falls;
  run.run_to(512 + 32 * 128, falling);
  EXPECT_EQ(run.current().global_batch, 16) << falls;
  EXPECT_THAT(run.moves().back().choice.reason, HasSubstr("observations in a row: to d=1,t=2,p=2,B=16,b=1"));
}

TEST(ConaPolicy, AMoveStartsTheAverageAnew) {
  const auto policy = make_policy(without_dwell(PolicyKind::cona, 16));
  Question question{two_layouts(8, 256), {pipeline, 16, 1}, {}};
  double phi = 200;
  const auto observe = [&] {
    set_noise(question.latest, phi);
    policy->observe(question.latest, question.current);
  };
  for (const int64_t batch : {16, 32, 64}) {
    question.current.global_batch = batch;
    question.ask(*policy);
  }
  observe();
  for (int i = 0; i < 100; ++i) phi *= 0.99, observe();
  ASSERT_EQ(question.ask(*policy).target.value(), (Configuration{pipeline, 32, 1}));
  question.current.global_batch = 32;
  question.ask(*policy);
  // phi stays, below the average of the batch that the run has left, and too small for a batch of 64 again.
  for (int i = 0; i < 150; ++i) observe();
  EXPECT_FALSE(question.ask(*policy).target);
}

// A run that begins in a pipeline.
RunConfig scripted_config() {
  RunConfig config = run_config(PolicyKind::script, 16);
  config.parallel = pipeline;
  return config;
}

TEST(ScriptPolicy, MovesAtTheBoundariesOfTheScript) {
  const RunConfig config = scripted_config();
  ParallelStrategy cut_data = data;
  cut_data.zero_stage = 1;
  const std::string script =
      concat(R"({"event":"begin","version":1,"policy":"copus"})", "\n", R"({"event":"switch","after_step":12,"to":)",
             quoted({pipeline, 32, 1}), R"(,"outcome":"moved","rate_factor":1.25})", "\n",
             R"({"event":"switch","after_step":20,"to":{},"outcome":"vetoed"})", "\n\n",
             R"({"after_step":40,"configuration":)", quoted({cut_data, 100, 2}), "}\n");
  PaperRun run(config, two_layouts(8, 256), {pipeline, 16, 1}, script);
  run.run_to(4'000, steady(50));
  ASSERT_EQ(run.moves().size(), 2u);
  const Move &first = run.moves()[0], &second = run.moves()[1];
  EXPECT_EQ(first.after_step, 11);  // announced in time to reach all ranks before the boundary
  EXPECT_EQ(first.choice.commit_after_step, 12);
  EXPECT_EQ(first.to, (Configuration{pipeline, 32, 1}));
  EXPECT_EQ(first.choice.rate_factor, std::nullopt) << "until then it is as [optimizer] says";
  EXPECT_EQ(first.choice.target_rate_factor, 1.25);
  EXPECT_EQ(second.after_step, 37);  // and in time to prepare a re-layout
  EXPECT_EQ(second.choice.commit_after_step, 40);
  EXPECT_EQ(second.choice.rate_factor, 1.25) << "what the script has said, until it says otherwise";
  EXPECT_EQ(second.choice.target_rate_factor, std::nullopt);
  EXPECT_EQ(second.to, (Configuration{data, 128, 1}));
  EXPECT_THAT(
      second.choice.reason,
      HasSubstr("d=4,t=1,p=1,B=100,b=2,zero=1 is not feasible here; the nearest that is: d=4,t=1,p=1,B=128,b=1"));
}

TEST(ScriptPolicy, SkipsWhatAResumedRunHasBehindIt) {
  const RunConfig config = scripted_config();
  const auto policy =
      make_policy(config, concat(R"({"after_step":10,"configuration":)", quoted({pipeline, 32, 1}), "}\n",
                                 R"({"after_step":50,"configuration":)", quoted({pipeline, 64, 1}), "}\n"));
  Observation now;
  now.step = 48;
  EXPECT_FALSE(policy->is_due(now, {pipeline, 16, 1}));
  now.step = 49;
  EXPECT_TRUE(policy->is_due(now, {pipeline, 16, 1}));
  Question question{two_layouts(8, 256), {pipeline, 16, 1}, now};
  EXPECT_EQ(question.ask(*policy).target.value().global_batch, 64);
  EXPECT_FALSE(policy->is_due(now, {pipeline, 16, 1}));
}

// The rate of a run also changes at decisions without a switch, and a repeated run must have it from the same updates
// on.
TEST(ScriptPolicy, StatesTheLearningRateWhereTheLoggedRunChangedIt) {
  const auto decision = [](int64_t step, double factor) {
    return concat(R"({"event":"decision","step":)", step, R"(,"rate_factor":)", factor, "}\n");
  };
  const std::string log = concat(decision(3, 1), decision(5, 1), decision(7, 0.875),
                                 R"({"event":"switch","outcome":"moved","rate_factor":1.5,"after_step":8,"to":)",
                                 quoted({pipeline, 32, 1}), "}\n", decision(9, 1.5), decision(12, 1.25));
  const auto asked_at = [](const std::string& text) {
    const auto policy = make_policy(scripted_config(), text);
    std::vector<std::pair<int64_t, std::optional<double>>> asked;
    Question question{two_layouts(8, 256), {pipeline, 16, 1}, {}};
    for (question.latest.step = 1; question.latest.step < 20; ++question.latest.step) {
      if (!policy->is_due(question.latest, question.current)) continue;
      const Choice choice = question.ask(*policy);
      asked.emplace_back(question.latest.step, choice.rate_factor);
      if (choice.target) {
        EXPECT_EQ(choice.target_rate_factor, 1.5);
        EXPECT_EQ(choice.commit_after_step, 8);
        question.current = *choice.target;
      }
    }
    return asked;
  };
  const std::vector<std::pair<int64_t, std::optional<double>>> expected = {{3, 1.0}, {7, 0.875}, {12, 1.25}};
  EXPECT_EQ(asked_at(log), expected) << "the switch after step 8 is announced after step 7";
  const std::vector<std::pair<int64_t, std::optional<double>>> advised = {{7, std::nullopt}};
  EXPECT_EQ(asked_at(concat(R"({"event":"begin","version":1,"advise":true})", "\n", log)), advised);
}

// The script's factor does not apply after a veto or in another batch than the script's.
TEST(ScriptPolicy, StatesAFactorOnlyInTheBatchThatItIsFor) {
  const auto moved = [](int64_t step, const Configuration& to, double factor) {
    return concat(R"({"event":"switch","outcome":"moved","after_step":)", step, R"(,"rate_factor":)", factor,
                  R"(,"to":)", quoted(to), "}\n");
  };
  const std::string log =
      concat(R"({"event":"decision","step":2,"rate_factor":0.5})", "\n", moved(8, {pipeline, 32, 1}, 1.5),
             R"({"event":"decision","step":12,"rate_factor":1.25})", "\n");
  Question question{two_layouts(8, 256), {pipeline, 16, 1}, {}};
  const auto factor_at = [&](Policy& policy, int64_t step) {
    question.latest.step = step;
    return question.ask(policy).rate_factor;
  };
  for (const bool is_vetoed : {false, true}) {
    question.current = {pipeline, 16, 1};
    const auto policy = make_policy(scripted_config(), log);
    EXPECT_EQ(factor_at(*policy, 7), 0.5);  // announces the switch
    if (!is_vetoed) question.current = {pipeline, 32, 1};
    EXPECT_EQ(factor_at(*policy, 9), is_vetoed ? 0.5 : 1.5);
    EXPECT_EQ(factor_at(*policy, 12), is_vetoed ? std::nullopt : std::optional(1.25));
    question.current = {pipeline, 64, 1};  // on a user's command
    EXPECT_EQ(factor_at(*policy, 13), std::nullopt);
  }
  question.current = {pipeline, 16, 1};
  question.latest.step = 7;
  const auto policy = make_policy(scripted_config(), moved(8, {pipeline, 100, 1}, 1.5));
  const Choice choice = question.ask(*policy);
  EXPECT_EQ(choice.target.value().global_batch, 128);
  EXPECT_EQ(choice.target_rate_factor, std::nullopt);
  question.current = *choice.target;
  EXPECT_EQ(factor_at(*policy, 9), std::nullopt);
}

TEST(ScriptPolicy, StatesTheFactorThatALoggedRunHasBegunWith) {
  const auto begin = [](int64_t step, const std::string& more) {
    return concat(R"({"event":"begin","version":1,"step":)", step, R"(,"configuration":)", quoted({pipeline, 16, 1}),
                  more, "}\n");
  };
  const std::string log =
      concat(begin(0, R"(,"rate_factor":null)"), R"({"event":"decision","step":2,"rate_factor":0.5})", "\n",
             begin(6, R"(,"advise":true,"rate_factor":0.75)"), R"({"event":"decision","step":8,"rate_factor":0.5})");
  Question question{two_layouts(8, 256), {pipeline, 16, 1}, {}};
  const auto policy = make_policy(scripted_config(), log);
  std::vector<std::pair<int64_t, double>> asked;
  for (question.latest.step = 1; question.latest.step < 12; ++question.latest.step) {
    if (policy->is_due(question.latest, question.current)) {
      asked.emplace_back(question.latest.step, question.ask(*policy).rate_factor.value());
    }
  }
  EXPECT_THAT(asked, ElementsAre(Pair(2, 0.5), Pair(6, 0.75)));
  question.current.global_batch = 32;
  EXPECT_EQ(question.ask(*make_policy(scripted_config(), log)).rate_factor, std::nullopt) << "of another batch";
}

// When a switch has to be announced, it is not yet known whether the previous one was made.
TEST(ScriptPolicy, AnnouncesARelayoutInTimeWhateverCameOfTheSwitchBefore) {
  const auto entry = [](int64_t step, const Configuration& to) {
    return concat(R"({"after_step":)", step, R"(,"configuration":)", quoted(to), "}\n");
  };
  for (const bool is_vetoed : {false, true}) {
    for (const ParallelStrategy& second : {pipeline, data}) {
      const auto policy = make_policy(scripted_config(), concat(entry(20, {data, 16, 1}), entry(24, {second, 32, 1})));
      Question question{two_layouts(8, 256), {pipeline, 16, 1}, {}};
      question.latest.step = 17;
      EXPECT_EQ(question.ask(*policy).commit_after_step, 20);
      if (!is_vetoed) question.current = {data, 16, 1};
      const int64_t expected = question.current.strategy == second ? 23 : 21;
      for (question.latest.step = 21; question.latest.step < 24; ++question.latest.step) {
        if (policy->is_due(question.latest, question.current) && question.ask(*policy).target) break;
      }
      EXPECT_EQ(question.latest.step, expected) << "vetoed: " << is_vetoed << ", to " << to_string(second);
    }
  }
}

TEST(ScriptPolicy, NamesTheLineThatItCannotRead) {
  RunConfig config = run_config(PolicyKind::script, 16);
  config.adapt.file = "moves.jsonl";
  EXPECT_EQ(failure(config, ""), "no UserError");
  EXPECT_THAT(failure(config, "{}\n"), HasSubstr("moves.jsonl:1: \"after_step\" must be a whole number above 0"));
  EXPECT_THAT(failure(config, "\nnonsense\n"), HasSubstr("moves.jsonl:2: expected a JSON object"));
  EXPECT_THAT(failure(config, concat(R"({"after_step": )", deep_json(), "}")), HasSubstr("expected a JSON object"));
  EXPECT_THAT(failure(config, R"({"after_step": 3})"), HasSubstr("moves.jsonl:1: there is no \"configuration\""));
  EXPECT_THAT(failure(config, R"({"after_step": 3, "configuration": {"data_parallel": 0}})"),
              HasSubstr("moves.jsonl:1: "));
  EXPECT_THAT(
      failure(config, concat(R"({"after_step":3,"rate_factor":0,"configuration":)", quoted({pipeline, 32, 1}), "}")),
      HasSubstr("moves.jsonl:1: \"rate_factor\" must be a number above 0; found 0"));
  EXPECT_THAT(failure(config, R"({"event":"begin","version":2})"),
              HasSubstr("moves.jsonl:1: \"version\" must be 1, the one that this Copus reads; found 2"));
  EXPECT_THAT(failure(config, R"({"event":"begin","version":1,"advise":"no"})"),
              HasSubstr("moves.jsonl:1: \"advise\" must be true or false; found \"no\""));
  for (const char* step : {"\"5\"", "2.5", "-1"}) {
    EXPECT_THAT(failure(config, concat(R"({"event":"decision","rate_factor":1,"step":)", step, "}")),
                HasSubstr(concat("moves.jsonl:1: \"step\" must be a whole number of at least 0; found ", step)));
  }
}

}  // namespace
}  // namespace copus
