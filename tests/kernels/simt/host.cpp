// SPDX-License-Identifier: MIT OR Apache-2.0
// One kernel source and the door by which Python launches its entries. The command line gives KERNEL_FILE and
// KERNEL_ENTRY, an entry of that file: all entries that are launched through the door take its arguments.
#include KERNEL_FILE

namespace rondo {
alignas(16) float partials[48 * 1024 / 4];  // as much as a launch gets without asking for more
}

extern "C" const char* simt_launch(void* entry, const simt::Launch* how) {
  return simt::launch(reinterpret_cast<decltype(&KERNEL_ENTRY)>(entry), *how, rondo::partials,
                      sizeof rondo::partials / sizeof(float));
}
