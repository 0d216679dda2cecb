// Passes a user's commands (`copus ctl`) to a running job, which may run on another machine, through files in
// RUN/control. The asking process writes <name>.json, whole or not at all. The run takes this request by renaming it to
// <name>.taken. It answers in <name>.reply, which the asking process deletes. Other files in the folder are left alone
// and do not stop the run.
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
  bool done = false;    // true: everything requested was done
  std::string message;  // what was done, or why not
  bool operator==(const ControlReply&) const = default;
};

// The run's side: takes requests and replies to them. No function throws, because an error in this folder must not end
// the run.
class ControlFiles {
 public:
  using Note = std::function<void(const std::string& line)>;

  // Creates the folder. Deletes requests and replies from before this process started, because nobody waits for them
  // any more. `note` receives a line about each problem with the folder, once.
  ControlFiles(const std::filesystem::path& run_dir, Note note);

  // Creates the folder again if it was deleted.
  void make_folder();

  struct Received {
    std::string name;  // to reply to
    ControlRequest request;
  };
  // Takes the requests that have arrived since the last call, in the order in which they were made. Damaged files are
  // answered at once. Cheap enough to be called after every step.
  std::vector<Received> take();
  void reply(const std::string& name, const ControlReply& reply);

 private:
  void tell_once(const std::string& what);

  std::filesystem::path directory_;
  Note note_;
  bool has_told_ = false;
};

// The side of `copus ctl`: writes the request, waits for the reply, and returns it. Calls `is_alive` regularly to check
// that the run still exists. Throws UserError if the run has ended, or if there is no reply within `patience`. An
// unanswered request is withdrawn unless the run has already taken it, and the message says which is the case.
ControlReply ask_run(const std::filesystem::path& run_dir, const ControlRequest& request,
                     std::chrono::duration<double> patience, const std::function<bool()>& is_alive);

}  // namespace copus
