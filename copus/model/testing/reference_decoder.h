// For tests: a decoder written from the equations in plain differentiable ATen operators, so that autograd computes its
// gradients. Independent of decoder.cpp and of the kernels.
#pragma once

#include <ATen/TensorOperators.h>

#include <map>
#include <string>
#include <vector>

#include "copus/model/memory/parameters.h"

namespace copus::reference {

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double epsilon);
at::Tensor layer_norm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, double epsilon);

// Rotates the first r elements of each head of x [batch, heads, sequence, head_dim]. cosine, sine: [sequence, r / 2].
at::Tensor rotate(const at::Tensor& x, const at::Tensor& cosine, const at::Tensor& sine);

// Attention. query: [batch, heads, sequence, head_dim]; key, value: [batch, kv_heads, sequence, head_dim]. A query sees
// the last `window` positions up to its own; 0: all.
at::Tensor attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, int64_t window = 0,
                     double multiplier = 0, double softcap = 0);

// Returns leaf copies of the weights, by name.
std::map<std::string, at::Tensor> leaves(const ParameterStore& store);

at::Tensor logits(const ModelDescription& model, const std::map<std::string, at::Tensor>& weights,
                  const at::Tensor& tokens);

// Returns the sum of the token losses.
at::Tensor loss(const at::Tensor& logits, const at::Tensor& targets);

std::vector<at::Tensor> gradients(const at::Tensor& scalar, const std::vector<at::Tensor>& inputs,
                                  const at::Tensor& output_gradient = {});

// Returns |a - b| / |b|, with norms over all elements.
double relative_error(const at::Tensor& a, const at::Tensor& b);

}  // namespace copus::reference
