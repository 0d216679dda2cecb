// Encodes and decodes tokens of a Hugging Face tokenizer, for `copus generate`. A child process, tokenizer_process.py,
// uses the Python package tokenizers, which supports every Hugging Face tokenizer.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "copus/cli/generate/token_text.h"

namespace copus {

class TokenizerText final : public TokenText {
 public:
  // Starts the process. `place` is a tokenizer.json or the folder that contains it. Tries two Pythons: first the
  // virtual environment of the source tree that contains this program, then the Python in PATH. Throws UserError if the
  // file is missing or damaged, or if neither Python has the package. If the process gives no answer for
  // `longest_answer`, it is treated as ended; reading a large tokenizer takes seconds.
  explicit TokenizerText(const std::filesystem::path& place,
                         std::chrono::milliseconds longest_answer = std::chrono::minutes(2));
  TokenizerText(const TokenizerText&) = delete;
  TokenizerText& operator=(const TokenizerText&) = delete;
  ~TokenizerText() override { stop(); }

  // Returns only the text's tokens, as in training data: no special token is added before or after them.
  std::vector<int64_t> encode(const std::string& text) override;
  std::optional<int64_t> end_of_document() const override { return end_of_document_; }
  std::string add(int64_t token) override;
  std::string finish() override;

 private:
  std::filesystem::path file_;
  std::chrono::milliseconds longest_answer_;
  pid_t process_ = -1;
  int socket_ = -1;
  std::string received_;  // bytes received after the last complete answer
  std::optional<int64_t> end_of_document_;

  // Starts the process with this Python. Returns why it cannot be used, or nothing on success.
  std::optional<std::string> start(const std::string& python);
  void stop();
  // Returns false if the process has ended or takes too long.
  bool send(const std::string& line) const;
  // Returns the next line of JSON; nothing if the process has ended or takes too long.
  std::optional<std::string> next_answer();
  std::string ask(const std::string& question);
};

}  // namespace copus
