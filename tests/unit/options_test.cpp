// SPDX-License-Identifier: Apache-2.0
// The command line: each default of the table, what is accepted, and each message word by word.
#include "launch/options.hpp"

#include <gtest/gtest.h>

#include <sstream>

#include "comm/error.hpp"

namespace vsr::launch {
namespace {

TrainOptions parse(std::vector<std::string> words) {
  return parse_train_options(words);
}

/// With a clip to train on, so that only the words under test matter.
TrainOptions parse_with_clip(std::vector<std::string> words) {
  words.insert(words.begin(), {"--train", "a.mp4"});
  return parse(words);
}

template <class Exception>
std::string message_of(const std::vector<std::string>& words, bool clip = true) {
  try {
    clip ? parse_with_clip(words) : parse(words);
  } catch (const Exception& e) {
    return e.what();
  }
  ADD_FAILURE() << "no error of the expected type";
  return {};
}

std::string usage(const std::vector<std::string>& words) {
  return message_of<UsageError>(words);
}
std::string configuration(const std::vector<std::string>& words) {
  return message_of<ConfigurationError>(words);
}

TEST(Options, Defaults) {
  const auto o = parse({"--train", "a.mp4"});
  EXPECT_EQ(o.train, std::vector<std::string>{"a.mp4"});
  EXPECT_TRUE(o.val.empty());
  EXPECT_EQ(o.model, "vespcn");
  EXPECT_EQ(o.scale, 4);
  EXPECT_EQ(o.num_frame, 3);
  EXPECT_EQ(o.gt_size, 128);
  EXPECT_EQ(o.batch, 2);
  EXPECT_EQ(o.leaves, 8);
  EXPECT_EQ(o.total_iter, 1000);
  EXPECT_EQ(o.lr, 2e-4);
  EXPECT_EQ(o.weight_decay, 0);
  EXPECT_EQ(o.optimizer, OptimizerKind::adam);
  EXPECT_FALSE(o.betas || o.momentum || o.nesterov);
  EXPECT_EQ(o.ema_decay, 0);
  EXPECT_EQ(o.loss, "charbonnier");
  EXPECT_EQ(o.precision, Precision::fp16);
  EXPECT_EQ(o.reduction, Reduction::exact);
  EXPECT_EQ(o.loss_scale, (LossScale{true, 65536}));
  EXPECT_EQ(o.backend, Backend::automatic);
  EXPECT_EQ(o.threads, 1);
  EXPECT_EQ(o.seed, 0U);
  EXPECT_EQ(o.out, "runs/vespcn");
  EXPECT_EQ(o.save_freq, 500);
  EXPECT_EQ(o.val_freq, 500);
  EXPECT_EQ(o.print_freq, 10);
  EXPECT_EQ(o.resume.mode, ResumeMode::never);
  EXPECT_EQ(o.scheduler, Scheduler::cosine);
  EXPECT_FALSE(o.eta_min || o.gamma || o.stepsize || o.pct_start || o.anneal_strategy);
  EXPECT_FALSE(o.div_factor || o.final_div_factor || o.loss_scaler || o.loss_scale_window);
  EXPECT_TRUE(o.milestones.empty() && o.periods.empty() && o.restart_weights.empty());
  EXPECT_EQ(o.warmup_iter, 0);
  EXPECT_EQ(o.clip_grad, 0);
  EXPECT_EQ(o.channels, 0);
  EXPECT_EQ(o.blocks, 0);
  EXPECT_EQ(o.cache_mib, 2048);
  EXPECT_EQ(o.keep, 3);
  EXPECT_TRUE(o.augment);
  EXPECT_FALSE(o.dry_run || o.version || o.help || o.force_overflow_at);
}

TEST(Options, TakesEveryOption) {
  const auto o = parse({"--train",
                        "a.mp4",
                        "clips",
                        "--train=b=c.mp4",
                        "--val",
                        "vid4=v1",
                        "v2",
                        "--val=x=./a=b",
                        "--model",
                        "vespcn",
                        "--scale",
                        "3",
                        "--num-frame",
                        "5",
                        "--gt-size",
                        "96",
                        "--batch",
                        "4",
                        "--leaves",
                        "6",
                        "--total-iter",
                        "40",
                        "--lr",
                        "1e-3",
                        "--optimizer",
                        "lamb",
                        "--ema-decay",
                        "0.999",
                        "--weight-decay",
                        "0.01",
                        "--betas",
                        "0.8",
                        "0.95",
                        "--loss",
                        "l1",
                        "--clip-grad",
                        "0.5",
                        "--scheduler",
                        "cosine",
                        "--eta-min",
                        "0",
                        "--warmup-iter",
                        "10",
                        "--seed",
                        "18446744073709551615",
                        "--precision",
                        "amp",
                        "--loss-scale",
                        "1024",
                        "--reduction",
                        "fast",
                        "--backend",
                        "mpi",
                        "--threads",
                        "2",
                        "--out",
                        "here",
                        "--save-freq",
                        "0",
                        "--val-freq",
                        "20",
                        "--print-freq",
                        "1",
                        "--keep",
                        "5",
                        "--resume",
                        "auto",
                        "--channels",
                        "32",
                        "--blocks",
                        "4",
                        "--cache-mib",
                        "0",
                        "--no-augment",
                        "--dry-run",
                        "--force-overflow-at",
                        "3:5"});
  EXPECT_EQ(o.train, (std::vector<std::string>{"a.mp4", "clips", "b=c.mp4"}));
  ASSERT_EQ(o.val.size(), 2U);
  EXPECT_EQ(o.val[0], (ValidationSet{"vid4", {"v1", "v2"}}));
  EXPECT_EQ(o.val[1], (ValidationSet{"x", {"./a=b"}}));
  EXPECT_EQ(o.scale, 3);
  EXPECT_EQ(o.num_frame, 5);
  EXPECT_EQ(o.gt_size, 96);
  EXPECT_EQ(o.batch, 4);
  EXPECT_EQ(o.leaves, 6);
  EXPECT_EQ(o.total_iter, 40);
  EXPECT_EQ(o.lr, 1e-3);
  EXPECT_EQ(o.weight_decay, 0.01);
  EXPECT_EQ(o.optimizer, OptimizerKind::lamb);
  EXPECT_EQ(o.ema_decay, 0.999);
  EXPECT_EQ(o.betas, (std::array<double, 2>{0.8, 0.95}));
  EXPECT_EQ(o.loss, "l1");
  EXPECT_EQ(o.clip_grad, 0.5);
  EXPECT_EQ(o.scheduler, Scheduler::cosine);
  EXPECT_EQ(o.eta_min, 0.0);
  EXPECT_EQ(o.warmup_iter, 10);
  EXPECT_EQ(o.seed, 18446744073709551615U);
  EXPECT_EQ(o.precision, Precision::amp);
  EXPECT_EQ(o.loss_scale, (LossScale{false, 1024}));
  EXPECT_EQ(o.reduction, Reduction::fast);
  EXPECT_EQ(o.backend, Backend::mpi);
  EXPECT_EQ(o.threads, 2);
  EXPECT_EQ(o.out, "here");
  EXPECT_EQ(o.save_freq, 0);
  EXPECT_EQ(o.val_freq, 20);
  EXPECT_EQ(o.print_freq, 1);
  EXPECT_EQ(o.keep, 5);
  EXPECT_EQ(o.resume.mode, ResumeMode::automatic);
  EXPECT_EQ(o.channels, 32);
  EXPECT_EQ(o.blocks, 4);
  EXPECT_EQ(o.cache_mib, 0);
  EXPECT_FALSE(o.augment);
  EXPECT_TRUE(o.dry_run);
  EXPECT_EQ(o.force_overflow_at, (ForcedOverflow{3, 5}));
}

TEST(Options, DefaultsThatDependOnOthers) {
  const auto o = parse_with_clip({"--model", "espcn"});
  EXPECT_EQ(o.num_frame, 1);
  EXPECT_EQ(o.out, "runs/espcn");
  EXPECT_EQ(parse_with_clip({"--resume", "must"}).resume.mode, ResumeMode::must);
  EXPECT_EQ(parse_with_clip({"--resume", "ckpt/step_00000020"}).resume,
            (Resume{ResumeMode::path, "ckpt/step_00000020"}));
  EXPECT_EQ(parse_with_clip({"--val", "x=a", "--val", "x=b"}).val,
            (std::vector<ValidationSet>{{"x", {"a", "b"}}}));
}

TEST(Options, ArgumentsOfMain) {
  const char* argv[] = {"vsr_dist_train", "--train", "a.mp4", "--seed", "7"};
  EXPECT_EQ(parse_train_options(5, argv).seed, 7U);
}

TEST(Options, HelpAndVersionAskForNothingElse) {
  EXPECT_TRUE(parse({"--help"}).help);
  EXPECT_TRUE(parse({"-h"}).help);
  EXPECT_TRUE(parse({"--version", "--batch", "none"}).version);
}

TEST(Options, UnknownNamesTheNearest) {
  EXPECT_EQ(usage({"--gt-sise", "64"}), "unknown option --gt-sise; did you mean --gt-size?");
  EXPECT_EQ(usage({"--gt-sise=64"}), "unknown option --gt-sise; did you mean --gt-size?");
  EXPECT_EQ(usage({"--banana"}), "unknown option --banana; --help lists all options");
  EXPECT_EQ(usage({"-lr", "1"}), "unknown option -lr; did you mean --lr?");
  EXPECT_EQ(usage({"--out", "--gt-sise", "64"}),
            "unknown option --gt-sise; did you mean --gt-size?");
  EXPECT_EQ(usage({"--out", "--batch", "1"}), "--out: got no value, expected FOLDER");
  EXPECT_EQ(parse_with_clip({"--out=--here"}).out, "--here");
}

TEST(Options, AbbreviationsAreNotGuessed) {
  EXPECT_EQ(usage({"--gt", "64"}), "unknown option --gt; did you mean --gt-size?");
  EXPECT_EQ(usage({"--precisio", "fp32"}), "unknown option --precisio; did you mean --precision?");
}

TEST(Options, FormOfTheLine) {
  EXPECT_EQ(message_of<UsageError>({"a.mp4"}, false),
            "got \"a.mp4\" without an option before it; clips go behind --train");
  EXPECT_EQ(usage({"--seed", "1", "--seed", "1"}), "--seed is given twice; keep one");
  EXPECT_EQ(usage({"--batch"}), "--batch: got no value, expected SAMPLES");
  EXPECT_EQ(usage({"--batch="}), "--batch: got no value, expected SAMPLES");
  EXPECT_EQ(usage({"--dry-run=3"}), "--dry-run: got a value, expected none");
  EXPECT_EQ(message_of<UsageError>({}, false),
            "--train: got nothing, expected at least one clip or folder; for example "
            "--train clip.mp4");
}

TEST(Options, ValuesOutOfRange) {
  EXPECT_EQ(usage({"--batch", "0"}), "--batch: got \"0\", expected a whole number from 1 to 65536");
  EXPECT_EQ(usage({"--batch", "two"}),
            "--batch: got \"two\", expected a whole number from 1 to 65536");
  EXPECT_EQ(usage({"--leaves", "0"}),
            "--leaves: got \"0\", expected a whole number from 1 to 8192");
  EXPECT_EQ(usage({"--total-iter", "1e3"}),
            "--total-iter: got \"1e3\", expected a whole number of at least 1");
  EXPECT_EQ(usage({"--seed", "-1"}), "--seed: got \"-1\", expected a whole number of at least 0");
  EXPECT_EQ(usage({"--lr", "0"}), "--lr: got \"0\", expected a number above 0");
  EXPECT_EQ(usage({"--lr", "nan"}), "--lr: got \"nan\", expected a number above 0");
  EXPECT_EQ(usage({"--lr", "1e-3x"}), "--lr: got \"1e-3x\", expected a number above 0");
  EXPECT_EQ(usage({"--clip-grad", "-1"}),
            "--clip-grad: got \"-1\", expected a number of at least 0");
  EXPECT_EQ(usage({"--num-frame", "4"}),
            "--num-frame: got \"4\", expected an odd whole number from 1 to 31");
  EXPECT_EQ(usage({"--scale", "5"}), "--scale: got \"5\", expected 2, 3 or 4");
  EXPECT_EQ(usage({"--betas", "0.9"}),
            "--betas: got \"0.9\", expected two numbers from 0 to below 1, for example 0.9 0.99");
  EXPECT_EQ(usage({"--betas", "0.9", "1"}),
            "--betas: got \"0.9 1\", expected two numbers from 0 to below 1, for example 0.9 0.99");
  for (const std::string value : {"1", "-0.1", "nan", "0.99x"}) {
    EXPECT_EQ(usage({"--ema-decay", value}),
              "--ema-decay: got \"" + value + "\", expected 0, or a number between 0 and 1");
    EXPECT_EQ(usage({"--momentum", value}),
              "--momentum: got \"" + value + "\", expected a number from 0 to below 1");
  }
  EXPECT_EQ(usage({"--loss-scale", "0"}),
            "--loss-scale: got \"0\", expected dynamic or a number above 0");
  for (const std::string value : {"1e+39", "1e+30", "16777217", "1e-60"})
    EXPECT_EQ(
        usage({"--loss-scale", value}),
        "--loss-scale " + value +
            ": got a scale no FP16 gradient survives, expected dynamic or a number from 2^-24 "
            "to 2^24");
  EXPECT_EQ(usage({"--force-overflow-at", "3"}),
            "--force-overflow-at: got \"3\", expected ITER:LEAF");
}

TEST(Options, ChoicesNameTheNearest) {
  EXPECT_EQ(usage({"--precision", "fp61"}),
            "--precision: got \"fp61\", expected fp32, fp16, bf16 or amp; did you mean fp16?");
  EXPECT_EQ(usage({"--reduction", "sum"}),
            "--reduction: got \"sum\", expected exact, allreduce or fast");
  EXPECT_EQ(usage({"--model", "vespnc"}),
            "--model: got \"vespnc\", expected espcn or vespcn; did you mean vespcn?");
  EXPECT_EQ(usage({"--scheduler", "cosin"}),
            "--scheduler: got \"cosin\", expected constant, cosine, multistep, cosine_restart, "
            "triangular or one_cycle; did you mean cosine?");
  EXPECT_EQ(usage({"--scheduler", "onecycle"}),
            "--scheduler: got \"onecycle\", expected constant, cosine, multistep, cosine_restart, "
            "triangular or one_cycle; did you mean one_cycle?");
  EXPECT_EQ(usage({"--loss-scaler", "pytorch"}),
            "--loss-scaler: got \"pytorch\", expected vsr, torch, apex, dali, megatron or "
            "deepspeed; did you mean torch?");
  EXPECT_EQ(usage({"--anneal-strategy", "sin"}),
            "--anneal-strategy: got \"sin\", expected cos or linear");
  EXPECT_EQ(usage({"--optimizer", "adamax"}),
            "--optimizer: got \"adamax\", expected adam, adamw, sgd or lamb; did you mean adam?");
  EXPECT_EQ(usage({"--optimizer", "rprop"}),
            "--optimizer: got \"rprop\", expected adam, adamw, sgd or lamb");
  EXPECT_EQ(usage({"--ema_decay", "0.9"}), "unknown option --ema_decay; did you mean --ema-decay?");
  EXPECT_EQ(usage({"--backend", "gloo"}), "--backend: got \"gloo\", expected auto, mpi or nccl");
  EXPECT_EQ(usage({"--loss", "L1"}),
            "--loss: got \"L1\", expected charbonnier, l1 or mse; did you mean l1?");
}

TEST(Options, ValidationSets) {
  EXPECT_EQ(usage({"--val", "clip.mp4"}),
            "--val: got \"clip.mp4\", expected NAME=PATH with a NAME of letters, digits, '_' and "
            "'-'");
  EXPECT_EQ(usage({"--val", "=clip.mp4"}),
            "--val: got \"=clip.mp4\", expected NAME=PATH with a NAME of letters, digits, '_' and "
            "'-'");
  EXPECT_EQ(usage({"--val", "x=a", "y=b"}),
            "--val: got \"y=b\", expected another path of x; a further set needs its own --val, "
            "and a path with '=' a leading ./");
  EXPECT_EQ(configuration({"--val", "x=a.mp4"}),
            "--val x=a.mp4: the clip is in --train too, expected clips that are not trained on; "
            "leave --val out to hold back the last 20 % of each clip");
}

TEST(Options, Contradictions) {
  EXPECT_EQ(configuration({"--gt-size", "130"}),
            "--gt-size 130 with --scale 4: expected a multiple of 4; use 128 or 132");
  EXPECT_EQ(configuration({"--model", "espcn", "--num-frame", "3"}),
            "--model espcn with --num-frame 3: expected 1, the network sees one frame; leave "
            "--num-frame out or use --model vespcn");
  EXPECT_EQ(configuration({"--model", "espcn", "--blocks", "1"}),
            "--model espcn with --blocks 1: expected none, the network has no residual blocks, "
            "only --channels; leave --blocks out or use --model vespcn");
  for (const char* model : {"espcn", "vespcn"})
    EXPECT_EQ(configuration({"--model", model, "--channels", "1"}),
              std::string("--model ") + model +
                  " with --channels 1: expected from 2 to 4096, or 0 for its own default");
  EXPECT_EQ(configuration({"--total-iter", "10", "--warmup-iter", "10"}),
            "--warmup-iter 10 with --total-iter 10: expected less than the whole run");
  EXPECT_EQ(configuration({"--lr", "1e-8"}),
            "--eta-min 1e-7 with --lr 1e-8: expected at most the learning rate; lower --eta-min");
  EXPECT_EQ(configuration({"--precision", "bf16", "--loss-scale", "1024"}),
            "--loss-scale 1024 with --precision bf16: expected none, gradients of this precision "
            "are not scaled; leave --loss-scale out");
  EXPECT_EQ(configuration({"--force-overflow-at", "3:8"}),
            "--force-overflow-at 3:8: expected an iteration up to 1000 and a leaf below 8");
  EXPECT_EQ(parse_with_clip({"--lr", "1e-8", "--scheduler", "constant"}).lr, 1e-8);
}

TEST(Options, HelpShowsGroupsDefaultsAndUnits) {
  const auto text = train_help_text(100);
  for (const char* part : {"Data:",
                           "Network:",
                           "Training:",
                           "Precision and communication:",
                           "Checkpoints and output:",
                           "Other:",
                           "--train PATH...",
                           "--val NAME=PATH... (=last 20 % of each training clip)",
                           "--num-frame N (=3, or 1 for espcn)",
                           "--gt-size PIXELS (=128)",
                           "--lr NUMBER (=2e-4)",
                           "--optimizer adam|adamw|sgd|lamb (=adam)",
                           "--betas B1 B2 (=0.9 0.99)",
                           "--momentum NUMBER (=0.9)",
                           "--nesterov",
                           "--ema-decay NUMBER (=0)",
                           "--eta-min NUMBER (=1e-7)",
                           "--out FOLDER (=runs/MODEL)",
                           "--precision fp32|fp16|bf16|amp (=fp16)",
                           "--loss-scale dynamic|NUMBER (=dynamic)",
                           "--scheduler CURVE (=cosine)",
                           "--gamma NUMBER (=0.1)",
                           "--restart-weights NUMBERS... (=1 for each)",
                           "--stepsize STEPS",
                           "--div-factor NUMBER (=25)",
                           "--loss-scaler RULES (=vsr)",
                           "--loss-scale-window STEPS (=that of --loss-scaler)",
                           "--resume never|auto|must|PATH (=never)",
                           "--cache-mib MIB (=2048)",
                           "MiB per rank",
                           "side of the high-resolution crops",
                           "--dry-run"})
    EXPECT_NE(text.find(part), std::string::npos) << part;
  EXPECT_EQ(text.find("force-overflow"), std::string::npos);
}

TEST(Options, HelpKeepsToTheWidth) {
  for (const int width : {60, 80, 120}) {
    std::istringstream lines(train_help_text(width));
    for (std::string line; std::getline(lines, line);)
      EXPECT_LE(line.size(), static_cast<std::size_t>(width)) << line;
  }
}

TEST(NearestName, EditDistance) {
  const std::vector<std::string> names{"lr", "leaves", "batch", "gt-size", "save-freq", "val-freq"};
  EXPECT_EQ(nearest_name("leafs", names), "leaves");
  EXPECT_EQ(nearest_name("btach", names), "batch");
  EXPECT_EQ(nearest_name("save-frq", names), "save-freq");
  EXPECT_EQ(nearest_name("val", names), "val-freq");
  EXPECT_EQ(nearest_name("learning", names), "");
  EXPECT_EQ(nearest_name("", names), "");
  EXPECT_EQ(nearest_name("x", {}), "");
}

}  // namespace
}  // namespace vsr::launch
