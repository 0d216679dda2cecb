// Baselines that choose a batch by measurements and keep the layout. A policy here may ask for any batch. The run gets
// the nearest candidate batch in its layout, with the fastest micro-batch.
#include <algorithm>
#include <cmath>
#include <string>

#include "copus/base/error.h"
#include "copus/base/text/units.h"
#include "copus/orchestrator/baselines/norm_test.h"
#include "copus/orchestrator/policies/goodput_ranking.h"
#include "copus/orchestrator/policies/policies.h"

namespace copus {

namespace {

int64_t largest_batch(const Situation& situation, const CandidateFilter& allowed) {
  int64_t largest = 0;
  for (const Candidate& candidate : situation.candidates) {
    if (allowed(candidate)) largest = std::max(largest, candidate.configuration.global_batch);
  }
  return largest;
}

std::string number(double value) { return format_number("%.4g", value); }

class FixedPolicy : public BaselinePolicy {
 public:
  using BaselinePolicy::BaselinePolicy;

 private:
  Choice decide(const Situation&) override {
    return hold(concat("adapt.policy \"", to_string(config().adapt.policy), "\" never moves"));
  }
};

// The baselines of arXiv 2604.26687: the batch follows B_c in a fixed layout. At the first decision after
// adapt.dwell_samples, the policy chooses the layout that is fastest at the run's initial batch (pessimistic) or at the
// largest candidate batch (optimistic).
class CriticalBatchPolicy : public BaselinePolicy {
 public:
  using BaselinePolicy::BaselinePolicy;

  void visit_state(StateValues& values) override { values(layout_); }

 private:
  Choice decide(const Situation& situation) override {
    if (const std::optional<Choice> dwelling = dwell(situation)) return *dwelling;
    settle_layout(situation);
    const NoiseBelief noise = believed_noise(situation.latest);
    const double critical = critical_batch_in(situation);
    const auto now = static_cast<double>(situation.current.global_batch);
    const std::string what = concat("critical batch ", number(critical), " (", describe(noise), ")");
    // A lower bound of phi allows the batch to grow up to it, but not to shrink.
    if (noise.is_bounded() || critical > now) {
      return to_batch(situation, std::max(1.0, critical), layout_is(*layout_), what);
    }
    return to_batch(situation, now, layout_is(*layout_), concat(what, " is no reason to shrink"));
  }

  void settle_layout(const Situation& situation) {
    const auto any = [](const Candidate&) { return true; };
    if (layout_ && std::any_of(situation.candidates.begin(), situation.candidates.end(), layout_is(*layout_))) return;
    const int64_t batch = config().adapt.policy == PolicyKind::cbs_pessimistic ? config().train.global_batch
                                                                               : largest_batch(situation, any);
    layout_ = fastest_near(situation, static_cast<double>(batch), any)->configuration.strategy;
  }

  std::optional<ParallelStrategy> layout_;
};

// Doubles the batch once the critical batch has reached twice the batch, and never shrinks it. This is the batch
// warm-up of Merrill et al. 2025 (arXiv 2505.23971), whose OLMo runs doubled the batch to 2048 and 4096 when their
// measured critical batch crossed these values. Merrill et al. measured the critical batch by branched runs; here it is
// derived from the noise scale.
class OlmoPolicy : public BaselinePolicy {
 public:
  using BaselinePolicy::BaselinePolicy;

 private:
  Choice decide(const Situation& situation) override {
    if (const std::optional<Choice> dwelling = dwell(situation)) return *dwelling;
    const NoiseBelief noise = believed_noise(situation.latest);
    const double critical = critical_batch_in(situation);
    const auto doubled = 2 * static_cast<double>(situation.current.global_batch);
    const std::string what = concat("critical batch ", number(critical), " (", describe(noise), ") ");
    if (critical < doubled) return hold(concat(what, "is below twice the batch, ", doubled));
    return to_batch(situation, doubled, concat(what, "has reached twice the batch"));
  }
};

// Base class of policies that grow the batch until it passes the norm test, in the current layout.
class NormTestingPolicy : public BaselinePolicy {
 public:
  using BaselinePolicy::BaselinePolicy;

 protected:
  // Tests the norms of a step in the current batch. If the test fails, chooses the smallest candidate batch that
  // passes. (The candidate nearest to the required batch might be smaller than required and fail again.)
  Choice to_passing_batch(const Situation& situation, const NormObservation& norms) const {
    const double eta = config().adapt.norm_test_eta;
    const NormTestResult result =
        norm_test(norms, eta, std::max(norms.large_batch, static_cast<double>(largest_in_layout(situation))));
    const double variance = std::max(0.0, variance_of_batch_gradient(norms));
    const std::string what =
        concat("relative error of the gradient ", number(std::sqrt(variance / norms.large_squared_norm)),
               " against eta ", number(eta));
    if (result.passed) return hold(what);
    const CandidateFilter layout = layout_is(situation.current.strategy);
    const CandidateFilter passes = [&](const Candidate& candidate) {
      return layout(candidate) && static_cast<double>(candidate.configuration.global_batch) >= result.batch;
    };
    return to_batch(situation, result.batch, passes, concat(what, " wants batch ", number(result.batch)));
  }

