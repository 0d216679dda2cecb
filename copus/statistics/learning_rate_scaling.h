// The factor on the learning rate when the batch is B instead of B_ref, at which it was tuned. Batches and noise scale
// phi in samples.
#pragma once

namespace copus {

// sqrt(min(B, max(B_ref, B_c)) / B_ref): the square-root rule of adaptive optimizers (Malladi et al. 2022, arXiv
// 2205.10287), not followed beyond the critical batch, where it no longer holds.
double capped_square_root_factor(double batch, double critical_batch, double reference_batch);

// B / B_ref: SGD with small batches.
double linear_factor(double batch, double reference_batch);

// B (phi + B_ref) / (B_ref (phi + B)): linear for B << phi, at most 1 + phi / B_ref (AdaScale, Johnson et al. 2020,
// arXiv 2007.05105).
double adascale_factor(double batch, double noise_scale, double reference_batch);

// eta(B) / eta(B_ref) with eta(B) = 2 / (sqrt(phi / B) + sqrt(B / phi)): rises like the square root, is highest at B =
// phi, and falls beyond (sign-like optimizers, Li et al. 2024, arXiv 2405.14578, equation 4).
double surge_factor(double batch, double noise_scale, double reference_batch);

}  // namespace copus
