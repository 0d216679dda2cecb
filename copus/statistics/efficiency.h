// The worth of a batch: statistical efficiency and Goodput, from the critical batch size. Batches are in samples.
#pragma once

namespace copus {

// Returns B_c = calibration * phi.
double critical_batch(double calibration, double noise_scale);

// Returns SE(B) = (B_c + B_ref) / (B_c + B): the progress that a sample makes in a batch of B, relative to one in a
// batch of B_ref (Pollux, Qiao et al. 2021, arXiv 2008.12260, equation 7).
double statistical_efficiency(double batch, double critical_batch, double reference_batch);

// Returns Goodput_alpha = T * SE(B) * r^(2 alpha): throughput in samples/s, each worth as much as one of the reference
// batch, with r the factor on the learning rate in this batch (rate_factor). alpha = 0 is plain Goodput; 0.5 is the
// learning-rate-aware form of arXiv 2604.26687, with the learning rate that is really used.
double goodput(double throughput, double efficiency, double rate_factor, double alpha);

}  // namespace copus
