#include "copus/description/stored_tensors.h"

#include <algorithm>
#include <map>
#include <utility>

#include "copus/base/error.h"

namespace copus {

namespace {

// A module of transformers and ours that it holds.
struct StoredModule {
  std::string name;
  std::vector<std::string> modules;
  bool is_transposed = false;
};

std::vector<StoredModule> gpt2_modules(const ModelDescription& model) {
  std::vector<StoredModule> all = {{"transformer.wte", {"model.embed_tokens"}},
                                   {"transformer.wpe", {"model.embed_positions"}}};
  for (int64_t layer = 0; layer < model.num_layers; ++layer) {
    const std::string theirs = concat("transformer.h.", layer, "."), ours = concat("model.layers.", layer, ".");
    const std::string attention = ours + "self_attn.";
    all.push_back({theirs + "ln_1", {ours + attention_norm_name(model.block_norm)}});
    all.push_back({theirs + "attn.c_attn", {attention + "q_proj", attention + "k_proj", attention + "v_proj"}, true});
    all.push_back({theirs + "attn.c_proj", {attention + "o_proj"}, true});
    all.push_back({theirs + "ln_2", {ours + feed_forward_norm_name(model.block_norm)}});
    all.push_back({theirs + "mlp.c_fc", {ours + "mlp.up_proj"}, true});
    all.push_back({theirs + "mlp.c_proj", {ours + "mlp.down_proj"}, true});
  }
  all.push_back({"transformer.ln_f", {"model.norm"}});
  all.push_back({"lm_head", {"lm_head"}});
  return all;
}

}  // namespace

std::vector<StoredTensor> list_stored_tensors(const ModelDescription& model) {
  std::vector<StoredTensor> tensors;
  std::map<std::string, ParameterInfo> left;
  for (ParameterInfo& parameter : list_parameters(model)) left.emplace(parameter.name, std::move(parameter));
  if (model.architecture != Architecture::gpt2) {
    for (const ParameterInfo& parameter : list_parameters(model)) {
      tensors.push_back({parameter.name, parameter.shape, {parameter}});
    }
    return tensors;
  }
  for (const StoredModule& module : gpt2_modules(model)) {
    for (const char* kind : {".weight", ".bias"}) {
      StoredTensor tensor{.name = module.name + kind, .shape = {}, .parameters = {}};
      for (const std::string& ours : module.modules) {
        const auto found = left.find(ours + kind);
        if (found == left.end()) continue;
        const std::vector<int64_t>& shape = found->second.shape;
        const int64_t outputs = tensor.shape.empty() ? 0 : tensor.shape.front();
        tensor.shape = shape;
        tensor.shape.front() += outputs;
        tensor.parameters.push_back(std::move(found->second));
        left.erase(found);
      }
      if (tensor.parameters.empty()) continue;
      tensor.is_transposed = module.is_transposed && tensor.shape.size() == 2;
      if (tensor.is_transposed) std::swap(tensor.shape[0], tensor.shape[1]);
      tensors.push_back(std::move(tensor));
    }
  }
  COPUS_CHECK(left.empty(), left.begin()->first, " has no place in files of ", to_string(model.architecture));
  return tensors;
}

}  // namespace copus
