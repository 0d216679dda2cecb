// Reads the state of a layout's ranks from whole, layout-free tensors of checkpoints and model files.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "copus/checkpoint/safetensors.h"
#include "copus/model/memory/parameters.h"

namespace copus {

// Returns the master weights of each bucket, to be filled by load_state; undefined for buckets that this rank does not
// update. (The optimizer's slots are other kinds of state.)
std::vector<at::Tensor> master_weights(const ParameterStore& parameters);

// Fills one kind of state from unsharded tensors, reading only this rank's elements. find(name) returns a parameter's
// tensor, with the parameter's shape and a floating-point type.
void load_state(const ParameterStore& parameters, const std::vector<at::Tensor>& state,
                const std::function<const TensorView&(const std::string& name)>& find);

// Fills the master weights from a model file, which must have exactly the model's parameters, and derives this rank's
// compute weights (publish_weights). With ZeRO-1 and 2 weights must then be gathered.
void load_weights(ParameterStore& parameters, const std::map<std::string, TensorView, std::less<>>& weights);

}  // namespace copus
