#include "fuzz_target.h"

#include <unistd.h>

#include <fstream>
#include <system_error>

namespace copus {

namespace {

class Folder {
 public:
  Folder() {
    const std::filesystem::path in_memory = "/dev/shm";
    const bool has_memory = ::access(in_memory.c_str(), W_OK) == 0;
    std::string name =
        ((has_memory ? in_memory : std::filesystem::temp_directory_path()) / "copus-fuzz-XXXXXX").string();
    COPUS_CHECK(::mkdtemp(name.data()) != nullptr, name);
    path_ = name;
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }

  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace

const std::filesystem::path& scratch_folder() {
  static const Folder folder;
  return folder.path();
}

void write_scratch(const std::filesystem::path& path, std::string_view content) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file.write(content.data(), static_cast<std::streamsize>(content.size()));
  file.close();
  COPUS_CHECK(file.good(), "cannot write ", path.string());
}

}  // namespace copus
