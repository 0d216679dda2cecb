// The quantiles of Student's distribution, for intervals from few observations.
#pragma once

namespace copus {

// Returns the t below which a variable of Student's distribution stays with this probability, in (0.5, 1). The degrees
// of freedom, >= 1, need not be whole. The relative error is at most 1e-6 for probabilities up to 0.99, and up to 0.999
// from two degrees of freedom on.
double student_t_quantile(double probability, double degrees_of_freedom);

}  // namespace copus
