#include "copus/description/rope_config.h"

#include <cmath>
#include <utility>

namespace copus {

namespace {

constexpr int64_t default_original_context = 4096;  // default in Phi3Config

struct Rope {
  std::optional<double> theta;
  std::optional<RopeScaling> scaling;
  std::optional<double> share;  // the rotating fraction of a head
};

// Reads a number; null or absence gives `fallback`.
double scaling_number(const Fields& rope, const char* name, double fallback) {
  return rope.positive_number(name).value_or(fallback);
}

// Reads a list of positive numbers, whose length is checked once the head size is known.
std::vector<double> factors(const Fields& rope, const char* name) {
  const nlohmann::json* list = rope.find(name);
  std::vector<double> values;
  if (list && list->is_array()) {
    for (const nlohmann::json& value : *list) {
      if (!value.is_number() || !single_precision.contains(value.get<double>())) break;
      values.push_back(value.get<double>());
    }
  }
  if (!list || !list->is_array() || values.empty() || values.size() != list->size()) {
    rope.fail("\"", name, "\" must be a list of numbers, each ", copus::describe(single_precision),
              list ? concat(", got ", describe(*list)) : "");
  }
  return values;
}

// Returns YaRN's default attention_factor (transformers, modeling_rope_utils).
double yarn_attention_factor(const Fields& rope, double factor) {
  const auto grown = [&](double scale) { return factor <= 1 ? 1.0 : 0.1 * scale * std::log(factor) + 1.0; };
  const double scale = rope.number("mscale").value_or(0), all_scale = rope.number("mscale_all_dim").value_or(0);
  return scale != 0 && all_scale != 0 ? grown(scale) / grown(all_scale) : grown(1);
}

// Lengths in tokens: of the longest sequence for which the model is designed, and of the original context, before
// scaling. The original context may be in config.json or in the rope object; transformers prefers config.json.
struct Context {
  int64_t longest;
  std::optional<int64_t> original;
};

RopeScaling parse_rope_scaling(const Fields& rope, RopeType type, const Context& context) {
  RopeScaling scaling{.type = type};
  if (!scaling.has_original_context()) {
    scaling.factor = rope.required_positive_number("factor");
  } else {
    scaling.original_max_position_embeddings =
        rope.integer("original_max_position_embeddings", max_positions).value_or(context.longest);
    scaling.original_max_position_embeddings = context.original.value_or(scaling.original_max_position_embeddings);
  }
  if (type == RopeType::llama3) {
    scaling.factor = rope.required_positive_number("factor");
    scaling.low_frequency_factor = rope.required_positive_number("low_freq_factor");
    scaling.high_frequency_factor = rope.required_positive_number("high_freq_factor");
  }
  const auto original = static_cast<double>(scaling.original_max_position_embeddings);
  const double ratio = static_cast<double>(context.longest) / original;  // null stands for this ratio
  if (type == RopeType::yarn) {
    if (!rope.contains("factor")) rope.fail("\"factor\" is missing (a number)");
    scaling.factor = scaling_number(rope, "factor", ratio);
    scaling.low_frequency_factor = scaling_number(rope, "beta_slow", 1);
    scaling.high_frequency_factor = scaling_number(rope, "beta_fast", 32);
    scaling.attention_factor = scaling_number(rope, "attention_factor", yarn_attention_factor(rope, scaling.factor));
    if (!single_precision.contains(scaling.attention_factor)) {
      rope.fail("\"mscale\" and \"mscale_all_dim\" make an attention factor of ", scaling.attention_factor,
                ", which must be ", copus::describe(single_precision));
    }
    // transformers treats null as false.
    if (rope.contains("truncate") && !rope.boolean("truncate")) {
      rope.fail("\"truncate\" other than true is not supported");
    }
  }
  if (type == RopeType::longrope) {
    scaling.factor = scaling_number(rope, "factor", ratio);
    // As in transformers, modeling_rope_utils.
    const double grown = scaling.factor <= 1 ? 1 : std::sqrt(1 + std::log(scaling.factor) / std::log(original));
    if (!std::isfinite(grown)) rope.fail("\"original_max_position_embeddings\" must be greater than 1");
    scaling.attention_factor = scaling_number(rope, "attention_factor", grown);
    scaling.short_factor = factors(rope, "short_factor");
    scaling.long_factor = factors(rope, "long_factor");
    return scaling;
  }
  if (scaling.factor < 1) rope.fail("\"factor\" must be at least 1, got ", scaling.factor);
  if (scaling.has_original_context() && scaling.high_frequency_factor <= scaling.low_frequency_factor) {
    const bool is_yarn = type == RopeType::yarn;
    rope.fail("\"", is_yarn ? "beta_fast" : "high_freq_factor", "\" must be greater than \"",
              is_yarn ? "beta_slow" : "low_freq_factor", "\", got ", scaling.high_frequency_factor, " and ",
              scaling.low_frequency_factor);
  }
  return scaling;
}

// Reads the rotating fraction of a head.
std::optional<double> rotary_share(const Fields& fields, const RopeStyle& style) {
  const std::optional<double> share = fields.positive_number("partial_rotary_factor");
  if (!style.may_be_partial && share.value_or(1) != 1) {
    fields.fail("\"partial_rotary_factor\" other than 1 is not supported");
  }
  return share;
}

// `rope`: the object `rope_parameters` of transformers 5, or `rope_scaling` of transformers 4, which has rope_theta
// outside.
Rope parse_rope_object(const Fields& rope, const RopeStyle& style, const Context& context) {
  for (const auto& [key, value] : rope.object().items()) {
    if (value.is_object()) rope.fail("\"", key, "\": different rotary embeddings by layer type are not supported");
  }
  std::string type = rope_type_of(rope);
  if (style.is_phi3 && (type == "su" || type == "yarn")) type = to_string(RopeType::longrope);
  Rope result{rope.positive_number("rope_theta"), std::nullopt, rotary_share(rope, style)};
  if (type == "default") return result;
  for (const auto& [known, name] : named_values<RopeType>) {
    if (type == name && (!style.is_phi3 || known == RopeType::longrope)) {
      result.scaling = parse_rope_scaling(rope, known, context);
      return result;
    }
  }
  std::string all;
  if (style.is_phi3) rope.fail("rope_type \"", type, "\" is not supported; only \"default\" and \"longrope\" are");
  for (const auto& [known, name] : named_values<RopeType>) all += concat(", \"", name, "\"");
  rope.fail("rope_type \"", type, "\" is not supported; supported are \"default\"", all);
}

[[noreturn]] void fail_contradiction(const Fields& config) {
  config.fail("\"rope_scaling\" and \"rope_parameters\" contradict each other; keep one of them");
}

// Reads rotary embeddings that transformers stores by layer type. In the style of transformers 4, base and scaling are
// for layers with full attention. Sliding layers have their class' base, or Gemma 3's rope_local_base_freq.
void parse_rope_by_layer_type(const Fields& config, const RopeStyle& style, ModelDescription& model) {
  rotary_share(config, style);
  Rope full{config.positive_number("rope_theta"), std::nullopt, std::nullopt}, sliding;
  const std::optional<Fields> scaling = config.fields("rope_scaling"), parameters = config.fields("rope_parameters");
  const Context context{model.max_position_embeddings, std::nullopt};  // transformers reads it only from the objects
  if (parameters) {
    for (const auto& [type, rope] :
         {std::pair<const char*, Rope*>{"full_attention", &full}, {"sliding_attention", &sliding}}) {
      if (const std::optional<Fields> object = parameters->fields(type)) {
        const std::optional<double> theta = rope->theta;
        *rope = parse_rope_object(*object, style, context);
        if (!rope->theta) rope->theta = theta;
      }
    }
    for (const auto& [key, value] : parameters->object().items()) {
      if (key == "full_attention" || key == "sliding_attention") continue;
      parameters->fail("\"", key, "\": a model of ", to_string(model.architecture),
                       " has an object \"full_attention\" here, and an object \"sliding_attention\"");
    }
  }
  if (scaling) {
    const Rope old_style = parse_rope_object(*scaling, style, context);
    const bool has_other_theta = old_style.theta && old_style.theta != full.theta;
    if (parameters && (old_style.scaling != full.scaling || has_other_theta)) fail_contradiction(config);
    full = {old_style.theta ? old_style.theta : full.theta, old_style.scaling, std::nullopt};
  }
  model.rope_theta = full.theta.value_or(model.rope_theta);
  model.rope_scaling = full.scaling;
  const std::optional<double> outer_theta =
      style.sliding_theta_field != nullptr ? config.positive_number(style.sliding_theta_field) : std::nullopt;
  const double sliding_theta = sliding.theta.value_or(outer_theta.value_or(model.sliding_rope_theta));
  model.sliding_rope_theta = 0;
  if (sliding_theta == model.rope_theta && sliding.scaling == full.scaling) return;  // all layers have the same
  if (sliding.scaling) {
    parameters->fail(
        "\"sliding_attention\" has another rope_type than \"default\" and other numbers than "
        "\"full_attention\", which is not supported");
  }
  model.sliding_rope_theta = sliding_theta;
}

// Reads the rotary embeddings that all layers share. A rotating fraction in the object overrides one outside.
void parse_common_rope(const Fields& config, const RopeStyle& style, ModelDescription& model) {
  Context context{model.max_position_embeddings, config.integer("original_max_position_embeddings", max_positions)};
  if (style.is_phi3 && !context.original) context.original = default_original_context;
  const double outer_share = rotary_share(config, style).value_or(model.partial_rotary_factor);
  const auto read = [&](const char* name) -> std::optional<Rope> {
    const std::optional<Fields> object = config.fields(name);
    return object ? std::optional(parse_rope_object(*object, style, context)) : std::nullopt;
  };
  const std::optional<Rope> old_style = read("rope_scaling");
  const std::optional<Rope> new_style = read("rope_parameters");
  if (old_style && new_style &&
      (old_style->scaling != new_style->scaling ||
       old_style->share.value_or(outer_share) != new_style->share.value_or(outer_share))) {
    fail_contradiction(config);
  }
  std::optional<double> theta = config.positive_number("rope_theta");
  model.partial_rotary_factor = outer_share;
  for (const std::optional<Rope>& rope : {old_style, new_style}) {
    if (!rope) continue;
    if (rope->theta && theta && rope->theta != theta) {
      config.fail("\"rope_theta\" is given twice, as ", *theta, " and as ", *rope->theta, "; keep one of them");
    }
    if (rope->theta) theta = rope->theta;
    model.rope_scaling = rope->scaling;
    model.partial_rotary_factor = rope->share.value_or(outer_share);
  }
  model.rope_theta = theta.value_or(model.rope_theta);
}

}  // namespace

std::string rope_type_of(const Fields& rope) {
  return rope.text("rope_type").value_or(rope.text("type").value_or("default"));
}

void parse_rope(const Fields& config, const RopeStyle& style, ModelDescription& model) {
  (style.by_layer_type ? parse_rope_by_layer_type : parse_common_rope)(config, style, model);
  if (model.rope_scaling && model.rope_scaling->type == RopeType::yarn && model.rope_theta <= 1) {
    config.fail("\"rope_theta\" must be greater than 1 with YaRN's scaling, got ", model.rope_theta);
  }
  const double share = model.partial_rotary_factor;
  if (share != 1 && (share > 1 || model.rotary_dim() < 2 || model.rotary_dim() % 2 != 0)) {
    config.fail("\"partial_rotary_factor\" is ", share, ", but an even number of the ", model.head_dim,
                " elements of a head must rotate");
  }
  if (!model.rope_scaling) return;
  if (style.is_phi3 && model.head_dim != model.hidden_size / model.num_heads) {
    config.fail("\"head_dim\" is ", model.head_dim,
                ", but with \"longrope\" transformers takes it to be \"hidden_size\" / ",
                "\"num_attention_heads\" = ", model.hidden_size / model.num_heads);
  }
  for (const auto& [name, list] : scaling_lists(*model.rope_scaling)) {
    if (std::ssize(list) == model.rotary_dim() / 2) continue;
    config.fail("\"", name, "\" has ", list.size(), " numbers, but ", model.rotary_dim() / 2,
                " pairs of elements of a head rotate");
  }
}

nlohmann::json rope_object(const ModelDescription& model) {
  if (!model.rope_scaling) return {{"rope_type", "default"}};
  nlohmann::json object = {{"rope_type", to_string(model.rope_scaling->type)}};
  for (const auto& [name, value] : scaling_numbers(*model.rope_scaling)) object[std::string(name)] = value;
  for (const auto& [name, list] : scaling_lists(*model.rope_scaling)) object[std::string(name)] = list;
  if (model.rope_scaling->has_original_context()) {
    object["original_max_position_embeddings"] = model.rope_scaling->original_max_position_embeddings;
  }
  return object;
}

}  // namespace copus
