// SPDX-License-Identifier: Apache-2.0
#include "bench/bench_support.hpp"

#include <sched.h>

#include <algorithm>
#include <boost/program_options.hpp>
#include <cstdio>
#include <exception>
#include <iostream>

#include "comm/error.hpp"
#include "comm/mpi_environment.hpp"

namespace vsr::bench {
namespace {

namespace po = boost::program_options;

// Fills `options`; false when only the help was asked for.
bool read_options(int argc, char** argv, Options& options, std::string& help) {
  po::options_description description("Options");
  auto add = description.add_options();
  add("help", "this text");
  add("layers", po::value(&options.layers)->default_value(options.layers), "linear layers");
  add("width", po::value(&options.width)->default_value(options.width), "width of the layers");
  add("last", po::value(&options.last)->default_value(options.last), "outputs of the last layer");
  add("threads", po::value(&options.threads)->default_value(options.threads), "threads of a rank");
  add("warmup", po::value(&options.warmup)->default_value(options.warmup), "untimed iterations");
  add("iterations", po::value(&options.iterations)->default_value(options.iterations),
      "timed iterations");
  add("reduction", po::value(&options.reduction)->default_value(options.reduction),
      "exact, allreduce or fast");
  add("folder", po::value(&options.folder), "where files are written");
  add("disk", po::value(&options.disk),
      "measure the disk alone: synced, as dd conv=fsync writes, or early, sent there meanwhile");
  add("bytes", po::value(&options.bytes), "sizes of collectives; may be repeated");
  add("mpi", po::bool_switch(&options.mpi), "measure the collectives of MPI itself");
  add("pin", po::bool_switch(&options.pin), "rank r on the r-th core alone");
  po::variables_map values;
  try {
    po::store(po::parse_command_line(argc, argv, description), values);
    po::notify(values);
  } catch (const po::error& error) {
    throw UsageError(std::string(error.what()) + "; --help lists the options");
  }
  if (options.layers < 1 || options.width < 1 || options.last < 1 || options.threads < 1 ||
      options.warmup < 0 || options.iterations < 1)
    throw UsageError("sizes, threads and iterations must be positive");
  if (!options.disk.empty() && options.disk != "synced" && options.disk != "early")
    throw UsageError("--disk: got '" + options.disk + "', expected synced or early");
  if (values.count("help") == 0) return true;
  std::ostringstream text;
  text << description;
  help = text.str();
  return false;
}

void pin_to_core(int rank) {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0)
    throw ConfigurationError("the cores of this process cannot be asked for; leave --pin out");
  std::vector<int> cores;
  for (int core = 0; core < CPU_SETSIZE; ++core)
    if (CPU_ISSET(core, &allowed)) cores.push_back(core);
  cpu_set_t mine;
  CPU_ZERO(&mine);
  CPU_SET(cores[static_cast<std::size_t>(rank) % cores.size()], &mine);
  if (sched_setaffinity(0, sizeof mine, &mine) != 0)
    throw ConfigurationError("rank " + std::to_string(rank) +
                             " cannot be tied to a core; leave --pin out");
}

}  // namespace

std::int64_t Options::parameters() const noexcept {
  return (layers - 1) * (width + 1) * width + (width + 1) * last;
}

int run(int argc, char** argv,
        const std::function<nlohmann::json(comm::Communicator&, const Options&)>& body) {
  int rank = 0;
  try {
    comm::MpiEnvironment environment(argc, argv);
    try {
      const auto world = comm::make_communicator(comm::Backend::automatic);
      rank = world->rank();
      Options options;
      std::string help;
      if (!read_options(argc, argv, options, help)) {
        if (rank == 0) std::fputs(help.c_str(), stdout);
        return 0;
      }
      if (options.pin) pin_to_core(rank);
      nlohmann::json record = body(*world, options);
      record["ranks"] = world->world();
      record["threads"] = options.threads;
      record["pinned"] = options.pin;
      record["warmup"] = options.warmup;
      if (rank == 0) std::cout << "JSON " << record.dump() << std::endl;
      return 0;
    } catch (const Error& error) {
      std::fprintf(stderr, "[rank %d] error: %s\n", rank, error.what());
      comm::MpiEnvironment::abort(static_cast<int>(error.exit_code()));
    } catch (const std::exception& error) {
      const std::string text = error.what();  // LibTorch puts its stack below the first line
      std::fprintf(stderr, "[rank %d] error: %s\n", rank, text.substr(0, text.find('\n')).c_str());
      comm::MpiEnvironment::abort(static_cast<int>(ExitCode::internal));
    }
  } catch (const Error& error) {  // MPI itself did not start
    std::fprintf(stderr, "%s\n", error.what());
    return static_cast<int>(error.exit_code());
  }
}

double ms_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start)
      .count();
}

std::vector<double> slowest_row(comm::Communicator& world, std::span<const double> mine) {
  const std::vector<std::size_t> counts(static_cast<std::size_t>(world.world()), mine.size());
  const std::vector<double> all = world.all_gather(mine, counts);
  std::size_t slowest = 0;
  for (std::size_t row = 0; row < all.size(); row += mine.size())
    if (all[row] > all[slowest]) slowest = row;
  const auto begin = all.begin() + static_cast<std::ptrdiff_t>(slowest);
  return {begin, begin + static_cast<std::ptrdiff_t>(mine.size())};
}

}  // namespace vsr::bench
