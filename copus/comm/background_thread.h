// A thread that takes no signals: Ctrl-C and SIGTERM are for the main thread.
#pragma once

#include <pthread.h>

#include <csignal>
#include <functional>
#include <thread>

namespace copus {

inline std::thread background_thread(std::function<void()> body) {
  // A thread begins with the mask of its parent.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread thread(std::move(body));
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return thread;
}

}  // namespace copus
