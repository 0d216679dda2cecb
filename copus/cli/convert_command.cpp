// `copus convert`: writes a stored model as a Hugging Face directory, with its tokenizer's files where it is known.
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "copus/base/error.h"
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

int convert(const ConvertOptions& options) {
  const DType dtype = parse_dtype(options.dtype);
  const StoredModel model(options.from);
  std::vector<TensorView> weights;
  for (const ParameterInfo& parameter : list_parameters(model.description())) {
    weights.push_back(model.weights().at(parameter.name));
  }
  const auto source = model.tokenizer_directory();
  const TokenizerFiles tokenizer = source ? read_tokenizer_files(*source) : TokenizerFiles{};
  write_hugging_face(options.to, model.description(), weights, dtype, tokenizer);
  std::cout << "Wrote " << options.to << " from " << model.directory().string() << ".\n";
  if (!source) return 0;
  std::string names;
  for (const auto& [name, content] : tokenizer) names += concat(names.empty() ? "" : ", ", name);
  std::cout << (names.empty() ? concat("There are no tokenizer files in ", source->string(), " to copy.\n")
                              : concat("Copied from ", source->string(), ": ", names, ".\n"));
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
