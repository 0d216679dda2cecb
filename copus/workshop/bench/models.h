// The models that benches train, by name.
#pragma once

#include <string>

#include "copus/description/model_description.h"

namespace copus {

// "a" and "b": those of the step benchmark beside PyTorch (bench/pytorch/shapes.py). "30M", "100M", "300M": by their
// number of parameters. "tiny": to try a bench out; it can be split into 4 tensor-parallel or 4 pipeline ranks.
ModelDescription bench_model(const std::string& name);

}  // namespace copus