  static int64_t largest_in_layout(const Situation& situation) {
    return largest_batch(situation, layout_is(situation.current.strategy));
  }
};

// The norm test on the latest step that measured a small batch, whatever parts of the batch it measured.
class NormTestPolicy : public NormTestingPolicy {
 public:
  using NormTestingPolicy::NormTestingPolicy;

  void observe(const Observation& observation, const Configuration&) override {
    if (last_consumed_ && observation.small_batch && observation.small_batch_squared_norm) {
      const auto batch = static_cast<double>(observation.consumed_samples - *last_consumed_);
      norms_ = {*observation.small_batch, *observation.small_batch_squared_norm, batch,
                observation.grad_norm * observation.grad_norm};
    }
    last_consumed_ = observation.consumed_samples;
  }

  void visit_state(StateValues& values) override { values(last_consumed_, norms_); }

 private:
  Choice decide(const Situation& situation) override {
    if (const std::optional<Choice> dwelling = dwell(situation)) return *dwelling;
    if (!norms_ || norms_->large_batch != static_cast<double>(situation.current.global_batch)) {
      return hold("no step of this batch has measured gradients of parts of it yet");
    }
    return to_passing_batch(situation, *norms_);
  }

  std::optional<int64_t> last_consumed_;
  std::optional<NormObservation> norms_;
};

// DDP-Norm and FSDP-Norm (Lau et al. 2024, arXiv 2412.21124). The workers are the data-parallel ranks. Every
// adapt.norm_test_interval steps, the norm test compares the workers' gradients, until the batch is the largest
// candidate.
//
// Both policies use one rule. They differ in how much of a worker's gradient can be measured, and therefore in the
// layouts that they allow (check_run_config). If every rank keeps its unsharded gradient until the reduction,
// small_batch is a worker's part of the batch, and variance_of_batch_gradient is exactly the variance between workers.
// If gradients are reduced after each micro-batch, small_batch is each worker's first micro-batch, and the variance is
// an estimate.
class WorkerNormPolicy : public NormTestingPolicy {
 public:
  using NormTestingPolicy::NormTestingPolicy;

  bool is_due(const Observation& observation, const Configuration& /*current*/) const override {
    return !is_at_largest_ && is_tested(observation);
  }

  void visit_state(StateValues& values) override { values(is_at_largest_); }

 private:
  bool is_tested(const Observation& observation) const {
    return (observation.step - 1) % config().adapt.norm_test_interval == 0;
  }

  Choice decide(const Situation& situation) override {
    const Configuration& current = situation.current;
    is_at_largest_ = current.global_batch >= largest_in_layout(situation);
    if (is_at_largest_) return hold(concat("batch ", current.global_batch, " is the largest of the layout"));
    const Observation& latest = situation.latest;
    if (!is_tested(latest)) {
      return hold(concat("the test is made every ", config().adapt.norm_test_interval, " steps"));
    }
    // A user may have forced the run into a layout with one worker.
    if (current.strategy.data_parallel == 1 || !latest.small_batch || !latest.small_batch_squared_norm) {
      return hold("this step has measured no gradients of several workers");
    }
    return to_passing_batch(
        situation, {*latest.small_batch, *latest.small_batch_squared_norm, static_cast<double>(current.global_batch),
                    latest.grad_norm * latest.grad_norm});
  }

  bool is_at_largest_ = false;
};

}  // namespace

std::unique_ptr<Policy> make_batch_policy(const JobConfig& config) {
  switch (config.adapt.policy) {
    case PolicyKind::fixed:
    case PolicyKind::static_best:
      return std::make_unique<FixedPolicy>(config);
    case PolicyKind::cbs_pessimistic:
    case PolicyKind::cbs_optimistic:
      return std::make_unique<CriticalBatchPolicy>(config);
    case PolicyKind::olmo:
      return std::make_unique<OlmoPolicy>(config);
    case PolicyKind::norm_test:
      return std::make_unique<NormTestPolicy>(config);
    case PolicyKind::ddp_norm:
    case PolicyKind::fsdp_norm:
      return std::make_unique<WorkerNormPolicy>(config);
    default:
      fail_check("a policy of the batch", __FILE__, __LINE__, std::string(to_string(config.adapt.policy)));
  }
}

}  // namespace copus
