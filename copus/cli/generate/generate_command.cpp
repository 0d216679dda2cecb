// `copus generate`: continues a text with a stored model.
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "copus/base/error.h"
#include "copus/base/text/printable.h"
#include "copus/checkpoint/hugging_face.h"
#include "copus/cli/commands.h"
#include "copus/cli/generate/token_sampler.h"
#include "copus/cli/generate/token_text.h"
#include "copus/cli/generate/tokenizer_text.h"
#include "copus/cli/option_checks.h"
#include "copus/cli/stored_model.h"
#include "copus/model/kernels/kernels.h"
#include "copus/model/layers/decoder.h"
#include "copus/model/memory/caching_allocator.h"
#include "copus/report/progress/command_progress.h"
#include "copus/train/run/device.h"
#include "copus/train/state/state_transfer.h"
#include "copus/train/step/training_state.h"

namespace copus {

namespace {

struct GenerateOptions {
  std::string checkpoint;
  std::string prompt;
  std::string tokenizer;
  bool ids = false;
  int64_t tokens = 400;
  Sampling sampling;
};

// What a checkpoint records about its training: whether tokens are bytes, and the context length.
struct TrainedOn {
  bool bytes;
  int64_t context;
};

TrainedOn trained_on(const StoredModel& model) {
  if (!model.training_state()) return {false, model.description().max_position_embeddings};
  const TrainingState state = parse_training_state(*model.training_state(), model.directory().string());
  return {state.byte_tokens, state.sequence_length};
}

std::unique_ptr<TokenText> text_of_tokens(const GenerateOptions& options, const StoredModel& model, bool bytes) {
  const int64_t vocab_size = model.description().vocab_size;
  if (options.ids) return std::make_unique<IdText>(vocab_size);
  if (!options.tokenizer.empty()) return std::make_unique<TokenizerText>(options.tokenizer);
  if (bytes) return std::make_unique<ByteText>();
  const std::optional<std::filesystem::path> folder = model.text_tokenizer_directory();
  if (folder && holds_tokenizer(*folder)) return std::make_unique<TokenizerText>(*folder);
  if (!model.training_state() && vocab_size == 256) return std::make_unique<ByteText>();
  throw UserError(
      concat("the tokens of ", model.directory().string(), " are not bytes, and no tokenizer was found",
             folder ? concat(" in ", folder->string()) : "",
             ": name it by --tokenizer DIR, a folder with its tokenizer.json, or give and read token ids: ", "--ids"));
}

// Returns the initial tokens. Without a prompt, this is only the token that ends a document, so that the model begins a
// new one.
std::vector<int64_t> first_tokens(const GenerateOptions& options, TokenText& text, int64_t vocab_size) {
  std::vector<int64_t> tokens = text.encode(options.prompt);
  if (tokens.empty()) {
    if (!text.end_of_document()) {
      throw UserError("--prompt: give what to begin with; nobody knows which token starts a document of this model");
    }
    tokens.push_back(*text.end_of_document());
  }
  const int64_t largest = *std::ranges::max_element(tokens);
  if (largest >= vocab_size) {
    throw UserError(concat("--prompt: its tokenizer makes it token ", largest, ", and the model has only ", vocab_size,
                           "; name the model's own tokenizer by --tokenizer DIR"));
  }
  return tokens;
}

int generate(const GenerateOptions& options) {
  const StoredModel model(options.checkpoint);
  const TrainedOn known = trained_on(model);
  const std::unique_ptr<TokenText> text = text_of_tokens(options, model, known.bytes);
  std::vector<int64_t> tokens = first_tokens(options, *text, model.description().vocab_size);
  install_caching_allocator();
  configure_aten(0);
  ParameterStore parameters(model.description(), at::kFloat, at::kCPU);
  load_weights(parameters, model.weights());
  Decoder decoder(parameters, Recompute::none);

  const int64_t whole_text = static_cast<int64_t>(tokens.size()) + options.tokens;
  const int64_t context = std::min(known.context, whole_text);
  // A terminal would interpret control characters in the model's output. Files and pipes get the output unchanged.
  const bool is_terminal = isatty(STDOUT_FILENO) != 0;
  const auto show = [&](const std::string& part) { std::cout << (is_terminal ? printable_lines(part) : part); };
  for (const int64_t token : tokens) {
    if (token != text->end_of_document()) show(text->add(token));
  }
  std::cout.flush();
  std::vector<float> logits(model.description().vocab_size);
  std::optional<KeyValueCache> cache;
  std::vector<int64_t> unseen;  // tokens that are not in the key-value cache yet
  // On a terminal the text itself shows the progress.
  std::optional<CommandProgress> progress;
  if (!is_terminal) progress.emplace("tokens", options.tokens);
  for (int64_t produced = 0; produced < options.tokens; ++produced) {
    if (progress) progress->show(produced);
    const bool full = cache && cache->length() + 1 > context;
    if (!cache || full) {
      // The model cannot use positions beyond its training context. When the context is full, only its latter half is
      // kept.
      const auto size = static_cast<int64_t>(tokens.size());
      const int64_t kept = std::min(size, full ? std::max<int64_t>(1, context / 2) : context);
      unseen.assign(tokens.end() - kept, tokens.end());
      cache.emplace(parameters, 1, context);
    }
    const auto count = static_cast<int64_t>(unseen.size());
    kernels::copy_to_host(decoder.next_logits(kernels::from_host(unseen.data(), {1, count}, at::kCPU), *cache),
                          logits.data());
    const int64_t token = sample_token(logits, options.sampling, tokens.size());
    if (token == text->end_of_document()) break;
    show(text->add(token));
    std::cout.flush();
    tokens.push_back(token);
    unseen = {token};
  }
  progress.reset();
  show(text->finish());
  std::cout << '\n' << std::flush;
  return 0;
}

}  // namespace

void add_generate(CLI::App& program, CommandAction& action) {
  auto options = std::make_shared<GenerateOptions>();
  CLI::App& command = *program.add_subcommand("generate", about_generate);
  command
      .add_option("--checkpoint", options->checkpoint,
                  "A run directory (its newest checkpoint), a checkpoint, or a Hugging Face directory")
      ->required()
      ->type_name("DIR");
  command.add_option("--prompt", options->prompt, "The text to continue (default: the start of a document)")
      ->type_name("TEXT");
  CLI::Option* const tokenizer =
      command
          .add_option("--tokenizer", options->tokenizer,
                      "A folder with the model's tokenizer.json (default: where the model or its data have come from)")
          ->type_name("DIR");
  command.add_flag("--ids", options->ids, "Take and print token ids, with blanks between them, in place of text")
      ->excludes(tokenizer);
  command.add_option("--tokens", options->tokens, "How many tokens to write at most")
      ->capture_default_str()
      ->check(number_in(Range<int64_t>{1, int64_t{1} << 40}));
  command
      .add_option("--temperature", options->sampling.temperature,
                  "Below 1 more cautious, above 1 more daring; 0: always the likeliest token")
      ->capture_default_str()
      ->check(number_in(Range<double>{0, 100}));
  command.add_option("--top-k", options->sampling.top_k, "Choose among this many likeliest tokens; 0: among all")
      ->capture_default_str()
      ->check(at_least(0));
  command.add_option("--seed", options->sampling.seed, "Another seed, another text")->capture_default_str();
  command.footer("Example:\n  copus generate --checkpoint runs/r1 --prompt 'The sea ' --tokens 300 --temperature 0.7");
  command.callback([options, &action] { action = [options] { return generate(*options); }; });
}

}  // namespace copus
