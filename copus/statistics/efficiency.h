// The worth of a batch: statistical efficiency and Goodput, from the critical batch size. Batches are in samples.
#pragma once

namespace copus {

// How the critical batch follows from what is measured.
struct CriticalBatchRule {
  double calibration = 1;  // c, over the noise scale
  double updates = 0;      // k, that a run needs in whatever batch to come as far again as it has come
};

// Returns B_c with 1 / B_c = 1 / (c phi) + k / n, where n is the number of samples that the run has read: at its
// beginning the number of updates limits progress, later the noise of the gradient (docs/efficiency.md). phi may be
// infinite.
double critical_batch(const CriticalBatchRule& rule, double noise_scale, double consumed_samples);

// Returns SE(B) = (B_c + B_ref) / (B_c + B): the progress that a sample makes in a batch of B, relative to one in a
// batch of B_ref (Pollux, Qiao et al. 2021, arXiv 2008.12260, equation 7).
double statistical_efficiency(double batch, double critical_batch, double reference_batch);

// Returns Goodput_alpha = T * SE(B) * r^(2 alpha): throughput in samples/s, each worth as much as one of the reference
// batch, with r the factor on the learning rate in this batch (rate_factor). alpha = 0 is plain Goodput; 0.5 is the
// learning-rate-aware form of arXiv 2604.26687, with the learning rate that is really used.
double goodput(double throughput, double efficiency, double rate_factor, double alpha);

}  // namespace copus
