// Threefry-2x32 (Salmon et al. 2011), 20 rounds, as a handler of XLA's foreign functions: tests/random_bits.py.
// (key, key, counter, counter) -> two words, all uint32 of one shape.

#include <stdint.h>

#include "xla/ffi/api/c_api.h"

static uint32_t rotated(uint32_t x, int by) { return (x << by) | (x >> (32 - by)); }

XLA_FFI_Error* threefry(XLA_FFI_CallFrame* call) {
  static const int rotations[2][4] = {{13, 15, 26, 6}, {17, 29, 16, 24}};
  for (XLA_FFI_Extension_Base* asked = call->extension_start; asked; asked = asked->next) {
    if (asked->type == XLA_FFI_Extension_Metadata) {  // at registration: only for which version this is written
      XLA_FFI_Metadata* said = ((XLA_FFI_Metadata_Extension*)asked)->metadata;
      said->api_version.major_version = XLA_FFI_API_MAJOR;
      said->api_version.minor_version = XLA_FFI_API_MINOR;
      return 0;
    }
  }
  XLA_FFI_Buffer **in = (XLA_FFI_Buffer**)call->args.args, **out = (XLA_FFI_Buffer**)call->rets.rets;
  const uint32_t *key0 = in[0]->data, *key1 = in[1]->data, *counter0 = in[2]->data, *counter1 = in[3]->data;
  uint32_t *first = out[0]->data, *second = out[1]->data;
  int64_t size = 1;
  for (int64_t axis = 0; axis < out[0]->rank; axis++) size *= out[0]->dims[axis];
  for (int64_t at = 0; at < size; at++) {
    const uint32_t keys[3] = {key0[at], key1[at], key0[at] ^ key1[at] ^ 0x1BD11BDAu};
    uint32_t x = counter0[at] + keys[0], y = counter1[at] + keys[1];
    for (int group = 0; group < 5; group++) {
      for (int round = 0; round < 4; round++) {
        x += y;
        y = rotated(y, rotations[group % 2][round]) ^ x;
      }
      x += keys[(group + 1) % 3];
      y += keys[(group + 2) % 3] + group + 1;
    }
    first[at] = x, second[at] = y;
  }
  return 0;
}
