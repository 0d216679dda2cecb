#include "copus/report/files/control_files.h"

#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <system_error>
#include <thread>
#include <utility>

#include "copus/base/error.h"
#include "copus/base/files/durable_file.h"
#include "copus/base/text/json_text.h"
#include "copus/report/json_fields.h"

namespace copus {

namespace {

namespace fs = std::filesystem;

constexpr const char* asked = ".json";
constexpr const char* taken = ".taken";
constexpr const char* replied = ".reply";
constexpr std::chrono::milliseconds between_looks(20);
constexpr uint64_t most_bytes = 64 << 10;  // of a request or an answer

fs::path control_directory(const fs::path& run_dir) { return run_dir / "control"; }

template <class Request, class Visitor>
void request_fields(Request& request, Visitor&& visit) {
  visit("command", request.command);
  visit("target", request.target);
}

template <class Reply, class Visitor>
void reply_fields(Reply& reply, Visitor&& visit) {
  visit("done", reply.done);
  visit("message", reply.message);
}

nlohmann::json parse(const fs::path& path) { return parse_json(read_text_file(path, most_bytes)); }

// Returns whether an entry is a regular file, and not a folder, pipe, socket, device or symbolic link.
bool is_file(const fs::directory_entry& entry) {
  std::error_code gone;
  return entry.symlink_status(gone).type() == fs::file_type::regular;
}

// Calls visit(entry) for every entry of a folder; a folder that cannot be read counts as empty.
template <class Visit>
void for_each_entry(const fs::path& directory, const Visit& visit) {
  std::error_code unreadable;
  for (fs::directory_iterator entry(directory, unreadable); !unreadable && entry != fs::directory_iterator();
       entry.increment(unreadable)) {
    visit(*entry);
  }
}

// Makes a name that no other process makes. Names sort by time.
std::string new_name() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return concat(std::chrono::duration_cast<std::chrono::nanoseconds>(now).count(), "-", getpid());
}

}  // namespace

ControlFiles::ControlFiles(const fs::path& run_dir, Note note)
    : directory_(control_directory(run_dir)), note_(std::move(note)) {
  make_folder();
  std::vector<fs::path> earlier;
  for_each_entry(directory_, [&](const fs::directory_entry& entry) {
    const fs::path kind = entry.path().extension();
    const bool is_ours = kind == asked || kind == taken || kind == replied || kind == partial_suffix;
    if (is_ours && is_file(entry)) earlier.push_back(entry.path());
  });
  std::error_code ignored;
  for (const fs::path& path : earlier) fs::remove(path, ignored);
}

void ControlFiles::make_folder() {
  try {
    create_directories_durably(directory_);
  } catch (const UserError& error) {
    tell_once(error.what());
  }
}

void ControlFiles::tell_once(const std::string& what) {
  if (!std::exchange(has_told_, true)) note_(concat("control    ", what, "; the run goes on without that"));
}

std::vector<ControlFiles::Received> ControlFiles::take() {
  std::vector<std::string> names;
  for_each_entry(directory_, [&](const fs::directory_entry& entry) {
    if (entry.path().extension() != asked) return;
    if (is_file(entry)) {
      names.push_back(entry.path().stem().string());
    } else {
      tell_once(concat(entry.path().string(), " is no file, and so no command"));
    }
  });
  std::sort(names.begin(), names.end());
  std::vector<Received> all;
  for (const std::string& name : names) {
    const fs::path path = directory_ / (name + taken);
    std::error_code error;
    fs::rename(directory_ / (name + asked), path, error);
    const bool is_withdrawn = error == std::errc::no_such_file_or_directory;
    if (error && !is_withdrawn) {
      tell_once(concat(directory_.string(), ": the command ", name, asked, " cannot be taken (", error.message(), ")"));
    }
    if (error) continue;
    Received received{name, {}};
    try {
      const nlohmann::json object = parse(path);
      request_fields(received.request, JsonFieldReader(object));
      all.push_back(std::move(received));
    } catch (const UserError& refusal) {
      reply(name, {false, concat("the request cannot be read: ", refusal.what())});
    }
  }
  return all;
}

void ControlFiles::reply(const std::string& name, const ControlReply& reply) {
  JsonFieldWriter writer;
  reply_fields(reply, writer);
  try {
    write_file_durably(directory_ / (name + replied), json_text(writer.object()) + '\n');
  } catch (const UserError& error) {
    tell_once(concat("a command cannot be answered: ", error.what()));
  }
  std::error_code ignored;
  fs::remove(directory_ / (name + taken), ignored);
}

ControlReply ask_run(const fs::path& run_dir, const ControlRequest& request, std::chrono::duration<double> patience,
                     const std::function<bool()>& is_alive) {
  const fs::path directory = control_directory(run_dir);
  const std::string name = new_name();
  const fs::path path = directory / (name + asked), reply_path = directory / (name + replied);
  if (!fs::is_directory(directory)) {
    throw UserError(concat(directory.string(),
                           " is missing, through which the run takes commands: the run has not begun ",
                           "with its steps yet (try again in a moment), or somebody has removed it (make it again)"));
  }
  JsonFieldWriter writer;
  request_fields(request, writer);
  write_file_durably(path, json_text(writer.object()) + '\n');

  const auto until = std::chrono::steady_clock::now() + patience;
  while (true) {
    const bool alive = is_alive();  // must come before looking for the reply, which a run writes before it ends
    if (fs::exists(reply_path)) {
      ControlReply reply;
      const nlohmann::json object = parse(reply_path);
      reply_fields(reply, JsonFieldReader(object));
      fs::remove(reply_path);
      return reply;
    }
    const bool impatient = std::chrono::steady_clock::now() >= until;
    if (!alive || impatient) {
      std::error_code ignored;
      const bool withdrawn = fs::remove(path, ignored);
      if (!alive) throw UserError(concat("the run in ", run_dir.string(), " ended before it has answered"));
      const bool taken_up = fs::exists(directory / (name + taken));
      throw UserError(concat("the run in ", run_dir.string(), " lives and has not answered within ", patience.count(),
                             " s; ",
                             withdrawn  ? "it looks for commands after every step and has not come to it: the command "
                                          "was withdrawn, wait longer with --wait"
                             : taken_up ? "it has begun with the command; what comes of it will be in decisions.jsonl"
                                        : "the command is gone, as what was asked before a run begins with its steps: "
                                          "try again"));
    }
    std::this_thread::sleep_for(between_looks);
  }
}

}  // namespace copus
