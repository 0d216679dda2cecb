// The factor on the learning rate when the batch is B instead of B_ref, at which the rate was tuned, and what else of
// AdamW may follow the batch. Batches and noise scale phi are in samples.
#pragma once

namespace copus {

// How the learning rate of a run follows its batch.
struct RateRule {
  // 1/2: the square-root rule of adaptive optimizers (Malladi et al. 2022, arXiv 2205.10287, the scaling rule for
  // Adam). 1: the linear rule. 0: the rate does not follow.
  double exponent = 0.5;
  double reference_batch = 1;  // B_ref, the batch that the rate is for
  bool is_capped = true;       // whether the rule is followed up to a cap alone
  bool operator==(const RateRule&) const = default;
};

// Returns the factor on the learning rate in a batch of B: (min(B, max(B_ref, cap)) / B_ref)^exponent, or
// (B / B_ref)^exponent without a cap. The cap is the critical batch as the rate counts with it: where noise no longer
// rules, a larger batch allows no larger rate. Goodput and the trainer both take the rate from here.
double rate_factor(const RateRule& rule, double batch, double cap);

// Limit of the change of a rate whose batch stays, at one decision, as a share. The noise scale is known to some 10 %,
// which the square root halves: a limit of about that lets no single estimate through as a jump, and a rate that has to
// change by a fifth still does within the samples that the estimate looks back over (four decisions by default).
constexpr double largest_rate_change = 0.05;

// Returns the cap to count with from a decision on, in a run with a batch of B: `wanted`, or as far towards it as the
// rate at B may go. Where B is below both caps the rate does not depend on them, and the cap is `wanted` at once.
double cap_towards(const RateRule& rule, double batch, double cap, double wanted);

// Returns a cap at which a run that has this factor goes on with it, in the batch that it has.
double cap_of_factor(const RateRule& rule, double factor);

// Returns B / B_ref, the rule of SGD with small batches.
double linear_factor(double batch, double reference_batch);

// Returns the beta2 of an update in a batch of B: beta2^(B / B_ref), with which the second moment's half-life in
// samples is that of beta2 at B_ref (Marek et al. 2025, arXiv 2507.07101, who propose it in tokens, for small batches).
// It lies below 1 for every batch, and agrees to first order with the rule 1 - beta2 -> (B / B_ref) (1 - beta2) of
// Malladi et al. 2022, arXiv 2205.10287, which does not.
double scaled_beta2(double beta2, double batch, double reference_batch);

// Returns the factor on weight decay of an update in a batch of B whose rate has the factor r: (B / B_ref) / r. Since
// AdamW multiplies decay by the rate, this makes it the same for each sample: rate times decay over B is what it is at
// B_ref. For the square-root rule it is the root of B / B_ref (Malladi et al. 2022 leave weight decay out).
double weight_decay_factor(double batch, double reference_batch, double rate_factor);

// Follows rho through the ramp after the batch has shrunk. Where noise dominates, Adam's second moment v goes by the
// variance of the gradient, tr(Sigma)/B. After a switch v is still that of the old batch, which is too small for a
// smaller one: its updates would be too long. rho is v over the value that v will settle at, 1 at rest:
//   a switch multiplies rho by B_new / B_old, each update makes it 1 - (1 - rho) beta2.
// After k updates at B_new = q B_old: rho = 1 - (1 - q) beta2^k.
double variance_ratio_after_switch(double variance_ratio, double batch_before, double batch_after);
double variance_ratio_after_update(double variance_ratio, double beta2);
// Returns the factor on the learning rate of an update that leaves rho: sqrt(min(1, rho)), since the update divides by
// the square root of v. A v that is too large only shortens updates for a while and is not made up for.
double shrink_ramp_factor(double variance_ratio);

}  // namespace copus
