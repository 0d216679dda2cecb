// Conversion of the state of a layout's ranks to and from the whole, layout-free tensors of checkpoints and model
// files.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "copus/checkpoint/checkpoint.h"
#include "copus/model/parameters.h"
#include "copus/train/rank_groups.h"

namespace copus {

// The master weights of every bucket: one kind of state, as load_state and collect_state take it; the moments of AdamW
// are others. Entries are undefined for buckets that this rank does not update.
std::vector<at::Tensor> master_weights(const ParameterStore& parameters);

// Fills one kind of state from whole tensors: of each, only the elements that this rank holds are read. find(name)
// gives the tensor of a parameter, which has its shape and a floating-point type.
void load_state(const ParameterStore& parameters, const std::vector<at::Tensor>& state,
                const std::function<const TensorView&(const std::string& name)>& find);

// Fills the master weights from a model file, which has exactly the model's parameters, and publishes them (with ZeRO-1
// they then have to be gathered).
void load_weights(ParameterStore& parameters, const std::map<std::string, TensorView, std::less<>>& weights);

// Collects the whole tensors of one kind of state, in canonical order and under `prefix` + the parameter's name, in the
// host memory of world rank 0; returns nothing elsewhere. Every rank calls it.
std::vector<HostTensor> collect_state(const ParameterStore& parameters, RankGroups& groups,
                                      const std::vector<at::Tensor>& state, const std::string& prefix);

}  // namespace copus
