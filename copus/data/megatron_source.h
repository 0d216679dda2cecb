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
// - number of sequences n (u64), length m of the document list (u64);
// - sequence lengths in tokens (i32[n]);
// - byte offsets of the sequences in PREFIX.bin (i64[n]);
// - documents (i64[m]): the first sequence of each document, then n.
//
// Both files are memory-mapped; nothing is copied.
class MegatronSource final : public TokenSource {
 public:
  // Checks the whole .idx (12 bytes per sequence) and the size of the .bin. read() checks token ids, because checking
  // them here would read the whole corpus. Throws UserError.
  MegatronSource(const std::string& prefix, int64_t vocab_size);
  // For a shard whose .bin may arrive later. Only read() needs the .bin, and opens it in `tokens`.
  MegatronSource(const std::string& prefix, int64_t vocab_size, std::shared_ptr<FilePool> tokens);

  // Opens the .bin, or explains why it cannot be read yet: it is missing, or shorter than the .idx says. Empty if the
  // .bin is open; it then stays readable while the pool holds it, even if somebody deletes the file. Throws UserError
  // if the .bin is longer than the .idx says.
  std::optional<std::string> gap() const;
  // Returns the number of bytes of the .bin that have not arrived yet.
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
  int64_t sequence_begin(int64_t sequence) const;  // in tokens; size_ if sequence == num_sequences_
  int64_t document_start(int64_t index) const;     // element of the document list
  void check_sequences();                          // sets size_
  void check_documents() const;

  std::string prefix_;
  MappedFile index_;
  std::string tokens_path_;
  std::shared_ptr<const MappedFile> tokens_;  // null: read from pool_
  std::shared_ptr<FilePool> pool_;
  int64_t vocab_size_;
  int dtype_ = 0;
  int64_t bytes_per_token_ = 0;
  int64_t num_sequences_ = 0;
  int64_t num_documents_ = 0;
  int64_t size_ = 0;
};

}  // namespace copus
