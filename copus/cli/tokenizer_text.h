// Tokens of a Hugging Face tokenizer, for `copus generate`. A process beside this one, tokenizer_process.py, asks the
// Python package tokenizers, which knows them all.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "copus/cli/token_text.h"

namespace copus {

class TokenizerText final : public TokenText {
 public:
  // Starts the process. `place` is a tokenizer.json, or the folder that it is in. Throws UserError where it is not
  // there or damaged, and where no Python has the package: the one of the clone that the program's folder is in is
  // asked, and the one that PATH leads to. A process that gives no answer for `longest_answer` counts as one that has
  // ended; a large tokenizer is read in seconds.
  explicit TokenizerText(const std::filesystem::path& place,
                         std::chrono::milliseconds longest_answer = std::chrono::minutes(2));
  TokenizerText(const TokenizerText&) = delete;
  TokenizerText& operator=(const TokenizerText&) = delete;
  ~TokenizerText() override { stop(); }

  // As the text's own tokens, as in training data: nothing is put before or behind it.
  std::vector<int64_t> encode(const std::string& text) override;
  std::optional<int64_t> end_of_document() const override { return end_of_document_; }
  std::string add(int64_t token) override;
  std::string finish() override;

 private:
  std::filesystem::path file_;
  std::chrono::milliseconds longest_answer_;
  pid_t process_ = -1;
  int socket_ = -1;
  std::string received_;  // behind the last answer
  std::optional<int64_t> end_of_document_;

  // Starts the process with this Python. Returns why it cannot serve, or nothing where it does.
  std::optional<std::string> start(const std::string& python);
  void stop();
  // Returns false where the process has ended or takes too long.
  bool send(const std::string& line) const;
  // Returns the next line of JSON; nothing where the process has ended or takes too long.
  std::optional<std::string> next_answer();
  std::string ask(const std::string& question);
};

}  // namespace copus
