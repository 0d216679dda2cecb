// For tests: prints the token ids of a corpus, one line per document. Arguments: path or prefix, vocabulary size.
#include <cstdint>
#include <exception>
#include <iostream>
#include <string>
#include <vector>

#include "copus/data/token_source.h"

int main(int argc, char** argv) {
  if (argc != 3) {
    std::cerr << "usage: print_documents PATH VOCAB_SIZE\n";
    return 2;
  }
  try {
    const auto source = copus::open_token_source(argv[1], "", std::stoll(argv[2]));
    int64_t begin = 0;
    for (int64_t document = 0; document < source->num_documents(); ++document) {
      const int64_t end = source->document_end(document);
      std::vector<int64_t> tokens(static_cast<std::size_t>(end - begin));
      source->read(begin, end - begin, tokens.data());
      for (const int64_t token : tokens) std::cout << token << ' ';
      std::cout << '\n';
      begin = end;
    }
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
  return 0;
}
