// Writes config.json for transformers 4 and 5.
#include <nlohmann/json.hpp>

#include "copus/description/architecture_config.h"
#include "copus/description/model_description.h"
#include "copus/description/rope_config.h"

namespace copus {

std::string to_hugging_face_config(const ModelDescription& model, std::string_view torch_dtype) {
  const ArchitectureConfig& own = config_of(model.architecture);
  nlohmann::json rope_parameters = rope_object(model);
  rope_parameters["rope_theta"] = model.rope_theta;
  nlohmann::json config = {
      {"architectures", {causal_language_model_class(model.architecture)}},
      {"model_type", to_string(model.architecture)},
      {own.activation.field, own.activation.names.front()},
      {"max_position_embeddings", model.max_position_embeddings},
      {"rms_norm_eps", model.rms_norm_eps},
      {"tie_word_embeddings", model.tie_word_embeddings},
      {"initializer_range", model.initializer_range},
      {"use_cache", true},
      {"bos_token_id", nullptr},
      {"eos_token_id", nullptr},
      {"pad_token_id", nullptr},
      // transformers 5 reads rope_parameters, transformers 4 the other two fields.
      {"rope_parameters", rope_parameters},
      {"rope_theta", model.rope_theta},
      {"rope_scaling", model.rope_scaling ? rope_object(model) : nlohmann::json(nullptr)},
      // transformers reads `dtype` since 4.56, `torch_dtype` before.
      {"dtype", torch_dtype},
      {"torch_dtype", torch_dtype},
  };
  visit_sizes([&](const char* name, int64_t size) { config[name] = size; }, model);
  if (own.has("attention_bias")) config["attention_bias"] = model.attention_output_bias;
  if (own.has("mlp_bias")) config["mlp_bias"] = model.feed_forward_bias;
  for (const DropoutField& field : own.dropout) config[field.name] = 0.0;
  if (own.write != nullptr) own.write(model, config);
  return config.dump(2) + "\n";
}

}  // namespace copus
