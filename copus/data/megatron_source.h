// Tokens in the indexed format of Megatron-LM: ids in PREFIX.bin, sequences and documents in PREFIX.idx.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "copus/base/files/mapped_file.h"
#include "copus/data/file_pool.h"
#include "copus/data/token_source.h"

namespace copus {

// Reads the format of Megatron-LM. PREFIX.idx is little endian, without padding:
// - magic "MMIDIDX\0\0" (9 bytes), version 1 (u64), dtype code (u8);
// - number of sequences n (u64), length of the document list m (u64);
// - sequence lengths in tokens (i32[n]);
// - byte offsets of the sequences in PREFIX.bin (i64[n]);
// - documents (i64[m]: the sequence with which document k starts, and n at the end).
//
// Both files stay in the page cache; nothing is copied.
class MegatronSource final : public TokenSource {
 public:
  // Checks all of the .idx (a scan of 12 bytes a sequence) and that the .bin has the right size. Token ids are only
  // checked when they are read, since checking them here would read the whole corpus. Throws UserError.
  MegatronSource(const std::string& prefix, int64_t vocab_size);
  // For a shard whose .bin may arrive later: all but read() needs only the .idx. read() opens the .bin in `tokens`.
  MegatronSource(const std::string& prefix, int64_t vocab_size, std::shared_ptr<FilePool> tokens);

  // Opens the .bin, or tells why it cannot be read yet: it is missing, or shorter than the .idx says. Empty: it is
  // open, and stays so as long as the pool keeps it, even if somebody deletes it. Throws UserError where it is longer.
  std::optional<std::string> gap() const;
  // The number of bytes that the tokens lack here.
  int64_t missing_bytes() const;

  const std::string& path() const override { return prefix_; }
  int64_t size() const override { return size_; }
  void read(int64_t begin, int64_t count, int64_t* out) const override;
  int64_t num_documents() const override { return num_documents_; }
  int64_t document_end(int64_t document) const override;
  bool is_text() const override { return false; }

 private:
  void read_header();
  void check_size_of_tokens() const;
  std::shared_ptr<const MappedFile> tokens() const;
  int64_t sequence_begin(int64_t sequence) const;  // in tokens; size_ for num_sequences_
  int64_t document_start(int64_t index) const;     // element of the document list
  void check_sequences();                          // sets size_
  void check_documents() const;

  std::string prefix_;
  MappedFile index_;
  std::string tokens_path_;
  std::shared_ptr<const MappedFile> tokens_;  // null: in the pool
  std::shared_ptr<FilePool> pool_;
  int64_t vocab_size_;
  int dtype_ = 0;
  int64_t bytes_per_token_ = 0;
  int64_t num_sequences_ = 0;
  int64_t num_documents_ = 0;
  int64_t size_ = 0;
};

}  // namespace copus
