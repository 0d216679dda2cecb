// A seeded sequence of random numbers for simulations: the same seed and name give the same numbers on every machine.
#pragma once

#include <cstdint>
#include <string_view>

namespace copus {

class Draws {
 public:
  Draws(uint64_t seed, std::string_view name);

  // Draws from [0, 1).
  double uniform();
  // Draws from [low, high), evenly in the logarithm; both > 0.
  double log_uniform(double low, double high);
  // Draws one of 0 .. count - 1.
  int64_t one_of(int64_t count);
  // Draws a standard normal deviate.
  double normal();
  // Draws from the chi-squared distribution with `degrees` >= 30 degrees of freedom, by the cube of a normal deviate
  // (Wilson and Hilferty 1931). The relative error of its mean is below 1e-5.
  double chi_squared(double degrees);

 private:
  uint64_t key_;
  uint64_t uniforms_ = 0, normals_ = 0;  // drawn so far
};

}  // namespace copus
