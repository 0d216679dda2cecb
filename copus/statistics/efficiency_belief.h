// Draws laws of the statistical efficiency of a batch from their posterior. Published laws are the prior, and measured
// branches are the evidence (docs/decisions/statistics.md). Batches, noise scales and lengths are in tokens, because
// published laws are in tokens and sequences differ in length.
#pragma once

#include <cstdint>
#include <vector>

namespace copus {

// The state of a run on which its critical batch depends.
struct TrainingMoment {
  double tokens = 1;       // n, read so far
  double noise_scale = 1;  // phi there
};

// One law of the efficiency curve:
//   efficiency(B, r) = (1 + B / B_c)^(-p) r^s,   ln B_c = a + q ln(n / n_0) + w ln(phi / phi_0)
// where n is the number of tokens read, r is the factor on the learning rate, n_0 = 1e9 tokens and phi_0 = 3e5 tokens.
// With p = 1 and s = 0 the law is the hyperbola of McCandlish et al. 2018 (arXiv 1812.06162). If also w = 1 and q = 0,
// the law is Copus' B_c = c phi.
struct EfficiencyLaw {
  double level = 0;       // a, the logarithm of a batch in tokens
  double by_tokens = 0;   // q
  double by_noise = 0;    // w
  double power = 1;       // p > 0
  double rate_slope = 0;  // s, the same at every moment

  // Returns B_c at a moment, whose tokens and noise scale are > 0.
  double critical_batch(const TrainingMoment& moment) const;
  // Returns ln worth(B, r) for B_c = `critical_batch`. The result is 0 for a vanishing batch at r = 1.
  double log_worth(double batch, double critical_batch, double rate_factor) const;
};

// The worth of a branch relative to branches of the reference batch from the same checkpoint.
struct MeasuredBranch {
  double batch = 1;
  double rate_factor = 1;     // its learning rate / the reference batch's
  double log_efficiency = 0;  // ln(tokens of the reference batch that reach the same loss / tokens that it read)
  double deviation = 0.1;     // standard deviation of log_efficiency, > 0
};

// The branches that left a run at one moment.
struct BranchPointEvidence {
  TrainingMoment moment;
  double reference_batch = 1;
  std::vector<MeasuredBranch> branches;
};

// A critical batch measured by branches of a run, as calibration.json states it.
struct CriticalBatchEvidence {
  TrainingMoment moment;
  double critical_batch = 1;
  double deviation = 0.1;  // standard deviation of its logarithm, > 0
};

struct EfficiencyEvidence {
  std::vector<BranchPointEvidence> branch_points;
  std::vector<CriticalBatchEvidence> critical_batches;
};

struct EfficiencyBelief {
  std::vector<EfficiencyLaw> laws;  // equally likely draws for a moment without branches
  // The effective number of independent draws among the 8192 weighted proposals (Kong 1992), of which 512 are kept.
  // Below some hundred, the draws do not represent the posterior well. The number says nothing about evidence that
  // contradicts the prior, because the proposals follow the evidence.
  double effective_draws = 0;
};

// The standard deviation of ln(B_c / phi) among published runs (McCandlish et al. 2018, arXiv 1812.06162, table 1).
inline constexpr double deviation_of_calibration = 2.1;

// Returns the posterior. The same evidence and seed give the same draws, bit for bit; the run's layout and batch have
// no influence. Throws InternalError if a batch, a moment or a deviation is not positive and finite.
EfficiencyBelief believe(const EfficiencyEvidence& evidence, uint64_t seed);

// Returns the law that has the posterior means of level, by_tokens and by_noise, with power 1 and rate slope 0. At any
// moment this law gives the expectation of ln B_c. A negative mean of by_noise becomes 0, and the law then depends on
// the tokens alone. ln B_c is linear in the law's parameters, so each half of the prior has a normal posterior, and no
// draws are needed: three critical batches take 27 microseconds on one core of an AMD EPYC. Throws InternalError as
// believe() does.
EfficiencyLaw expected_law(const std::vector<CriticalBatchEvidence>& critical_batches);

// Draws 512 equally likely laws, given these critical batches (possibly none), from the half of the prior in which the
// critical batch depends on the tokens read. These laws do not use the noise scale, so they suit runs in which it is
// unknown.
std::vector<EfficiencyLaw> laws_by_tokens(std::vector<CriticalBatchEvidence> critical_batches, uint64_t seed);

}  // namespace copus
