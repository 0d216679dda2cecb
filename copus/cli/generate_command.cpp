// `copus generate`: lets a stored model continue a text.
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <iostream>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "copus/base/error.h"
#include "copus/cli/commands.h"
#include "copus/cli/option_checks.h"
#include "copus/cli/stored_model.h"
#include "copus/cli/token_sampler.h"
#include "copus/cli/utf8_stream.h"
#include "copus/model/caching_allocator.h"
#include "copus/model/decoder.h"
#include "copus/model/kernels.h"
#include "copus/report/command_progress.h"
#include "copus/train/device.h"
#include "copus/train/state_transfer.h"
#include "copus/train/training_state.h"

namespace copus {

namespace {

// Token that ends a document where tokens are bytes. No UTF-8 text contains it.
constexpr int64_t end_of_document = 0xFF;

struct GenerateOptions {
  std::string checkpoint;
  std::string prompt;
  int64_t tokens = 400;
  Sampling sampling;
};

// The kind of tokens of a model, and how far it can look back.
struct Vocabulary {
  bool bytes;
  int64_t context;
};

Vocabulary vocabulary_of(const StoredModel& model) {
  if (!model.training_state()) {
    return {model.description().vocab_size == 256, model.description().max_position_embeddings};
  }
  const TrainingState state = parse_training_state(*model.training_state(), model.directory().string());
  return {state.byte_tokens, state.sequence_length};
}

std::vector<int64_t> parse_prompt(const std::string& prompt, bool bytes, int64_t vocab_size) {
  std::vector<int64_t> tokens;
  if (bytes) {
    for (const char byte : prompt) tokens.push_back(static_cast<uint8_t>(byte));
    if (tokens.empty()) tokens.push_back(end_of_document);  // before the start of a document, as in training
    return tokens;
  }
  std::istringstream words(prompt);
  for (std::string word; words >> word;) {
    int64_t token = -1;
    const auto [stopped, error] = std::from_chars(word.data(), word.data() + word.size(), token);
    const bool number = error == std::errc() && stopped == word.data() + word.size();
    if (!number || token < 0 || token >= vocab_size) {
      throw UserError(concat("--prompt: '", word,
                             "' is not a token id of this model, whose tokens are not bytes; give ids "
                             "from 0 to ",
                             vocab_size - 1, " with blanks between them"));
    }
    tokens.push_back(token);
  }
  if (tokens.empty()) throw UserError("--prompt: this model's tokens are not bytes; give the ids to begin with");
  return tokens;
}

// Prints tokens as they come: text where they are bytes, else ids.
class TokenPrinter {
 public:
  explicit TokenPrinter(bool bytes) : bytes_(bytes) {}

  void print(int64_t token) {
    if (!bytes_) {
      std::cout << token << ' ';
    } else if (token != end_of_document) {
      // A model of bytes may have a larger vocabulary, whose tokens above 255 mean nothing.
      std::cout << utf8_.add(static_cast<uint8_t>(std::min<int64_t>(token, end_of_document)));
    }
    std::cout.flush();
  }

  void finish() { std::cout << utf8_.finish() << '\n' << std::flush; }

 private:
  bool bytes_;
  Utf8Stream utf8_;
};

int generate(const GenerateOptions& options) {
  const StoredModel model(options.checkpoint);
  const Vocabulary vocabulary = vocabulary_of(model);
  std::vector<int64_t> text = parse_prompt(options.prompt, vocabulary.bytes, model.description().vocab_size);
  install_caching_allocator();
  configure_aten(0);
  ParameterStore parameters(model.description(), at::kFloat, at::kCPU);
  load_weights(parameters, model.weights());
  Decoder decoder(parameters, Recompute::none);

  const int64_t whole_text = static_cast<int64_t>(text.size()) + options.tokens;
  const int64_t context = std::min(vocabulary.context, whole_text);
  TokenPrinter printer(vocabulary.bytes);
  for (const int64_t token : text) printer.print(token);
  std::vector<float> logits(model.description().vocab_size);
  std::optional<KeyValueCache> cache;
  std::vector<int64_t> unseen;  // not in the cache yet
  // On a terminal the text itself shows how far it is.
  std::optional<CommandProgress> progress;
  if (isatty(STDOUT_FILENO) == 0) progress.emplace("tokens", options.tokens);
  for (int64_t produced = 0; produced < options.tokens; ++produced) {
    if (progress) progress->show(produced);
    const bool full = cache && cache->length() + 1 > context;
    if (!cache || full) {
      // Positions beyond those of training mean nothing to the model, so it goes on from the latter half of its
      // context.
      const auto size = static_cast<int64_t>(text.size());
      const int64_t kept = std::min(size, full ? std::max<int64_t>(1, context / 2) : context);
      unseen.assign(text.end() - kept, text.end());
      cache.emplace(parameters, 1, context);
    }
    const auto count = static_cast<int64_t>(unseen.size());
    kernels::copy_to_host(decoder.next_logits(kernels::from_host(unseen.data(), {1, count}, at::kCPU), *cache),
                          logits.data());
    const int64_t token = sample_token(logits, options.sampling, text.size());
    if (vocabulary.bytes && token == end_of_document) break;
    printer.print(token);
    text.push_back(token);
    unseen = {token};
  }
  progress.reset();
  printer.finish();
  return 0;
}

}  // namespace

void add_generate(CLI::App& program, CommandAction& action) {
  auto options = std::make_shared<GenerateOptions>();
  CLI::App& command = *program.add_subcommand("generate", "Let a trained model continue a text");
  command
      .add_option("--checkpoint", options->checkpoint,
                  "A run directory (its newest checkpoint), a checkpoint, or a Hugging Face directory")
      ->required()
      ->type_name("DIR");
  command
      .add_option("--prompt", options->prompt,
                  "The text to continue (default: the start of a document). A model whose tokens are not bytes takes "
                  "and prints token ids, with blanks between them")
      ->type_name("TEXT");
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
