#include "copus/description/stored_tensors.h"

#include <algorithm>
#include <map>
#include <utility>

#include "copus/base/error.h"

namespace copus {

namespace {

// A module of transformers, and those of our modules that it fuses.
struct StoredModule {
  std::string name;
  std::vector<std::string> modules;
  bool is_transposed = false;
  int64_t outputs_in_turn = 0;
};

std::vector<StoredModule> gpt2_modules(const ModelDescription& model) {
  std::vector<StoredModule> all = {{"transformer.wte", {"model.embed_tokens"}},
                                   {"transformer.wpe", {"model.embed_positions"}}};
  for (int64_t layer = 0; layer < model.num_layers; ++layer) {
    const std::string theirs = concat("transformer.h.", layer, "."), ours = concat("model.layers.", layer, ".");
    const std::string attention = ours + "self_attn.";
    all.push_back({theirs + "ln_1", {ours + "input_layernorm"}});
    all.push_back({theirs + "attn.c_attn", {attention + "q_proj", attention + "k_proj", attention + "v_proj"}, true});
    all.push_back({theirs + "attn.c_proj", {attention + "o_proj"}, true});
    all.push_back({theirs + "ln_2", {ours + "post_attention_layernorm"}});
    all.push_back({theirs + "mlp.c_fc", {ours + "mlp.up_proj"}, true});
    all.push_back({theirs + "mlp.c_proj", {ours + "mlp.down_proj"}, true});
  }
  all.push_back({"transformer.ln_f", {"model.norm"}});
  all.push_back({"lm_head", {"lm_head"}});
  return all;
}

std::vector<StoredModule> phi3_modules(const ModelDescription& model) {
  std::vector<StoredModule> all = {{"model.embed_tokens", {"model.embed_tokens"}}};
  for (int64_t layer = 0; layer < model.num_layers; ++layer) {
    const std::string prefix = concat("model.layers.", layer, ".");
    const auto add = [&](const std::string& place, const char* name, const std::vector<const char*>& modules) {
      StoredModule& module = all.emplace_back(StoredModule{prefix + place + name, {}});
      for (const char* ours : modules) module.modules.push_back(prefix + place + ours);
    };
    add("self_attn.", "o_proj", {"o_proj"});
    add("self_attn.", "qkv_proj", {"q_proj", "k_proj", "v_proj"});
    add("mlp.", "gate_up_proj", {"gate_proj", "up_proj"});
    add("mlp.", "down_proj", {"down_proj"});
    add("", "input_layernorm", {"input_layernorm"});
    add("", "post_attention_layernorm", {"post_attention_layernorm"});
  }
  all.push_back({"model.norm", {"model.norm"}});
  all.push_back({"lm_head", {"lm_head"}});
  return all;
}

std::vector<StoredModule> gpt_neox_modules(const ModelDescription& model) {
  std::vector<StoredModule> all = {{"gpt_neox.embed_in", {"model.embed_tokens"}}};
  for (int64_t layer = 0; layer < model.num_layers; ++layer) {
    const std::string theirs = concat("gpt_neox.layers.", layer, "."), ours = concat("model.layers.", layer, ".");
    const std::string attention = ours + "self_attn.";
    for (const char* norm : {"input_layernorm", "post_attention_layernorm"})
      all.push_back({theirs + norm, {ours + norm}});
    all.push_back({.name = theirs + "attention.query_key_value",
                   .modules = {attention + "q_proj", attention + "k_proj", attention + "v_proj"},
                   .outputs_in_turn = model.head_dim});
    all.push_back({theirs + "attention.dense", {attention + "o_proj"}});
    all.push_back({theirs + "mlp.dense_h_to_4h", {ours + "mlp.up_proj"}});
    all.push_back({theirs + "mlp.dense_4h_to_h", {ours + "mlp.down_proj"}});
  }
  all.push_back({"gpt_neox.final_layer_norm", {"model.norm"}});
  all.push_back({"embed_out", {"lm_head"}});
  return all;
}

// Lists the modules of the model's files; empty if they equal ours.
std::vector<StoredModule> stored_modules(const ModelDescription& model) {
  switch (model.architecture) {
    case Architecture::gpt2:
      return gpt2_modules(model);
    case Architecture::phi3:
      return phi3_modules(model);
    case Architecture::gpt_neox:
      return gpt_neox_modules(model);
    default:
      return {};
  }
}

}  // namespace

std::string stored_head_name(const ModelDescription& model) {
  return model.architecture == Architecture::gpt_neox ? "embed_out.weight" : "lm_head.weight";
}

std::vector<StoredTensor> list_stored_tensors(const ModelDescription& model) {
  std::vector<StoredTensor> tensors;
  std::map<std::string, ParameterInfo> left;
  for (ParameterInfo& parameter : list_parameters(model)) left.emplace(parameter.name, std::move(parameter));
  const std::vector<StoredModule> modules = stored_modules(model);
  if (modules.empty()) {
    for (const ParameterInfo& parameter : list_parameters(model)) {
      tensors.push_back({parameter.name, parameter.shape, {parameter}});
    }
    return tensors;
  }
  for (const StoredModule& module : modules) {
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
      if (tensor.parameters.size() > 1) tensor.outputs_in_turn = module.outputs_in_turn;
      tensor.is_transposed = module.is_transposed && tensor.shape.size() == 2;
      if (tensor.is_transposed) std::swap(tensor.shape[0], tensor.shape[1]);
      tensors.push_back(std::move(tensor));
    }
  }
  COPUS_CHECK(left.empty(), left.begin()->first, " has no place in files of ", to_string(model.architecture));
  return tensors;
}

}  // namespace copus
