// SPDX-License-Identifier: Apache-2.0
// Reads damaged and crafted checkpoints and files of weights for a while. Each one must be read or
// be refused as damaged (exit code 65; 78 for another format): no other error, no crash, no wait of
// 10 s, no more than 2 GiB of memory.
// Usage: hostile_files SECONDS [SEED]: the same seed gives the same files in the same order.
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>

#include "comm/error.hpp"
#include "runtime/checkpoint/checkpoint_reader.hpp"
#include "runtime/checkpoint/weights_file.hpp"
#include "tests/support/checkpoint_writing.hpp"
#include "tests/support/mutations.hpp"
#include "tests/support/weights_samples.hpp"

namespace {

namespace fs = std::filesystem;
using namespace vsr;

constexpr rlim_t kMostMemoryBytes = rlim_t{2} << 30;
constexpr unsigned kMostSeconds = 10;

volatile std::sig_atomic_t file_number = 0;

extern "C" void tell_and_end(int signal) {
  std::array<char, 80> text{};
  const int size = std::snprintf(text.data(), text.size(), "signal %d at file %d\n", signal,
                                 static_cast<int>(file_number));
  if (::write(STDERR_FILENO, text.data(), static_cast<std::size_t>(size)) < 0) ::_exit(2);
  ::_exit(1);
}

void limit_process() {
  for (const int signal : {SIGSEGV, SIGBUS, SIGABRT, SIGFPE, SIGALRM})
    std::signal(signal, tell_and_end);
#if !defined(__SANITIZE_ADDRESS__)  // which reserves terabytes
  const rlimit most{kMostMemoryBytes, kMostMemoryBytes};
  if (::setrlimit(RLIMIT_AS, &most) != 0) std::perror("setrlimit");
#endif
}

/// A text of MANIFEST.json whose own checksum holds whatever `changed` did to it.
std::string closed_manifest(std::string changed) {
  const std::string key = "\n \"manifest_xxh3\": ";
  changed.resize(std::min(changed.rfind(key), changed.size()));
  changed += key;
  const auto sum = runtime::checksum(std::as_bytes(std::span<const char>(changed)));
  return changed + '"' + runtime::checksum_text(sum) + "\"\n}\n";
}

/// Files under test: what they are, and how one is damaged and read.
class Checkpoint {
 public:
  explicit Checkpoint(const fs::path& run) : run_(run), step_(test::write_sample(run, 5, 3, 40)) {
    for (const auto& entry : fs::directory_iterator(step_))
      bytes_[entry.path().filename()] = test::read_bytes(entry.path());
  }

  void damage(std::mt19937& random) {
    restore();
    auto file = bytes_.begin();
    std::advance(file, std::uniform_int_distribution<std::size_t>(0, bytes_.size() - 1)(random));
    damaged_ = file->first;
    const bool is_crafted = random() % 4 != 0;
    std::string changed = test::mutated(file->second, random);
    if (damaged_ == "MANIFEST.json") {
      if (is_crafted) changed = closed_manifest(changed);
    } else if (is_crafted) {
      write("MANIFEST.json", manifest_for(changed));
    }
    write(damaged_, changed);
  }

  void read() const {
    runtime::read_parameters(run_);
    runtime::verify_checkpoint(step_);
  }

 private:
  void write(const std::string& name, const std::string& bytes) const {
    test::write_fresh(step_ / name, bytes);
  }

  void restore() const {
    if (!damaged_.empty()) write(damaged_, bytes_.at(damaged_));
    write("MANIFEST.json", bytes_.at("MANIFEST.json"));
  }

  /// The manifest of somebody who changed a file and its size and checksum with it.
  std::string manifest_for(const std::string& changed) const {
    runtime::Manifest manifest = runtime::manifest_from_text(bytes_.at("MANIFEST.json"));
    const auto size = static_cast<std::int64_t>(changed.size());
    if (damaged_ == "global.h5") {
      manifest.global_size_bytes = size;
      manifest.global_checksum = runtime::checksum(std::as_bytes(std::span<const char>(changed)));
    }
    for (runtime::ShardEntry& shard : manifest.shards)
      if (shard.file == damaged_) shard.size_bytes = size;
    return to_text(manifest);
  }

  fs::path run_;
  fs::path step_;
  std::map<std::string, std::string> bytes_;  // of each good file
  std::string damaged_;
};

class Weights {
 public:
  Weights(fs::path path, std::string bytes) : path_(std::move(path)), bytes_(std::move(bytes)) {}
  void damage(std::mt19937& random) const {
    test::write_fresh(path_, test::mutated(bytes_, random));
  }
  void read() const {
    const auto file = runtime::open_weights(path_, "");
    for (std::size_t i = 0; i < file->tensors().size(); ++i) file->read(i);
  }

 private:
  fs::path path_;
  std::string bytes_;
};

/// Whether it was refused, as it should be where it is not read.
template <typename Files>
bool is_refused(const Files& files) {
  ::alarm(kMostSeconds);
  try {
    files.read();
  } catch (const Error& error) {
    ::alarm(0);
    const bool is_expected =
        error.exit_code() == ExitCode::data || error.exit_code() == ExitCode::configuration;
    if (!is_expected) throw;
    return true;
  }
  ::alarm(0);
  return false;
}

struct Count {
  int read = 0;
  int refused = 0;
};

template <typename Files>
void try_one(Files& files, std::mt19937& random, Count& count) {
  file_number = file_number + 1;
  files.damage(random);
  ++(is_refused(files) ? count.refused : count.read);
}

void run(double seconds, unsigned seed) {
  const test::TemporaryFolder folder;
  Checkpoint checkpoint(folder / "run");
  Weights safetensors(folder / "w.safetensors", test::sample_safetensors());
  Weights archive(folder / "w.pth", test::sample_archive());
  std::mt19937 random(seed);
  Count checkpoints, tensors, archives;
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  while (std::chrono::steady_clock::now() < end) {
    try_one(checkpoint, random, checkpoints);
    try_one(safetensors, random, tensors);
    try_one(archive, random, archives);
  }
  const auto say = [](const char* what, const Count& count) {
    std::printf("%s: %d read, %d refused\n", what, count.read, count.refused);
  };
  say("checkpoints", checkpoints);
  say("safetensors", tensors);
  say("archives", archives);
  for (const Count& count : {checkpoints, tensors, archives})
    if (count.read == 0 || count.refused == 0)
      throw std::runtime_error("all files were read, or all refused: nothing was tried");
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) return static_cast<int>(ExitCode::usage);
  const unsigned seed = argc > 2 ? static_cast<unsigned>(std::strtoul(argv[2], nullptr, 10))
                                 : static_cast<unsigned>(::time(nullptr));
  std::printf("seed %u (repeat with hostile_files SECONDS %u)\n", seed, seed);
  std::fflush(stdout);
  limit_process();
  try {
    run(std::strtod(argv[1], nullptr), seed);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "file %d: %s\n", static_cast<int>(file_number), error.what());
    return 1;
  }
}
