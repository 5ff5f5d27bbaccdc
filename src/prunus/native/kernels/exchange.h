// Tensors of torch, read and made without headers of torch: the DLPack exchange table (version 1, whose binary interface
// the standard fixes) is a capsule on the tensor type. It spares the call of a layer half of its Python.
#pragma once

#include <cstdint>

namespace prunus {
namespace exchange {

struct Version {
    uint32_t major, minor;
};

struct Device {
    int32_t type, id;
};

struct DataType {
    uint8_t code, bits;
    uint16_t lanes;
};

struct Tensor {
    void *data;
    Device device;
    int32_t ndim;
    DataType dtype;
    int64_t *shape, *strides;  // strides in elements; null: contiguous
    uint64_t byte_offset;

    float *floats() const { return reinterpret_cast<float *>(static_cast<char *>(data) + byte_offset); }
    // Contiguous float32 in the processor's memory.
    bool plain() const {
        if (device.type != 1 || dtype.code != 2 || dtype.bits != 32 || dtype.lanes != 1) return false;
        int64_t count = 1;
        for (int32_t i = ndim - 1; i >= 0; count *= shape[i], --i)
            if (strides && shape[i] != 1 && strides[i] != count) return false;
        return data || count == 0;
    }
};

struct Managed {
    Version version;
    void *context;
    void (*free)(Managed *);
    uint64_t flags;
    Tensor tensor;
};

struct Table {
    Version version;
    Table *older;
    int (*allocate)(Tensor *like, Managed **out, void *context, void (*failed)(void *, const char *, const char *));
    void (*own)();                               // not used here
    int (*to_object)(Managed *, void **object);  // takes the tensor over
    int (*view)(void *object, Tensor *out);      // not owning; may be null
};

}  // namespace exchange
}  // namespace prunus
