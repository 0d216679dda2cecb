// RUN/control: files that carry a user's commands to a running job (`copus ctl`), which may run on another machine. The
// asking process writes <name>.json, whole or not at all; the run takes it by renaming it to <name>.taken and answers
// in <name>.reply, which the asking process removes. Whatever else is found there neither stops the run nor is touched.
#pragma once

#include <chrono>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace copus {

struct ControlRequest {
  std::string command;  // "pin", "unpin", "pause", "resume", "force", "status"
  std::string target;   // for `force`: "d=2,t=1,p=2,B=32" (description/configuration_text.h)
  bool operator==(const ControlRequest&) const = default;
};

struct ControlReply {
  bool done = false;    // true: everything that was asked
  std::string message;  // what was done, or why not
  bool operator==(const ControlReply&) const = default;
};

// The run's side: takes requests and replies to them. No function throws: a run goes on where it cannot be asked.
class ControlFiles {
 public:
  using Note = std::function<void(const std::string& line)>;

  // Creates the folder and deletes requests and replies from it: nobody waits any longer for an answer of an earlier
  // process. `note` tells the user, once, of what is odd about the folder.
  ControlFiles(const std::filesystem::path& run_dir, Note note);

  // Creates the folder again, where somebody has deleted it.
  void make_folder();

  struct Received {
    std::string name;  // to reply to
    ControlRequest request;
  };
  // Takes the requests that have come since the last call, in the order in which they were made. Damaged files are
  // answered at once. Cheap enough to be called after every step.
  std::vector<Received> take();
  void reply(const std::string& name, const ControlReply& reply);

 private:
  void tell_once(const std::string& what);

  std::filesystem::path directory_;
  Note note_;
  bool has_told_ = false;
};

// The asking side: writes the request and waits for the reply, calling `is_alive` now and then to see whether there is
// still a run to wait for. Throws UserError when there is none any more, and after `patience`: the request is withdrawn
// then, unless the run has begun with it, which the message says.
ControlReply ask_run(const std::filesystem::path& run_dir, const ControlRequest& request,
                     std::chrono::duration<double> patience, const std::function<bool()>& is_alive);

}  // namespace copus
