// The models that benches train, by name.
#pragma once

#include <string>

#include "copus/description/model_description.h"

namespace copus {

// "a" and "b" are the models of the step benchmark that compares with PyTorch (bench/pytorch/shapes.py). "30M", "100M"
// and "300M" are named after their number of parameters. "tiny" is for a quick trial of a bench; it can be split over 4
// tensor-parallel or 4 pipeline ranks.
ModelDescription bench_model(const std::string& name);

}  // namespace copus
