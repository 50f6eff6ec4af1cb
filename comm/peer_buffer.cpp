// SPDX-License-Identifier: Apache-2.0
#include "comm/peer_buffer.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string_view>
#include <utility>
#include <vector>

#include "comm/bulk_memory.hpp"
#include "comm/communicator.hpp"
#include "comm/error.hpp"
#include "comm/memory_room.hpp"
#include "comm/unique_handle.hpp"

namespace vsr::comm {
namespace {

struct FdTraits {
  using Type = int;
  static Type null() noexcept { return -1; }
  static void close(Type fd) noexcept { ::close(fd); }
};
using Fd = UniqueHandle<FdTraits>;

// Owns one mapping; move-only. A span has no operator== and so does not fit UniqueHandle.
class Mapping {
 public:
  Mapping() = default;
  Mapping(void* start, std::size_t bytes) : bytes_(static_cast<std::byte*>(start), bytes) {}
  Mapping(Mapping&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}
  Mapping& operator=(Mapping&& other) noexcept {
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~Mapping() {
    if (!bytes_.empty()) munmap(bytes_.data(), bytes_.size());
  }
  std::span<std::byte> bytes() const noexcept { return bytes_; }

 private:
  std::span<std::byte> bytes_;
};

constexpr char kMemoryName[] = "vsr_dist_peer";

// What a rank tells the others about its buffer. `fd` is -1 when it could not make one.
struct Offer {
  std::int64_t pid = 0;
  std::int64_t fd = -1;
  std::uint64_t nonce = 0;
  std::uint64_t bytes = 0;
};

std::size_t page_bytes() {
  return static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
}

// One page more than asked for: the nonce lies behind what callers see, so nobody overwrites it and
// nobody has to clear it.
std::size_t mapped_bytes(std::size_t bytes) {
  const std::size_t page = page_bytes();
  return (bytes + page - 1) / page * page + page;
}

std::uint64_t read_nonce(const Mapping& mapping) {
  std::uint64_t nonce = 0;
  std::memcpy(&nonce, &mapping.bytes()[mapping.bytes().size() - page_bytes()], sizeof(nonce));
  return nonce;
}

void write_nonce(const Mapping& mapping, std::uint64_t nonce) {
  std::memcpy(&mapping.bytes()[mapping.bytes().size() - page_bytes()], &nonce, sizeof(nonce));
}

std::uint64_t fresh_nonce() {
  std::uint64_t nonce = 0;
  if (getrandom(&nonce, sizeof(nonce), GRND_NONBLOCK) != sizeof(nonce)) {
    nonce = static_cast<std::uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count() ^
                                       std::int64_t{getpid()} << 40);
  }
  return nonce | 1;  // never the zero of fresh memory
}

[[noreturn]] void fail(const std::string& what, int error) {
  throw IoError(what + ": " + std::strerror(error));
}

// Reserve all pages now: an error here, and not a SIGBUS at the first write.
void reserve(const Fd& fd, std::size_t bytes) {
  if (ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) fail("ftruncate", errno);
  int error = EINTR;
  while (error == EINTR) error = posix_fallocate(fd.get(), 0, static_cast<off_t>(bytes));
  if (error != 0) fail("reserving " + std::to_string(bytes) + " bytes of shared memory", error);
}

Mapping map_shared(const Fd& fd, std::size_t bytes) {
  void* start =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd.get(), 0);
  if (start == MAP_FAILED) fail("mmap of " + std::to_string(bytes) + " bytes", errno);
  madvise(start, bytes, MADV_HUGEPAGE);  // only a hint; many kernels refuse it for shared memory
  return {start, bytes};
}

Mapping map_private(std::size_t bytes) {
  void* start = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (start == MAP_FAILED) {
    throw Error(ExitCode::communication, "no memory for a buffer of " + std::to_string(bytes) +
                                             " bytes: " + std::strerror(errno) +
                                             "; use fewer ranks per node or a smaller network");
  }
  madvise(start, bytes, MADV_HUGEPAGE);
  return {start, bytes};
}

// Map the buffer that `offer` stands for. In another pid namespace the path names a stranger, so
// look at what it is before opening it, and at the nonce after mapping it.
Mapping map_peer(const Offer& offer) {
  const std::string path = "/proc/" + std::to_string(offer.pid) + "/fd/" + std::to_string(offer.fd);
  std::string target(64, '\0');
  const ssize_t length = readlink(path.c_str(), target.data(), target.size());
  if (length < 0) fail(path, errno);
  if (target.find(kMemoryName) == std::string::npos) {
    throw IoError(path + " is not the buffer of the peer (another pid namespace?)");
  }
  const Fd fd(open(path.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  if (!fd) fail("open " + path, errno);
  struct stat status {};
  if (fstat(fd.get(), &status) != 0) fail("fstat " + path, errno);
  const std::size_t bytes = mapped_bytes(offer.bytes);
  if (static_cast<std::size_t>(status.st_size) != bytes) {
    throw IoError(path + " has " + std::to_string(status.st_size) + " bytes, expected " +
                  std::to_string(bytes));
  }
  Mapping mapping = map_shared(fd, bytes);
  if (read_nonce(mapping) != offer.nonce) {
    throw IoError(path + " is the buffer of another process (another pid namespace?)");
  }
  return mapping;
}

bool is_sharing_refused() {
  const char* value = std::getenv("VSR_COMM_SHARED");
  return value != nullptr && std::string_view(value) == "0";
}

std::string run_for_message(const std::function<void()>& action) {
  try {
    action();
    return {};
  } catch (const std::exception& error) {
    return error.what();
  }
}

}  // namespace

// Refuse what the kernel would promise and then kill for. All ranks look before any of them takes.
void check_room(Communicator& world, std::size_t bytes) {
  const auto rooms = world.all_gather(available_memory_bytes());
  world.agree_all_ok("looking for free memory", [&] {
    const std::span<const int> node = world.node_ranks();
    std::uint64_t room = rooms[static_cast<std::size_t>(world.rank())];
    for (const int peer : node) room = std::min(room, rooms[static_cast<std::size_t>(peer)]);
    if (bytes <= room / node.size()) return;
    throw Error(ExitCode::communication,
                "no memory on " + world.host() + ": " + std::to_string(node.size()) +
                    " ranks need " + std::to_string(bytes) + " bytes each, " +
                    std::to_string(room) +
                    " are free for all; use fewer ranks per node or a smaller network");
  });
}

struct PeerBuffer::Impl {
  std::size_t bytes = 0;
  int rank = 0;
  Fd fd;                          // open only while peers map
  std::vector<Mapping> mappings;  // by rank; empty where messages are needed
  BulkMemory device_memory;       // in place of the own mapping
  std::string notice;

  std::string offer_shared(Offer& offer);
  std::string map_peers(std::span<const Offer> offers, std::span<const int> node_ranks);
  void keep_private();
  void take_device_memory(Communicator& world);
};

std::string PeerBuffer::Impl::offer_shared(Offer& offer) {
  if (is_sharing_refused()) return "VSR_COMM_SHARED=0 asks for messages";
  return run_for_message([&] {
    fd = Fd(memfd_create(kMemoryName, MFD_CLOEXEC));
    if (!fd) fail("memfd_create", errno);
    reserve(fd, mapped_bytes(bytes));
    Mapping own = map_shared(fd, mapped_bytes(bytes));
    offer = {getpid(), fd.get(), fresh_nonce(), bytes};
    write_nonce(own, offer.nonce);
    mappings[static_cast<std::size_t>(rank)] = std::move(own);
  });
}

std::string PeerBuffer::Impl::map_peers(std::span<const Offer> offers,
                                        std::span<const int> node_ranks) {
  return run_for_message([&] {
    for (const int peer : node_ranks) {
      const auto at = static_cast<std::size_t>(peer);
      if (peer != rank && offers[at].fd >= 0) mappings[at] = map_peer(offers[at]);
    }
  });
}

void PeerBuffer::Impl::keep_private() {
  for (Mapping& mapping : mappings) mapping = Mapping();
  mappings[static_cast<std::size_t>(rank)] = map_private(mapped_bytes(bytes));
}

// In the memory of a GPU nothing is shared: NCCL has its own ways between the GPUs of a node.
void PeerBuffer::Impl::take_device_memory(Communicator& world) {
  world.agree_all_ok("taking memory of the GPU for a peer buffer",
                     [&] { device_memory = BulkMemory(world, bytes); });
}

PeerBuffer::PeerBuffer(Communicator& world, std::size_t bytes) : impl_(std::make_unique<Impl>()) {
  impl_->bytes = bytes;
  impl_->rank = world.rank();
  impl_->mappings.resize(static_cast<std::size_t>(world.world()));
  for (const std::size_t other : world.all_gather(bytes)) {
    VSR_CHECK(other == bytes, "ranks ask for buffers of " + std::to_string(bytes) + " and " +
                                  std::to_string(other) + " bytes");
  }
  if (world.bulk_device() != nullptr) {
    impl_->take_device_memory(world);
    return;
  }
  check_room(world, bytes);
  Offer offer;
  std::string trouble = impl_->offer_shared(offer);
  const std::vector<Offer> offers = world.all_gather(offer);
  if (trouble.empty()) trouble = impl_->map_peers(offers, world.node_ranks());
  const std::vector<std::string> troubles = world.all_gather_strings(trouble);
  impl_->fd = Fd();
  for (const int peer : world.node_ranks()) {
    const std::string& text = troubles[static_cast<std::size_t>(peer)];
    if (text.empty() || !impl_->notice.empty()) continue;
    impl_->notice = "no shared memory between the ranks on " + world.host() +
                    ", messages instead: rank " + std::to_string(peer) + ": " + text;
  }
  world.agree_all_ok("taking memory for a peer buffer", [&] {
    if (!impl_->notice.empty()) impl_->keep_private();
  });
}

PeerBuffer::~PeerBuffer() = default;
PeerBuffer::PeerBuffer(PeerBuffer&&) noexcept = default;
PeerBuffer& PeerBuffer::operator=(PeerBuffer&&) noexcept = default;

std::span<std::byte> PeerBuffer::mine() const noexcept {
  return of(impl_->rank);
}

std::span<std::byte> PeerBuffer::of(int rank) const noexcept {
  const auto at = static_cast<std::size_t>(rank);
  if (rank < 0 || at >= impl_->mappings.size()) return {};
  if (rank == impl_->rank && !impl_->device_memory.bytes().empty())
    return impl_->device_memory.bytes();
  const std::span<std::byte> mapped = impl_->mappings[at].bytes();
  return mapped.empty() ? mapped : mapped.first(impl_->bytes);
}

bool PeerBuffer::is_shared_with_all() const noexcept {
  for (std::size_t rank = 0; rank < impl_->mappings.size(); ++rank)
    if (of(static_cast<int>(rank)).empty()) return false;
  return true;
}

const std::string& PeerBuffer::notice() const noexcept {
  return impl_->notice;
}

}  // namespace vsr::comm
