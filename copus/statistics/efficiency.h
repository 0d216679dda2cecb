// What a batch is worth: statistical efficiency and Goodput, from the critical batch size. Batches in samples.
#pragma once

namespace copus {

// B_c = calibration * phi.
double critical_batch(double calibration, double noise_scale);

// SE(B) = (B_c + B_ref) / (B_c + B): the progress that a sample makes in a batch of B, relative to one in a batch of
// B_ref (Pollux, Qiao et al. 2021, arXiv 2008.12260, equation 7).
double statistical_efficiency(double batch, double critical_batch, double reference_batch);

// Goodput_alpha = T * SE(B) * r^(2 alpha), r = capped_square_root_factor(B): throughput in samples/s that count like
// those of the reference batch. alpha = 0: plain; 0.5: the learning-rate-aware form of arXiv 2604.26687, with the
// learning rate that is really used.
double goodput(double throughput, double batch, double critical_batch, double reference_batch, double alpha);

}  // namespace copus
