// Computes how unevenly random amounts of work are distributed over ranks.
#pragma once

#include <cstdint>

namespace copus {

// Returns the expected work of the busiest of `ranks` ranks, as a multiple of their mean work, if each rank gets
// `items` independent items. `deviation` is the standard deviation of an item's work, divided by its mean. The total
// work of a rank is assumed to be normally distributed. The expected maximum of these normal variables is approximated
// by Blom's formula (1958), which is accurate to 5 %.
double busiest_share(double deviation, int64_t ranks, int64_t items);

}  // namespace copus
