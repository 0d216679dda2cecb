// Corpora for this room's tests: text files and .bin/.idx pairs in a separate folder for each test.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "copus/base/testing/test_support.h"

namespace copus {

// The contents of an .idx file. Tests damage a file by changing a member.
struct MegatronIndex {
  std::string magic = std::string("MMIDIDX\0\0", 9);
  uint64_t version = 1;
  uint8_t dtype = 8;
  uint64_t num_sequences = 0;
  uint64_t document_list_length = 0;
  std::vector<int32_t> lengths;
  std::vector<int64_t> pointers;
  std::vector<int64_t> documents;
};

class CorpusTest : public ::testing::Test {
 protected:
  std::string path(const std::string& name) const { return folder_.path() / name; }

  std::string write_text(const std::string& name, std::string_view content) const {
    std::ofstream(path(name), std::ios::binary) << content;
    return path(name);
  }

  // Makes an index of one sequence per document.
  static MegatronIndex index_of(const std::vector<std::vector<int64_t>>& documents, int64_t bytes_per_token) {
    MegatronIndex index;
    int64_t offset = 0;
    for (const auto& document : documents) {
      index.documents.push_back(static_cast<int64_t>(index.lengths.size()));
      index.lengths.push_back(static_cast<int32_t>(document.size()));
      index.pointers.push_back(offset);
      offset += static_cast<int64_t>(document.size()) * bytes_per_token;
    }
    index.documents.push_back(static_cast<int64_t>(index.lengths.size()));
    index.num_sequences = index.lengths.size();
    index.document_list_length = index.documents.size();
    return index;
  }

  void write_index(const std::string& name, const MegatronIndex& index) const {
    std::ofstream out(path(name + ".idx"), std::ios::binary);
    out << index.magic;
    put(out, index.version);
    put(out, index.dtype);
    put(out, index.num_sequences);
    put(out, index.document_list_length);
    for (const auto length : index.lengths) put(out, length);
    for (const auto pointer : index.pointers) put(out, pointer);
    for (const auto document : index.documents) put(out, document);
  }

  // Writes the pair and returns its prefix. `dtype` is the code for Id.
  template <class Id>
  std::string write_pair(const std::string& name, const std::vector<std::vector<int64_t>>& documents,
                         uint8_t dtype) const {
    std::ofstream out(path(name + ".bin"), std::ios::binary);
    for (const auto& document : documents)
      for (const int64_t id : document) put(out, static_cast<Id>(id));
    MegatronIndex index = index_of(documents, sizeof(Id));
    index.dtype = dtype;
    write_index(name, index);
    return path(name);
  }

 private:
  template <class Value>
  static void put(std::ofstream& out, Value value) {
    out.write(reinterpret_cast<const char*>(&value), sizeof(value));
  }

  TemporaryFolder folder_;
};

}  // namespace copus
