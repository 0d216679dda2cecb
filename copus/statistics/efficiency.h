// Computes statistical efficiency and Goodput of a batch from the critical batch size. Batches are in samples.
#pragma once

namespace copus {

// How the critical batch follows from what is measured.
struct CriticalBatchRule {
  double calibration = 1;  // c, multiplies the noise scale
  double updates = 0;      // k, the updates that a run needs at any batch to advance as far again as it has come
};

// Returns B_c with 1 / B_c = 1 / (c phi) + k / n, where n is the number of samples that the run has read. The number of
// updates limits progress at the beginning, gradient noise limits it later (docs/efficiency.md). phi may be infinite.
double critical_batch(const CriticalBatchRule& rule, double noise_scale, double consumed_samples);

// Returns SE(B) = (B_c + B_ref) / (B_c + B): the progress that a sample makes in a batch of B, relative to a sample in
// a batch of B_ref (Pollux, Qiao et al. 2021, arXiv 2008.12260, equation 7).
double statistical_efficiency(double batch, double critical_batch, double reference_batch);

// Returns Goodput_alpha = T * SE(B) * r^(2 alpha), in samples/s of the reference batch. T is the throughput in
// samples/s, r the factor on the learning rate at this batch (rate_factor). alpha = 0 is plain Goodput. alpha = 0.5 is
// the learning-rate-aware form of arXiv 2604.26687, here with the learning rate that the run really uses.
double goodput(double throughput, double efficiency, double rate_factor, double alpha);

}  // namespace copus
