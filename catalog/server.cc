#include "catalog/server.h"

#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <csignal>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <httplib.h>
#include <mutex>
#include <stdexcept>
#include <thread>

#include "catalog/catalog.h"

namespace sparse_mla::catalog {
namespace {

// Of connections that wait to be accepted: a thousand clients may come at once, and the library would let five wait.
constexpr int kBacklog = 1024;

// The library gives each connection a task for as long as it is kept alive, so tasks wait for clients most of their
// time. A thread is made where none is idle; clients past the limit wait in line.
class ThreadPerConnection final : public httplib::TaskQueue {
 public:
  // void in some versions of the library, bool in others: whether the task was taken.
  using Taken = decltype(std::declval<httplib::TaskQueue&>().enqueue({}));

  Taken enqueue(std::function<void()> task) override {
    const std::lock_guard lock(mutex_);
    tasks_.push_back(std::move(task));
    if (idle_ < tasks_.size() && threads_.size() < kMaxThreads) threads_.emplace_back([this] { work(); });
    task_or_end_.notify_one();
    return static_cast<Taken>(true);
  }

  void shutdown() override {
    {
      const std::lock_guard lock(mutex_);
      ending_ = true;
    }
    task_or_end_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

 private:
  static constexpr std::size_t kMaxThreads = 2048;

  void work() {
    std::unique_lock lock(mutex_);
    while (true) {
      ++idle_;
      task_or_end_.wait(lock, [this] { return ending_ || !tasks_.empty(); });
      --idle_;
      if (tasks_.empty()) return;
      const std::function<void()> task = std::move(tasks_.front());
      tasks_.pop_front();
      lock.unlock();
      task();
      lock.lock();
    }
  }

  std::mutex mutex_;
  std::condition_variable task_or_end_;
  std::deque<std::function<void()>> tasks_;
  std::vector<std::thread> threads_;
  std::size_t idle_ = 0;
  bool ending_ = false;
};

const SiteFile* file_at(std::string_view path) {
  if (path == "/") return site_file("index.html");
  if (path == "/api/errors" || path == "/api/errors/") return site_file("api/errors/index.json");
  return path.starts_with('/') ? site_file(path.substr(1)) : nullptr;
}

// RFC 9110, section 13.1.2: the client's list of entity tags, compared weakly.
bool is_known_to_client(std::string_view if_none_match, std::string_view etag) {
  if (if_none_match == "*") return true;
  for (std::size_t at = if_none_match.find(etag); at != std::string_view::npos; at = if_none_match.find(etag, at + 1)) {
    return true;  // a tag is in quotes, so it cannot be part of another
  }
  return false;
}

void set_body(httplib::Response& response, const SiteFile& file) {
  response.set_content(file.content.data(), file.content.size(), std::string(file.media_type));
}

void answer(const httplib::Request& request, httplib::Response& response) {
  const SiteFile* file = file_at(request.path);
  if (file == nullptr) {
    response.status = 404;
    set_body(response, *site_file("404.html"));
    return;
  }
  response.set_header("ETag", std::string(file->etag));
  response.set_header("Cache-Control", "no-cache");
  if (is_known_to_client(request.get_header_value("If-None-Match"), file->etag)) {
    response.status = 304;
    return;
  }
  set_body(response, *file);
}

void refuse_method(const httplib::Request&, httplib::Response& response) {
  response.status = 405;
  response.set_header("Allow", "GET, HEAD");
  response.set_content("This site is read with GET and HEAD.\n", "text/plain; charset=utf-8");
}

void set_routes(httplib::Server& server) {
  const char* const anything = R"([\s\S]*)";
  server.Get(anything, answer);
  // Handlers with a body are read to their end, so that the connection can be kept.
  server.Post(anything, refuse_method);
  server.Put(anything, refuse_method);
  server.Patch(anything, refuse_method);
  server.Delete(anything, refuse_method);
  server.Options(anything, refuse_method);
  server.set_pre_routing_handler([](const httplib::Request& request, httplib::Response& response) {
    if (request.method != "TRACE" && request.method != "CONNECT") return httplib::Server::HandlerResponse::Unhandled;
    refuse_method(request, response);
    return httplib::Server::HandlerResponse::Handled;
  });
  server.set_exception_handler([](const httplib::Request&, httplib::Response& response, std::exception_ptr) {
    response.status = 500;
    response.set_content("The request could not be answered.\n", "text/plain; charset=utf-8");
  });
  server.set_default_headers({
      {"Content-Security-Policy", "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'"},
      {"Referrer-Policy", "no-referrer"},
      {"X-Content-Type-Options", "nosniff"},
  });
}

void set_limits(httplib::Server& server, std::atomic<int>& listening_socket) {
  server.new_task_queue = [] { return new ThreadPerConnection; };  // the server deletes it
  server.set_keep_alive_max_count(100'000);
  server.set_keep_alive_timeout(60);
  server.set_read_timeout(10);
  server.set_write_timeout(10);
  server.set_payload_max_length(64 * 1024);
  server.set_tcp_nodelay(true);
  // Unlike the library's default this lets no second server share the port.
  server.set_socket_options([&listening_socket](int socket) {
    listening_socket = socket;
    const int on = 1;
    ::setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  });
}

sigset_t stop_signals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  return signals;
}

in_port_t local_port(int socket) {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  if (::getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size) != 0) return 0;
  if (address.ss_family == AF_INET) return ntohs(reinterpret_cast<sockaddr_in&>(address).sin_port);
  if (address.ss_family == AF_INET6) return ntohs(reinterpret_cast<sockaddr_in6&>(address).sin6_port);
  return 0;
}

// Clients that keep their connection are told that nothing more is read; an answer that has begun is still written.
void end_idle_connections(int port) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  const int end = static_cast<int>(std::min<rlim_t>(limit.rlim_cur, 1 << 16));
  for (int socket = STDERR_FILENO + 1; socket < end; ++socket) {
    if (local_port(socket) == port) ::shutdown(socket, SHUT_RD);
  }
}

// Waits for a signal and stops the server, which may still be about to listen.
void stop_on_signal(httplib::Server& server, int port, const std::atomic<bool>& ended) {
  const sigset_t signals = stop_signals();
  int signal = 0;
  sigwait(&signals, &signal);
  while (!server.is_running() && !ended) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  server.stop();
  while (!ended) {
    end_idle_connections(port);
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
}

}  // namespace

void serve(const ServeOptions& options) {
  const sigset_t signals = stop_signals();
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  std::atomic<int> listening_socket = -1;
  httplib::Server server;
  set_routes(server);
  set_limits(server, listening_socket);
  int port = options.port;
  if (port == 0) {
    port = server.bind_to_any_port(options.host);
  } else if (!server.bind_to_port(options.host, port)) {
    port = -1;
  }
  if (port < 0) {
    throw std::runtime_error("cannot listen on " + options.host + " port " + std::to_string(options.port));
  }
  ::listen(listening_socket, kBacklog);  // again, with a longer queue
  std::atomic<bool> ended = false;
  std::thread stopper([&] { stop_on_signal(server, port, ended); });
  options.on_listening(port);
  const bool stopped_well = server.listen_after_bind();
  ended = true;
  if (!stopped_well) ::kill(::getpid(), SIGTERM);  // wakes the thread that waits for a signal
  stopper.join();
  if (!stopped_well) throw std::runtime_error("the server on port " + std::to_string(port) + " ended by itself");
}

}  // namespace sparse_mla::catalog
