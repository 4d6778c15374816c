// SPDX-License-Identifier: MIT OR Apache-2.0
// The pack step of the products whose activations are repacked in the common way, once for all
// products that read them.
#include "product.h"

typedef rondo_linear_args rondo_pack_rows_args;

RONDO_OP(pack_rows) { rondo::pack_rows<rondo::Activations>(a, worker, workers); }

// The most bytes that one repacked activation takes.
RONDO_API int64_t rondo_activation_bytes(void) { return rondo::kActivationBytes; }
