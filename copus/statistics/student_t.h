// The quantiles of Student's distribution, for intervals from few observations.
#pragma once

namespace copus {

// The t that a variable of Student's distribution stays below with this probability, in (0.5, 1); degrees of freedom
// >= 1, not necessarily whole. Right to a relative error of 1e-6.
double student_t_quantile(double probability, double degrees_of_freedom);

}  // namespace copus
