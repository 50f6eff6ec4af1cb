// SPDX-License-Identifier: Apache-2.0
// Each public header, included twice and alone by a source that CMake writes; compiling them is the
// test. They see no include folder but ours: no header of MPI, HDF5, FFmpeg or LibTorch.
int main() {
  return 0;
}
