// Computes how AdamW's settings follow a batch of B: the factor on the learning rate, which was tuned for a batch of
// B_ref, and the changes of beta2 and weight decay. Batches and noise scale phi are in samples.
#pragma once

namespace copus {

// How the learning rate of a run follows its batch.
struct RateRule {
  // 1/2: the square-root rule of adaptive optimizers (Malladi et al. 2022, arXiv 2205.10287, the scaling rule for
  // Adam). 1: the linear rule. 0: the rate does not follow the batch.
  double exponent = 0.5;
  double reference_batch = 1;  // B_ref, the batch for which the rate was tuned
  bool is_capped = true;       // whether the rule holds only up to a cap
  bool operator==(const RateRule&) const = default;
};

// Returns the factor on the learning rate in a batch of B: (min(B, max(B_ref, cap)) / B_ref)^exponent, or (B /
// B_ref)^exponent without a cap. The cap is the critical batch that the rate assumes. Beyond the critical batch noise
// no longer dominates, so a larger batch allows no larger rate. Goodput and the trainer both take the rate from this
// function.
double rate_factor(const RateRule& rule, double batch, double cap);

// The largest relative change of the rate at one decision, if the batch does not change. The noise scale is known to
// some 10 %, and the square root halves this error. A limit of about 5 % prevents jumps by a single estimate, yet the
// rate can change by a fifth within the samples over which the estimate averages (four decisions by default).
constexpr double largest_rate_change = 0.05;

// Returns the cap to use from a decision on, in a run with a batch of B. This is `wanted` if it changes the rate at B
// by at most the limit; otherwise it is the cap nearest to `wanted` that does. (If B is below both caps, the rate does
// not change.)
double cap_towards(const RateRule& rule, double batch, double cap, double wanted);

// Returns a cap with which a run that has this factor keeps it at its present batch.
double cap_of_factor(const RateRule& rule, double factor);

// Returns B / B_ref, SGD's rule for small batches.
double linear_factor(double batch, double reference_batch);

// Returns beta2 for a batch of B: beta2^(B / B_ref). The second moment's half-life in samples is then the same as with
// beta2 at B_ref (Marek et al. 2025, arXiv 2507.07101, propose this rule in tokens, for small batches). The result lies
// in (0, 1) for every batch. The rule 1 - beta2 -> (B / B_ref) (1 - beta2) of Malladi et al. 2022 (arXiv 2205.10287)
// agrees with this rule to first order, but leaves (0, 1) for large batches.
double scaled_beta2(double beta2, double batch, double reference_batch);

// Returns the factor on weight decay in a batch of B whose rate has the factor r: (B / B_ref) / r. AdamW multiplies the
// decay by the rate. With this factor, the product of rate and decay per sample is the same as at B_ref. For the
// square-root rule the factor is sqrt(B / B_ref) (Malladi et al. 2022 do not treat weight decay).
double weight_decay_factor(double batch, double reference_batch, double rate_factor);

// These functions follow rho after the batch has shrunk. rho is Adam's second moment v divided by the value at which v
// will settle, so it is 1 in the steady state. Where noise dominates, v follows the variance of the gradient,
// tr(Sigma)/B. After a switch to a smaller batch, v still belongs to the old batch and is too small, so updates would
// be too long. A switch multiplies rho by B_new / B_old, and each update changes it to 1 - (1 - rho) beta2. After k
// updates at B_new = q B_old: rho = 1 - (1 - q) beta2^k.
double variance_ratio_after_switch(double variance_ratio, double batch_before, double batch_after);
double variance_ratio_after_update(double variance_ratio, double beta2);
// Returns the factor on the learning rate of an update after which the ratio is rho: sqrt(min(1, rho)), because the
// update divides by the square root of v. The factor does not compensate for a v that is too large, which only shortens
// updates for a while.
double shrink_ramp_factor(double variance_ratio);

}  // namespace copus
