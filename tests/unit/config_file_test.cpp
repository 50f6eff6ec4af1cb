// SPDX-License-Identifier: Apache-2.0
// Config files: what is written is read back, flags win, and each fault is told with its line.
#include <gtest/gtest.h>

#include "comm/error.hpp"
#include "launch/options.hpp"
#include "tests/support/temporary_folder.hpp"

namespace vsr::launch {
namespace {

TrainOptions parse(const std::vector<std::string>& words) {
  return parse_train_options(words);
}

class ConfigFile : public ::testing::Test {
 protected:
  /// The message without the folder of the test, so that it can be compared whole.
  std::string error_of(const std::string& text) {
    const auto path = folder_.write("run.ini", text);
    try {
      parse({"--config", path});
    } catch (const ConfigurationError& e) {
      const std::string message = e.what();
      EXPECT_EQ(message.find(path), 0U) << message;
      return message.substr(path.size());
    }
    ADD_FAILURE() << "no ConfigurationError";
    return {};
  }

  TrainOptions round_trip(TrainOptions options) {
    const auto path = folder_.write("config.ini", write_config(options));
    auto read = parse({"--config", path});
    EXPECT_EQ(read.config, path);
    read.config = options.config;
    return read;
  }

  test::TemporaryFolder folder_;
};

TEST_F(ConfigFile, RoundTripOfDefaults) {
  const auto options = parse({"--train", "a.mp4"});
  EXPECT_EQ(round_trip(options), options);
}

TEST_F(ConfigFile, RoundTripOfEverything) {
  auto options = parse({"--train",
                        "a b.mp4",
                        "c#1;2.mp4",
                        " lead",
                        "q\"uote\\",
                        "two\nlines",
                        "--val",
                        "v=x = y.mp4",
                        "z ;no",
                        "--val",
                        "w=1",
                        "--model",
                        "espcn",
                        "--scale",
                        "2",
                        "--gt-size",
                        "64",
                        "--lr",
                        "0.00012345678901234567",
                        "--weight-decay",
                        "1e-300",
                        "--betas",
                        "0.1",
                        "0.999999",
                        "--clip-grad",
                        "0.3333333333333333",
                        "--scheduler",
                        "cosine",
                        "--eta-min",
                        "0",
                        "--warmup-iter",
                        "7",
                        "--seed",
                        "18446744073709551615",
                        "--precision",
                        "fp16",
                        "--loss-scale",
                        "1024.5",
                        "--reduction",
                        "allreduce",
                        "--backend",
                        "nccl",
                        "--overlap",
                        "on",
                        "--bucket-mib",
                        "2",
                        "--resume",
                        "#odd",
                        "--no-augment",
                        "--force-overflow-at",
                        "20:1",
                        "--out",
                        "out;1"});
  EXPECT_EQ(options.train[4], "two\nlines");
  EXPECT_EQ(round_trip(options), options);
}

TEST_F(ConfigFile, RoundTripOfEachCurveOptimizerAndOfScalerRules) {
  const std::vector<std::vector<std::string>> kinds = {
      {"--scheduler", "multistep", "--milestones", "10", "20", "--gamma", "0.3"},
      {"--scheduler", "cosine_restart", "--periods", "400", "600", "--restart-weights", "1", "0.7"},
      {"--scheduler", "triangular", "--stepsize", "50", "--eta-min", "1e-6"},
      {"--scheduler", "one_cycle", "--pct-start", "0.4", "--anneal-strategy", "linear",
       "--div-factor", "10", "--final-div-factor", "1e5"},
      {"--optimizer", "adamw", "--betas", "0.9", "0.95", "--weight-decay", "0.05"},
      {"--optimizer", "sgd", "--momentum", "0", "--ema-decay", "0.9999"},
      {"--optimizer", "sgd", "--nesterov"},
      {"--optimizer", "lamb", "--weight-decay", "0.01", "--ema-decay", "0.999"},
      {"--loss-scaler", "megatron", "--loss-scale-window", "500"}};
  for (auto words : kinds) {
    words.insert(words.begin(), {"--train", "a.mp4"});
    const auto options = parse(words);
    EXPECT_EQ(round_trip(options), options) << write_config(options);
  }
  const auto text = write_config(parse({"--train", "a.mp4", "--scheduler", "cosine_restart",
                                        "--periods", "400 600", "--restart-weights", "1", "0.5"}));
  for (const char* line :
       {"\nscheduler = cosine_restart\n", "\nperiods = 400 600\n", "\nrestart-weights = 1 0.5\n"})
    EXPECT_NE(text.find(line), std::string::npos) << line;
  for (const char* key : {"\neta-min", "\nmilestones", "\ngamma", "\nloss-scaler", "\nbetas",
                          "\nmomentum", "\nnesterov"})
    EXPECT_EQ(text.find(key), std::string::npos) << key;
  const auto sgd = write_config(
      parse({"--train", "a.mp4", "--optimizer", "sgd", "--momentum", "0.5", "--nesterov"}));
  for (const char* line :
       {"\noptimizer = sgd\n", "\nmomentum = 0.5\n", "\nnesterov = true\n", "\nema-decay = 0\n"})
    EXPECT_NE(sgd.find(line), std::string::npos) << line << sgd;
}

TEST_F(ConfigFile, LinesOfTheWrittenFile) {
  const auto text = write_config(parse({"--train", "a.mp4", "b c.mp4", "--val", "x=d", "e"}));
  for (const char* line : {"\ntrain = a.mp4\ntrain = b c.mp4\n", "\nval = x=d\nval = x=e\n",
                           "\nlr = 2e-4\n", "\noptimizer = adam\n", "\nnum-frame = 3\n",
                           "\nresume = never\n", "\nloss-scale = dynamic\n"})
    EXPECT_NE(text.find(line), std::string::npos) << line;
  for (const char* key :
       {"\nconfig", "\ndry-run", "\nhelp", "\nversion", "\nno-augment", "\nforce-overflow"})
    EXPECT_EQ(text.find(key), std::string::npos) << key;
}

TEST_F(ConfigFile, FlagsOverrideIt) {
  const auto path = folder_.write("run.ini",
                                  "# a comment\n\ntrain = file.mp4\n  batch=4  # four\n"
                                  "seed = 3 ; three\nno-augment = true\nout = \"a # b\"  # out\n");
  const auto plain = parse({"--config", path});
  EXPECT_EQ(plain.train, std::vector<std::string>{"file.mp4"});
  EXPECT_EQ(plain.batch, 4);
  EXPECT_EQ(plain.seed, 3U);
  EXPECT_FALSE(plain.augment);
  EXPECT_EQ(plain.out, "a # b");
  const auto flags = parse({"--batch", "1", "--config", path, "--train", "flag.mp4"});
  EXPECT_EQ(flags.train, std::vector<std::string>{"flag.mp4"});
  EXPECT_EQ(flags.batch, 1);
  EXPECT_EQ(flags.seed, 3U);
}

TEST_F(ConfigFile, Faults) {
  EXPECT_EQ(error_of("train = a\nbach = 4\n"), ":2: unknown key bach; did you mean batch?");
  EXPECT_EQ(error_of("banana = 4\n"), ":1: unknown key banana; --help lists all options");
  EXPECT_EQ(error_of("batch = four\n"),
            ":1: batch: got \"four\", expected a whole number from 1 to 65536");
  EXPECT_EQ(error_of("batch =\n"), ":1: batch: got \"\", expected a whole number from 1 to 65536");
  EXPECT_EQ(error_of("seed = 1\n\nseed = 2\n"),
            ":3: seed is given twice, first in line 1; keep one");
  EXPECT_EQ(error_of("[train]\n"), ":1: got [train]; sections are not used here, remove the line");
  EXPECT_EQ(error_of("batch\n"), ":1: got \"batch\", expected key = value");
  EXPECT_EQ(error_of("=3\n"), ":1: got \"=3\", expected key = value");
  EXPECT_EQ(error_of("\xEF\xBB\xBF"
                     "bach = 4\n"),
            ":1: unknown key bach; did you mean batch?");
  EXPECT_EQ(error_of("out = \"x\n"), ":1: got \"x, expected a closing quote");
  EXPECT_EQ(error_of("out = \"x\" y\n"), ":1: got y after the closing quote, expected nothing");
  EXPECT_EQ(error_of("help = true\n"), ":1: help belongs on the command line; remove the line");
  EXPECT_EQ(error_of("optimizer = adamv\n"),
            ":1: optimizer: got \"adamv\", expected adam, adamw, sgd or lamb; did you mean adam?");
  EXPECT_EQ(error_of("nesterov = 1\n"), ":1: nesterov: got \"1\", expected true or false");
  EXPECT_EQ(error_of("no-augment = yes\n"), ":1: no-augment: got \"yes\", expected true or false");
}

TEST_F(ConfigFile, ValuesAreCheckedThoughAFlagOverridesThem) {
  const auto path = folder_.write("run.ini", "batch = zero\n");
  EXPECT_THROW(parse({"--train", "a", "--batch", "1", "--config", path}), ConfigurationError);
}

TEST_F(ConfigFile, UnreadableFiles) {
  const auto missing = (folder_ / "none.ini").string();
  try {
    parse({"--config", missing});
    FAIL();
  } catch (const ConfigurationError& e) {
    EXPECT_EQ(std::string(e.what()), "--config: cannot read " + missing +
                                         ": No such file or directory; give an existing file");
  }
  EXPECT_THROW(parse({"--config", (folder_ / "").string()}), ConfigurationError);
}

}  // namespace
}  // namespace vsr::launch
