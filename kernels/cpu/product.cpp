// SPDX-License-Identifier: MIT OR Apache-2.0
// What the recording side must know of the products.
#include "product.h"

// The most bytes that one repacked activation takes.
RONDO_API int64_t rondo_activation_bytes(void) { return rondo::kActivationBytes; }
