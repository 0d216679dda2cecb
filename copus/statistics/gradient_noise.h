// Estimates the two numbers behind the gradient noise scale from squared norms of gradients of two batch sizes at the
// same weights. Samples are sequences; g_i is the gradient of one of them, G = E[g_i], Sigma = Cov(g_i). The mean
// gradient of k samples has E|g|^2 = |G|^2 + tr(Sigma)/k (McCandlish et al. 2018, arXiv 1812.06162, appendix A.1), so
// two batch sizes give both numbers.
#pragma once

namespace copus {

// The norms of one step. A is the mean squared norm of gradients of `small_batch` samples each. C is the squared norm
// of the gradient of all `large_batch` samples. Gradients are means over samples, without any other factor. The small
// batches may be parts of the large one.
struct NormObservation {
  double small_batch = 0;         // samples
  double small_squared_norm = 0;  // A
  double large_batch = 0;         // samples, more than small_batch
  double large_squared_norm = 0;  // C
  bool operator==(const NormObservation&) const = default;
};

// Two properties of the model and its data, independent of the batch. An estimate from one step may be negative.
struct GradientNoise {
  double squared_gradient = 0;  // |G|^2
  double trace = 0;             // tr(Sigma)
  bool operator==(const GradientNoise&) const = default;
};

// Estimates both numbers from two batch sizes, without bias (1812.06162, appendix A.1):
//   |G|^2 = (b2 C2 - b1 C1) / (b2 - b1)      tr(Sigma) = (C1 - C2) / (1/b1 - 1/b2)
GradientNoise estimate(const NormObservation& observation);

}  // namespace copus
