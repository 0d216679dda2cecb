// `copus convert`: writes a stored model as a Hugging Face directory. It also copies the tokenizer, and entries of the
// original config.json that Copus' model description lacks.
#include <filesystem>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "copus/base/error.h"
#include "copus/base/numbers/float_names.h"
#include "copus/base/text/text_distance.h"
#include "copus/checkpoint/hugging_face.h"
#include "copus/cli/commands.h"
#include "copus/cli/stored_model.h"

namespace copus {

namespace {

struct ConvertOptions {
  std::string from;
  std::string to;
  std::string dtype = "fp32";
};

DType parse_dtype(const std::string& text) {
  const std::string_view name = printed_float_name(text);
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    if (name == printed_name(dtype)) return dtype;
  }
  throw UserError(concat("--dtype ", text, ": expected fp32, bf16 or fp16"));
}

// Tells the user which tokenizer files were copied.
std::string tokenizer_lines(const std::filesystem::path& folder, const ModelOrigin& origin) {
  if (folder.empty()) return "";
  std::vector<std::string> names;
  for (const auto& [name, content] : origin.tokenizer) names.push_back(name);
  return names.empty() ? concat("There are no tokenizer files in ", folder.string(), " to copy.\n")
                       : concat("Copied from ", folder.string(), ": ", join(names, ", "), ".\n");
}

// Tells the user what was written into config.json and generation_config.json.
std::string config_lines(const std::filesystem::path& folder, const ModelOrigin& origin,
                         const ExportedConfig& exported) {
  const std::string source = (folder / "config.json").string();
  std::string lines;
  if (exported.is_of_another_model) {
    lines += concat("Kept nothing from ", source, ", which does not describe this model.\n");
  }
  if (!exported.from_config.empty())
    lines += concat("Kept from ", source, ": ", join(exported.from_config, ", "), ".\n");
  if (!exported.from_tokenizer.empty()) {
    lines += concat("Looked up in the tokenizer: ", join(exported.from_tokenizer, ", "), ".\n");
  }
  if (exported.generation_config.empty()) return lines;
  return lines + (exported.generation_config == origin.generation_config
                      ? concat("Copied from ", folder.string(), ": ", generation_config_file_name, ".\n")
                      : concat("Wrote ", generation_config_file_name, " with the ids of special tokens.\n"));
}

int convert(const ConvertOptions& options) {
  const DType dtype = parse_dtype(options.dtype);
  const StoredModel model(options.from);
  std::vector<TensorView> weights;
  for (const ParameterInfo& parameter : list_parameters(model.description())) {
    weights.push_back(model.weights().at(parameter.name));
  }
  const std::filesystem::path folder = model.origin_directory();
  const std::filesystem::path tokenizer_folder = model.tokenizer_directory().value_or("");
  const ModelOrigin origin = read_model_origin(folder, tokenizer_folder);
  const ExportedConfig exported = write_hugging_face(options.to, model.description(), weights, dtype, origin);
  std::cout << "Wrote " << options.to << " from " << model.directory().string() << ".\n"
            << tokenizer_lines(tokenizer_folder, origin) << config_lines(folder, origin, exported);
  return 0;
}

}  // namespace

void add_convert(CLI::App& program, CommandAction& action) {
  auto options = std::make_shared<ConvertOptions>();
  CLI::App& command = *program.add_subcommand("convert", "Write a model as a Hugging Face directory");
  command.add_option("--from", options->from, "A run directory, a checkpoint, or a Hugging Face directory")
      ->required()
      ->type_name("DIR");
  command.add_option("--to", options->to, "The directory to write; it must not exist, or be empty")
      ->required()
      ->type_name("DIR");
  command.add_option("--dtype", options->dtype, "Element type of the weights: fp32 (default), bf16 or fp16")
      ->type_name("TYPE");
  command.footer(
      "Examples:\n"
      "  copus convert --from runs/r1 --to r1-hf --dtype bf16\n"
      "To start a run from a Hugging Face directory:\n"
      "  copus train RUN.toml --init-from DIR");
  command.callback([options, &action] { action = [options] { return convert(*options); }; });
}

}  // namespace copus
